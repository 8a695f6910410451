"""Tracing regions of equal value as polygons, tile by tile.

GDAL's polygoniser holds all polygons of a raster in memory. Here a map is traced in tiles, and pieces that meet at
the edges of tiles are joined as soon as no further tile can add to them, so that memory holds only the regions that
are still open. A region of too many corners is refused. Coordinates are pixels, hence exact.
"""

from collections.abc import Callable, Iterator
from itertools import chain, islice
from typing import Any

import numpy as np
import numpy.typing as npt
import rasterio.features
import shapely
from affine import Affine
from rasterio.windows import Window

from iic_geotools.classmap.classes import NODATA
from iic_geotools.errors import SceneError

# Noise has a polygon for nearly every pixel: those of one tile are in memory at once.
TILE = 512
_BATCH = 4096
MAX_CORNERS = 4_000_000
"""The most corners of the regions that are open at once."""

Values = npt.NDArray[np.uint8]
Simplify = Callable[[npt.NDArray[Any]], npt.NDArray[Any]]
Edge = npt.NDArray[np.int64]
"""For each pixel along an edge of a tile, the piece that it belongs to, or -1."""


def trace_regions(
    dataset: Any,
    present: npt.NDArray[np.bool_],
    block: tuple[int, int],
    simplify: Simplify | None = None,
) -> Iterator[tuple[Any, int]]:
    """Yield each 4-connected region of a one-band raster of bytes as a shapely polygon in pixels, and its value.

    Args:
        dataset: An open rasterio dataset; pixels that are NODATA belong to no region.
        present: Which blocks (rows, columns) hold data at all.
        block: Height and width of a block in pixels.
        simplify: Simplifies the polygons of a tile, which cover it without gaps; those that it returns must do so too.

    Raises:
        SceneError: A region has too many corners.
    """
    pieces = _Pieces(joins_exactly=simplify is not None)
    above = np.full(dataset.width, -1)
    for top in range(0, dataset.height, TILE):
        high = min(TILE, dataset.height - top)
        below = np.full(dataset.width, -1)
        left = np.full(high, -1)
        for start in range(0, dataset.width, TILE):
            window = Window(start, top, min(TILE, dataset.width - start), high)
            right = np.full(high, -1)
            if _any_present(present, block, window):
                complete, edges = _trace(dataset.read(1, window=window), window, pieces, simplify)
                yield from complete
                span = slice(start, start + window.width)
                below[span], right = edges["bottom"], edges["right"]
                pieces.join(above[span], edges["top"])
                pieces.join(left, edges["left"])
            left = right
        yield from pieces.take_closed(below)
        above = below
    yield from pieces.take_closed(np.empty(0, np.int64))


