"""Whether the tiles of a TIFF are really in the file.

GDAL buffers what it writes and swallows the error if the last buffer does not fit on the disk, so a copy that
"succeeded" may lack its end. The tables of tile offsets show whether it does.
"""

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

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
    """`struct` formats of a TIFF's byte order, entry count, entry and pointer, and the size of an inline value."""

    order: str
    number: str
    entry: str
    pointer: str
    inline: int


@dataclass(frozen=True)
class TileTable:
    """Offsets and byte counts of the tiles of one image; a tile of no bytes was left out on purpose."""

    offsets: npt.NDArray[np.uint64]
    counts: npt.NDArray[np.uint64]

    @property
    def present(self) -> int:
        """Number of tiles in the file."""
        return int(np.count_nonzero(self.counts))

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
    """The tags of the first image of a TIFF or BigTIFF, whose bytes are in the order of the file."""
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
        path: Path of the file.
        expected: The least number of tiles of each of its images, in the order of the file.
    """
    try:
        tables = tile_tables(path)
    except (struct.error, ValueError, KeyError):
        return False
    size = path.stat().st_size
    return len(tables) == len(expected) and all(
        table.present >= least and table.end <= size for table, least in zip(tables, expected, strict=True)
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
        return _Layout(order, "Q", "HHQ8s", "Q", 8), *struct.unpack(f"{order}Q", file.read(8))
    if version != 42:
        raise ValueError(f"TIFF version {version}")
    return _Layout(order, "H", "HHI4s", "I", 4), *struct.unpack(f"{order}I", file.read(4))


def _directory(
    file: BinaryIO, layout: _Layout, position: int
) -> tuple[dict[int, tuple[int, int, bytes]], int]:
    """The entries (type, count, value or its offset) of the directory at `position`, and the next one's."""

    def unpack(form: str) -> tuple[Any, ...]:
        return struct.unpack(layout.order + form, file.read(struct.calcsize(layout.order + form)))

    file.seek(position)
    (count,) = unpack(layout.number)
    entries = {}
    for _ in range(count):
        tag, kind, length, value = unpack(layout.entry)
        entries[tag] = (kind, length, value)
    (following,) = unpack(layout.pointer)
    return entries, following


def _numbers(file: BinaryIO, layout: _Layout, entry: tuple[int, int, bytes]) -> npt.NDArray[np.uint64]:
    kind, count, value = entry
    dtype = np.dtype(layout.order + _UNSIGNED[kind])
    return np.frombuffer(_value(file, layout, count * dtype.itemsize, value), dtype, count).astype(np.uint64)


def _value(file: BinaryIO, layout: _Layout, size: int, value: bytes) -> bytes:
    """The bytes of an entry's values, which are in the entry if they fit, and else where it points."""
    if size <= layout.inline:
        return value[:size]
    file.seek(struct.unpack(layout.order + layout.pointer, value)[0])
    return file.read(size)
