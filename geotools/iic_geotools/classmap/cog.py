"""One Cloud-Optimised GeoTIFF from the parts of a map.

**Maps that are nearly empty** are written in the time that their data takes. GDAL's COG driver looks at every block
of its source, and a map of a few flight strips in a scene of a hundred gigapixels has hundreds of thousands of
empty ones. Here the file is put together from tiles that GDAL has compressed, without visiting the others: 1.1 s
of CPU instead of 11 s for 10 Gpx, 2.1 instead of 40 s for 42 Gpx (`benchmarks/sparse_map.py`). The layout is that
of GDAL's driver: a note about the structure, the directories with their values, then the tiles from the smallest
overview to the full resolution, each between its size and a copy of its last four bytes. Overviews are made from the
blocks that hold data alone: a `Level` knows which these are.
"""

import os
import struct
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import rasterio
import rasterio.shutil
from affine import Affine
from rasterio.errors import NotGeoreferencedWarning, RasterioError
from rasterio.windows import Window

from iic_geotools.classmap.classes import MAX_CLASSES, NODATA, MapClass
from iic_geotools.classmap.sidecars import sidecar, sidecar_path
from iic_geotools.classmap.vrt import georeference, write_vrt
from iic_geotools.errors import OutputError, UsageError
from iic_geotools.files import replacement, scratch_folder, sync, write_atomically
from iic_geotools.gdal import gdal_errors
from iic_geotools.geobox import GeoBox
from iic_geotools.tiling import Rect
from iic_geotools.work import cores, map_ahead

_TILE_OFFSETS, _TILE_BYTE_COUNTS = 324, 325
_SIZES = {
    1: 1,
    2: 1,
    3: 2,
    4: 4,
    5: 8,
    6: 1,
    7: 1,
    8: 2,
    9: 4,
    10: 8,
    11: 4,
    12: 8,
    13: 4,
    16: 8,
    17: 8,
    18: 8,
}
_UNSIGNED = {3: "u2", 4: "u4", 16: "u8"}  # SHORT, LONG, LONG8


@dataclass(frozen=True)
class _Layout:
    """How a TIFF writes the number of entries, an entry and a pointer, in its byte order."""

    order: str
    number: struct.Struct
    entry: struct.Struct
    pointer: struct.Struct


@dataclass(frozen=True)
class TileTable:
    """Offsets and byte counts of the tiles of one image; a tile of no bytes was left out on purpose."""

    offsets: npt.NDArray[np.uint64]
    counts: npt.NDArray[np.uint64]

    @property
    def end(self) -> int:
        """The first byte after the last tile."""
        return int((self.offsets + self.counts).max(initial=0))


@dataclass(frozen=True)
class Entry:
    """A tag of a TIFF: its type by the number that the format gives it, the number of values, and their bytes."""

    kind: int
    count: int
    value: bytes


def read_entries(path: Path) -> dict[int, Entry]:
    """Tags of the first image of a TIFF or BigTIFF, in the byte order of the file."""
    with path.open("rb") as file:
        layout, position = _header(file)
        entries, _ = _directory(file, layout, position)
        return {
            tag: Entry(kind, count, _value(file, layout, _SIZES[kind] * count, value))
            for tag, (kind, count, value) in entries.items()
        }


def is_whole(path: Path, expected: list[int]) -> bool:
    """Whether a tiled TIFF holds all its tiles.

    Args:
        expected: The least number of tiles of each of its images, in the order of the file.
    """
    try:
        tables = tile_tables(path)
    except (struct.error, ValueError, KeyError):
        return False
    size = path.stat().st_size
    return len(tables) == len(expected) and all(
        np.count_nonzero(table.counts) >= least and table.end <= size
        for table, least in zip(tables, expected, strict=True)
    )


def present_tiles(path: Path, across: int, down: int) -> npt.NDArray[np.bool_]:
    """Which tiles (`[down, across]`) of a raster's full resolution are in the file at all.

    All of them are taken to be there unless the file is a TIFF with a table of `across` x `down` tiles.
    """
    try:
        counts = tile_tables(path)[0].counts
    except (struct.error, ValueError, LookupError, OSError):
        counts = np.empty(0, np.uint64)
    if counts.size != across * down:
        return np.ones((down, across), bool)
    return np.asarray(counts != 0).reshape(down, across)