def _any_present(present: npt.NDArray[np.bool_], block: tuple[int, int], window: Window) -> bool:
    high, wide = block
    rows = slice(window.row_off // high, -(-(window.row_off + window.height) // high))
    cols = slice(window.col_off // wide, -(-(window.col_off + window.width) // wide))
    return bool(present[rows, cols].any())


class _Pieces:
    """Pieces of regions and which of them belong together: a union-find structure.

    Args:
        joins_exactly: Whether regions keep the corners at which their pieces were joined, because others share them.
    """

    def __init__(self, joins_exactly: bool = False) -> None:
        self._joins_exactly = joins_exactly
        self._corners = 0
        self._parent: dict[int, int] = {}
        self._shapes: dict[int, tuple[Any, int]] = {}
        self._next = 0

    def add(self, shape: Any, value: int) -> int:
        """Add a piece and return its number."""
        self._parent[self._next] = self._next
        self._shapes[self._next] = (shape, value)
        self._next += 1
        self._corners += shapely.get_num_coordinates(shape)
        if self._corners > MAX_CORNERS:
            raise SceneError(
                f"Regions of this map have more than {MAX_CORNERS:,} corners, which is noise, not polygons; clean "
                "the map with `sieve` or `majority`, or give `min_area`."
            )
        return self._next - 1

    def join(self, one: Edge, other: Edge) -> None:
        """Join the pieces that face each other across an edge and have the same value."""
        facing = (one >= 0) & (other >= 0)
        for a, b in np.unique(np.stack([one[facing], other[facing]], 1), axis=0).tolist():
            if self._shapes[a][1] == self._shapes[b][1]:
                self._parent[self._root(a)] = self._root(b)

    def _root(self, piece: int) -> int:
        while self._parent[piece] != piece:
            self._parent[piece] = self._parent[self._parent[piece]]
            piece = self._parent[piece]
        return piece

    def take_closed(self, growing: Edge) -> Iterator[tuple[Any, int]]:
        """Yield and remove the regions without a piece along an edge that still grows."""
        still_open = {self._root(piece) for piece in np.unique(growing[growing >= 0]).tolist()}
        closed: dict[int, list[int]] = {}
        for piece in self._parent:
            root = self._root(piece)
            if root not in still_open:
                closed.setdefault(root, []).append(piece)
        for members in closed.values():
            shapes = [self._shapes.pop(piece) for piece in members]
            for piece in members:
                del self._parent[piece]
            self._corners -= int(shapely.get_num_coordinates([shape for shape, _ in shapes]).sum())
            pieces = np.array([shape for shape, _ in shapes], object)
            yield pieces[0] if len(pieces) == 1 else self._join(pieces), shapes[0][1]

    def _join(self, pieces: npt.NDArray[Any]) -> Any:
        """One polygon of pieces that meet at the edges of tiles."""
        # Holes lie within tiles, so that only shells meet: joining noise with its holes takes ten times the memory.
        whole = shapely.union_all(shapely.polygons(shapely.get_exterior_ring(pieces)))
        # Joining leaves vertices within straight edges: simplifying with tolerance 0 drops them.
        whole = whole if self._joins_exactly else shapely.simplify(whole, 0)
        rings, owner = shapely.get_rings(pieces, return_index=True)
        is_hole = np.append(False, owner[1:] == owner[:-1])
        holes = np.concatenate([shapely.get_rings(whole)[1:], rings[is_hole]])
        return shapely.polygons(whole.exterior, holes=holes)


def _trace(
    pixels: npt.NDArray[np.uint8], window: Window, pieces: _Pieces, simplify: Simplify | None
) -> tuple[list[tuple[Any, int]], dict[str, Edge]]:
    """The regions that lie inside a tile, and the pieces along its edges.

    Regions that reach an edge are added to `pieces`.
    """
    x, y = window.col_off, window.row_off
    edges = {
        "top": np.full(window.width, -1),
        "bottom": np.full(window.width, -1),
        "left": np.full(window.height, -1),
        "right": np.full(window.height, -1),
    }
    origin = Affine.translation(x, y)
    # Simplifying needs regions without data as well: otherwise their borders would be the edge of all polygons.
    mask = pixels != NODATA if simplify is None else None
    geometries = rasterio.features.shapes(pixels, mask=mask, connectivity=4, transform=origin)
    shapes, values = _polygons(geometries)
    if simplify is not None and len(shapes):
        shapes, values = simplify(shapes)[values != NODATA], values[values != NODATA]
    left, top, right, bottom = shapely.bounds(shapes).reshape(-1, 4).T
    inner = (left > x) & (top > y) & (right < x + window.width) & (bottom < y + window.height)
    for index in np.flatnonzero(~inner).tolist():
        shape = shapes[index]
        piece = pieces.add(shape, int(values[index]))
        # Only the shell can run along the tile's edge: a hole is enclosed.
        points = shapely.get_coordinates(shape.exterior).astype(np.int64) - (x, y)
        _mark(edges["top"], points, piece, along=0, at=0)
        _mark(edges["bottom"], points, piece, along=0, at=window.height)
        _mark(edges["left"], points, piece, along=1, at=0)
        _mark(edges["right"], points, piece, along=1, at=window.width)
    return list(zip(shapes[inner], values[inner].tolist(), strict=True)), edges


def _polygons(geometries: Iterator[tuple[dict[str, Any], float]]) -> tuple[npt.NDArray[Any], Values]:
    """Polygons and values of what rasterio traced; many at once, because one by one takes longer than the tracing."""
    shapes: list[npt.NDArray[Any]] = [np.empty(0, object)]
    values: list[float] = []
    while batch := list(islice(geometries, _BATCH)):
        rings = [
            (owner, ring) for owner, (geometry, _) in enumerate(batch) for ring in geometry["coordinates"]
        ]
        points = np.array(list(chain.from_iterable(ring for _, ring in rings)))
        index = np.repeat(np.arange(len(rings)), [len(ring) for _, ring in rings])
        owners = np.array([owner for owner, _ in rings])
        shapes.append(shapely.polygons(shapely.linearrings(points, indices=index), indices=owners))
        values += [value for _, value in batch]
    return np.concatenate(shapes), np.array(values, np.uint8)


def _mark(edge: Edge, points: npt.NDArray[np.int64], piece: int, *, along: int, at: int) -> None:
    """Mark the pixels of an edge of the tile that a ring runs along."""
    across = points[:, 1 - along]
    on_edge = (across[:-1] == at) & (across[1:] == at)
    for index in np.flatnonzero(on_edge).tolist():
        start, stop = sorted((int(points[index, along]), int(points[index + 1, along])))
        edge[start:stop] = piece
