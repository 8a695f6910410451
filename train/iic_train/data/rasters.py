"""Anyone's own rasters: windows to train on, scaling constants, and chips to evaluate on if there are labels."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from iic_geotools.errors import DataError, SceneError, UsageError
from iic_geotools.grid import Rect
from iic_geotools.rescale import spread_windows
from iic_geotools.scene import SceneInfo, SceneSource, describe
from iic_train.config import DataConfig
from iic_train.data.base import UNLABELLED, Dataset
from iic_train.data.scenes import SceneReader, Scenes, scenes_of
from iic_train.loading import Batch, random_square

LEAST_VALID = 0.5
TRIES = 50
CHIP = 512
SAMPLED = 20_000
"""Pixels taken from each window when constants are found."""


@dataclass(frozen=True)
class Constants:
    """What brings each band's raw values to about 0..1, and how much of each scene holds data."""

    offset: tuple[float, ...]
    scale: tuple[float, ...]
    valid_shares: tuple[float, ...]


def find_constants(scenes: Scenes, percentiles: tuple[float, float] = (0.5, 99.5)) -> Constants:
    """Scaling constants of the valid pixels of all scenes: low and high percentile become 0 and 1.

    Scenes that are rescaled as they are read have their range already.

    Raises:
        DataError: No scene has a pixel with data.
    """
    rng = np.random.default_rng(0)
    reader = SceneReader(scenes)
    samples, shares = [], []
    for index, (height, width) in enumerate(scenes.shapes):
        valid_pixels = all_pixels = 0
        for rect in spread_windows(width, height):
            pixels = reader.read(index, rect)
            values = pixels.values.reshape(len(scenes.channels), -1)
            if pixels.valid is not None:
                values = values[:, pixels.valid.ravel()]
            valid_pixels += values.shape[1]
            all_pixels += rect.area
            take = min(SAMPLED, values.shape[1])
            samples.append(values[:, rng.integers(0, values.shape[1], take)] if take else values)
        shares.append(valid_pixels / max(1, all_pixels))
    reader.close()
    pool = np.concatenate(samples, axis=1)
    if pool.shape[1] == 0:
        raise DataError("None of the scenes holds a pixel with data: is --nodata right?")
    rescale = scenes.sources[0].rescale
    if rescale is not None:
        low, high = np.array(rescale.targets).T
    else:
        low, high = np.percentile(pool.astype(np.float64), percentiles, axis=1)
        high = np.where(high > low, high, low + 1.0)
    return Constants(tuple(low.tolist()), tuple((1.0 / (high - low)).tolist()), tuple(shares))


class Windows:
    """Random windows of scenes, as many in a pass as cover the pixels with data once."""

    def __init__(self, scenes: Scenes, size: int, valid_shares: Sequence[float]) -> None:
        self.scenes = scenes
        self.size = size
        self.channels = scenes.channels
        self.reader = SceneReader(scenes)
        areas = np.array([height * width for height, width in scenes.shapes], float) * np.array(valid_shares)
        if not areas.any():
            raise DataError("None of the scenes holds a pixel with data: is --nodata right?")
        self._count = max(1, round(float(areas.sum()) / size**2))
        # A file counts by its pixels with data, and all resolutions it is read at count alike.
        views = np.bincount(scenes.files)[list(scenes.files)]
        chances = areas * np.square(scenes.times) / views
        self._chances = chances / chances.sum()

    def __len__(self) -> int:
        return self._count

    def read(self, indices: NDArray[np.int64], rng: np.random.Generator) -> Batch:
        """Read as many windows as there are indices, anywhere there is data."""
        found = [self._window(rng) for _ in indices]
        pixels = torch.from_numpy(np.stack([values for values, _ in found]))
        if all(valid.all() for _, valid in found):
            return Batch(pixels, None)
        return Batch(pixels, torch.from_numpy(np.stack([valid for _, valid in found])))

    def _window(self, rng: np.random.Generator) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """A window half of which at least holds data, or the fullest of many."""
        best: tuple[NDArray[Any], NDArray[np.bool_]] | None = None
        for _ in range(TRIES):
            values, valid = self._draw(rng)
            if best is None or valid.sum() > best[1].sum():
                best = values, valid
            if valid.mean() >= LEAST_VALID:
                break
        if best is None or not best[1].any():
            raise DataError(f"In {TRIES} tries no window with data was found: is --nodata right?")
        return best

    def _draw(self, rng: np.random.Generator) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        index = int(rng.choice(len(self._chances), p=self._chances))
        height, width = self.scenes.shapes[index]
        row, column = (int(rng.integers(max(0, side - self.size) + 1)) for side in (height, width))
        rect = Rect(column, row, min(self.size, width), min(self.size, height))
        pixels = self.reader.read(index, rect)
        return random_square(pixels.values, pixels.valid, self.size, rng)


