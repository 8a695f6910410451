"""The part of a scene that is mapped: bounds and areas of interest, in pixels."""

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any, Self

import numpy as np
from affine import Affine
from numpy.typing import NDArray
from rasterio.crs import CRS
from rasterio.errors import CRSError, RasterioError
from rasterio.features import geometry_mask
from rasterio.warp import transform as reproject
from rasterio.warp import transform_bounds

from iic_geotools.errors import SceneError, UsageError
from iic_geotools.gdal import gdal_errors
from iic_geotools.geobox import LARGEST_COORDINATE, GeoBox
from iic_geotools.packages import shapely
from iic_geotools.scene.vectors import read_shapes
from iic_geotools.tiling import Rect

_LOG = logging.getLogger(__name__)
Bounds = tuple[float, float, float, float]
Polygons = NDArray[Any]
"""An array of shapely polygons."""
_OUTSIDE = "The area of interest lies outside the scene: check that both cover the same place."
# A polygon of more points is cut into several, so that a tile need not look at all of a long coastline.
MOST_POINTS = 1000
# Long edges are cut before their ends are reprojected: a straight line is not straight in every projection.
_EDGES_ACROSS = 256


def pixels_within(bounds: Bounds, grid: GeoBox) -> Rect:
    """The pixels of a scene that touch some bounds.

    Raises:
        UsageError: The bounds hold no area.
        SceneError: The bounds lie outside the scene.
    """
    left, bottom, right, top = bounds
    numbers = " ".join(f"{number:.10g}" for number in bounds)
    if not all(map(math.isfinite, bounds)):
        raise UsageError(f"`bounds` must be finite numbers, not {numbers}.")
    if not (left < right and bottom < top):
        raise UsageError(f"`bounds` {numbers} hold no area; the order is left bottom right top.")
    outside = SceneError(f"`bounds` {numbers} lie outside the scene: give them in its CRS.")
    # Cut to the scene first: numbers that are far too large would not fit into pixels.
    west, south, east, north = grid.extent
    left, bottom, right, top = max(left, west), max(bottom, south), min(right, east), min(top, north)
    if not (left < right and bottom < top):
        raise outside
    to_pixels = ~grid.transform
    corners = [to_pixels @ (x, y) for x in (left, right) for y in (bottom, top)]
    columns, rows = zip(*corners, strict=True)
    rect = _enclosing(columns, rows).intersection(Rect(0, 0, grid.width, grid.height))
    if rect.empty:
        raise outside
    return rect


def _enclosing(columns: Sequence[float], rows: Sequence[float]) -> Rect:
    """The pixels that points enclose."""
    # A bound that falls on a pixel's edge but for rounding must not drag in the next pixel.
    left, right = math.floor(round(min(columns), 6)), math.ceil(round(max(columns), 6))
    top, bottom = math.floor(round(min(rows), 6)), math.ceil(round(max(rows), 6))
    return Rect(left, top, right - left, bottom - top)


@dataclass(frozen=True, eq=False)
class Area:
    """Polygons as a mask of a scene's pixels: a pixel is inside if its centre is.

    Attributes:
        polygons: shapely polygons in pixels of the scene, none of them with many points.
    """

    polygons: Polygons

    @classmethod
    def of(cls, polygons: Polygons, transform: Affine) -> Self:
        """The area of polygons in the CRS of a scene with this transform."""
        a, b, c, d, e, f, *_ = ~transform

        def to_pixels(points: NDArray[Any]) -> NDArray[Any]:
            x, y = points.T
            return np.column_stack([a * x + b * y + c, d * x + e * y + f])

        return cls(subdivide(shapely.transform(polygons, to_pixels)))

    @property
    def digest(self) -> str:
        """A checksum of the area."""
        return sha256(b"".join(shapely.to_wkb(self.polygons))).hexdigest()

    def rect(self, width: int, height: int) -> Rect:
        """The pixels that the bounding box of the polygons touches."""
        left, top, right, bottom = shapely.total_bounds(self.polygons).tolist()
        rect = _enclosing((left, right), (top, bottom)).intersection(Rect(0, 0, width, height))
        if rect.empty:
            raise SceneError(_OUTSIDE)
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
        # In half pixels: rasterio takes an identity, as the first window's transform would be, for a mistake.
        halves = shapely.transform(near, lambda points: 2 * points)
        window = Affine.scale(2) @ Affine.translation(rect.col, rect.row)
        return np.asarray(geometry_mask(halves, shape, window, invert=True))

    def _near(self, rect: Rect) -> Polygons:
        box = shapely.box(rect.col, rect.row, rect.right, rect.bottom)
        return np.asarray(self.polygons[self._tree.query(box)])

    @cached_property
    def _tree(self) -> Any:
        return shapely.STRtree(self.polygons)


