"""One Cloud-Optimised GeoTIFF from the parts of a map.

**Maps that are nearly empty** are written in the time that their data takes. GDAL's COG driver looks at every block
of its source, and a map of a few flight strips in a scene of a hundred gigapixels has hundreds of thousands of
empty ones. Here the file is put together from tiles that GDAL has compressed, without a look at the others: 1.1 s
of CPU instead of 11 s for 10 Gpx, 2.1 instead of 40 s for 42 Gpx (`benchmarks/sparse_map.py`). The layout is that
of GDAL's driver: a note about the structure, the directories with their values, then the tiles from the smallest
overview to the full resolution, each between its size and a copy of its last four bytes.
"""

import os
import struct
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import rasterio
import rasterio.shutil
from rasterio.errors import NotGeoreferencedWarning, RasterioError

from iic_geotools.classmap.classes import MAX_CLASSES, NODATA, MapClass
from iic_geotools.classmap.overviews import (
    NOWHERE,
    Level,
    Reducer,
    build_levels,
    mean_of_four,
    mode_of_four,
    nearest_of_four,
    store,
    touched_blocks,
)
from iic_geotools.classmap.sidecars import sidecar, sidecar_path
from iic_geotools.classmap.vrt import georeference, write_vrt
from iic_geotools.errors import OutputError, UsageError
from iic_geotools.files import replacement, scratch_folder, sync, write_atomically
from iic_geotools.gdal import gdal_errors
from iic_geotools.geobox import GeoBox
from iic_geotools.tiff import Entry, TileTable, is_whole, read_entries, tile_tables
from iic_geotools.tiling import Rect

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

    Raises:
        UsageError: An option or value that the driver does not know or that a map must not have.
    """
    options = DEFAULT_OPTIONS | {key.upper(): str(value) for key, value in given.items()}
    for key, value in options.items():
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
) -> None:
    """Build a map from its parts, or leave nothing.

    Work and memory grow with the parts, not with the size of the map: pixels that no part covers are NODATA and take
    no room in the file. The sidecar with class names is in place before the map's name appears.

    Args:
        parts: One-band GeoTIFF files of bytes and the rectangle of the map that each of them covers. An empty file
            stands for a rectangle without data.
        out: Path of the map.
        grid: Grid and georeference of the map.
        classes: Names and colours of the values 0, 1, ...; None for a continuous band such as confidence, whose
            overviews are averages.
        tags: Metadata of the file.
        options: Creation options of GDAL's COG driver that replace or complete `DEFAULT_OPTIONS`.

    Raises:
        UsageError: Options or classes that cannot be right.
        OutputError: A part cannot be read or the map cannot be written.
    """
    creation = creation_options(options or {})
    if classes is not None and not 0 < len(classes) <= MAX_CLASSES:
        raise UsageError(f"A map has 1 to {MAX_CLASSES} classes, not {len(classes)}.")
    stored = [(path, rect) for path, rect in parts if _holds_data(path)]
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
                    _copy(virtual, temporary, creation)
                _check(temporary, levels, creation)
                _put_sidecar(temporary, out, grid, classes)
    except RasterioError as error:
        raise OutputError(f"The map {out} cannot be written: {error}") from error


def _holds_data(part: Path) -> bool:
    try:
        return part.stat().st_size > 0
    except OSError as error:
        raise OutputError(f"A part of the map is missing: {error}") from error


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


def _copy(virtual: Path, target: Path, options: Mapping[str, str]) -> None:
    done_here = {"OVERVIEW_RESAMPLING", "OVERVIEW_COUNT", "OVERVIEWS"}
    for_driver = {key: value for key, value in options.items() if key not in done_here}
    existing = "FORCE_USE_EXISTING" if _has_overviews(options) else "NONE"
    rasterio.shutil.copy(virtual, target, driver="COG", OVERVIEWS=existing, **for_driver)


def _is_nearly_empty(full: Level, options: Mapping[str, str]) -> bool:
    """Whether a map has so many empty blocks that it is not left to GDAL's driver, which looks at all of them."""
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
    """Write a map without a look at its empty blocks.

    Args:
        header: A virtual raster of one empty block with the tags of the map.
        levels: The full resolution and its overviews.
        target: Path of the map.
        scratch: Function that gives paths for files in between.
        options: Creation options of the map.
    """
    template = scratch("template.tif")
    size = {"TILED": "YES", "BLOCKXSIZE": options["BLOCKSIZE"], "BLOCKYSIZE": options["BLOCKSIZE"]}
    version = {"GEOTIFF_VERSION": options["GEOTIFF_VERSION"]} if "GEOTIFF_VERSION" in options else {}
    compression = _compression(options)
    rasterio.shutil.copy(header, template, driver="GTiff", BIGTIFF="YES", **size, **version, **compression)
    stored = [store(level, scratch(f"stored-{index}.tif"), compression) for index, level in enumerate(levels)]
    write_sparse_cog(stored, template, target)


def _compression(options: Mapping[str, str]) -> dict[str, str]:
    """The options of GDAL's GeoTIFF driver for the compression that those of the COG driver ask for."""
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


def _put_sidecar(written: Path, out: Path, grid: GeoBox, classes: Sequence[MapClass] | None) -> None:
    """Put the sidecar of `out` in place, with the georeference if `written` could not hold all of it."""
    sidecar_path(written).unlink(missing_ok=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotGeoreferencedWarning)  # the scene may have no georeference either
        with rasterio.open(written) as dataset:
            lost = not grid.same_place(GeoBox.of(dataset))
    if classes is not None or lost:
        write_atomically(sidecar_path(out), sidecar(classes, georeference(grid) if lost else ""))
    else:
        sidecar_path(out).unlink(missing_ok=True)


def write_sparse_cog(levels: Sequence[Level], template: Path, out: Path) -> None:
    """Write the levels of a map into one file.

    Args:
        levels: The full resolution and its overviews, as sparse tiled TIFF files of GDAL.
        template: A TIFF of one block that has the tags of the map: its georeference, colours and metadata.
        out: Path of the file.
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
