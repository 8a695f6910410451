"""Zonal statistics: the area of each class in each polygon of a file, behind `iic-map stats`.

**Shares of pixels.** The exact share of a pixel that polygons cover follows from the
edges alone. Walking along the boundary, each piece of an edge within one pixel, of height dy, covers to its right
dy of every further pixel of the row, and of its own pixel dy x (1 - the mean of x within the pixel). Summed with
signs along the row, what lies between two edges remains: the area of the polygon in each pixel. Edges left of the
window count as if they were on its left border, so that a window can be computed alone.
"""

import csv
import io
import math
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from affine import Affine
from numpy.typing import NDArray
from rasterio.crs import CRS
from rasterio.errors import CRSError, RasterioError
from rasterio.features import geometry_mask

from iic_geotools.classmap.class_map import ClassMap, open_map
from iic_geotools.classmap.classes import NODATA
from iic_geotools.errors import SceneError
from iic_geotools.files import check_writable, write_atomically
from iic_geotools.gdal import gdal_errors
from iic_geotools.geobox import AreaMethod, GeoBox
from iic_geotools.options import PartialPixels
from iic_geotools.packages import shapely
from iic_geotools.products.areas import ZONE_SUFFIXES, PixelAreas, plain_cell, ten_digits
from iic_geotools.scene.points import to_pixels
from iic_geotools.scene.region import (
    MOST_POINTS,
    boxes_around,
    in_all_turns,
    polygon_parts,
    reproject_polygons,
    subdivide,
    turn_of,
)
from iic_geotools.scene.vectors import Shapes, read_shapes, write_package
from iic_geotools.settings import PathLike, checked
from iic_geotools.tiling import Rect, TileGrid
from iic_geotools.work import OnProgress, Progress, silent

ZONE, METHOD = "zone", "method"
"""Names of the fields with the number of a polygon in its file, and with how areas were measured."""
NODATA_HA, COVERED = "nodata_ha", "covered"
"""Names of the fields with the area without data, and with the share of a polygon that lies on data."""
BORDERS = "pixels on borders by"
"""What the field `method` says in every result, before how they count."""
# A GeoPackage has columns of its own by these names.
_COLUMNS = {"fid", "geom"}

Floats = NDArray[np.float64]
Polygons = NDArray[Any]
"""An array of shapely polygons."""
_TILE = 1024


def check_zones(path: Path, grid: GeoBox) -> None:
    """Check before any work that statistics of polygons can be made on a grid.

    Raises:
        SceneError: Areas cannot be measured on the grid, or the polygons cannot be read or lie elsewhere.
    """
    check_areas(grid)
    read_zones(path, grid)


def check_areas(grid: GeoBox) -> None:
    """Refuse a grid on which areas cannot be measured."""
    if grid.area_method == "none":
        raise SceneError(
            "The map has no CRS in which areas can be measured, which zonal statistics need; set it, or warp the map "
            "to another."
        )


@dataclass(frozen=True, eq=False)
class Zones:
    """Polygons of a file, and where they lie on a grid.

    Attributes:
        shapes: The polygons as they are in the file, with all their fields.
        pieces: Polygons in pixels of the grid, those of one zone after the other, none with many points.
        owners: For each piece the index of the zone that it belongs to.
        pixels: Area of each zone in pixels; 0 for one that lies elsewhere.
    """

    shapes: Shapes
    pieces: NDArray[Any]
    owners: NDArray[np.int64]
    pixels: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.shapes.numbers)


def read_zones(path: Path, grid: GeoBox) -> Zones:
    """Read the polygons of a vector file and bring them onto a grid.

    Args:
        path: Path of the file, of any format that GDAL opens; the first layer is read.

    Raises:
        SceneError: The file cannot be read, has no CRS or no polygon, or none that meets the grid.
        MissingPackageError: Vector files cannot be read here.
    """
    shapes = _read(path)
    valid = shapely.make_valid(shapes.geometries)
    is_geographic = grid.crs is not None and bool(grid.crs.is_geographic)
    try:
        with gdal_errors():
            source = CRS.from_user_input(shapes.crs)
            near = _near(valid, source, grid)
            if source != grid.crs:
                valid = valid.copy()
                valid[near] = reproject_polygons(valid[near], source, grid.crs)
                if is_geographic and not source.is_geographic:
                    valid[near] = _unwrapped(valid[near], grid)
    except (CRSError, RasterioError, shapely.GEOSException) as error:
        raise SceneError(f"The zones {path} cannot be brought to the CRS of the map ({error}).") from error
    if not np.isfinite(shapely.bounds(valid[near])).all():
        raise SceneError(f"The zones {path} reach beyond the domain of the map's CRS; cut them to the map.")
    pieces, owners = _pieces(valid, near, grid)
    pixels = np.asarray(np.bincount(owners, shapely.area(pieces), len(valid)), np.float64)
    if is_geographic:
        pieces, owners = _with_other_turns(valid, near, pieces, owners, grid)
    inside = shapely.box(0, 0, grid.width, grid.height)
    if not (shapely.intersects(pieces, inside) & ~shapely.touches(pieces, inside)).any():
        raise SceneError(f"The zones {path} lie outside the map; give those of the same place.")
    return Zones(shapes, pieces, owners, pixels)


