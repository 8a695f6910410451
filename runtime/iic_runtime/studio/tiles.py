"""Tiles of a view: squares of 256 pixels at full resolution (level 0) or one pixel in 2, 4, 8, ... (level 1, 2, 3).

Also the places of a view of which a fit is least sure.
"""

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

from iic_geotools.classmap.classes import NODATA
from iic_geotools.errors import SceneError, UsageError
from iic_geotools.geobox import GeoBox
from iic_geotools.scene.bands import named_bands
from iic_geotools.scene.info import SceneInfo, cause, open_raster
from iic_geotools.scene.radiometry import Pair, robust_ranges
from iic_geotools.scene.scene import SceneSource, value_sample
from iic_geotools.tiling import Rect
from iic_runtime.model.card import Card
from iic_runtime.raster.model_input import read_bands

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
        """Return the pixels of a grid that the tile covers."""
        if 0 <= self.level <= top_level(grid) and min(self.column, self.row) >= 0:
            side = TILE * self.step
            square = Rect(self.column * side, self.row * side, side, side)
            rect = square.intersection(Rect(0, 0, grid.width, grid.height))
            if not rect.empty:
                return rect
        raise UsageError(f"There is no tile {self.column}, {self.row} at level {self.level}.")


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
    """Pictures of a scene, each band stretched by its 2nd and 98th percentile over the whole scene."""

    def __init__(self, info: SceneInfo, reading: SceneSource, card: Card) -> None:
        self._info = info
        self.composites = _composites(info, read_bands(card, reading))
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


CELL = 16
"""Side in pixels of the screen of the cells over which confidence is averaged."""
APART = 4
"""Least distance between two places, and from a place to a click, in cells."""
Labels = NDArray[np.uint8]


def find_unsure(
    tiles: Mapping[TileAddress, tuple[Labels, Labels]], clicked: Sequence[tuple[int, int]], count: int
) -> list[tuple[int, int]]:
    """Return rows and columns of the least sure places, none close to another or to a click.

    Areas count, not rims: a cell is judged with its eight neighbours.

    Args:
        tiles: Labels and confidence of the tiles of a view, all of one level.
        clicked: Row and column of each click.
    """
    step = next(iter(tiles)).step
    top, left = min(tile.row for tile in tiles), min(tile.column for tile in tiles)
    per_tile = TILE // CELL
    shape = (
        (max(tile.row for tile in tiles) - top + 1) * per_tile,
        (max(tile.column for tile in tiles) - left + 1) * per_tile,
    )
    doubt = np.zeros(shape, np.float32)
    for tile, (labels, confidence) in tiles.items():
        cells = _average(labels, confidence)
        row, column = (tile.row - top) * per_tile, (tile.column - left) * per_tile
        doubt[row : row + cells.shape[0], column : column + cells.shape[1]] = cells
    padded = np.pad(doubt, 1)
    wide = sum(padded[i : i + shape[0], j : j + shape[1]] for i in range(3) for j in range(3))
    wide = np.where(doubt > 0, wide, 0.0)
    side = CELL * step
    origin = np.array([top, left]) * TILE * step
    for place in np.array(clicked, np.int64).reshape(-1, 2):
        _clear(wide, (place - origin) // side)
    places = []
    for _ in range(count):
        cell = np.array(np.unravel_index(int(wide.argmax()), shape))
        if wide[tuple(cell)] <= 0:
            break
        row, column = (origin + cell * side + side // 2).tolist()
        places.append((row, column))
        _clear(wide, cell)
    return places


def find_typical(
    tiles: Mapping[TileAddress, tuple[Labels, Labels]], label: int, count: int
) -> list[tuple[int, int]]:
    """Return rows and columns of the places that a fit takes for a label with most certainty, apart from each other."""
    step = next(iter(tiles)).step
    cells = []
    for tile, (labels, confidence) in tiles.items():
        sure = _average(labels, np.where(labels == label, 255 - confidence, 255).astype(np.uint8))
        for row, column in np.argwhere(sure > 0):
            place = (
                np.array([tile.row, tile.column]) * TILE + (row * CELL, column * CELL) + CELL // 2
            ) * step
            cells.append((float(sure[row, column]), *place.tolist()))
    places: list[tuple[int, int]] = []
    for _, row, column in sorted(cells, reverse=True):
        if len(places) == count:
            break
        if all(max(abs(row - other), abs(column - side)) > APART * CELL * step for other, side in places):
            places.append((row, column))
    return places


def _average(labels: Labels, confidence: Labels) -> NDArray[np.float32]:
    """Return the doubt of each whole cell, 0 where some of it holds no data."""
    height, width = (length // CELL for length in labels.shape)
    cut = slice(height * CELL), slice(width * CELL)
    shape = height, CELL, width, CELL
    whole = (labels[cut].reshape(shape) != NODATA).all((1, 3))
    doubt = 1 - confidence[cut].reshape(shape).astype(np.float32).mean((1, 3)) / 255
    return np.where(whole, doubt, 0.0).astype(np.float32)


def _clear(wide: NDArray[np.float32], cell: NDArray[np.int64]) -> None:
    row, column = cell.tolist()
    rows, columns = (slice(max(index - APART, 0), max(index + APART + 1, 0)) for index in (row, column))
    wide[rows, columns] = 0.0