def subdivide(polygons: Polygons) -> Polygons:
    """The same area in polygons with few points."""
    small, remaining = [], list(polygons)
    while remaining:
        polygon = remaining.pop()
        left, top, right, bottom = polygon.bounds
        wide = right - left > bottom - top
        # Cut along the edges of pixels, on which the centre of a pixel cannot lie.
        middle = round((left + right if wide else top + bottom) / 2)
        if shapely.get_num_coordinates(polygon) <= MOST_POINTS or max(right - left, bottom - top) < 2:
            small.append(polygon)
            continue
        halves = (
            ((left, top, middle, bottom), (middle, top, right, bottom))
            if wide
            else ((left, top, right, middle), (left, middle, right, bottom))
        )
        remaining.extend(_cut(polygon, halves))
    return np.array(small, object)


def _cut(polygon: Any, rects: Sequence[Bounds]) -> Polygons:
    """The parts of a polygon within rectangles that cover it."""
    # Hundreds of times faster than an intersection, but not right for every polygon: the areas show whether it is.
    clipped = polygon_parts(np.array([shapely.clip_by_rect(polygon, *rect) for rect in rects], object))
    if math.isclose(shapely.area(clipped).sum(), polygon.area, rel_tol=1e-9):
        return clipped
    boxes = [shapely.box(*rect) for rect in rects]
    return polygon_parts(shapely.intersection(shapely.make_valid(polygon), boxes))


def polygon_parts(shapes: NDArray[Any]) -> Polygons:
    """The polygons with an area in geometries of any kind."""
    parts = shapely.get_parts(shapes)
    while (shapely.get_type_id(parts) > shapely.GeometryType.POLYGON).any():
        parts = shapely.get_parts(parts)
    flat = (shapely.get_type_id(parts) == shapely.GeometryType.POLYGON) & (shapely.area(parts) > 0)
    return np.asarray(parts[flat])


def read_aoi(path: Path, crs: CRS | None, extent: Bounds | None = None) -> Polygons:
    """Read the polygons of a vector file as shapely polygons in a scene's CRS.

    Args:
        path: Path of the file, of any format that GDAL opens; the first layer is read.
        crs: CRS of the scene. A file without a CRS is taken to be in it.
        extent: Left, bottom, right and top of the scene. Polygons elsewhere are left out: a projection need not be
            defined on the other side of the earth.

    Raises:
        SceneError: The file cannot be read, or holds no polygon, or none within the extent.
        MissingPackageError: Vector files cannot be read here.
    """
    shapes = read_shapes(path, "The area of interest")
    if not len(shapes.geometries):
        raise SceneError(f"The area of interest {path} is empty: give a file with polygons.")
    _check_places(shapes.geometries, path)
    polygons, wkt = polygon_parts(shapely.make_valid(shapes.geometries)), shapes.crs
    if not len(polygons):
        raise SceneError(
            f"The area of interest {path} holds no polygon with an area: points and lines have none."
        )
    if wkt is None or crs is None:
        subject = f"The area of interest {path}" if wkt is None else "The scene"
        _LOG.warning("%s has no coordinate reference system: both are taken to share one.", subject)
    else:
        polygons = _to_scene(polygons, wkt, crs, extent, path)
    if extent is not None:
        if crs is not None and crs.is_geographic:
            polygons = in_all_turns(polygons, crs)
        polygons = polygons[shapely.intersects(polygons, shapely.box(*extent))]
        if not len(polygons):
            raise SceneError(_OUTSIDE)
    return polygons


def _check_places(shapes: NDArray[Any], path: Path) -> None:
    """Refuse coordinates so large that their area is not a number."""
    if np.abs(shapely.get_coordinates(shapes)).max(initial=0.0) > LARGEST_COORDINATE:
        raise SceneError(
            f"The area of interest {path} reaches beyond {LARGEST_COORDINATE:g}, which is not on the earth: repair it."
        )