def tile_tables(path: Path) -> list[TileTable]:
    """The tile tables of every image of a tiled TIFF or BigTIFF."""
    tables = []
    with path.open("rb") as file:
        layout, position = _header(file)
        while position:
            entries, position = _directory(file, layout, position)
            tables.append(
                TileTable(
                    _numbers(file, layout, entries[_TILE_OFFSETS]),
                    _numbers(file, layout, entries[_TILE_BYTE_COUNTS]),
                )
            )
    return tables


def _header(file: BinaryIO) -> tuple[_Layout, int]:
    order = {b"II": "<", b"MM": ">"}[file.read(2)]
    (version,) = struct.unpack(f"{order}H", file.read(2))
    if version == 43:
        file.seek(8)
        formats = ("Q", "HHQ8s", "Q")
    elif version == 42:
        formats = ("H", "HHI4s", "I")
    else:
        raise ValueError(f"TIFF version {version}")
    layout = _Layout(order, *(struct.Struct(order + form) for form in formats))
    return layout, *layout.pointer.unpack(file.read(layout.pointer.size))


def _directory(
    file: BinaryIO, layout: _Layout, position: int
) -> tuple[dict[int, tuple[int, int, bytes]], int]:
    """The entries (type, count, value or its offset) of the directory at `position`, and the next one's."""
    file.seek(position)
    (count,) = layout.number.unpack(file.read(layout.number.size))
    content = file.read(count * layout.entry.size)
    (following,) = layout.pointer.unpack(file.read(layout.pointer.size))
    return {
        tag: (kind, length, value) for tag, kind, length, value in layout.entry.iter_unpack(content)
    }, following


def _numbers(file: BinaryIO, layout: _Layout, entry: tuple[int, int, bytes]) -> npt.NDArray[np.uint64]:
    kind, count, value = entry
    dtype = np.dtype(layout.order + _UNSIGNED[kind])
    return np.frombuffer(_value(file, layout, count * dtype.itemsize, value), dtype, count).astype(np.uint64)


