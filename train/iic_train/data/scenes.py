"""Rasters as they are read for training: which bands, of what type, and at which ground resolutions."""

import hashlib
import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from iic_geotools.areas import pixel_side
from iic_geotools.bands import match_bands
from iic_geotools.errors import DataError, UsageError
from iic_geotools.grid import Rect
from iic_geotools.rescale import Rescale
from iic_geotools.scene import Pixels, Scene, SceneInfo, SceneSource, describe, has_mask, value_ranges
from iic_train.config import DataConfig

KEPT_DTYPES = ("uint8", "uint16", "int16")
"""Types of pixels that a network is made for as they are; any other is read as float32."""
RESCALED = (0.0, 255.0)
"""What a band's percentiles become where scenes are rescaled, to uint8."""
OPEN_FILES = 64
ALIKE = 1.25
"""Ground resolutions that differ by less than this factor count as one."""
ROUNDING = 1.01
"""How far beyond a range of ground resolutions still counts as its end."""


@dataclass(frozen=True)
class Resolution:
    """At which ground resolutions scenes are read; at their own by default.

    Attributes:
        reduce: Average squares of so many pixels a side into one.
        gsd: Instead, read each scene at every ground resolution in this range of metres that whole numbers of its
            pixels make, its own included; scenes may differ then.
        pixel_size: Side of a pixel in metres where a scene does not say, as those without a CRS.
    """

    reduce: int = 1
    gsd: tuple[float, float] | None = None
    pixel_size: float | None = None

    def __post_init__(self) -> None:
        if self.gsd is not None and not 0 < self.gsd[0] <= self.gsd[1]:
            raise UsageError(f"A range of ground resolutions is MIN,MAX in metres, not {self.gsd}.")
        if self.gsd is not None and self.reduce != 1:
            raise UsageError("--gsd says at which resolutions to train: leave out --reduce.")

    def of(self, info: SceneInfo) -> float | None:
        """Side of a scene's pixel on the ground in metres; None if nobody knows."""
        grid = info.grid
        side = pixel_side(grid.crs, grid.transform, grid.width, grid.height)
        return self.pixel_size if side is None else side

    def factors(self, info: SceneInfo) -> list[int]:
        """How many pixels, on each axis, make one: a number for each resolution a scene is read at."""
        if self.gsd is None:
            return [self.reduce]
        own = self.of(info)
        if own is None:
            raise DataError(
                f"{info.path} does not say how large its pixels are: give --pixel-size in metres, or leave out --gsd."
            )
        low, high = self.gsd[0] / ROUNDING, self.gsd[1] * ROUNDING
        found = [times for times in range(1, int(high / own) + 1) if low <= own * times <= high]
        if not found:
            raise DataError(
                f"{info.path} has pixels of {own:.3g} m, of which none of {self.gsd[0]:g} to {self.gsd[1]:g} m "
                "can be made: change --gsd or leave the scene out."
            )
        return found


@dataclass(frozen=True)
class Scenes:
    """Rasters that are read alike, each at one or more ground resolutions: views.

    Attributes:
        sources: How the file of each view is read.
        shapes: Height and width of each view.
        times: How many pixels of the file make one of the view, on each axis.
        files: Which of the rasters, counted from 0, each view shows.
        channels: Names of the bands in order.
        dtype: Type of their values.
        gsd: Side of a pixel on the ground in metres, the middle one if there are several; None if unknown.
    """

    sources: tuple[SceneSource, ...]
    shapes: tuple[tuple[int, int], ...]
    times: tuple[int, ...]
    files: tuple[int, ...]
    channels: tuple[str, ...]
    dtype: str
    gsd: float | None