def zones_digest(path: Path) -> str:
    """A checksum of the polygons of a vector file and of their fields.

    Raises:
        SceneError: The file cannot be read, has no CRS or no polygon.
        MissingPackageError: Vector files cannot be read here.
    """
    return _read(path).digest


def _read(path: Path) -> Shapes:
    shapes = read_shapes(path, "The zones", None, keep_empty=True)
    if not len(shapes.geometries):
        raise SceneError(f"The zones {path} are empty; give a file with polygons.")
    if shapes.crs is None:
        raise SceneError(f"The zones {path} have no CRS, so they cannot be placed; save them with one.")
    if shapely.area(shapes.geometries).sum() == 0:
        raise SceneError(f"The zones {path} hold no polygon with an area: points and lines have none.")
    return shapes


def _near(shapes: NDArray[Any], source: CRS, grid: GeoBox) -> NDArray[np.int64]:
    """Indices of the shapes near a grid: a projection need not be defined on the other side of the earth."""
    boxes = boxes_around(grid.extent, grid.crs, source)
    if not boxes:
        return np.flatnonzero(~shapely.is_empty(shapes))
    if source.is_geographic:
        boxes = tuple(in_all_turns(np.array(boxes, object), source))
    return np.flatnonzero(np.any([shapely.intersects(shapes, box) for box in boxes], axis=0))


def _pieces(
    shapes: NDArray[Any], near: NDArray[np.int64], grid: GeoBox
) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """The polygons of the shapes near a grid, in its pixels, and the index of the shape of each."""
    pieces: list[Any] = []
    owners: list[int] = []
    for index in near.tolist():
        parts = shapely.transform(
            polygon_parts(shapes[index : index + 1]),
            lambda points: np.column_stack(to_pixels(points[:, 0], points[:, 1], grid)),
        )
        if (shapely.get_num_coordinates(parts) > MOST_POINTS).any():
            parts = subdivide(parts)
        pieces += list(parts)
        owners += [index] * len(parts)
    return np.array(pieces, object), np.array(owners, np.int64)


def _unwrapped(shapes: NDArray[Any], grid: GeoBox) -> NDArray[Any]:
    """Shapes whose longitudes all lie within half a turn of the grid: reprojection tears them at the antimeridian."""
    turn = turn_of(grid.crs)
    middle = (grid.extent[0] + grid.extent[2]) / 2

    def unwrap(points: NDArray[np.float64]) -> NDArray[np.float64]:
        nearest = middle + np.mod(points[:, 0] - middle + turn / 2, turn) - turn / 2
        return np.column_stack([nearest, points[:, 1]])

    return np.asarray(shapely.make_valid(shapely.transform(shapes, unwrap)))


def _with_other_turns(
    shapes: NDArray[Any],
    near: NDArray[np.int64],
    pieces: NDArray[Any],
    owners: NDArray[np.int64],
    grid: GeoBox,
) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Add the pieces that meet the grid one turn further west or east: its longitudes may pass the antimeridian."""
    turned = in_all_turns(shapes, grid.crs).reshape(3, -1)
    extent = shapely.box(*grid.extent)
    for copies in (turned[0], turned[2]):
        meeting = near[shapely.intersects(copies[near], extent)]
        more, their_owners = _pieces(copies, meeting, grid)
        pieces, owners = np.concatenate([pieces, more]), np.concatenate([owners, their_owners])
    order = np.argsort(owners, kind="stable")  # pieces of one zone follow one another
    return pieces[order], owners[order]


def write_zones(
    out: Path, zones: Zones, columns: dict[str, NDArray[np.float64]], method: str, layer: str
) -> None:
    """Write polygons with their fields and areas.

    Args:
        columns: Figures of each polygon by name of the field.
    """
    figures = {
        ZONE: zones.shapes.numbers,
        **{key: np.array([*map(ten_digits, values)]) for key, values in columns.items()},
    }
    figures[METHOD] = np.array([method] * len(zones), object)
    figures = _distinct(figures)
    taken = {name.lower() for name in figures}
    fields = dict(zones.shapes.fields)
    if _is_result(fields):
        fields = {name: values for name, values in fields.items() if name.lower() not in taken}
    content = {**_distinct(fields, taken | _COLUMNS), **figures}
    if out.suffix.lower() == ".csv":
        write_atomically(out, _as_csv(content).encode())
    else:
        _write_package(out, zones, content, layer)


def _is_result(fields: Mapping[str, NDArray[Any]]) -> bool:
    """Whether fields are those of an earlier result, whose figures are replaced, and not the user's own."""
    names = {ZONE, NODATA_HA, COVERED, METHOD}
    return names <= {*fields} and all(BORDERS in str(method) for method in fields[METHOD])


