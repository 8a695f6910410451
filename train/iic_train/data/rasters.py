"""Anyone's own rasters: windows to train on, scaling constants, and chips to evaluate on if there are labels."""

import hashlib
import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from iic_geotools.areas import ground_sample_distance
from iic_geotools.bands import match_bands
from iic_geotools.errors import DataError, SceneError, UsageError
from iic_geotools.grid import Rect
from iic_geotools.rescale import spread_windows
from iic_geotools.scene import Pixels, Scene, SceneInfo, SceneSource, describe, has_mask
from iic_train.config import DataConfig
from iic_train.data.base import UNLABELLED, Dataset
from iic_train.loading import Batch, random_square

KEPT_DTYPES = ("uint8", "uint16", "int16")
"""Types of pixels that a network is made for as they are; any other is read as float32."""
LEAST_VALID = 0.5
TRIES = 50
CHIP = 512
SAMPLED = 20_000
"""Pixels taken from each window when constants are found."""
OPEN_FILES = 64


@dataclass(frozen=True)
class Scenes:
    """Rasters that are read alike.

    Attributes:
        sources: How each is read.
        shapes: Height and width of each at the resolution that is trained at.
        channels: Names of the bands in order.
        dtype: Type of their values.
        gsd: Side of a pixel on the ground in metres at the resolution that is trained at; None if unknown.
        reduce: How many pixels of the files make one, on each axis.
    """

    sources: tuple[SceneSource, ...]
    shapes: tuple[tuple[int, int], ...]
    channels: tuple[str, ...]
    dtype: str
    gsd: float | None
    reduce: int = 1