def _value(file: BinaryIO, layout: _Layout, size: int, value: bytes) -> bytes:
    """The bytes of an entry's values, which are in the entry if they fit, and else where it points."""
    if size <= len(value):
        return value[:size]
    file.seek(layout.pointer.unpack(value)[0])
    return file.read(size)


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
    """The full resolution and its overviews, each half as large, all of them with their empty blocks known.

    Args:
        base: The full resolution; its empty blocks need not be known.
        scratch: Function that gives the path to write an overview to.
        reduce: Function that makes one pixel of each square of four.
        count: Number of overviews; by default as many as it takes until one fits into a block.
    """
    levels = [base]
    while (
        len(levels) - 1 < count
        if count is not None
        else max(levels[-1].width, levels[-1].height) > base.block
    ):
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
        row: Row of the first block that `pixels` cover.
        col: Column of the first block that `pixels` cover.
    """
    for y in range(0, pixels.shape[0], block):
        for x in range(0, pixels.shape[1], block):
            if (pixels[y : y + block, x : x + block] == NODATA).all():
                touched[row + y // block, col + x // block] = False


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


DEFAULT_OPTIONS = {
    "COMPRESS": "LZW",  # about as small as DEFLATE for labels, and two to three times as fast
    "BLOCKSIZE": "512",
    "BIGTIFF": "IF_SAFER",
    "NUM_THREADS": "ALL_CPUS",
    "SPARSE_OK": "TRUE",
}
BLOCK = 512
"""Side in pixels of the blocks of parts."""
# GDAL would keep up to 450 parts open, each with buffers of megabytes; a row of the map needs only a few.
OPEN_PARTS = 24
# A map with more blocks than this, of which fewer than this share hold data, is written without GDAL's COG driver.
MANY_BLOCKS, NEARLY_EMPTY = 10_000, 1 / 16
_LOSSLESS = ("DEFLATE", "LZW", "ZSTD", "LZMA", "NONE")
_LEVELS = {"DEFLATE": range(1, 13), "ZSTD": range(1, 23), "LZMA": range(10)}
_LEVEL_OPTIONS = {"DEFLATE": "ZLEVEL", "ZSTD": "ZSTD_LEVEL", "LZMA": "LZMA_PRESET"}
_BLOCKS = range(128, 4097, 16)
_REDUCERS: dict[str, Reducer] = {"MODE": mode_of_four, "AVERAGE": mean_of_four, "NEAREST": nearest_of_four}

# GDAL only warns about a value that it does not know and ignores it. The other options of the COG driver would change
# the grid, lose labels or compute what no map needs.
_VALUES: dict[str, tuple[str, ...]] = {
    "COMPRESS": _LOSSLESS,
    "OVERVIEW_COMPRESS": ("AUTO", *_LOSSLESS),
    "PREDICTOR": ("YES", "NO", "STANDARD"),
    "OVERVIEW_PREDICTOR": ("YES", "NO", "STANDARD"),
    "BIGTIFF": ("YES", "NO", "IF_NEEDED", "IF_SAFER"),
    "SPARSE_OK": ("TRUE", "FALSE", "YES", "NO", "ON", "OFF"),
    "GEOTIFF_VERSION": ("AUTO", "1.0", "1.1"),
    "OVERVIEWS": ("AUTO", "NONE"),
    "OVERVIEW_RESAMPLING": tuple(_REDUCERS),
}
_NUMBERS = {
    "BLOCKSIZE": _BLOCKS,
    "OVERVIEW_COUNT": range(31),
    "NUM_THREADS": range(1, 1025),
    "LEVEL": range(23),
}

_SUBFILE, _WIDTH, _HEIGHT, _COMPRESSION, _PREDICTOR = 254, 256, 257, 259, 317
_OFFSETS, _COUNTS = 324, 325
# Georeference and metadata, which only the full resolution has.
_OF_THE_WHOLE = {33550, 33922, 34264, 34735, 34736, 34737, 42112, 50844, 305}
_LONG, _LONG8 = 4, 16
_STRUCTURE = (
    "LAYOUT=IFDS_BEFORE_DATA\nBLOCK_ORDER=ROW_MAJOR\nBLOCK_LEADER=SIZE_AS_UINT4\n"
    "BLOCK_TRAILER=LAST_4_BYTES_REPEATED\nKNOWN_INCOMPATIBLE_EDITION=NO\n "
)
_HEADER = 16

_forks: list[int] = []
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: _forks.append(os.getpid()))


def creation_options(given: Mapping[str, str]) -> dict[str, str]:
    """The options of the COG driver for a map.

    Args:
        given: Options that replace or complete `DEFAULT_OPTIONS`.
    """
    own = {key.upper(): str(value) for key, value in given.items()}
    options = DEFAULT_OPTIONS | own
    for key, value in own.items():
        if key in _VALUES:
            if value.upper() not in _VALUES[key]:
                raise UsageError(f"{key}={value} is not possible for a map: use {', '.join(_VALUES[key])}.")
        elif key not in _NUMBERS:
            known = ", ".join(sorted({*_VALUES, *_NUMBERS}))
            raise UsageError(f"{key} is not a creation option of a map: use {known}.")
        elif (key, value.upper()) != ("NUM_THREADS", "ALL_CPUS"):
            _check_number(key, value, _NUMBERS[key])
    if "LEVEL" in options:
        compress = options["COMPRESS"].upper()
        if compress not in _LEVELS:
            raise UsageError(f"LEVEL applies to COMPRESS={', '.join(_LEVELS)}, not to {compress}.")
        _check_number("LEVEL", options["LEVEL"], _LEVELS[compress])
    if _forks:  # the threads of GDAL's pool stayed in the parent, and waiting for them would never end
        options["NUM_THREADS"] = "1"
    return options


def _check_number(key: str, value: str, allowed: range) -> None:
    if not (value.isascii() and value.isdigit() and len(value) < 9 and int(value) in allowed):
        step = f"a multiple of {allowed.step} " if allowed.step > 1 else ""
        raise UsageError(f"{key}={value} is not possible: use {step}from {allowed[0]} to {allowed[-1]}.")


def part_profile(width: int, height: int) -> dict[str, Any]:
    """The profile of a part of a map, for rasterio: a small GeoTIFF without a georeference."""
    profile = {"driver": "GTiff", "width": width, "height": height, "count": 1, "dtype": "uint8"}
    if min(width, height) >= BLOCK:
        profile |= {"tiled": True, "blockxsize": BLOCK, "blockysize": BLOCK}
    return profile | {"nodata": NODATA, "compress": "zstd", "zstd_level": 1}


def assemble(
    parts: Sequence[tuple[Path, Rect]],
    out: Path,
    grid: GeoBox,
    *,
    classes: Sequence[MapClass] | None,
    tags: Mapping[str, str] | None = None,
    options: Mapping[str, str] | None = None,
) -> bool:
    """Assemble a map from its parts; no file is left on failure.

    Work and memory grow with the parts, not with the size of the map: pixels that no part covers are NODATA and take
    no room in the file. The sidecar with class names is in place before the map's name appears.

    Args:
        parts: One-band GeoTIFF files of bytes and the rectangle of the map that each of them covers. An empty file
            stands for a rectangle without data.
        classes: Names and colours of the values 0, 1, ...; None for a continuous band such as confidence, whose
            overviews are averages.
        options: Creation options of GDAL's COG driver that replace or complete `DEFAULT_OPTIONS`.

    Returns:
        Whether a GeoTIFF could not hold all of the georeference, so that the sidecar has it.
    """
    creation = creation_options(options or {})
    if classes is not None and not 0 < len(classes) <= MAX_CLASSES:
        raise UsageError(f"A map has 1 to {MAX_CLASSES} classes, not {len(classes)}.")
    try:
        stored = [(path, rect) for path, rect in parts if path.stat().st_size > 0]
    except OSError as error:
        raise OutputError(f"A part of the map is missing: {error}") from error
    try:
        with (
            gdal_errors(),
            rasterio.Env(GDAL_MAX_DATASET_POOL_SIZE=OPEN_PARTS),
            scratch_folder(out) as folder,
        ):
            scratch = folder.joinpath
            levels = _levels(stored, grid, scratch, creation, classes)
            virtual = scratch("map.vrt")
            overviews = [level.path for level in levels[1:]]
            block = int(creation["BLOCKSIZE"])
            write_vrt(virtual, grid, stored, block=block, overviews=overviews, classes=classes, tags=tags)
            with replacement(out) as temporary:
                if _is_nearly_empty(levels[0], creation):
                    header = scratch("header.vrt")
                    write_vrt(
                        header,
                        replace(grid, width=block, height=block),
                        [],
                        block=block,
                        classes=classes,
                        tags=tags,
                    )
                    _write_directly(header, levels, temporary, scratch, creation)
                else:
                    done = ("OVERVIEW_RESAMPLING", "OVERVIEW_COUNT", "OVERVIEWS")
                    rest = {key: value for key, value in creation.items() if key not in done}
                    existing = "FORCE_USE_EXISTING" if _has_overviews(creation) else "NONE"
                    rasterio.shutil.copy(virtual, temporary, driver="COG", OVERVIEWS=existing, **rest)
                _check(temporary, levels, creation)
                lost = _put_sidecar(temporary, out, grid, classes)
    except RasterioError as error:
        raise OutputError(f"The map {out} cannot be written: {error}") from error
    return lost


def _levels(
    parts: Sequence[tuple[Path, Rect]],
    grid: GeoBox,
    scratch: Callable[[str], Path],
    options: Mapping[str, str],
    classes: Sequence[MapClass] | None,
) -> list[Level]:
    """The map at full resolution and its overviews."""
    block = int(options["BLOCKSIZE"])
    mosaic = scratch("parts.vrt")
    write_vrt(mosaic, GeoBox(grid.width, grid.height, NOWHERE), parts, block=block)
    touched = touched_blocks((rect for _, rect in parts), grid.width, grid.height, block)
    base = Level(mosaic, grid.width, grid.height, block, touched)
    resampling = options.get("OVERVIEW_RESAMPLING", "AVERAGE" if classes is None else "MODE").upper()
    count = options.get("OVERVIEW_COUNT") if _has_overviews(options) else "0"
    number = None if count is None else int(count)
    return build_levels(base, scratch, _REDUCERS[resampling], number)


def _has_overviews(options: Mapping[str, str]) -> bool:
    return options.get("OVERVIEWS", "AUTO").upper() != "NONE"


def _is_nearly_empty(full: Level, options: Mapping[str, str]) -> bool:
    """Whether a map has so many empty blocks that GDAL's driver, which visits all of them, would be slow."""
    driver_only = {"OVERVIEW_COMPRESS", "OVERVIEW_PREDICTOR", "PREDICTOR"} & set(options)
    possible = _is_sparse(options) and options["BIGTIFF"].upper() != "NO" and not driver_only
    return (
        possible
        and full.touched.size >= MANY_BLOCKS
        and full.touched.sum() < NEARLY_EMPTY * full.touched.size
    )


