"""Levels of a map: one-band rasters of bytes of which only the blocks that hold data are ever read.

GDAL builds overviews by reading every pixel, empty or not. A map of a few flight strips in a scene of a hundred
gigapixels is nearly empty. So here a level knows which of its blocks may hold data, and the next level is made from
those alone.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import rasterio
from affine import Affine
from rasterio.windows import Window

from iic_geotools.classmap.classes import NODATA
from iic_geotools.errors import OutputError
from iic_geotools.threads import cores, map_ahead
from iic_geotools.tiff import is_whole, present_tiles
from iic_geotools.tiling import Rect

# Georeference of intermediate files: any but the identity and its mirror image, about which rasterio warns.
NOWHERE = Affine(2.0, 0.0, 0.0, 0.0, -2.0, 0.0)
# Compression of overviews until the map is written: as fast as none, and a tenth of the room.
QUICK = {"COMPRESS": "ZSTD", "ZSTD_LEVEL": "1"}

Bytes = npt.NDArray[np.uint8]
Blocks = npt.NDArray[np.bool_]
"""One flag per block of a raster, in rows and columns of blocks."""
Reducer = Callable[[Bytes], Bytes]


@dataclass(frozen=True, eq=False)
class Level:
    """A raster, and which of its blocks may hold data.

    Attributes:
        path: Path of the raster.
        width: Width in pixels.
        height: Height in pixels.
        block: Side of its square blocks in pixels.
        touched: Which blocks may hold data; the array cannot be changed.
    """

    path: Path
    width: int
    height: int
    block: int
    touched: Blocks

    def __post_init__(self) -> None:
        self.touched.setflags(write=False)

    def windows(self) -> Iterator[tuple[int, int, Window]]:
        """Row and column of each block that may hold data, and its pixels."""
        for row, col in np.argwhere(self.touched):
            x, y = int(col) * self.block, int(row) * self.block
            width, height = min(self.block, self.width - x), min(self.block, self.height - y)
            yield int(row), int(col), Window(x, y, width, height)


def touched_blocks(rects: Iterable[Rect], width: int, height: int, block: int) -> Blocks:
    """Which blocks of a raster some rectangles touch."""
    touched = np.zeros((-(-height // block), -(-width // block)), bool)
    for rect in rects:
        rows = slice(rect.row // block, -(-rect.bottom // block))
        cols = slice(rect.col // block, -(-rect.right // block))
        touched[rows, cols] = True
    return touched


def stored_blocks(dataset: Any, path: Path) -> tuple[Blocks, tuple[int, int]]:
    """Which blocks of an open map are in its file, and their height and width; the others hold no data."""
    high, wide = dataset.block_shapes[0]
    across, down = -(-dataset.width // wide), -(-dataset.height // high)
    may_be_sparse = wide < dataset.width and dataset.nodata == NODATA
    stored = present_tiles(path, across, down) if may_be_sparse else np.ones((down, across), bool)
    return stored, (high, wide)


def build_levels(
    base: Level,
    scratch: Callable[[str], Path],
    reduce: Reducer,
    count: int | None = None,
) -> list[Level]:
    """The full resolution and its overviews, each half as large, with exact knowledge of empty blocks.

    Args:
        base: The full resolution; its empty blocks need not be known.
        scratch: Function that gives the path to write an overview to.
        reduce: Function that makes one pixel of each square of four.
        count: Number of overviews; by default as many as it takes until one fits into a block.
    """
    levels = [base]
    while len(levels) - 1 < count if count is not None else _larger_than_block(levels[-1]):
        path = scratch(f"overview-{len(levels)}.tif")
        levels[-1:] = _halve(levels[-1], path, reduce)
    return levels if len(levels) > 1 else [_without_empty_blocks(base)]


def _without_empty_blocks(level: Level) -> Level:
    """The same level after reading each of its blocks."""
    touched = level.touched.copy()
    with rasterio.open(level.path) as dataset:
        for row, col, window in level.windows():
            _strike_out(touched, level.block, row, col, dataset.read(1, window=window))
    return replace(level, touched=touched)


def _strike_out(touched: Blocks, block: int, row: int, col: int, pixels: Bytes) -> None:
    """Clear the flags of blocks without data.

    Args:
        touched: The flags, which are changed.
        block: Side of a block in pixels.
        row: Row of the first block that `pixels` cover.
        col: Column of the first block that `pixels` cover.
        pixels: Pixels of one or more blocks.
    """
    for y in range(0, pixels.shape[0], block):
        for x in range(0, pixels.shape[1], block):
            if (pixels[y : y + block, x : x + block] == NODATA).all():
                touched[row + y // block, col + x // block] = False


def _larger_than_block(level: Level) -> bool:
    return max(level.width, level.height) > level.block


def _halve(level: Level, path: Path, reduce: Reducer) -> tuple[Level, Level]:
    """Write the next overview; return `level` without its empty blocks, and the overview."""
    block, touched = level.block, level.touched.copy()
    rows, cols = touched.shape
    even = np.pad(touched, ((0, rows % 2), (0, cols % 2)))
    halved = even[::2, ::2] | even[1::2, ::2] | even[::2, 1::2] | even[1::2, 1::2]
    overview = Level(path, -(-level.width // 2), -(-level.height // 2), block, halved)
    stored = halved.copy()

    def read() -> Iterator[tuple[int, int, Window, Bytes]]:
        for row, col, window in overview.windows():
            x, y = window.col_off * 2, window.row_off * 2
            wide, high = min(2 * block, level.width - x), min(2 * block, level.height - y)
            yield row, col, window, source.read(1, window=Window(x, y, wide, high))

    def shrink(square: tuple[int, int, Window, Bytes]) -> tuple[int, int, Window, Bytes]:
        row, col, window, pixels = square
        _strike_out(touched, block, 2 * row, 2 * col, pixels)
        odd = [(0, side % 2) for side in pixels.shape]
        pixels = reduce(np.pad(pixels, odd, constant_values=NODATA) if np.any(odd) else pixels)
        _strike_out(stored, block, row, col, pixels)
        return row, col, window, pixels

    with (
        rasterio.open(level.path) as source,
        _create(overview, QUICK) as target,
        ThreadPoolExecutor(cores()) as pool,
    ):
        for row, col, window, pixels in map_ahead(pool, shrink, read(), 2 * cores()):
            if stored[row, col]:
                target.write(pixels, 1, window=window)
    if not is_whole(path, [int(stored.sum())]):
        raise OutputError(f"{path} was not written completely: make room on the disk and run again.")
    return replace(level, touched=touched), replace(overview, touched=stored)


def store(level: Level, path: Path, compression: Mapping[str, str]) -> Level:
    """Write the blocks of a level that hold data to a sparse file of their own.

    Args:
        level: The level, whose empty blocks are known.
        path: Path of the file.
        compression: Creation options of GDAL's GeoTIFF driver that say how it is compressed.
    """
    stored = replace(level, path=path)
    with rasterio.open(level.path) as source, _create(stored, compression) as target:
        for _, _, window in level.windows():
            target.write(source.read(1, window=window), 1, window=window)
    if not is_whole(path, [int(level.touched.sum())]):
        raise OutputError(f"{path} was not written completely: make room on the disk and run again.")
    return stored


@contextmanager
def _create(level: Level, compression: Mapping[str, str]) -> Iterator[Any]:
    """Open a new raster for `level`."""
    profile = {"driver": "GTiff", "count": 1, "dtype": "uint8", "nodata": NODATA, "tiled": True}
    layout = {"blockxsize": level.block, "blockysize": level.block, "BIGTIFF": "YES", "SPARSE_OK": "TRUE"}
    size = {"width": level.width, "height": level.height}
    with rasterio.open(
        level.path, "w", **size, **profile, **layout, **compression, transform=NOWHERE
    ) as dataset:
        yield dataset


def mode_of_four(pixels: Bytes) -> Bytes:
    """The most common value of each 2 x 2 square apart from NODATA; the first of equally common ones."""
    # Comparisons of contiguous bytes are vectorised; those of every second byte are not.
    a, b, c, d = (np.ascontiguousarray(pixels[row::2, col::2]) for row in (0, 1) for col in (0, 1))
    twice_c = c == d
    twice_b = (b == c) | (b == d)
    twice_a = (a == b) | (a == c) | (a == d)
    first = a
    if (pixels == NODATA).any():
        first = np.where(a != NODATA, a, np.where(b != NODATA, b, np.where(c != NODATA, c, d)))
        twice_c &= c != NODATA
        twice_b &= b != NODATA
        twice_a &= a != NODATA
    return np.where(twice_a, a, np.where(twice_b, b, np.where(twice_c, c, first)))


def mean_of_four(pixels: Bytes) -> Bytes:
    """The mean, rounded half up, of each 2 x 2 square apart from NODATA."""
    squares = np.stack([pixels[::2, ::2], pixels[::2, 1::2], pixels[1::2, ::2], pixels[1::2, 1::2]])
    valid = squares != NODATA
    count = valid.sum(0, dtype=np.uint16)
    total = np.where(valid, squares, 0).sum(0, dtype=np.uint16)
    mean = (total + count // 2) // np.maximum(count, 1)
    return np.where(count > 0, mean, NODATA).astype(np.uint8)


def nearest_of_four(pixels: Bytes) -> Bytes:
    """The upper left pixel of each 2 x 2 square."""
    return pixels[::2, ::2].copy()