class Chips:
    """Scenes cut into chips without overlap, with their labels if there are label rasters."""

    def __init__(self, scenes: Scenes, labels: "Labels | None" = None, side: int = CHIP) -> None:
        self.scenes = scenes
        self.channels = scenes.channels
        self.labels = labels
        self.reader = SceneReader(scenes)
        self._chips = [
            (index, Rect(col, row, min(side, width - col), min(side, height - row)))
            for index, (height, width) in enumerate(scenes.shapes)
            for row in range(0, height, side)
            for col in range(0, width, side)
        ]

    def __len__(self) -> int:
        return len(self._chips)

    def image(self, index: int) -> NDArray[Any]:
        """Return chip `index` as [C, H, W]."""
        return self.reader.read(*self._chips[index]).values

    def valid(self, index: int) -> NDArray[np.bool_] | None:
        """Return the pixels of chip `index` that hold data; None means all."""
        return self.reader.read(*self._chips[index]).valid

    def label(self, index: int) -> NDArray[np.uint8] | None:
        """Return the class ids of chip `index`, 255 where there are none, or None without label rasters."""
        if self.labels is None:
            return None
        label = self.labels.read(*self._chips[index])
        valid = self.valid(index)
        return label if valid is None else np.where(valid, label, np.uint8(UNLABELLED))


class Labels:
    """Label rasters on the scenes' grids; values are gathered into classes."""

    def __init__(self, paths: Sequence[str], scenes: Scenes, groups: dict[str, tuple[int, ...]]) -> None:
        files = scenes.files[-1] + 1
        if len(paths) != files:
            raise UsageError(f"There are {files} scenes but {len(paths)} label rasters: give one for each.")
        infos = [describe(path) for path in paths]
        for view, file in enumerate(scenes.files):
            grid, times = infos[file].grid, scenes.times[view]
            if (grid.height // times, grid.width // times) != scenes.shapes[view]:
                raise SceneError(
                    f"The labels {infos[file].path} do not have the pixels of {scenes.sources[view].path}: "
                    "put them on its grid."
                )
        sources = tuple(
            SceneSource(info.path, (1,), "int32", None, masked=False, fill=(0.0,)) for info in infos
        )
        self.scenes = scenes
        whole = range(files)
        self._reader = SceneReader(Scenes(sources, (), (1,) * files, tuple(whole), ("label",), "int32", None))
        groups = groups or self._all_values(infos)
        self.classes = tuple(groups)
        self._table = {value: number for number, values in enumerate(groups.values()) for value in values}

    def read(self, index: int, rect: Rect) -> NDArray[np.uint8]:
        """Class ids of a rectangle of view `index`; a reduced pixel has the label of its centre."""
        times = self.scenes.times[index]
        fine = Rect(rect.col * times, rect.row * times, rect.width * times, rect.height * times)
        middle = slice(times // 2, None, times)
        raw = self._reader.read(self.scenes.files[index], fine).values[0, middle, middle]
        found = np.full(raw.shape, UNLABELLED, np.uint8)
        for value, number in self._table.items():
            found[raw == value] = number
        return found

    def _all_values(self, infos: Sequence[SceneInfo]) -> dict[str, tuple[int, ...]]:
        """Each value that occurs in a sample of the labels, but for nodata, as a class of its own."""
        values: set[int] = set()
        for index, info in enumerate(infos):
            for rect in spread_windows(info.grid.width, info.grid.height):
                values.update(np.unique(self._reader.read(index, rect).values).tolist())
            values.discard(-1 if info.nodata is None else int(info.nodata))
        if len(values) > UNLABELLED:
            raise DataError(
                f"The labels hold {len(values)} values: group them into classes with --label-class."
            )
        return {f"class {value}": (value,) for value in sorted(values)}


def parse_groups(texts: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Read `NAME=VALUE,VALUE...`, one a class; values in none of them are not labelled."""
    groups = {}
    for text in texts:
        name, _, values = text.partition("=")
        try:
            groups[name.strip()] = tuple(int(value) for value in values.split(","))
        except ValueError:
            raise UsageError(f'--label-class takes NAME=VALUE,VALUE..., not "{text}".') from None
    return groups


def raster_dataset(data: DataConfig, channels: Sequence[str], fill: Sequence[float] = ()) -> Dataset:
    """The scenes of a run in chips, labelled if it has label rasters."""
    scenes = scenes_of(data, channels, fill)
    labels = Labels(data.labels, scenes, parse_groups(data.label_classes)) if data.labels else None
    chips = Chips(scenes, labels)
    classes = labels.classes if labels else ()
    return Dataset("rasters", True, chips, chips, map=chips, test=chips, classes=classes)