def _write_directly(
    header: Path,
    levels: Sequence[Level],
    target: Path,
    scratch: Callable[[str], Path],
    options: Mapping[str, str],
) -> None:
    """Write a map without visiting its empty blocks.

    Args:
        header: A virtual raster of one empty block with the tags of the map.
        scratch: Function that gives paths for files in between.
    """
    template = scratch("template.tif")
    size = {"TILED": "YES", "BLOCKXSIZE": options["BLOCKSIZE"], "BLOCKYSIZE": options["BLOCKSIZE"]}
    version = {"GEOTIFF_VERSION": options["GEOTIFF_VERSION"]} if "GEOTIFF_VERSION" in options else {}
    compression = _compression(options)
    rasterio.shutil.copy(header, template, driver="GTiff", BIGTIFF="YES", **size, **version, **compression)
    stored = [store(level, scratch(f"stored-{index}.tif"), compression) for index, level in enumerate(levels)]
    write_sparse_cog(stored, template, target)


def _compression(options: Mapping[str, str]) -> dict[str, str]:
    """Compression options of the COG driver as options of the GeoTIFF driver."""
    compress = options["COMPRESS"].upper()
    chosen = {"COMPRESS": compress, "NUM_THREADS": options["NUM_THREADS"]}
    if "LEVEL" in options:
        chosen[_LEVEL_OPTIONS[compress]] = options["LEVEL"]
    return chosen