def open_scenes(
    paths: Sequence[str],
    channels: Sequence[str],
    *,
    bands: Sequence[str] = (),
    nodata: float | None = None,
    reduce: int = 1,
) -> Scenes:
    """Look at rasters and settle how they are read.

    Args:
        paths: Anything GDAL opens.
        channels: Names of the bands the network is to take, in order.
        bands: The files' band for each of them, by name or number; empty: bands of the same names.
        nodata: Value that means no data, over what the files say.
        reduce: Average squares of this many pixels a side into one.

    Raises:
        SceneError: A file cannot be read or lacks a band.
        DataError: The files do not go together.
    """
    if not paths:
        raise UsageError("Name at least one raster to train on.")
    infos = [describe(path) for path in paths]
    matched = [match_bands(channels, i.descriptions, i.interpretations, bands or None) for i in infos]
    kinds = {i.dtypes[band - 1] for i, bidx in zip(infos, matched, strict=True) for band in bidx}
    if len(kinds) > 1:
        raise DataError(
            f"The scenes hold values of different types ({', '.join(sorted(kinds))}): convert them to one, "
            "with the same meaning, or train on them separately."
        )
    dtype = kinds.pop()
    dtype = dtype if dtype in KEPT_DTYPES else "float32"
    sources = tuple(
        SceneSource(
            path=info.path,
            bidx=bidx,
            dtype=dtype,
            nodata=info.nodata_of(bidx) if nodata is None else nodata,
            masked=has_mask(info, bidx) and nodata is None,
            fill=(0.0,) * len(bidx),
        )
        for info, bidx in zip(infos, matched, strict=True)
    )
    shapes = tuple((info.grid.height // reduce, info.grid.width // reduce) for info in infos)
    return Scenes(sources, shapes, tuple(channels), dtype, _gsd(infos, reduce), reduce)


def _gsd(infos: Sequence[SceneInfo], reduce: int) -> float | None:
    """The scenes' common ground resolution; a mix of resolutions is refused."""
    found = []
    for info in infos:
        grid = info.grid
        sides = ground_sample_distance(grid.crs, grid.transform, grid.width, grid.height)
        if sides is not None:
            found.append(float(np.sqrt(sides[0] * sides[1])))
    if not found:
        return None
    if max(found) > 1.25 * min(found):
        raise DataError(
            f"The scenes have pixels of {min(found):.3g} to {max(found):.3g} m: bring them to one resolution first."
        )
    return float(np.median(found)) * reduce


class SceneReader:
    """Reads windows of scenes, with handles of its own in every process."""

    def __init__(self, scenes: Scenes) -> None:
        self.scenes = scenes
        self._process = -1
        self._open: dict[int, tuple[ExitStack, Scene]] = {}

    def read(self, index: int, rect: Rect) -> Pixels:
        """Read a rectangle of scene `index`, in pixels of the resolution that is trained at."""
        times = self.scenes.reduce
        fine = Rect(rect.col * times, rect.row * times, rect.width * times, rect.height * times)
        pixels = self._scene(index).read(fine)
        return pixels if times == 1 else _reduced(pixels, times)

    def __getstate__(self) -> dict[str, Any]:
        return {"scenes": self.scenes, "_process": -1, "_open": {}}

    def _scene(self, index: int) -> Scene:
        if self._process != os.getpid():
            # Handles of the process this one was forked from are not ours to use, nor to close.
            self._process, self._open = os.getpid(), {}
        if index not in self._open:
            if len(self._open) >= OPEN_FILES:
                self._open.pop(next(iter(self._open)))[0].close()
            stack = ExitStack()
            self._open[index] = (stack, stack.enter_context(self.scenes.sources[index].open()))
        return self._open[index][1]

    def close(self) -> None:
        """Close all files of this process."""
        if self._process == os.getpid():
            for stack, _ in self._open.values():
                stack.close()
        self._open = {}


def _reduced(pixels: Pixels, times: int) -> Pixels:
    bands, height, width = pixels.values.shape
    blocks = pixels.values.reshape(bands, height // times, times, width // times, times)
    values = blocks.mean((2, 4), dtype=np.float32)
    if np.issubdtype(pixels.values.dtype, np.integer):
        values = np.rint(values)
    valid = pixels.valid
    if valid is not None:
        blocks = valid.reshape(height // times, times, width // times, times)
        valid = np.asarray(blocks.all((1, 3)))
    return Pixels(values.astype(pixels.values.dtype), valid)


@dataclass(frozen=True)
class Constants:
    """What brings each band's raw values to about 0..1, and how much of each scene holds data."""

    offset: tuple[float, ...]
    scale: tuple[float, ...]
    valid_shares: tuple[float, ...]


def find_constants(scenes: Scenes, percentiles: tuple[float, float] = (0.5, 99.5)) -> Constants:
    """Scaling constants of the valid pixels of all scenes: low and high percentile become 0 and 1.

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
        self._chances = areas / areas.sum()

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
        if len(paths) != len(scenes.sources):
            raise UsageError(
                f"There are {len(scenes.sources)} scenes but {len(paths)} label rasters: give one for each."
            )
        infos = [describe(path) for path in paths]
        for info, shape, source in zip(infos, scenes.shapes, scenes.sources, strict=True):
            if (info.grid.height // scenes.reduce, info.grid.width // scenes.reduce) != shape:
                raise SceneError(
                    f"The labels {info.path} do not have the pixels of {source.path}: put them on its grid."
                )
        sources = tuple(
            SceneSource(info.path, (1,), "int32", None, masked=False, fill=(0.0,)) for info in infos
        )
        self.reduce = scenes.reduce
        self._reader = SceneReader(Scenes(sources, (), ("label",), "int32", None))
        groups = groups or self._all_values(infos)
        self.classes = tuple(groups)
        self._table = {value: number for number, values in enumerate(groups.values()) for value in values}

    def read(self, index: int, rect: Rect) -> NDArray[np.uint8]:
        """Class ids of a rectangle; a reduced pixel has the label of its centre."""
        times, middle = self.reduce, self.reduce // 2
        fine = Rect(rect.col * times, rect.row * times, rect.width * times, rect.height * times)
        raw = self._reader.read(index, fine).values[0, middle::times, middle::times]
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


def scenes_of(data: DataConfig, channels: Sequence[str], fill: Sequence[float] = ()) -> Scenes:
    """The scenes that a run's config names; `fill` stands in for pixels without data, as when serving."""
    scenes = open_scenes(data.scenes, channels, bands=data.bands, nodata=data.nodata, reduce=data.reduce)
    if not fill:
        return scenes
    return replace(scenes, sources=tuple(replace(source, fill=tuple(fill)) for source in scenes.sources))


def raster_dataset(data: DataConfig, channels: Sequence[str], fill: Sequence[float] = ()) -> Dataset:
    """The scenes of a run in chips, labelled if it has label rasters."""
    scenes = scenes_of(data, channels, fill)
    labels = Labels(data.labels, scenes, parse_groups(data.label_classes)) if data.labels else None
    chips = Chips(scenes, labels)
    classes = labels.classes if labels else ()
    return Dataset("rasters", True, chips, chips, map=chips, test=chips, classes=classes)


def fingerprint(scenes: Scenes) -> str:
    """A short hash of the scenes' shapes and of a window from the middle of each."""
    digest = hashlib.sha256(repr((scenes.shapes, scenes.channels, scenes.dtype, scenes.reduce)).encode())
    reader = SceneReader(scenes)
    for index, (height, width) in enumerate(scenes.shapes):
        side = min(64, height, width)
        rect = Rect((width - side) // 2, (height - side) // 2, side, side)
        digest.update(reader.read(index, rect).values.tobytes())
    reader.close()
    return digest.hexdigest()[:16]
