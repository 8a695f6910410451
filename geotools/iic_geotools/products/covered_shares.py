"""How much of each pixel polygons cover: exactly, or by the centre of the pixel.

The exact share follows from the edges alone. Walking along the boundary, each piece of an edge within one pixel, of
height dy, covers to its right dy of every further pixel of the row, and of its own pixel dy x (1 - the mean of x within
the pixel). Summed with signs along the row, what lies between two edges remains: the area of the polygon in each pixel.
Edges left of the window count as if they were on its left border, so that a window can be computed alone.
"""

from typing import Any

import numpy as np
from affine import Affine
from numpy.typing import NDArray
from rasterio.features import geometry_mask

from iic_geotools.packages import shapely
from iic_geotools.tiling import Rect

Floats = NDArray[np.float64]
Polygons = NDArray[Any]
"""An array of shapely polygons."""


def covered_shares(polygons: Polygons, rect: Rect) -> Floats:
    """Share of each pixel of a rectangle, 0 to 1, that polygons cover.

    Args:
        polygons: Valid polygons in pixels that do not overlap each other.
        rect: The rectangle.
    """
    x0, y0, x1, y1 = _cut_at_columns(*_cut_at_rows(*_edges(polygons, rect), rect.height), rect.width)
    middle = (x0 + x1) / 2
    column = np.clip(np.floor(middle), 0, rect.width - 1).astype(np.int64)
    row = np.clip(np.floor((y0 + y1) / 2), 0, rect.height - 1).astype(np.int64)
    height, within = y1 - y0, middle - column
    # One column more than the window takes what its last pixels hand on.
    cells = row * (rect.width + 1) + column
    size = rect.height * (rect.width + 1)
    steps = np.bincount(cells, height * (1 - within), size) + np.bincount(cells + 1, height * within, size)
    shares = np.cumsum(steps.reshape(rect.height, rect.width + 1), axis=1)[:, :-1]
    return np.asarray(np.clip(shares, 0.0, 1.0))


def covered_centres(polygons: Polygons, rect: Rect) -> Floats:
    """1 for each pixel of a rectangle whose centre lies in polygons, else 0.

    Args:
        polygons: Polygons in pixels.
        rect: The rectangle.
    """
    # In half pixels: rasterio takes an identity, as the first window's transform would be, for a mistake.
    halves = shapely.transform(polygons, lambda points: 2 * points)
    window = Affine.scale(2) @ Affine.translation(rect.col, rect.row)
    return np.asarray(geometry_mask(halves, (rect.height, rect.width), window, invert=True), np.float64)


Edges = tuple[Floats, Floats, Floats, Floats]
"""x and y of the first end of edges, and of the second."""


def _edges(polygons: Polygons, rect: Rect) -> Edges:
    """All edges, relative to a rectangle; the inside is to the right of those that go down the rows."""
    rings, owner = shapely.get_rings(polygons, return_index=True)
    points, ring = shapely.get_coordinates(rings, return_index=True)
    points = points - (rect.col, rect.row)
    same = ring[1:] == ring[:-1]
    (x0, y0), (x1, y1), ring = points[:-1][same].T, points[1:][same].T, ring[1:][same]
    # Relative to a ring's first point: the area of a small ring would otherwise drown in rounding errors.
    first = _first_points(points, rings)[ring]
    u0, v0, u1, v1 = x0 - first[:, 0], y0 - first[:, 1], x1 - first[:, 0], y1 - first[:, 1]
    turn = np.bincount(ring, u0 * v1 - u1 * v0, len(rings))
    shell = np.append(True, owner[1:] != owner[:-1])
    swap = ((turn > 0) == shell)[ring]
    return (
        np.where(swap, x1, x0),
        np.where(swap, y1, y0),
        np.where(swap, x0, x1),
        np.where(swap, y0, y1),
    )


def _first_points(points: Floats, rings: NDArray[Any]) -> Floats:
    counts = shapely.get_num_coordinates(rings)
    return np.asarray(points[np.cumsum(counts) - counts])


def _cut_at_rows(x0: Floats, y0: Floats, x1: Floats, y1: Floats, height: int) -> Edges:
    """The pieces of edges within each row of a window; edges without height cover nothing and are dropped."""
    low, high = np.minimum(y0, y1), np.maximum(y0, y1)
    kept = (low < high) & (high > 0) & (low < height)
    x0, y0, x1, y1, low, high = (values[kept] for values in (x0, y0, x1, y1, low, high))
    first = np.floor(np.maximum(low, 0)).astype(np.int64)
    last = np.ceil(np.minimum(high, height)).astype(np.int64)
    owner, row = _count_up(first, last - first)
    slope = ((x1 - x0) / (y1 - y0))[owner]
    x0, y0, y1 = x0[owner], y0[owner], y1[owner]
    start, end = np.clip(y0, row, row + 1), np.clip(y1, row, row + 1)
    return x0 + (start - y0) * slope, start, x0 + (end - y0) * slope, end


def _cut_at_columns(x0: Floats, y0: Floats, x1: Floats, y1: Floats, width: int) -> Edges:
    """The pieces of edges within each pixel of their row; those left of the window are moved onto its border."""
    low, high = np.minimum(x0, x1), np.maximum(x0, x1)
    # Column -1 is all that lies left of the window, and what lies right of it is dropped.
    kept = low < width
    x0, y0, x1, y1, low, high = (values[kept] for values in (x0, y0, x1, y1, low, high))
    first = np.floor(np.maximum(low, -1)).astype(np.int64)
    last = np.ceil(np.clip(high, 0, width)).astype(np.int64)
    owner, column = _count_up(first, np.maximum(last - first, 1))
    x0, y0, x1, y1 = x0[owner], y0[owner], x1[owner], y1[owner]
    left, right = np.where(column < 0, -np.inf, column), column + 1.0
    start, end = np.clip(x0, left, right), np.clip(x1, left, right)
    upright = x0 == x1
    slope = (y1 - y0) / np.where(upright, 1.0, x1 - x0)
    top = np.where(upright, y0, y0 + (start - x0) * slope)
    bottom = np.where(upright, y1, y0 + (end - x0) * slope)
    return np.maximum(start, 0.0), top, np.maximum(end, 0.0), bottom


def _count_up(
    first: NDArray[np.int64], count: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """For each entry the numbers `first`, `first` + 1, ..., as many as `count`, and the index of the entry."""
    owner = np.repeat(np.arange(len(first)), count)
    number = np.arange(len(owner)) - np.repeat(np.cumsum(count) - count, count)
    return owner, first[owner] + number