def _check(written: Path, levels: Sequence[Level], options: Mapping[str, str]) -> None:
    sync(written)
    sparse = _is_sparse(options)
    tiles = [int(level.touched.sum() if sparse else level.touched.size) for level in levels]
    if not is_whole(written, tiles):
        raise OSError("it was not written completely")


def _is_sparse(options: Mapping[str, str]) -> bool:
    return options["SPARSE_OK"].upper() in ("TRUE", "YES", "ON", "1")


def _put_sidecar(written: Path, out: Path, grid: GeoBox, classes: Sequence[MapClass] | None) -> bool:
    """Put the sidecar of `out` in place; return whether it holds a georeference that `written` could not."""
    sidecar_path(written).unlink(missing_ok=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotGeoreferencedWarning)  # the scene may have no georeference either
        with rasterio.open(written) as dataset:
            lost = bool(grid.differences(GeoBox.of(dataset)))
    if classes is not None or lost:
        write_atomically(sidecar_path(out), sidecar(classes, georeference(grid) if lost else ""))
    else:
        sidecar_path(out).unlink(missing_ok=True)
    return lost


def write_sparse_cog(levels: Sequence[Level], template: Path, out: Path) -> None:
    """Write the levels of a map into one file.

    Args:
        levels: The full resolution and its overviews, as sparse tiled TIFF files of GDAL.
        template: A TIFF of one block that has the tags of the map: its georeference, colours and metadata.
    """
    tables = [tile_tables(level.path)[0] for level in levels]
    entries = list(_directories(levels, template))
    places = _placements(tables, _data_start(entries, tables))
    with out.open("wb") as file:
        _write_head(file, entries, places)
        for level, table, place in reversed(list(zip(levels, tables, places, strict=True))):
            _copy_tiles(file, level.path, table, place)


def _directories(levels: Sequence[Level], template: Path) -> Iterator[dict[int, Entry]]:
    """Yield the tags of each level, apart from those of its tiles."""
    common = read_entries(template)
    for number, level in enumerate(levels):
        own = read_entries(level.path)
        entries = {tag: entry for tag, entry in common.items() if number == 0 or tag not in _OF_THE_WHOLE}
        for tag in (_COMPRESSION, _PREDICTOR):
            entries.pop(tag, None)
            if tag in own:
                entries[tag] = own[tag]
        entries |= {_WIDTH: _long(level.width), _HEIGHT: _long(level.height)}
        if number:
            entries[_SUBFILE] = _long(1)
        yield {tag: entry for tag, entry in entries.items() if tag not in (_OFFSETS, _COUNTS)}


