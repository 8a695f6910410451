"""Rasters that are read alike, at one or more ground resolutions, and windows of them."""

import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from iic_geotools.scene.scene import Pixels, Scene, SceneSource
from iic_geotools.tiling import Rect

OPEN_FILES = 64
"""Largest number of files that a process keeps open."""


@dataclass(frozen=True)
class Scenes:
    """Rasters that are read alike, each at one or more ground resolutions, called levels.

    Attributes:
        sources: How the file of each level is read.
        shapes: Height and width of each level.
        times: Number of pixels of the file, on each axis, that make one pixel of the level.
        files: Number of the raster, counted from 0, that each level shows.
        channels: Names of the bands in order.
        bands: Band of the files for each channel, by name or number; empty if bands are found by the channels' names.
        dtype: Type of the values.
        gsd: Side of a pixel on the ground in metres, the middle one if there are several. None if unknown.
    """

    sources: tuple[SceneSource, ...]
    shapes: tuple[tuple[int, int], ...]
    times: tuple[int, ...]
    files: tuple[int, ...]
    channels: tuple[str, ...]
    bands: tuple[str, ...]
    dtype: str
    gsd: float | None

    def with_fill(self, fill: Sequence[float]) -> "Scenes":
        """Return the same scenes with these values in the place of pixels without data."""
        return replace(self, sources=tuple(replace(source, fill=tuple(fill)) for source in self.sources))

    @property
    def paths(self) -> list[str]:
        """The files, each once."""
        return list(dict.fromkeys(source.path for source in self.sources))


class SceneReader:
    """Reads windows of scenes, with file handles of its own in every process."""

    def __init__(self, scenes: Scenes) -> None:
        self.scenes = scenes
        self._process = -1
        self._open: dict[SceneSource, tuple[ExitStack, Scene]] = {}

    def read(self, level: int, rect: Rect) -> Pixels:
        """Read a rectangle of a level, in the level's own pixels."""
        times = self.scenes.times[level]
        fine = Rect(rect.col * times, rect.row * times, rect.width * times, rect.height * times)
        pixels = self._scene(self.scenes.sources[level]).read(fine)
        return pixels if times == 1 else _average(pixels, times)

    def __getstate__(self) -> dict[str, Any]:
        return {"scenes": self.scenes, "_process": -1, "_open": {}}

    def _scene(self, source: SceneSource) -> Scene:
        if self._process != os.getpid():
            # Handles of the process that this one was forked from must be neither used nor closed here.
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


def _average(pixels: Pixels, times: int) -> Pixels:
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
