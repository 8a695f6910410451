"""Points with a class: clicks and samples."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rasterio.crs import CRS
from rasterio.errors import CRSError, RasterioError
from rasterio.warp import transform as reproject

from iic_geotools.errors import SceneError
from iic_geotools.gdal import gdal_errors
from iic_geotools.geobox import GeoBox
from iic_geotools.packages import has_vector, require_vector, shapely
from iic_geotools.scene.labels import class_fields, class_text
from iic_geotools.scene.vectors import read_metadata, read_shapes, write_package

Floats = NDArray[np.float64]
LONGITUDE_LATITUDE = CRS.from_epsg(4326)


@dataclass(frozen=True)
class ClassPoints:
    """Points with a class.

    Attributes:
        x: x of the points `[N]`.
        y: y of the points `[N]`.
        crs: CRS of both; None if the file has none.
        classes: Their classes; empty for a point that was given none.
        metadata: What the layer says about itself.
    """

    x: Floats
    y: Floats
    crs: CRS | None
    classes: tuple[str, ...]
    metadata: dict[str, str]

    def on(self, crs: CRS) -> tuple[Floats, Floats]:
        """Coordinates of the points in another CRS; not finite where that is not defined."""
        return transform_points(self.x, self.y, self.crs or crs, crs)


def transform_points(x: Floats, y: Floats, source: CRS, target: CRS) -> tuple[Floats, Floats]:
    """Coordinates of points in another CRS."""
    if source == target or not len(x):
        return x, y
    try:
        with gdal_errors():
            xs, ys = reproject(source, target, x, y)
    except (CRSError, RasterioError) as error:
        raise SceneError(f"The points cannot be brought to another CRS ({error}).") from error
    return np.asarray(xs, np.float64), np.asarray(ys, np.float64)


def read_points(path: str | os.PathLike[str], label_field: str | None = None) -> ClassPoints:
    """Read points and their classes.

    Args:
        path: A vector file, of any format that GDAL opens.
        label_field: The field that holds the class; by default the only one, or one with a usual name.

    Raises:
        SceneError: The file cannot be read, or holds anything but points.
        UsageError: The field does not exist, or has to be named.
    """
    path, what = Path(path), "The points"
    field, _ = class_fields(path, label_field)
    shapes = read_shapes(path, what, [field])
    kinds = shapely.get_type_id(shapes.geometries)
    allowed = np.isin(kinds, (shapely.GeometryType.POINT, shapely.GeometryType.MULTIPOINT))
    if not allowed.all() or (shapely.get_num_geometries(shapes.geometries) != 1).any():
        raise SceneError(f"{path} holds other shapes than points; give one point per place.")
    try:
        with gdal_errors():
            crs = None if shapes.crs is None else CRS.from_user_input(shapes.crs)
    except (CRSError, RasterioError) as error:
        raise SceneError(f"{what} {path} have a CRS that cannot be read ({error}); give another.") from error
    points = shapely.get_parts(shapes.geometries)
    return ClassPoints(
        shapely.get_x(points),
        shapely.get_y(points),
        crs,
        tuple(class_text(value) for value in shapes.fields[field]),
        read_metadata(path, what),
    )


def clicked_places(
    path: str | os.PathLike[str], label_field: str | None, crs: CRS | None, most: int
) -> tuple[tuple[float, float], ...]:
    """Longitude and latitude of points with a class; none for labels of another kind.

    Args:
        crs: CRS of a file that has none of its own.
    """
    if not has_vector():  # labels that could be read all the same are a raster
        return ()
    try:
        points = read_points(path, label_field)
        source = points.crs or crs
        if source is None:
            return ()
        x, y = transform_points(points.x, points.y, source, LONGITUDE_LATITUDE)
    except SceneError:  # polygons or a raster
        return ()
    named = np.array([bool(name) for name in points.classes], bool)
    kept = np.flatnonzero(named & np.isfinite(x) & np.isfinite(y))
    if len(kept) > most:
        kept = kept[np.linspace(0, len(kept) - 1, most).round().astype(np.int64)]
    return tuple((round(float(x[index]), 7), round(float(y[index]), 7)) for index in kept)


def to_pixels(x: Floats, y: Floats, grid: GeoBox) -> tuple[Floats, Floats]:
    """Columns and rows, with fractions, of points in the CRS of a grid."""
    a, b, c, d, e, f, *_ = ~grid.transform
    return a * x + b * y + c, d * x + e * y + f


def write_points(
    out: Path, x: Floats, y: Floats, crs: CRS, fields: dict[str, NDArray[Any]], metadata: dict[str, str]
) -> None:
    """Write points as a GeoPackage.

    Args:
        out: Path of the file, which appears only when it is whole.
        fields: Values of each field, None where there is none.
        metadata: What the layer says about itself. GDAL would copy that of the whole file into one next to it.
    """
    require_vector(f"Writing {out}")
    wkt = crs.to_wkt(version="WKT2_2019")
    write_package(out, shapely.points(x, y), fields, wkt, layer_metadata=metadata)
