"""Which part of a scene is wanted: bounds and areas of interest, in pixels."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import Any, Self

import numpy as np
import shapely
from numpy.typing import NDArray
from rasterio.features import geometry_mask
from rasterio.transform import Affine

from iic_geotools.errors import SceneError, UsageError
from iic_geotools.grid import Rect

Bounds = tuple[float, float, float, float]
OUTSIDE = "The area of interest lies outside the scene; check that both cover the same place."
MOST_POINTS = 1000


def parse_bounds(text: str) -> Bounds:
    """Read "LEFT,BOTTOM,RIGHT,TOP", separated by commas or spaces."""
    try:
        left, bottom, right, top = (float(number) for number in text.replace(",", " ").split())
    except ValueError:
        raise UsageError(f'--bounds takes "LEFT BOTTOM RIGHT TOP", not "{text}".') from None
    return left, bottom, right, top


def pixels_within(bounds: Bounds, transform: Affine, width: int, height: int) -> Rect:
    """The pixels that touch `bounds` (left, bottom, right, top in the scene's CRS).

    Raises:
        UsageError: the bounds hold no area.
        SceneError: they lie outside the scene.
    """
    left, bottom, right, top = bounds
    if not all(map(math.isfinite, bounds)):
        raise UsageError(f"--bounds must be finite numbers, not {left:g} {bottom:g} {right:g} {top:g}.")
    if not (left < right and bottom < top):
        raise UsageError(
            f"--bounds {left:g} {bottom:g} {right:g} {top:g} hold no area; the order is left bottom right top."
        )
    rect = _touched(_corners(bounds), transform).intersection(Rect(0, 0, width, height))
    if rect.empty:
        raise SceneError(
            f"The bounds {left:g} {bottom:g} {right:g} {top:g} lie outside the scene; give them in its CRS."
        )
    return rect


@dataclass(frozen=True, eq=False)
class Area:
    """Polygons as a mask of a scene's pixels: a pixel is inside if its centre is.

    Attributes:
        polygons: shapely polygons in pixels of the scene, none of them of many points.
    """

    polygons: NDArray[Any]

    @classmethod
    def of(cls, polygons: NDArray[Any], transform: Affine) -> Self:
        """The area of polygons in the reference system of a scene with this transform."""
        a, b, c, d, e, f, *_ = ~transform

        def to_pixels(points: NDArray[Any]) -> NDArray[Any]:
            x, y = points.T
            return np.column_stack([a * x + b * y + c, d * x + e * y + f])

        return cls(_subdivided(shapely.transform(polygons, to_pixels)))

    @property
    def digest(self) -> str:
        """What tells two areas apart."""
        return sha256(b"".join(shapely.to_wkb(self.polygons))).hexdigest()

    def rect(self, width: int, height: int) -> Rect:
        """The pixels that the polygons' bounding box touches.

        Raises:
            SceneError: they lie outside the scene.
        """
        left, top, right, bottom = shapely.total_bounds(self.polygons).tolist()
        rect = _enclosing((left, right), (top, bottom)).intersection(Rect(0, 0, width, height))
        if rect.empty:
            raise SceneError(OUTSIDE)
        return rect

    def touches(self, rect: Rect) -> bool:
        """False only if no pixel of `rect` is inside."""
        return bool(len(self._near(rect)))

    def inside(self, rect: Rect) -> NDArray[np.bool_]:
        """Which pixels of `rect` are inside."""
        shape = (rect.height, rect.width)
        near = self._near(rect)
        if not len(near):
            return np.zeros(shape, bool)
        # In half pixels: rasterio takes an identity, which the first window's transform would be, for a mistake.
        halves = shapely.transform(near, lambda points: 2 * points)
        window = Affine.scale(2) @ Affine.translation(rect.col, rect.row)
        return np.asarray(geometry_mask(halves, shape, window, invert=True))

    def _near(self, rect: Rect) -> NDArray[Any]:
        found: NDArray[Any] = self.polygons[
            self._tree.query(shapely.box(rect.col, rect.row, rect.right, rect.bottom))
        ]
        return found

    @cached_property
    def _tree(self) -> Any:
        return shapely.STRtree(self.polygons)


def _subdivided(polygons: NDArray[Any]) -> NDArray[Any]:
    """The same area in polygons of few points, so that a tile need not look at all of a long coastline."""
    done, todo = [], list(polygons)
    while todo:
        polygon = todo.pop()
        left, top, right, bottom = polygon.bounds
        wide = right - left > bottom - top
        # Cut along the edges of pixels, which no centre of a pixel can lie on.
        middle = round((left + right if wide else top + bottom) / 2)
        if shapely.get_num_coordinates(polygon) <= MOST_POINTS or max(right - left, bottom - top) < 2:
            done.append(polygon)
            continue
        halves = (
            ((left, top, middle, bottom), (middle, top, right, bottom))
            if wide
            else ((left, top, right, middle), (left, middle, right, bottom))
        )
        todo.extend(_cut(polygon, halves))
    return np.array(done, object)


def _cut(polygon: Any, rects: Sequence[Bounds]) -> NDArray[Any]:
    """The polygons of `polygon` within rectangles that cover it."""
    # Hundreds of times faster than an intersection, but not right for every polygon: the areas tell.
    fast = polygon_parts(np.array([shapely.clip_by_rect(polygon, *rect) for rect in rects], object))
    if math.isclose(shapely.area(fast).sum(), polygon.area, rel_tol=1e-9):
        return fast
    boxes = [shapely.box(*rect) for rect in rects]
    return polygon_parts(shapely.intersection(shapely.make_valid(polygon), boxes))


def polygon_parts(shapes: NDArray[Any]) -> NDArray[Any]:
    """The polygons with an area in geometries of any kind."""
    parts = shapely.get_parts(shapes)
    while (shapely.get_type_id(parts) > shapely.GeometryType.POLYGON).any():
        parts = shapely.get_parts(parts)
    flat = (shapely.get_type_id(parts) == shapely.GeometryType.POLYGON) & (shapely.area(parts) > 0)
    return np.asarray(parts[flat])


def _corners(bounds: Bounds) -> list[tuple[float, float]]:
    left, bottom, right, top = bounds
    return [(x, y) for x in (left, right) for y in (bottom, top)]


def _touched(points: Sequence[tuple[float, float]], transform: Affine) -> Rect:
    inverse = ~transform
    columns, rows = zip(*(inverse @ point for point in points), strict=True)
    return _enclosing(columns, rows)


def _enclosing(columns: Sequence[float], rows: Sequence[float]) -> Rect:
    # A bound that falls on a pixel's edge but for rounding must not drag in the next pixel.
    left, right = math.floor(round(min(columns), 6)), math.ceil(round(max(columns), 6))
    top, bottom = math.floor(round(min(rows), 6)), math.ceil(round(max(rows), 6))
    return Rect(left, top, right - left, bottom - top)
