"""Vector files: areas of interest in, polygons of a map out."""

import logging
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import rasterio
import shapely
from affine import Affine
from pyogrio import read_info
from pyogrio.errors import DataLayerError, DataSourceError, FeatureError, GeometryError
from pyogrio.raw import open_arrow, write, write_arrow
from pyogrio.raw import read as read_vector
from rasterio._err import CPLE_BaseError
from rasterio.crs import CRS
from rasterio.errors import CRSError, RasterioError
from rasterio.warp import transform as reproject
from rasterio.warp import transform_bounds

from iic_geotools.areas import area_method, pixel_area
from iic_geotools.colours import MapClass
from iic_geotools.ellipsoid import Floats, Ground
from iic_geotools.errors import OutputError, SceneError, UsageError
from iic_geotools.files import replacing
from iic_geotools.levels import NODATA
from iic_geotools.polygons import regions
from iic_geotools.regions import OUTSIDE, Bounds, polygon_parts
from iic_geotools.tiff import present_tiles
from iic_geotools.vrt import MapGrid

_LOG = logging.getLogger(__name__)
_DRIVERS = {".gpkg": "GPKG", ".fgb": "FlatGeobuf", ".geojson": "GeoJSON", ".json": "GeoJSON"}
LAYER = "map"
_BATCH = 20_000
# Longer edges are cut before their ends are reprojected: a straight line is not straight in every projection.
_EDGES_ACROSS = 256
_PIXELS_PER_EDGE = 64


def read_aoi(path: Path, crs: CRS | None, extent: Bounds | None = None) -> npt.NDArray[Any]:
    """Read the polygons of a vector file, as shapely polygons in the given reference system.

    Args:
        path: Anything GDAL opens; the first layer is read.
        crs: The scene's reference system. A file without one is taken to be in it.
        extent: Left, bottom, right and top of the scene. What lies elsewhere is left out: a projection need
            not know the other side of the earth.

    Raises:
        SceneError: The file cannot be read, holds no polygon, or none at the scene.
    """
    shapes, wkt = _read_shapes(path)
    shapes = shapely.make_valid(shapes[~shapely.is_empty(shapes)])
    if not len(shapes):
        raise SceneError(f"The area of interest {path} is empty: give a file with polygons.")
    polygons = polygon_parts(shapes)
    if not len(polygons):
        raise SceneError(
            f"The area of interest {path} holds no polygon with an area: points and lines have none."
        )
    if wkt is None or crs is None:
        which = f"The area of interest {path}" if wkt is None else "The scene"
        _LOG.warning("%s has no coordinate reference system: both are taken to share one.", which)
    else:
        polygons = _reprojected(polygons, wkt, crs, extent, path)
    if extent is not None:
        if crs is not None and crs.is_geographic:
            polygons = _all_turns(polygons, crs)
        polygons = polygons[shapely.intersects(polygons, shapely.box(*extent))]
        if not len(polygons):
            raise SceneError(OUTSIDE)
    return polygons


def _read_shapes(path: Path) -> tuple[npt.NDArray[Any], str | None]:
    try:
        meta, _, wkb, _ = read_vector(path, columns=[], force_2d=True)
        found = [shape for shape in wkb if shape is not None] if wkb is not None else []
        return shapely.from_wkb(np.array(found, object)), meta["crs"]
    except (
        DataSourceError,
        DataLayerError,
        FeatureError,
        GeometryError,
        shapely.GEOSException,
        OSError,
    ) as error:
        raise SceneError(
            f"The area of interest {path} cannot be read ({error}): give a vector file, e.g. GeoPackage or GeoJSON."
        ) from error


def _reprojected(
    polygons: npt.NDArray[Any], wkt: str, crs: CRS, extent: Bounds | None, path: Path
) -> npt.NDArray[Any]:
    try:
        source = CRS.from_user_input(wkt)
        if source != crs:
            polygons = _moved(_cut(polygons, source, crs, extent), source, crs)
    except (CRSError, RasterioError, CPLE_BaseError, shapely.GEOSException) as error:
        raise SceneError(
            f"The area of interest {path} cannot be brought to the scene's place: {error}"
        ) from error
    if not np.isfinite(shapely.bounds(polygons)).all():
        raise SceneError(
            f"The area of interest {path} reaches where the scene's reference system has no coordinates:"
            " cut it to the scene."
        )
    return polygons


def _moved(polygons: npt.NDArray[Any], source: CRS, crs: CRS) -> npt.NDArray[Any]:
    if not len(polygons):
        return polygons
    left, bottom, right, top = shapely.total_bounds(polygons)
    dense = shapely.segmentize(polygons, max(right - left, top - bottom) / _EDGES_ACROSS)
    points = shapely.get_coordinates(dense)
    moved = np.column_stack(reproject(source, crs, points[:, 0], points[:, 1]))
    return np.asarray(shapely.set_coordinates(dense, moved))


