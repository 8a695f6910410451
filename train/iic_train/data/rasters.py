"""Rasters as training data: random windows to train on, and chips to evaluate on and to show."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from iic_geotools.errors import DataError, SceneError, UsageError
from iic_geotools.scene.info import SceneInfo, describe
from iic_geotools.scene.radiometry import spread_windows
from iic_geotools.scene.scene import SceneSource
from iic_geotools.tiling import Rect
from iic_train.config import DataConfig
from iic_train.data.base import UNLABELLED, Dataset
from iic_train.data.loader import Batch, random_square
from iic_train.data.scene_reader import SceneReader, Scenes

LEAST_VALID = 0.5
"""Share of a window that must hold data."""
TRIES = 50
"""Number of windows that are drawn in search of one that holds enough data."""
CHIP = 512
"""Side of a chip in pixels."""


class Windows:
    """Random windows of scenes; one pass has as many of them as cover the pixels with data once.

    Args:
        others: Another date of each level. Either date comes first in half of the windows.
    """

    def __init__(
        self, scenes: Scenes, size: int, valid_shares: Sequence[float], others: Scenes | None = None
    ) -> None:
        self.scenes = scenes
        self.size = size
        self.channels = scenes.channels
        self.readers = [SceneReader(date) for date in (scenes, others) if date is not None]
        areas = np.array([height * width for height, width in scenes.shapes], float) * np.array(valid_shares)
        if not areas.any():
            raise DataError("None of the scenes holds a pixel with data: check `nodata`.")
        self._count = max(1, round(float(areas.sum()) / size**2))
        # A file is drawn in proportion to its pixels with data, and then any of its levels with equal probability.
        levels = np.bincount(scenes.files)[list(scenes.files)]
        chances = areas * np.square(scenes.times) / levels
        self._chances = chances / chances.sum()

    def __len__(self) -> int:
        return self._count

    def read(self, indices: NDArray[np.int64], rng: np.random.Generator) -> Batch:
        """Read as many windows as there are indices, anywhere there is data."""
        windows = [self._window(rng) for _ in indices]
        dates = torch.from_numpy(np.stack([values for values, _ in windows])).chunk(len(self.readers), 1)
        whole = all(valid.all() for _, valid in windows)
        valid = None if whole else torch.from_numpy(np.stack([valid for _, valid in windows]))
        return Batch(dates[0], valid, *dates[1:])

    def _window(self, rng: np.random.Generator) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """Read a window of which at least half holds data, or the fullest of many."""
        best: tuple[NDArray[Any], NDArray[np.bool_]] | None = None
        for _ in range(TRIES):
            values, valid = self._draw(rng)
            if best is None or valid.sum() > best[1].sum():
                best = values, valid
            if valid.mean() >= LEAST_VALID:
                break
        if best is None or not best[1].any():
            raise DataError(f"None of {TRIES} random windows holds data: check `nodata`.")
        return best

    def _draw(self, rng: np.random.Generator) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        level = int(rng.choice(len(self._chances), p=self._chances))
        height, width = self.scenes.shapes[level]
        row, column = (int(rng.integers(max(0, side - self.size) + 1)) for side in (height, width))
        rect = Rect(column, row, min(self.size, width), min(self.size, height))
        turned = len(self.readers) > 1 and rng.random() < 0.5
        dates = [reader.read(level, rect) for reader in self.readers[:: -1 if turned else 1]]
        masks = [date.valid for date in dates if date.valid is not None]
        valid = np.logical_and.reduce(masks) if masks else None
        return random_square(np.concatenate([date.values for date in dates]), valid, self.size, rng)


class Chips:
    """Scenes cut into chips without overlap, with their labels if there are label rasters."""

    def __init__(self, scenes: Scenes, labels: "LabelRasters | None" = None, side: int = CHIP) -> None:
        self.scenes = scenes
        self.channels = scenes.channels
        self.labels = labels
        self.reader = SceneReader(scenes)
        self._chips = [
            (level, Rect(col, row, min(side, width - col), min(side, height - row)))
            for level, (height, width) in enumerate(scenes.shapes)
            for row in range(0, height, side)
            for col in range(0, width, side)
        ]

    def __len__(self) -> int:
        return len(self._chips)

    def image(self, index: int) -> NDArray[Any]:
        """Return chip `index` as [C, H, W]."""
        return self.reader.read(*self._chips[index]).values

    def valid(self, index: int) -> NDArray[np.bool_] | None:
        """Return the pixels of chip `index` that hold data, or None if all do."""
        return self.reader.read(*self._chips[index]).valid

    def label(self, index: int) -> NDArray[np.uint8] | None:
        """Return the class ids of chip `index`, 255 where there are none, or None without label rasters."""
        if self.labels is None:
            return None
        label = self.labels.read(*self._chips[index])
        valid = self.valid(index)
        return label if valid is None else np.where(valid, label, np.uint8(UNLABELLED))


class LabelRasters:
    """Label rasters on the grids of the scenes, whose values are grouped into classes."""

    def __init__(self, paths: Sequence[str], scenes: Scenes, groups: dict[str, tuple[int, ...]]) -> None:
        count = scenes.files[-1] + 1
        if len(paths) != count:
            raise UsageError(
                f"There are {count} scenes but {len(paths)} `labels`: give one label raster per scene."
            )
        infos = [describe(path) for path in paths]
        for level, file in enumerate(scenes.files):
            grid, times = infos[file].grid, scenes.times[level]
            if (grid.height // times, grid.width // times) != scenes.shapes[level]:
                raise SceneError(
                    f"The labels {infos[file].path} do not have the pixels of {scenes.sources[level].path}: "
                    "put them on its grid."
                )
        self.scenes = scenes
        self._reader = SceneReader(_as_scenes(infos))
        groups = groups or self._values_as_classes(infos)
        self.classes = tuple(groups)
        self._table = {value: number for number, values in enumerate(groups.values()) for value in values}

    def read(self, level: int, rect: Rect) -> NDArray[np.uint8]:
        """Return the class ids of a rectangle of a level; an averaged pixel has the label of its centre."""
        times = self.scenes.times[level]
        fine = Rect(rect.col * times, rect.row * times, rect.width * times, rect.height * times)
        middle = slice(times // 2, None, times)
        raw = self._reader.read(self.scenes.files[level], fine).values[0, middle, middle]
        classes = np.full(raw.shape, UNLABELLED, np.uint8)
        for value, number in self._table.items():
            classes[raw == value] = number
        return classes

    def _values_as_classes(self, infos: Sequence[SceneInfo]) -> dict[str, tuple[int, ...]]:
        """Make a class of each value that occurs in a sample of the labels, except nodata."""
        values: set[int] = set()
        for index, info in enumerate(infos):
            for rect in spread_windows(info.grid.width, info.grid.height):
                values.update(np.unique(self._reader.read(index, rect).values).tolist())
            values.discard(-1 if info.nodata is None else int(info.nodata))
        if len(values) > UNLABELLED:
            raise DataError(f"The labels hold {len(values)} values: group them with `label_class`.")
        return {f"class {value}": (value,) for value in sorted(values)}


def _as_scenes(infos: Sequence[SceneInfo]) -> Scenes:
    sources = tuple(SceneSource(info.path, (1,), "int32", None, masked=False, fill=(0.0,)) for info in infos)
    return Scenes(
        sources=sources,
        shapes=tuple((info.grid.height, info.grid.width) for info in infos),
        times=(1,) * len(infos),
        files=tuple(range(len(infos))),
        channels=("label",),
        bands=(),
        dtype="int32",
        gsd=None,
    )


def parse_groups(texts: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Read classes written as NAME=VALUE,VALUE...; values in none of them are not labelled."""
    groups = {}
    for text in texts:
        name, _, values = text.partition("=")
        try:
            groups[name.strip()] = tuple(int(value) for value in values.split(","))
        except ValueError:
            raise UsageError(f'`label_class` must be NAME=VALUE,VALUE..., not "{text}".') from None
    return groups


def raster_dataset(data: DataConfig, scenes: Scenes) -> Dataset:
    """Return scenes cut into chips, labelled if the config names label rasters."""
    labels = LabelRasters(data.labels, scenes, parse_groups(data.label_classes)) if data.labels else None
    chips = Chips(scenes, labels)
    classes = labels.classes if labels else ()
    return Dataset("rasters", True, chips, chips, map=chips, test=chips, classes=classes)
