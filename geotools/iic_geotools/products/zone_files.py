"""Polygons that statistics are asked for: read from any vector file, written with their areas."""

import csv
import io
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rasterio.crs import CRS
from rasterio.errors import CRSError, RasterioError

from iic_geotools.errors import OutputError, SceneError
from iic_geotools.files import replacement, write_atomically
from iic_geotools.gdal import gdal_errors
from iic_geotools.geobox import GeoBox
from iic_geotools.packages import pyogrio, shapely
from iic_geotools.products.areas import plain_cell
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
from iic_geotools.scene.vectors import Shapes, read_shapes

ZONE, METHOD = "zone", "method"
"""Names of the fields with the number of a polygon in its file, and with how areas were measured."""
NODATA_HA, COVERED = "nodata_ha", "covered"
"""Names of the fields with the area without data, and with the share of a polygon that lies on data."""
BORDERS = "pixels on borders by"
"""What the field `method` says in every result, before how they count."""
# A GeoPackage has columns of its own by these names.
_COLUMNS = {"fid", "geom"}


def check_zones(path: Path, grid: GeoBox) -> None:
    """Check before any work that statistics of polygons can be made on a grid.

    Args:
        path: The polygons.
        grid: Grid of the map.

    Raises:
        SceneError: The grid does not tell areas, or the polygons cannot be read or lie elsewhere.
    """
    check_areas(grid)
    read_zones(path, grid)


def check_areas(grid: GeoBox) -> None:
    """Refuse a grid that does not tell areas.

    Raises:
        SceneError: It has no CRS, or one whose units are not lengths.
    """
    if grid.area_method == "none":
        raise SceneError(
            "The map has no CRS that tells areas, which statistics of zones need; set it, or warp the map to another."
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
        grid: The grid, which has a CRS.

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

    Args:
        path: Path of the file.

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
        out: The file, .csv or .gpkg.
        zones: The polygons.
        columns: Figures of each polygon by name of the field.
        method: How areas were measured.
        layer: Name of the layer of a GeoPackage.

    Raises:
        OutputError: The file cannot be written.
    """
    figures = {ZONE: zones.shapes.numbers, **{key: _rounded(values) for key, values in columns.items()}}
    figures[METHOD] = np.array([method] * len(zones), object)
    figures = _distinct(figures)
    taken = {name.lower() for name in figures}
    fields = dict(zones.shapes.fields)
    if _is_result(fields):
        fields = {name: values for name, values in fields.items() if name.lower() not in taken}
    content = {**_distinct(fields, taken | _COLUMNS), **figures}
    try:
        if out.suffix.lower() == ".csv":
            write_atomically(out, _as_csv(content).encode())
        else:
            _write_package(out, zones, content, layer)
    except (OSError, RuntimeError) as error:
        raise OutputError(f"The statistics {out} cannot be written: {error}") from error


def _rounded(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Numbers as they are written: no map is accurate to more than ten digits."""
    return np.array([float(f"{value:.10g}") for value in values])


def _is_result(fields: Mapping[str, NDArray[Any]]) -> bool:
    """Whether fields are those of an earlier result, whose figures are replaced, and not the user's own."""
    names = {ZONE, NODATA_HA, COVERED, METHOD}
    return names <= {*fields} and all(BORDERS in str(method) for method in fields[METHOD])


def _distinct(
    fields: Mapping[str, NDArray[Any]], taken: AbstractSet[str] = frozenset()
) -> dict[str, NDArray[Any]]:
    """The same fields, with names that differ also where case does not count, as in a GeoPackage.

    Args:
        fields: The fields.
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
    with replacement(out) as temporary:
        pyogrio.raw.write(
            temporary,
            shapely.to_wkb(zones.shapes.geometries),
            list(content.values()),
            list(content),
            geometry_type=geometry_type,
            promote_to_multi=geometry_type == "MultiPolygon",
            crs=zones.shapes.crs,
            layer=layer,
            driver="GPKG",
        )