def _to_scene(polygons: Polygons, wkt: str, crs: CRS, extent: Bounds | None, path: Path) -> Polygons:
    """The polygons in the scene's CRS."""
    try:
        with gdal_errors():
            source = CRS.from_user_input(wkt)
            if source != crs:
                polygons = reproject_polygons(_near_scene(polygons, source, crs, extent), source, crs)
    except (CRSError, RasterioError, shapely.GEOSException) as error:
        raise SceneError(
            f"The area of interest {path} cannot be reprojected to the scene's CRS: {error}"
        ) from error
    if not np.isfinite(shapely.bounds(polygons)).all():
        raise SceneError(
            f"The area of interest {path} reaches beyond the domain of the scene's CRS: cut it to the scene."
        )
    return polygons


def reproject_polygons(polygons: Polygons, source: CRS, crs: CRS) -> Polygons:
    """The polygons in another CRS, long edges cut first."""
    if not len(polygons):
        return polygons
    left, bottom, right, top = shapely.total_bounds(polygons)
    dense = shapely.segmentize(polygons, max(right - left, top - bottom) / _EDGES_ACROSS)
    points = shapely.get_coordinates(dense)
    reprojected = np.column_stack(reproject(source, crs, points[:, 0], points[:, 1]))
    return np.asarray(shapely.set_coordinates(dense, reprojected))


def _near_scene(polygons: Polygons, source: CRS, crs: CRS, extent: Bounds | None) -> Polygons:
    """The parts of the polygons that lie near the scene."""
    boxes = () if extent is None else boxes_around(extent, crs, source)
    if not boxes:
        return polygons
    return polygon_parts(np.concatenate([shapely.intersection(polygons, box) for box in boxes]))


def boxes_around(extent: Bounds, crs: CRS, target: CRS) -> tuple[Any, ...]:
    """Boxes in another CRS that hold an extent with a margin; none if they cannot be known."""
    left, bottom, right, top = transform_bounds(crs, target, *extent)
    if not np.isfinite([left, bottom, right, top]).all():
        return ()
    # Across the antimeridian the left bound is the greater one.
    width = right - left if left <= right else right - left + 360
    margin = 0.1 * max(width, top - bottom)
    return tuple(
        shapely.box(start - margin, bottom - margin, start + width + margin, top + margin)
        for start in {left, right - width}
    )


def turn_of(crs: CRS | None) -> float:
    """A whole turn around the earth in the units of a geographic CRS."""
    return 360.0 if crs is None else float(2 * np.pi / crs.units_factor[1])


def in_all_turns(polygons: Polygons, crs: CRS) -> Polygons:
    """The polygons, also one turn further west and east: longitudes of scenes may go beyond the antimeridian."""
    turn = turn_of(crs)
    shifts = [np.array([longitude, 0.0]) for longitude in (-turn, 0.0, turn)]
    return np.concatenate([shapely.transform(polygons, shift.__add__) for shift in shifts])


def choose_region(grid: GeoBox, bounds: Bounds | None, aoi: Path | None) -> tuple[Rect, Area | None]:
    """The pixels of a scene that are mapped, and the polygons inside which they are, if there are any.

    Args:
        bounds: Left, bottom, right and top of the region in the scene's CRS; None for all of the scene.
    """
    if (bounds or aoi) and (placement := _placement_without_transform(grid)):
        raise UsageError(
            f"`bounds` and `aoi` need a scene with a transform, and this one has {placement}; warp it first."
        )
    region = Rect(0, 0, grid.width, grid.height)
    if bounds is not None:
        region = pixels_within(bounds, grid)
    if aoi is None:
        return region, None
    area = Area.of(read_aoi(aoi, grid.crs, grid.extent), grid.transform)
    region = region.intersection(area.rect(grid.width, grid.height))
    if region.empty:
        raise SceneError("The area of interest and the bounds do not meet.")
    return region, area


def _placement_without_transform(grid: GeoBox) -> str | None:
    """What places a raster as the camera saw it, whose pixels have no coordinates of their own."""
    if grid.gcps:
        return "ground control points"
    if grid.rpcs is not None and grid.transform == Affine.identity():
        return "rational polynomial coefficients (RPCs)"
    return None