def open_scenes(
    paths: Sequence[str],
    channels: Sequence[str],
    *,
    bands: Sequence[str] = (),
    nodata: float | None = None,
    resolution: Resolution | None = None,
    rescale: Literal["auto"] | None = None,
) -> Scenes:
    """Look at rasters and settle how they are read.

    Args:
        paths: Anything GDAL opens.
        channels: Names of the bands the network is to take, in order.
        bands: The files' band for each of them, by name or number; empty: bands of the same names.
        nodata: Value that means no data, over what the files say.
        resolution: At which ground resolutions.
        rescale: "auto": bring every scene to 0..255 by each band's own percentiles over it, as when serving; scenes
            may be of different types then.

    Raises:
        SceneError: A file cannot be read or lacks a band.
        DataError: The files do not go together.
    """
    if not paths:
        raise UsageError("Name at least one raster to train on.")
    resolution = resolution or Resolution()
    infos = [describe(path) for path in paths]
    matched = [match_bands(channels, i.descriptions, i.interpretations, bands or None) for i in infos]
    if rescale not in (None, "auto"):
        raise UsageError(f'--rescale must be "auto" or left out, not "{rescale}".')
    dtype = _common_dtype(infos, matched) if rescale is None else "uint8"
    views = [(file, times) for file, info in enumerate(infos) for times in resolution.factors(info)]
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
    if rescale is not None:
        sources = tuple(map(_rescaled, sources, infos))
    return Scenes(
        tuple(sources[file] for file, _ in views),
        tuple((infos[file].grid.height // times, infos[file].grid.width // times) for file, times in views),
        tuple(times for _, times in views),
        tuple(file for file, _ in views),
        tuple(channels),
        dtype,
        _middle_gsd(infos, resolution),
    )


def _rescaled(source: SceneSource, info: SceneInfo) -> SceneSource:
    ranges = value_ranges(source, info)
    return replace(source, rescale=Rescale(ranges, (RESCALED,) * len(ranges)))


def _common_dtype(infos: Sequence[SceneInfo], matched: Sequence[Sequence[int]]) -> str:
    kinds = {info.dtypes[band - 1] for info, bidx in zip(infos, matched, strict=True) for band in bidx}
    if len(kinds) > 1:
        raise DataError(
            f"The scenes hold values of different types ({', '.join(sorted(kinds))}): convert them to one, "
            "with the same meaning, or bring each into its own range with --rescale auto."
        )
    dtype = kinds.pop()
    return dtype if dtype in KEPT_DTYPES else "float32"


def _middle_gsd(infos: Sequence[SceneInfo], resolution: Resolution) -> float | None:
    """The ground resolution that scenes are read at, or the middle of its range; unasked they must be alike."""
    if resolution.gsd is not None:
        return float(np.sqrt(resolution.gsd[0] * resolution.gsd[1]))
    found = [own for own in map(resolution.of, infos) if own is not None]
    if not found:
        return None
    if max(found) > ALIKE * min(found):
        raise DataError(
            f"The scenes have pixels of {min(found):.3g} to {max(found):.3g} m: train at several resolutions "
            f"with --gsd {min(found):.2g},{max(found):.2g}, or bring the scenes to one."
        )
    return float(np.median(found)) * resolution.reduce


def scenes_of(
    data: DataConfig,
    channels: Sequence[str],
    fill: Sequence[float] = (),
    paths: Sequence[str] | None = None,
) -> Scenes:
    """The scenes that a run's config names, or others, read as it says.

    Args:
        data: The run's.
        channels: Names of the bands that its network takes.
        fill: What stands in for pixels without data, as when serving.
        paths: Other scenes.
    """
    scenes = open_scenes(
        data.scenes if paths is None else paths,
        channels,
        bands=data.bands,
        nodata=data.nodata,
        resolution=Resolution(data.reduce, data.gsd, data.pixel_size),
        rescale=data.rescale,
    )
    if not fill:
        return scenes
    return replace(scenes, sources=tuple(replace(source, fill=tuple(fill)) for source in scenes.sources))


class SceneReader:
    """Reads windows of scenes, with handles of its own in every process."""

    def __init__(self, scenes: Scenes) -> None:
        self.scenes = scenes
        self._process = -1
        self._open: dict[SceneSource, tuple[ExitStack, Scene]] = {}

    def read(self, index: int, rect: Rect) -> Pixels:
        """Read a rectangle of view `index`, in its own pixels."""
        times = self.scenes.times[index]
        fine = Rect(rect.col * times, rect.row * times, rect.width * times, rect.height * times)
        pixels = self._scene(self.scenes.sources[index]).read(fine)
        return pixels if times == 1 else _reduced(pixels, times)

    def __getstate__(self) -> dict[str, Any]:
        return {"scenes": self.scenes, "_process": -1, "_open": {}}

    def _scene(self, source: SceneSource) -> Scene:
        if self._process != os.getpid():
            # Handles of the process this one was forked from are not ours to use, nor to close.
            self._process, self._open = os.getpid(), {}
        if source not in self._open:
            if len(self._open) >= OPEN_FILES:
                self._open.pop(next(iter(self._open)))[0].close()
            stack = ExitStack()
            self._open[source] = (stack, stack.enter_context(source.open()))
        return self._open[source][1]

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


def fingerprint(scenes: Scenes) -> str:
    """A short hash of the scenes' shapes and of a window from the middle of each."""
    digest = hashlib.sha256(repr((scenes.shapes, scenes.channels, scenes.dtype, scenes.times)).encode())
    digest.update("".join(repr(source.rescale) for source in scenes.sources if source.rescale).encode())
    reader = SceneReader(scenes)
    for index, (height, width) in enumerate(scenes.shapes):
        side = min(64, height, width)
        rect = Rect((width - side) // 2, (height - side) // 2, side, side)
        digest.update(reader.read(index, rect).values.tobytes())
    reader.close()
    return digest.hexdigest()[:16]
