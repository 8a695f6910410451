"""Simpler borders of polygons that neighbours keep sharing.

Polygons are simplified tile by tile, because not all of them fit into memory. Within a tile each border between two
regions is simplified once, for both. Points where three regions meet stay, and so do the points where borders cross the
edge of a tile. So polygons have neither gaps nor overlaps, and pieces of neighbouring tiles fit together.
"""

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import shapely

from iic_geotools.geobox import GeoBox

Shapes = npt.NDArray[Any]


@dataclass(frozen=True)
class Simplifier:
    """Simplify polygons in pixels that cover a tile.

    Attributes:
        tolerance: The side in metres of a square as large as the bumps that vanish.
        pixel: Width and height of a pixel in metres.
        width: Width of the map in pixels.
        height: Height of the map in pixels.
    """

    tolerance: float
    pixel: tuple[float, float]
    width: int
    height: int

    @classmethod
    def of(cls, grid: GeoBox, tolerance: float) -> Self | None:
        """The simplifier for a grid whose pixels have a known size; None without a tolerance."""
        if not tolerance:
            return None
        return cls(tolerance, grid.pixel_size or (1.0, 1.0), grid.width, grid.height)

    def __call__(self, shapes: Shapes) -> Shapes:
        """Simplify polygons; the outline of all of them together stays."""
        # Neighbours must have the same corners: a straight edge needs one wherever two others meet at it.
        corners = shapely.segmentize(shapes, 1.0)
        metres = shapely.transform(corners, lambda points: np.rint(points) * self.pixel)
        simple = shapely.coverage_simplify(metres, self.tolerance, simplify_boundary=False)
        return self._straighten(shapely.transform(simple, lambda points: np.rint(points / self.pixel)))

    def _straighten(self, shapes: Shapes) -> Shapes:
        """Drop corners within the edges of the map."""
        left, top, right, bottom = shapely.bounds(shapes).T
        outer = (left == 0) | (top == 0) | (right == self.width) | (bottom == self.height)
        shapes = shapes.copy()
        shapes[outer] = self._straighten_outer(shapes[outer])
        return shapes

    def _straighten_outer(self, shapes: Shapes) -> Shapes:
        if not len(shapes):
            return shapes
        rings, owner = shapely.get_rings(shapes, return_index=True)
        points, ring = shapely.get_coordinates(rings, return_index=True)
        inside = np.zeros(len(points), bool)
        for axis, edges in ((0, (0, self.width)), (1, (0, self.height))):
            for edge in edges:
                on_edge = points[:, axis] == edge
                inside[1:-1] |= on_edge[1:-1] & on_edge[:-2] & on_edge[2:]
        first = np.append(True, ring[1:] != ring[:-1])
        inside &= ~(first | np.append(first[1:], True))
        return np.asarray(
            shapely.polygons(shapely.linearrings(points[~inside], indices=ring[~inside]), indices=owner)
        )