def _long(value: int) -> Entry:
    return Entry(_LONG, 1, struct.pack("<I", value))


def _data_start(entries: Sequence[Mapping[int, Entry]], tables: Sequence[TileTable]) -> int:
    """Return the offset of the first tile, which is where head and directories end."""
    sizes = (
        _directory_size({**level, **_tile_entries(table)})
        for level, table in zip(entries, tables, strict=True)
    )
    return _HEADER + len(_note()) + sum(sizes)


def _note() -> bytes:
    """Return the note about the structure, padded so that directories begin at multiples of eight."""
    note = f"GDAL_STRUCTURAL_METADATA_SIZE={len(_STRUCTURE):06d} bytes\n{_STRUCTURE}".encode()
    return note + b"\0" * (-(_HEADER + len(note)) % 8)


def _tile_entries(table: TileTable) -> dict[int, Entry]:
    count = len(table.offsets)
    return {
        _OFFSETS: Entry(_LONG8, count, table.offsets.astype("<u8").tobytes()),
        _COUNTS: Entry(_LONG, count, table.counts.astype("<u4").tobytes()),
    }


def _directory_size(entries: Mapping[int, Entry]) -> int:
    """Return the bytes of a directory with the values that do not fit into its entries."""
    outside = sum(_padded(entry) for entry in entries.values() if len(entry.value) > 8)
    return 8 + 20 * len(entries) + 8 + -(20 * len(entries)) % 8 + outside


def _padded(entry: Entry) -> int:
    return -(-len(entry.value) // 8) * 8


def _placements(tables: Sequence[TileTable], start: int) -> list[TileTable]:
    """Return where the tiles go: those of the smallest overview first, each with four bytes before and after."""
    placed: list[TileTable] = []
    for table in reversed(tables):
        present = table.counts > 0
        room = np.where(present, table.counts + np.uint64(8), 0).astype(np.uint64)
        ends = np.cumsum(room, dtype=np.uint64) + np.uint64(start)
        offsets = np.where(present, ends - table.counts - np.uint64(4), 0).astype(np.uint64)
        placed.append(TileTable(offsets, table.counts))
        start = int(ends[-1])
    return placed[::-1]


def _write_head(
    file: BinaryIO, directories: Sequence[Mapping[int, Entry]], tables: Sequence[TileTable]
) -> None:
    """Write the head of a BigTIFF and its directories."""
    position = _HEADER + len(_note())
    file.write(struct.pack("<2sHHHQ", b"II", 43, 8, 0, position) + _note())
    for number, (tags, table) in enumerate(zip(directories, tables, strict=True)):
        entries = dict(sorted({**tags, **_tile_entries(table)}.items()))
        following = position + _directory_size(entries)
        head, values = [struct.pack("<Q", len(entries))], []
        outside = position + 8 + 20 * len(entries) + 8 + -(20 * len(entries)) % 8
        for tag, entry in entries.items():
            value = entry.value.ljust(8, b"\0")
            if len(entry.value) > 8:
                value = struct.pack("<Q", outside)
                values.append(entry.value.ljust(_padded(entry), b"\0"))
                outside += _padded(entry)
            head.append(struct.pack("<HHQ8s", tag, entry.kind, entry.count, value))
        last = number == len(directories) - 1
        head.append(struct.pack("<Q", 0 if last else following) + b"\0" * (-(20 * len(entries)) % 8))
        file.write(b"".join(head + values))
        position = following


def _copy_tiles(file: BinaryIO, source: Path, table: TileTable, place: TileTable) -> None:
    """Copy the tiles of a level, as they are compressed, to where their table says that they are."""
    with source.open("rb") as old:
        for index in np.flatnonzero(table.counts):
            size = int(table.counts[index])
            old.seek(int(table.offsets[index]))
            content = old.read(size)
            file.write(struct.pack("<I", size))
            if file.tell() != int(place.offsets[index]):
                raise ValueError(f"tile {index} of {source} is not where its directory says")
            file.write(content + content[-4:])