def _cut(polygons: npt.NDArray[Any], source: CRS, crs: CRS, extent: Bounds | None) -> npt.NDArray[Any]:
    """What of the polygons lies at the scene, with room to spare."""
    if extent is None:
        return polygons
    left, bottom, right, top = transform_bounds(crs, source, *extent)
    if not np.isfinite([left, bottom, right, top]).all():
        return polygons
    # Across the antimeridian the left bound is the greater one.
    wide = right - left if left <= right else right - left + 360
    room = 0.1 * max(wide, top - bottom)
    boxes = [
        shapely.box(start - room, bottom - room, start + wide + room, top + room)
        for start in {left, right - wide}
    ]
    return polygon_parts(np.concatenate([shapely.intersection(polygons, box) for box in boxes]))


def _all_turns(polygons: npt.NDArray[Any], crs: CRS) -> npt.NDArray[Any]:
    """The polygons in longitudes a turn lower and higher too: scenes across the antimeridian count on beyond it."""
    turn = 2 * np.pi / crs.units_factor[1]
    steps = [np.array([by, 0.0]) for by in (-turn, 0.0, turn)]
    return np.concatenate([shapely.transform(polygons, step.__add__) for step in steps])


def polygonise(map_path: Path, out: Path, classes: Sequence[MapClass], min_area: float = 0.0) -> None:
    """Write the regions of a map as polygons with the fields `value`, `class` and `area_m2`.

    Pixels are joined across edges, not corners. GeoJSON is in longitude and latitude, as its standard says;
    the other formats are in the map's own reference system.

    Args:
        map_path: A one-band map of bytes.
        out: GeoPackage (.gpkg), FlatGeobuf (.fgb) or GeoJSON (.geojson, .json), by its suffix.
        classes: Names of the values 0, 1, ...
        min_area: Smaller polygons (m2) are left out.

    Raises:
        UsageError: Another suffix, or a `min_area` for a map that is not on the ground.
        SceneError: The map cannot be read, or has values without a class.
        OutputError: The file cannot be written.
    """
    driver = vector_driver(out)
    try:
        with rasterio.open(map_path) as dataset:
            check_polygons(out, MapGrid.of(dataset), min_area)
            _write(out, driver, dataset.crs or None, _features(dataset, map_path, classes, min_area))
    except RasterioError as error:
        raise SceneError(f"The map {map_path} cannot be read: {error}") from error
    except (DataSourceError, DataLayerError, FeatureError, GeometryError, RuntimeError, OSError) as error:
        if isinstance(error, SceneError | UsageError):
            raise
        raise OutputError(f"The polygons {out} cannot be written: {error}") from error


def check_polygons(out: Path, grid: MapGrid, min_area: float) -> None:
    """Make sure that a map on this grid can be written as such polygons.

    Raises:
        UsageError: Another suffix, or something that takes a reference system and there is none.
    """
    if vector_driver(out) == "GeoJSON" and grid.crs is None:
        raise UsageError(
            "GeoJSON is in longitude and latitude, and this map has no reference system: write .gpkg or .fgb."
        )
    if not min_area >= 0:
        raise UsageError(f"The smallest area of a polygon is 0 or more square metres, not {min_area:g}.")
    if min_area > 0 and area_method(grid.crs, grid.transform, grid.width, grid.height) == "none":
        raise UsageError("Polygons have no area in square metres where the map has no reference system.")


def vector_driver(path: Path) -> str:
    """GDAL's driver for a vector file, by its suffix."""
    driver = _DRIVERS.get(path.suffix.lower())
    if driver is None:
        raise UsageError(
            f"Polygons are written as {', '.join(_DRIVERS)}, not as {path.suffix or path.name!r}."
        )
    return driver


Features = tuple[npt.NDArray[Any], npt.NDArray[np.int32], npt.NDArray[Any], Floats]


def _place(dataset: Any) -> tuple[CRS | None, Affine, int, int]:
    return dataset.crs or None, dataset.transform, dataset.width, dataset.height