def _distinct(
    fields: Mapping[str, NDArray[Any]], taken: AbstractSet[str] = frozenset()
) -> dict[str, NDArray[Any]]:
    """The same fields, with names that differ also where case does not count, as in a GeoPackage.

    Args:
        taken: Names in lower case that none of them may have.
    """
    distinct: dict[str, NDArray[Any]] = {}
    own, used = {name.lower() for name in fields}, set(taken)
    for name, values in fields.items():
        candidate, number = name, 2
        while candidate.lower() in used or (candidate != name and candidate.lower() in own):
            candidate, number = f"{name}_{number}", number + 1
        used.add(candidate.lower())
        distinct[candidate] = values
    return distinct


def _as_csv(content: dict[str, NDArray[Any]]) -> str:
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow([plain_cell(name) for name in content])
    for row in zip(*(values.tolist() for values in content.values()), strict=True):
        writer.writerow([plain_cell(cell) if isinstance(cell, str) else cell for cell in row])
    return buffer.getvalue()


def _write_package(out: Path, zones: Zones, content: dict[str, NDArray[Any]], layer: str) -> None:
    kinds = set(shapely.get_type_id(zones.shapes.geometries).tolist())
    polygon, many = int(shapely.GeometryType.POLYGON), int(shapely.GeometryType.MULTIPOLYGON)
    geometry_type = (
        "Polygon" if kinds == {polygon} else "MultiPolygon" if kinds <= {polygon, many} else "Unknown"
    )
    write_package(
        out,
        zones.shapes.geometries,
        content,
        zones.shapes.crs,
        layer=layer,
        geometry_type=geometry_type,
        promote_to_multi=geometry_type == "MultiPolygon",
    )


