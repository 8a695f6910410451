"""A Cloud-Optimised GeoTIFF of a map that is nearly empty, in the time that its data takes.

GDAL's COG driver looks at every block of its source, and a map of a few flight strips in a scene of a hundred
gigapixels has hundreds of thousands of empty ones. Here the file is put together from tiles that GDAL has compressed,
without a look at the others: 1.1 s of CPU instead of 11 s for 10 Gpx, 2.1 instead of 40 s for 42 Gpx
(`benchmarks/sparse_map.py`). The layout is that of GDAL's driver: a note about the structure, the directories with
their values, then the tiles from the smallest overview to the full resolution, each between its size and a copy of its
last four bytes.
"""

import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np

from iic_geotools.classmap.overviews import Level
from iic_geotools.tiff import Entry, TileTable, read_entries, tile_tables

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
