"""Tiles of a view: squares of 256 pixels at full resolution (level 0) or one pixel in 2, 4, 8, ... (level 1, 2, 3)."""

import io
import math
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from threading import Lock
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from rasterio.enums import Resampling
from rasterio.errors import RasterioError
from rasterio.windows import Window

from iic_geotools.errors import SceneError, UsageError
from iic_geotools.geobox import GeoBox
from iic_geotools.scene.bands import named_bands
from iic_geotools.scene.info import SceneInfo, cause, open_raster
from iic_geotools.scene.rescaling import Pair, robust_ranges
from iic_geotools.scene.scene import SceneSource, value_sample
from iic_geotools.tiling import Rect

TILE = 256
"""Side of a tile in pixels of the screen."""
_JPEG_QUALITY = 85
Bytes = NDArray[np.uint8]
Value = TypeVar("Value")


@dataclass(frozen=True)
class TileAddress:
    """The place of a tile: a pixel of it stands for `2 ** level` pixels of the grid in each direction."""

    level: int
    column: int
    row: int

    @property
    def step(self) -> int:
        """Pixels of the grid from one pixel of the tile to the next."""
        return 1 << self.level

    def rect(self, grid: GeoBox) -> Rect:
        """Return the pixels of a grid that the tile covers.

        Raises:
            UsageError: The tile lies outside the grid.
        """
        side = TILE * self.step
        square = Rect(self.column * side, self.row * side, side, side)
        rect = square.intersection(Rect(0, 0, grid.width, grid.height))
        if min(self.level, self.column, self.row) < 0 or self.level > top_level(grid) or rect.empty:
            raise UsageError(f"There is no tile {self.column}, {self.row} at level {self.level}.")
        return rect


def top_level(grid: GeoBox) -> int:
    """Return the level at which one tile holds the whole grid."""
    return max(0, math.ceil(math.log2(max(grid.width, grid.height) / TILE)))


class KeptValues(Generic[Value]):
    """Values that are computed once each, the least recently used of which are dropped.

    Args:
        most: Sum of the sizes that are kept.
        size: Function from a value to its size.
    """

    def __init__(self, most: int, size: Callable[[Value], int]) -> None:
        self._most, self._size = most, size
        self._values: OrderedDict[Hashable, Value] = OrderedDict()
        self._locks: dict[Hashable, Lock] = {}
        self._lock = Lock()
        self._total = 0

    def get(self, key: Hashable, compute: Callable[[], Value]) -> Value:
        """Return the value of a key; a second thread that asks for it waits for the first."""
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
                return self._values[key]
            lock = self._locks.setdefault(key, Lock())
        with lock:
            with self._lock:
                if key in self._values:
                    return self._values[key]
            value = compute()
            with self._lock:
                self._values[key] = value
                self._locks.pop(key, None)
                self._total += self._size(value)
                while self._total > self._most and len(self._values) > 1:
                    self._total -= self._size(self._values.popitem(last=False)[1])
            return value


class Imagery:
    """Pictures of a scene, each band stretched by its 2nd and 98th percentile over the whole scene.

    Args:
        info: The scene.
        reading: How a model reads it.
        bands: Names of the bands that it reads.
    """

    def __init__(self, info: SceneInfo, reading: SceneSource, bands: Sequence[str]) -> None:
        self._info = info
        self.composites = _composites(info, dict(zip(bands, reading.bidx, strict=True)))
        shown = tuple(sorted({band for bidx in self.composites.values() for band in bidx}))
        source = replace(
            reading, bidx=shown, dtype=info.dtype_of(shown), fill=(0.0,) * len(shown), rescale=None, grid=None
        )
        ranges = robust_ranges(value_sample(source, info, skip_empty=True))
        self._ranges: Mapping[int, Pair] = dict(zip(shown, ranges, strict=True))
        self._nodata = source.nodata

    def tile(self, composite: str, address: TileAddress) -> tuple[bytes, str]:
        """Return a picture of a tile and its media type.

        Raises:
            UsageError: There is no such composite or tile.
            SceneError: The scene cannot be read.
        """
        if composite not in self.composites:
            raise UsageError(f"There is no picture {composite} of the scene.")
        values, valid = self._read(self.composites[composite], address)
        picture = np.empty((*valid.shape, 3), np.uint8)
        for channel, (band, content) in enumerate(zip(self.composites[composite], values, strict=True)):
            low, high = self._ranges[band]
            scaled = (content.astype(np.float32) - low) * (255 / (high - low))
            picture[..., channel] = np.clip(np.nan_to_num(scaled), 0, 255)
        return _encode(picture, valid)

    def _read(
        self, bidx: Sequence[int], address: TileAddress
    ) -> tuple[NDArray[np.generic], NDArray[np.bool_]]:
        rect = address.rect(self._info.grid)
        window = Window(rect.col, rect.row, rect.width, rect.height)
        shape = -(-rect.height // address.step), -(-rect.width // address.step)
        try:
            with open_raster(self._info.path, self._info.name) as dataset:
                kind = Resampling.average if address.level else Resampling.nearest
                values = dataset.read(
                    list(bidx), window=window, out_shape=(len(bidx), *shape), resampling=kind
                )
                masks = dataset.read_masks(list(bidx), window=window, out_shape=(len(bidx), *shape))
        except (RasterioError, OSError) as error:
            if isinstance(error, SceneError):
                raise
            raise SceneError(
                f"Cannot read {self._info.title} ({cause(error)}): check that the file is still there."
            ) from error
        valid = (masks > 0).any(0) & np.isfinite(values).all(0)
        if self._nodata is not None:
            valid &= ~(values == self._nodata).all(0)
        return values, valid


def _composites(info: SceneInfo, known: Mapping[str, int]) -> dict[str, tuple[int, int, int]]:
    """Return bands to show as red, green and blue, by the name of the picture; the default first."""

    def band(name: str) -> int | None:
        named = named_bands(name, info.descriptions, info.bands.certain)
        return known.get(name) or (named[0] if len(named) == 1 else None)

    red, green, blue, nir = map(band, ("red", "green", "blue", "nir"))
    composites = {}
    if red and green and blue:
        composites["colour"] = (red, green, blue)
    if red and green and nir:
        composites["infrared"] = (nir, red, green)
    if not composites:
        count = len(info.dtypes)
        composites["colour"] = (1, 2, 3) if count >= 3 else (1, 1, 1)
    return composites


def _encode(picture: Bytes, valid: NDArray[np.bool_]) -> tuple[bytes, str]:
    buffer = io.BytesIO()
    if valid.all():
        Image.fromarray(picture).save(buffer, format="JPEG", quality=_JPEG_QUALITY)
        return buffer.getvalue(), "image/jpeg"
    alpha = np.where(valid, np.uint8(255), np.uint8(0))
    Image.fromarray(np.dstack([picture, alpha])).save(buffer, format="PNG", compress_level=1)
    return buffer.getvalue(), "image/png"
