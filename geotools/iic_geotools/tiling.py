"""The tile grid: rectangles of integers, without any raster.

A map must not depend on how it was tiled. A network with a receptive field reaching `halo` pixels and a
`stride` gives a tile's core exactly the labels of the whole image if the pixels read around the core

- reach `halo` pixels further on each side, or to the edge of the scene where that is nearer,
- start at a multiple of `stride`, and end at one or at the edge of the scene,
- are never padded.

`TileGrid` cuts a region of a scene into such tiles; `TileGrid.parts` groups them into the pieces that are written at
once. Reading further than needed is exact, too: `uniform` tiles at an edge of the scene reach further inwards, so that
all of them have the same shape and fit into one batch.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from iic_geotools.errors import UsageError


@dataclass(frozen=True, slots=True)
class Rect:
    """A rectangle of pixels: column and row of its first pixel, width and height."""

    col: int
    row: int
    width: int
    height: int

    @property
    def right(self) -> int:
        """First column past the rectangle."""
        return self.col + self.width

    @property
    def bottom(self) -> int:
        """First row past the rectangle."""
        return self.row + self.height

    @property
    def empty(self) -> bool:
        """Whether it holds no pixel."""
        return self.width <= 0 or self.height <= 0

    @property
    def area(self) -> int:
        """Number of pixels."""
        return 0 if self.empty else self.width * self.height

    def intersection(self, other: "Rect") -> "Rect":
        """The pixels in both; `empty` where they do not meet."""
        col, row = max(self.col, other.col), max(self.row, other.row)
        right, bottom = min(self.right, other.right), min(self.bottom, other.bottom)
        return Rect(col, row, max(0, right - col), max(0, bottom - row))

    def grow(self, pixels: int) -> "Rect":
        """The rectangle, larger by this many pixels on each side."""
        return Rect(self.col - pixels, self.row - pixels, self.width + 2 * pixels, self.height + 2 * pixels)

    def relative_to(self, origin: "Rect") -> "Rect":
        """The same pixels, counted from the first pixel of `origin`."""
        return Rect(self.col - origin.col, self.row - origin.row, self.width, self.height)

    @property
    def slices(self) -> tuple[slice, slice]:
        """Rows and columns, to index an array whose first pixel is (0, 0)."""
        return slice(self.row, self.bottom), slice(self.col, self.right)


@dataclass(frozen=True, slots=True)
class Tile:
    """The pixels that a tile labels (`core`) and those it has to read for that (`read`), in scene pixels."""

    core: Rect
    read: Rect

    @property
    def crop(self) -> tuple[slice, slice]:
        """Rows and columns of the core in an array of the pixels read."""
        return self.core.relative_to(self.read).slices


@dataclass(frozen=True, slots=True)
class Part:
    """Consecutive tiles of one row: the piece of a map that is written at once, completely or not at all."""

    index: int
    grid: "TileGrid"
    row: int
    columns: range

    @property
    def tiles(self) -> tuple[Tile, ...]:
        """Its tiles, created on demand: most parts of a sparse scene are never read."""
        return tuple(self.grid.at(self.row, column) for column in self.columns)

    @property
    def rect(self) -> Rect:
        """The pixels that its tiles label."""
        side, area = self.grid.tile, self.grid.area
        first = Rect(
            area.col + self.columns[0] * side, area.row + self.row * side, side * len(self.columns), side
        )
        return first.intersection(area)


def largest_read(tile: int, halo: int, stride: int) -> int:
    """Return the longest side of the pixels that a tile of a large scene may have to read."""
    return tile + 2 * halo + 2 * (stride - 1)


@dataclass(frozen=True, slots=True)
class TileGrid:
    """Tiles over a region of a scene.

    Cores are squares counted from the region's first pixel and clipped to the region; they cover it exactly once.
    `tile`, `halo` and `region` need not be multiples of `stride`: only the pixels read are aligned to it.

    Attributes:
        width: Width of the scene in pixels.
        height: Height of the scene in pixels.
        tile: Side of a tile's core in pixels.
        halo: Number of pixels that a label depends on in each direction.
        stride: Pixels that are read start at a multiple of this.
        region: The pixels to label; None for the whole scene.
        uniform: Whether all tiles read the same number of pixels, as far as the scene has them. Only its last rows or
            columns have another number, if their number in the scene is not a multiple of `stride`.
    """

    width: int
    height: int
    tile: int
    halo: int
    stride: int
    region: Rect | None = None
    uniform: bool = False

    def __post_init__(self) -> None:
        if min(self.width, self.height, self.tile, self.stride) < 1 or self.halo < 0:
            raise UsageError(
                f"A tile grid needs a positive size, `tile` and `stride`, and a `halo` of at least 0, not {self}."
            )
        if self.area.empty or self.area != self.area.intersection(self.scene):
            raise UsageError(
                f"The region {self.area} does not lie inside a scene of {self.width} x {self.height} px."
            )

    @property
    def scene(self) -> Rect:
        """The whole scene."""
        return Rect(0, 0, self.width, self.height)

    @property
    def area(self) -> Rect:
        """The region that is tiled."""
        return self.scene if self.region is None else self.region

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of tiles."""
        return -(-self.area.height // self.tile), -(-self.area.width // self.tile)

    @property
    def read_side(self) -> int:
        """The longest side of the pixels that a tile may have to read."""
        return min(max(self.width, self.height), largest_read(self.tile, self.halo, self.stride))

    def __len__(self) -> int:
        rows, columns = self.shape
        return rows * columns

    def at(self, row: int, column: int) -> Tile:
        """The tile at a row and column of the grid of tiles."""
        area = self.area
        square = Rect(area.col + column * self.tile, area.row + row * self.tile, self.tile, self.tile)
        core = square.intersection(area)
        col, right = self._span(core.col, core.right, area.width, self.width)
        top, bottom = self._span(core.row, core.bottom, area.height, self.height)
        return Tile(core, Rect(col, top, right - col, bottom - top))

    def _span(self, start: int, stop: int, extent: int, limit: int) -> tuple[int, int]:
        first = max(0, start - self.halo) // self.stride * self.stride
        if not self.uniform:
            return first, min(self._aligned(stop + self.halo), limit)
        side = self._aligned(min(self.tile, extent) + 2 * self.halo + self.stride - 1)
        if first + side < limit:
            return first, first + side
        return max(0, self._aligned(limit - side)), limit

    def _aligned(self, pixels: int) -> int:
        return -(-pixels // self.stride) * self.stride

    def __iter__(self) -> Iterator[Tile]:
        rows, columns = self.shape
        return (self.at(row, column) for row in range(rows) for column in range(columns))

    def parts(self, most_tiles: int) -> Iterator[Part]:
        """Parts of at most `most_tiles` consecutive tiles of one row, in reading order."""
        rows, columns = self.shape
        starts = ((row, first) for row in range(rows) for first in range(0, columns, most_tiles))
        for index, (row, first) in enumerate(starts):
            yield Part(index, self, row, range(first, min(first + most_tiles, columns)))