def covered_shares(polygons: Polygons, rect: Rect) -> Floats:
    """Share of each pixel of a rectangle, 0 to 1, that polygons cover.

    Args:
        polygons: Valid polygons in pixels that do not overlap each other.
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


@dataclass(frozen=True, eq=False)
class ZoneAreas:
    """Areas of the classes in each polygon.

    Attributes:
        names: Names of the classes.
        fids: Numbers of the polygons in their file `[Z]`.
        hectares: Area of each class in each polygon `[Z, K]`.
        nodata_ha: Area of pixels without data in each polygon `[Z]`.
        covered: Share of each polygon that lies on pixels with data `[Z]`.
        method: How areas were measured.
        partial_pixels: How pixels on the border of a polygon count.
    """

    names: tuple[str, ...]
    fids: NDArray[np.int64]
    hectares: NDArray[np.float64]
    nodata_ha: NDArray[np.float64]
    covered: NDArray[np.float64]
    method: AreaMethod
    partial_pixels: PartialPixels

    @property
    def description(self) -> str:
        """How areas were measured and pixels counted, in a few words."""
        return f"{self.method}, {BORDERS} {self.partial_pixels}"


@checked
def zone_statistics(
    map: PathLike,
    zones: PathLike,
    out: PathLike,
    *,
    partial_pixels: PartialPixels = "share",
    overwrite: bool = False,
    progress: OnProgress = silent,
) -> ZoneAreas:
    """Measure the area of each class of a map in each polygon of a file.

    The map is read window by window, and only where polygons lie. Polygons may overlap; each is measured by itself.

    Args:
        out: The file to write, .csv or .gpkg: a row per polygon with its fields and the hectares of each class.
        partial_pixels: "share" counts a pixel on the border of a polygon by the share of it that lies inside; "centre"
            counts it whole if its centre lies inside.

    Raises:
        IICError: Something is wrong; the message says what, and what to do. No file is written.
    """
    target = Path(out)
    check_writable([(target, ZONE_SUFFIXES, "out")], [Path(map), Path(zones)], overwrite=overwrite)
    return measure_zones(
        Path(map), Path(zones), target, target.stem, partial_pixels=partial_pixels, progress=progress
    )


def measure_zones(
    map: Path,
    zones: Path,
    out: Path,
    layer: str,
    *,
    partial_pixels: PartialPixels = "share",
    progress: OnProgress = silent,
) -> ZoneAreas:
    """Do the work of `zone_statistics`, replacing a file of that name.

    Raises:
        IICError: Something is wrong; the message says what, and what to do. No file is written.
    """
    with open_map(map) as class_map:
        check_areas(class_map.grid)
        places = read_zones(zones, class_map.grid)
        areas = _measure(class_map, places, partial_pixels, progress)
    columns = {f"{name}_ha": areas.hectares[:, index] for index, name in enumerate(areas.names)}
    columns |= {NODATA_HA: areas.nodata_ha, COVERED: areas.covered}
    write_zones(out, places, columns, areas.description, layer)
    return areas


def _measure(
    class_map: ClassMap, zones: Zones, partial_pixels: PartialPixels, progress: OnProgress
) -> ZoneAreas:
    count = len(class_map.classes)
    totals = np.zeros((len(zones), count + 1))
    on_data = np.zeros(len(zones))
    measure = PixelAreas(class_map.grid)
    covered = covered_shares if partial_pixels == "share" else covered_centres
    for rect, pieces, owners in _windows(class_map, zones, progress):
        values = class_map.read(rect)
        columns = np.where(values == NODATA, count, values)
        areas = np.broadcast_to(measure.of(rect), values.shape)
        for owner, own in _group(pieces, owners):
            part = _bounding_rect(own).intersection(rect)
            if part.empty:
                continue
            inside = part.relative_to(rect).slices
            shares = covered(own, part)
            weights = (shares * areas[inside]).ravel()
            totals[owner] += np.bincount(columns[inside].ravel(), weights, count + 1)
            on_data[owner] += float(shares[values[inside] != NODATA].sum())
    # Of maps of other programs, which do not name their classes, only those that occur are listed.
    listed = np.arange(count) if class_map.has_names else np.flatnonzero(totals[:, :count].any(0))
    share = np.divide(on_data, zones.pixels, out=np.zeros_like(on_data), where=zones.pixels > 0)
    return ZoneAreas(
        tuple(class_map.names[index] for index in listed),
        zones.shapes.numbers,
        totals[:, listed] / 10_000,
        totals[:, count] / 10_000,
        np.clip(share, 0.0, 1.0),
        measure.method,
        partial_pixels,
    )


def _windows(
    class_map: ClassMap, zones: Zones, progress: OnProgress
) -> Iterator[tuple[Rect, Polygons, NDArray[np.int64]]]:
    """Windows of the map that polygons touch, with these polygons and the zone that each belongs to."""
    grid = class_map.grid
    region = _bounding_rect(zones.pieces).intersection(Rect(0, 0, grid.width, grid.height))
    tiles = TileGrid(grid.width, grid.height, _TILE, halo=0, stride=1, region=region)
    tree = shapely.STRtree(zones.pieces)
    for done, tile in enumerate(tiles):
        progress(Progress("measure", done, len(tiles)))
        core = tile.core
        near = np.sort(tree.query(shapely.box(core.col, core.row, core.right, core.bottom)))
        if len(near):
            yield core, zones.pieces[near], zones.owners[near]
    progress(Progress("measure", len(tiles), len(tiles)))


def _group(pieces: Polygons, owners: NDArray[np.int64]) -> Iterator[tuple[int, Polygons]]:
    """The pieces of each zone; pieces of one zone follow one another."""
    starts = np.flatnonzero(np.append(True, owners[1:] != owners[:-1]))
    for start, stop in zip(starts, [*starts[1:], len(owners)], strict=True):
        yield int(owners[start]), pieces[start:stop]


def _bounding_rect(pieces: Polygons) -> Rect:
    """The pixels that the bounding box of polygons touches."""
    bounds = shapely.total_bounds(pieces).tolist()
    # Far beyond any raster, but not beyond what an integer holds.
    left, top, right, bottom = (min(max(number, -1e15), 1e15) for number in bounds)
    column, row = math.floor(left), math.floor(top)
    return Rect(column, row, math.ceil(right) - column, math.ceil(bottom) - row)
