"""Regions of equal value as polygons, tile by tile.

GDAL's polygoniser holds every polygon of a raster at once. Here a map is traced in tiles, and the pieces that
meet at a tile's edge are joined as soon as no further tile can add to them, so that memory follows the
regions that are still open. Coordinates are pixels, hence exact.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import rasterio.features
import shapely
from affine import Affine
from rasterio.windows import Window

from iic_geotools.levels import NODATA

TILE = 2048

Owners = npt.NDArray[np.int64]


def regions(
    dataset: Any, present: npt.NDArray[np.bool_], block: tuple[int, int]
) -> Iterator[tuple[Any, int]]:
    """Yield each 4-connected region of a one-band raster of bytes, a shapely polygon in pixels, and its value.

    Args:
        dataset: An open rasterio dataset; NODATA is no region.
        present: Which blocks (rows, columns) hold data at all.
        block: Height and width of a block.
    """
    pieces = _Pieces()
    above = np.full(dataset.width, -1)
    for top in range(0, dataset.height, TILE):
        high = min(TILE, dataset.height - top)
        below = np.full(dataset.width, -1)
        left = np.full(high, -1)
        for start in range(0, dataset.width, TILE):
            window = Window(start, top, min(TILE, dataset.width - start), high)
            right = np.full(high, -1)
            if _any_present(present, block, window):
                complete, edges = _trace(dataset.read(1, window=window), window, pieces)
                yield from complete
                span = slice(start, start + window.width)
                below[span], right = edges["bottom"], edges["right"]
                pieces.join(above[span], edges["top"])
                pieces.join(left, edges["left"])
            left = right
        yield from pieces.finished(below)
        above = below
    yield from pieces.finished(np.empty(0, np.int64))


def _any_present(present: npt.NDArray[np.bool_], block: tuple[int, int], window: Window) -> bool:
    high, wide = block
    rows = slice(window.row_off // high, -(-(window.row_off + window.height) // high))
    cols = slice(window.col_off // wide, -(-(window.col_off + window.width) // wide))
    return bool(present[rows, cols].any())


class _Pieces:
    """Pieces of regions, and which of them belong together."""

    def __init__(self) -> None:
        self._parent: dict[int, int] = {}
        self._shapes: dict[int, tuple[Any, int]] = {}
        self._next = 0

    def add(self, shape: Any, value: int) -> int:
        self._parent[self._next] = self._next
        self._shapes[self._next] = (shape, value)
        self._next += 1
        return self._next - 1

    def join(self, one: Owners, other: Owners) -> None:
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

    def finished(self, growing: Owners) -> Iterator[tuple[Any, int]]:
        """Yield, and forget, the regions without a piece among `growing`."""
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
            if len(shapes) == 1:
                yield shapes[0]
            else:
                # The joint leaves vertices in the middle of straight edges: simplifying by nothing drops them.
                whole = shapely.union_all([shape for shape, _ in shapes])
                yield shapely.simplify(whole, 0), shapes[0][1]


def _trace(
    pixels: npt.NDArray[np.uint8], window: Window, pieces: _Pieces
) -> tuple[list[tuple[Any, int]], dict[str, Owners]]:
    """The regions inside a tile, and which piece each pixel along its edges is of.

    Regions that reach an edge are added to `pieces`.
    """
    x, y = window.col_off, window.row_off
    edges = {
        "top": np.full(window.width, -1),
        "bottom": np.full(window.width, -1),
        "left": np.full(window.height, -1),
        "right": np.full(window.height, -1),
    }
    place = Affine.translation(x, y)
    found = rasterio.features.shapes(pixels, mask=pixels != NODATA, connectivity=4, transform=place)
    shapes = [(_polygon(geometry["coordinates"]), int(value)) for geometry, value in found]
    left, top, right, bottom = shapely.bounds([shape for shape, _ in shapes]).reshape(-1, 4).T
    inner = (left > x) & (top > y) & (right < x + window.width) & (bottom < y + window.height)
    for index in np.flatnonzero(~inner).tolist():
        shape, value = shapes[index]
        piece = pieces.add(shape, value)
        # Only the shell can run along the tile's edge: a hole is enclosed.
        points = shapely.get_coordinates(shape.exterior).astype(np.int64) - (x, y)
        _own(edges["top"], points, piece, along=0, at=0)
        _own(edges["bottom"], points, piece, along=0, at=window.height)
        _own(edges["left"], points, piece, along=1, at=0)
        _own(edges["right"], points, piece, along=1, at=window.width)
    return [shapes[index] for index in np.flatnonzero(inner).tolist()], edges


def _polygon(rings: list[list[tuple[float, float]]]) -> Any:
    return shapely.Polygon(rings[0], rings[1:])


def _own(edge: Owners, points: npt.NDArray[np.int64], piece: int, *, along: int, at: int) -> None:
    """Note the stretches of a ring that run along an edge of the tile."""
    across = points[:, 1 - along]
    on_edge = (across[:-1] == at) & (across[1:] == at)
    for index in np.flatnonzero(on_edge).tolist():
        start, stop = sorted((int(points[index, along]), int(points[index + 1, along])))
        edge[start:stop] = piece
