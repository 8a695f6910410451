"""Levels of a map: one-band rasters of bytes of which only the blocks that hold data are ever touched.

GDAL builds overviews by walking every pixel, empty or not. A map of a few flight strips in a scene of a
hundred gigapixels is nearly all empty, so here a level knows which of its blocks may hold data and the next
one is made from those alone.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import rasterio
from affine import Affine
from rasterio.windows import Window

from iic_geotools.errors import OutputError
from iic_geotools.grid import Rect
from iic_geotools.tiff import is_whole

NODATA = 255

# Georeference of intermediate files: any but the identity and its mirror image, about which rasterio warns.
NOWHERE = Affine(2.0, 0.0, 0.0, 0.0, -2.0, 0.0)

Bytes = npt.NDArray[np.uint8]
Reducer = Callable[[Bytes], Bytes]


@dataclass(frozen=True)
class Level:
    """A raster, and which of its square blocks may hold data (`touched[row, column]`)."""

    path: Path
    width: int
    height: int
    block: int
    touched: npt.NDArray[np.bool_]

    def strike_out(self, row: int, col: int, pixels: Bytes) -> None:
        """Note which of the blocks from (`row`, `col`) on that `pixels` cover hold no data."""
        for y in range(0, pixels.shape[0], self.block):
            for x in range(0, pixels.shape[1], self.block):
                if (pixels[y : y + self.block, x : x + self.block] == NODATA).all():
                    self.touched[row + y // self.block, col + x // self.block] = False

    def windows(self) -> Iterator[tuple[int, int, Window]]:
        """Row and column of each block that may hold data, and its pixels."""
        for row, col in np.argwhere(self.touched):
            x, y = int(col) * self.block, int(row) * self.block
            yield (
                int(row),
                int(col),
                Window(x, y, min(self.block, self.width - x), min(self.block, self.height - y)),
            )


def touched_blocks(rects: Iterable[Rect], width: int, height: int, block: int) -> npt.NDArray[np.bool_]:
    """Which blocks of a raster the rectangles touch."""
    touched = np.zeros((-(-height // block), -(-width // block)), bool)
    for rect in rects:
        rows = slice(rect.row // block, -(-rect.bottom // block))
        cols = slice(rect.col // block, -(-rect.right // block))
        touched[rows, cols] = True
    return touched


def overviews(
    base: Level, scratch: Callable[[str], Path], reduce: Reducer, count: int | None = None
) -> list[Level]:
    """Halve `base` again and again until a level fits into one block (or `count` times).

    Args:
        base: The full resolution.
        scratch: Where to write a level, by name.
        reduce: Makes one pixel of each square of four.
        count: How many levels to make.
    """
    levels = [base]
    while len(levels) - 1 < count if count is not None else _larger_than_block(levels[-1]):
        levels.append(_halved(levels[-1], scratch(f"overview-{len(levels)}.tif"), reduce))
    return levels[1:]


def without_empty_blocks(level: Level) -> Level:
    """The level once each of its blocks was looked at."""
    with rasterio.open(level.path) as src:
        for row, col, window in level.windows():
            level.strike_out(row, col, src.read(1, window=window))
    return level


def _larger_than_block(level: Level) -> bool:
    return max(level.width, level.height) > level.block


def _halved(source: Level, path: Path, reduce: Reducer) -> Level:
    block = source.block
    rows, cols = source.touched.shape
    even = np.pad(source.touched, ((0, rows % 2), (0, cols % 2)))
    touched = even[::2, ::2] | even[1::2, ::2] | even[::2, 1::2] | even[1::2, 1::2]
    level = Level(path, -(-source.width // 2), -(-source.height // 2), block, touched)
    with rasterio.open(source.path) as src, _writing(level) as write:
        for row, col, window in level.windows():
            x, y = window.col_off * 2, window.row_off * 2
            wide, high = min(2 * block, source.width - x), min(2 * block, source.height - y)
            pixels = src.read(1, window=Window(x, y, wide, high))
            source.strike_out(2 * row, 2 * col, pixels)
            pixels = np.pad(pixels, ((0, high % 2), (0, wide % 2)), constant_values=NODATA)
            write(row, col, window, reduce(pixels))
    return level


@contextmanager
def _writing(level: Level) -> Iterator[Callable[[int, int, Window, Bytes], None]]:
    """Yield a function that writes one block of `level`; a block without data is only struck out."""
    profile = {"driver": "GTiff", "count": 1, "dtype": "uint8", "nodata": NODATA, "tiled": True}
    place = {"transform": NOWHERE}
    layout = {"blockxsize": level.block, "blockysize": level.block, "BIGTIFF": "YES", "SPARSE_OK": "TRUE"}
    packing = {"compress": "lzw"}
    with rasterio.open(
        level.path, "w", width=level.width, height=level.height, **profile, **layout, **packing, **place
    ) as dst:

        def write(row: int, col: int, window: Window, pixels: Bytes) -> None:
            level.strike_out(row, col, pixels)
            if level.touched[row, col]:
                dst.write(pixels, 1, window=window)

        yield write
    if not is_whole(level.path, [int(level.touched.sum())]):
        raise OutputError(f"{level.path} was not written whole: make room on the disk and run again.")


def mode_of_four(pixels: Bytes) -> Bytes:
    """The commonest value of each 2 x 2 square that is not NODATA; of equally common ones the first."""
    # Comparisons of contiguous bytes are vectorised, of every second byte they are not.
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
    """The mean, rounded half up, of each 2 x 2 square without its NODATA."""
    squares = np.stack([pixels[::2, ::2], pixels[::2, 1::2], pixels[1::2, ::2], pixels[1::2, 1::2]])
    valid = squares != NODATA
    count = valid.sum(0, dtype=np.uint16)
    total = np.where(valid, squares, 0).sum(0, dtype=np.uint16)
    mean = (total + count // 2) // np.maximum(count, 1)
    return np.where(count > 0, mean, NODATA).astype(np.uint8)


def nearest_of_four(pixels: Bytes) -> Bytes:
    """The upper left pixel of each 2 x 2 square."""
    return pixels[::2, ::2].copy()