def _features(
    dataset: Any, map_path: Path, classes: Sequence[MapClass], min_area: float
) -> Iterator[Features]:
    """Batches of polygons in the map's reference system with their values, classes and areas."""
    high, wide = dataset.block_shapes[0]
    across, down = -(-dataset.width // wide), -(-dataset.height // high)
    holes = wide < dataset.width and dataset.nodata == NODATA
    present = present_tiles(map_path, across, down) if holes else np.ones((down, across), bool)
    measure = _polygon_measure(*_place(dataset))
    transform = dataset.transform
    names = np.array([map_class.name for map_class in classes], object)
    found = regions(dataset, present, (high, wide))
    while batch := list(islice(found, _BATCH)):
        shapes = np.array([shape for shape, _ in batch], object)
        values = np.array([value for _, value in batch], np.int32)
        if values.max() >= len(classes):
            raise SceneError(
                f"The map {map_path} has the value {values.max()} but only {len(classes)} classes were given:"
                " give the classes it was made with."
            )
        areas = measure(shapes)
        large = ~(areas < min_area)
        placed = shapely.transform(shapes[large], lambda points: _on_ground(points, transform))
        yield placed, values[large], names[values[large]], areas[large]


def _on_ground(points: Floats, transform: Affine) -> Floats:
    cols, rows = points.T
    return np.column_stack(
        [
            transform.a * cols + transform.b * rows + transform.c,
            transform.d * cols + transform.e * rows + transform.f,
        ]
    )


def _polygon_measure(
    crs: CRS | None, transform: Affine, width: int, height: int
) -> Callable[[npt.NDArray[Any]], Floats]:
    """A function from polygons in pixels to their areas in m2, NaN if those cannot be known."""
    method = area_method(crs, transform, width, height)
    ground = Ground.of(crs) if crs is not None else None
    if method != "ellipsoidal" or crs is None or ground is None:
        pixel = pixel_area(crs, transform) if method == "planar" and crs is not None else np.nan
        return lambda shapes: np.asarray(shapely.area(shapes) * pixel)

    def on_ellipsoid(shapes: npt.NDArray[Any]) -> Floats:
        rings, owner = shapely.get_rings(shapely.segmentize(shapes, _PIXELS_PER_EDGE), return_index=True)
        points, ring = shapely.get_coordinates(rings, return_index=True)
        x, y = _on_ground(points, transform).T
        areas = ground.ring_areas(x, y, ring)
        shell = np.append(True, owner[1:] != owner[:-1])
        return np.asarray(np.bincount(owner, np.where(shell, areas, -areas), len(shapes)), np.float64)

    return on_ellipsoid


def _write(out: Path, driver: str, crs: CRS | None, batches: Iterable[Features]) -> None:
    """Write to a GeoPackage, which can grow batch by batch, and turn that into what was asked for."""
    wkt = crs.to_wkt(version="WKT2_2019") if crs is not None else None
    with replacing(out) as temporary, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "'crs' was not provided", UserWarning)
        package = temporary if driver == "GPKG" else temporary.with_suffix(".gpkg")
        try:
            _write_package(package, wkt, batches, index=driver == "GPKG")
            if driver != "GPKG":
                _convert(package, temporary, driver, wkt)
                _check(temporary, driver, read_info(package, layer=LAYER)["features"])
        finally:
            if package != temporary:
                package.unlink(missing_ok=True)
            for ending in ("-journal", "-wal", "-shm"):
                package.with_name(package.name + ending).unlink(missing_ok=True)


def _write_package(package: Path, wkt: str | None, batches: Iterable[Features], index: bool) -> None:
    none = np.array([], object)
    nothing: Features = (none, np.array([], np.int32), none, np.array([]))
    for number, (shapes, *columns) in enumerate(chain([nothing], batches)):
        write(
            package,
            shapely.to_wkb(shapes),
            columns,
            ["value", "class", "area_m2"],
            layer=LAYER,
            driver="GPKG",
            geometry_type="Polygon",
            crs=wkt,
            append=number > 0,
            **({"SPATIAL_INDEX": "YES" if index else "NO"} if number == 0 else {}),
        )


def _convert(package: Path, target: Path, driver: str, wkt: str | None) -> None:
    options = {"RFC7946": "YES"} if driver == "GeoJSON" else {}
    with open_arrow(package, layer=LAYER) as (meta, features):
        write_arrow(
            features,
            target,
            layer=LAYER,
            driver=driver,
            geometry_name=meta["geometry_name"] or "wkb_geometry",
            geometry_type="Polygon",
            crs=wkt,
            **options,
        )


def _check(written: Path, driver: str, count: int) -> None:
    """Make sure that the last feature is there: GDAL swallows the error if it does not fit on the disk."""
    if driver == "GeoJSON":
        with written.open("rb") as file:
            file.seek(-min(16, written.stat().st_size), os.SEEK_END)
            if not file.read().endswith(b"\n]\n}\n"):
                raise OSError("the disk is full")
    elif count:
        read_vector(written, columns=[], fids=[count - 1])
