"""Regions of a map as polygons in a vector file."""

import math
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import rasterio
import shapely
from pyogrio import read_info
from pyogrio.errors import DataLayerError, DataSourceError, FeatureError, GeometryError
from pyogrio.raw import open_arrow, write, write_arrow
from pyogrio.raw import read as read_vector
from rasterio.crs import CRS
from rasterio.errors import RasterioError

from iic_geotools.classmap.classes import MapClass
from iic_geotools.classmap.overviews import stored_blocks
from iic_geotools.ellipsoid import Floats, Ground
from iic_geotools.errors import IICError, OutputError, SceneError, UsageError
from iic_geotools.files import replacement, scratch_folder
from iic_geotools.geobox import GeoBox
from iic_geotools.products.cleaning import Cleaning, as_level, check_sieve, clean_file
from iic_geotools.products.geoparquet import check_geoparquet, write_geoparquet
from iic_geotools.products.simplifier import Simplifier
from iic_geotools.products.tracing import trace_regions
from iic_geotools.scene.info import open_raster

_DRIVERS = {
    ".gpkg": "GPKG",
    ".fgb": "FlatGeobuf",
    ".parquet": "Parquet",
    ".geojson": "GeoJSON",
    ".json": "GeoJSON",
}
_FIELDS = ["value", "class", "area_m2"]
LAYER = "map"
_BATCH = 20_000
# Longer edges are cut before they are measured: a straight line of the map is not straight on the ground.
_PIXELS_PER_EDGE = 64


def polygonise(
    map_path: Path, out: Path, classes: Sequence[MapClass], min_area: float = 0.0, simplify: float = 0.0
) -> None:
    """Write the regions of a map as polygons with the fields `value`, `class` and `area_m2`.

    Pixels are joined across edges, not across corners. GeoJSON is in longitude and latitude, as its standard demands;
    the other formats are in the CRS of the map.

    Args:
        map_path: Path of a one-band map of bytes.
        out: Path of the vector file; its suffix decides the format: GeoPackage (.gpkg), FlatGeobuf (.fgb), GeoParquet
            (.parquet) or GeoJSON (.geojson, .json).
        classes: The classes of the values 0, 1, ...
        min_area: Smallest area of a polygon in m2. Smaller regions are merged into their neighbours (`sieve`), so that
            they leave no holes; those without a neighbour are left out.
        simplify: Borders are simplified (by the algorithm of Visvalingam and Whyatt) until bumps as large as a square
            of this side in metres are gone; neighbours keep sharing them. `area_m2` is that of the simplified polygon.

    Raises:
        UsageError: The suffix is another one, or metres are needed and the map has no reference system.
        SceneError: The map cannot be read, has values without a class, or is too noisy for polygons.
        OutputError: The file cannot be written.
        MissingPackageError: GeoParquet needs pyarrow.
    """
    driver = vector_driver(out)
    try:
        with rasterio.open(map_path) as dataset:
            grid = GeoBox.of(dataset)
            check_polygons(out, grid, min_area, simplify)
            with _regions(dataset, map_path, out, min_area, Simplifier.of(grid, simplify)) as regions:
                _write(out, driver, grid.crs, _features(regions, grid, map_path, classes))
    except RasterioError as error:
        raise SceneError(f"The map {map_path} cannot be read: {error}") from error
    except (DataSourceError, DataLayerError, FeatureError, GeometryError, RuntimeError, OSError) as error:
        if isinstance(error, IICError):
            raise
        raise OutputError(f"The polygons {out} cannot be written: {error}") from error


def check_polygons(out: Path, grid: GeoBox, min_area: float, simplify: float = 0.0) -> None:
    """Check before any work that the polygons of a map can be written.

    Args:
        out: Path of the vector file.
        grid: Grid of the map.
        min_area: Smallest area of a polygon in m2.
        simplify: By how many metres borders are simplified.

    Raises:
        UsageError: The suffix is not one of a vector file, a number cannot be right, or a reference system is needed
            and there is none.
        MissingPackageError: GeoParquet needs pyarrow.
    """
    if vector_driver(out) == "GeoJSON" and grid.crs is None:
        raise UsageError(
            "GeoJSON is in longitude and latitude, and this map has no reference system: write .gpkg or .fgb."
        )
    if vector_driver(out) == "Parquet":
        check_geoparquet()
    check_sieve("min_area", min_area, grid)
    if not 0 <= simplify < math.inf:
        raise UsageError(f"`simplify` must be 0 or more metres, not {simplify:g}.")
    if simplify and grid.pixel_size is None:
        raise UsageError("`simplify` is in metres, and this map has no reference system: leave it out.")


def vector_driver(path: Path) -> str:
    """GDAL's driver for a vector file, by its suffix.

    Raises:
        UsageError: No driver goes with the suffix.
    """
    driver = _DRIVERS.get(path.suffix.lower())
    if driver is None:
        raise UsageError(
            f"Polygons are written as {', '.join(_DRIVERS)}, not as {path.suffix or path.name!r}."
        )
    return driver


Features = tuple[npt.NDArray[Any], npt.NDArray[np.int32], npt.NDArray[Any], Floats]
"""Polygons with their values, class names and areas."""


@contextmanager
def _regions(
    dataset: Any, map_path: Path, out: Path, min_area: float, simplify: Simplifier | None
) -> Iterator[Iterator[tuple[Any, int]]]:
    """Yield the regions of a map, after merging small ones in a copy of it beside the output."""
    if not min_area:
        yield trace_regions(dataset, *stored_blocks(dataset, map_path), simplify)
        return
    cleaning = Cleaning(sieve=min_area, keep_islands=False)
    with scratch_folder(out) as folder:
        parts = clean_file(map_path, dataset, cleaning, folder)
        level = as_level(parts, GeoBox.of(dataset), folder / "map.vrt")
        with open_raster(str(level.path)) as cleaned:
            yield trace_regions(cleaned, level.touched, (level.block, level.block), simplify)


def _features(
    regions: Iterator[tuple[Any, int]], grid: GeoBox, map_path: Path, classes: Sequence[MapClass]
) -> Iterator[Features]:
    """Batches of polygons in the CRS of the map."""
    measure = _polygon_measure(grid)
    names = np.array([map_class.name for map_class in classes], object)
    while batch := list(islice(regions, _BATCH)):
        shapes = np.array([shape for shape, _ in batch], object)
        values = np.array([value for _, value in batch], np.int32)
        if values.max() >= len(classes):
            raise SceneError(
                f"The map {map_path} has the value {values.max()} but only {len(classes)} classes were given:"
                " give the classes it was made with."
            )
        polygons = shapely.transform(shapes, lambda points: np.column_stack(grid.to_ground(*points.T)))
        yield polygons, values, names[values], measure(shapes)


def _polygon_measure(grid: GeoBox) -> Callable[[npt.NDArray[Any]], Floats]:
    """A function from polygons in pixels to their areas in m2, NaN if those cannot be known."""
    method = grid.area_method
    ground = Ground.of(grid.crs) if grid.crs is not None else None
    if method != "ellipsoidal" or ground is None:
        pixel = grid.planar_pixel_area if method == "planar" else np.nan
        return lambda shapes: np.asarray(shapely.area(shapes) * pixel)

    def on_ellipsoid(shapes: npt.NDArray[Any]) -> Floats:
        rings, owner = shapely.get_rings(shapely.segmentize(shapes, _PIXELS_PER_EDGE), return_index=True)
        points, ring = shapely.get_coordinates(rings, return_index=True)
        areas = ground.ring_areas(*grid.to_ground(*points.T), ring)
        shell = np.append(True, owner[1:] != owner[:-1])
        return np.asarray(np.bincount(owner, np.where(shell, areas, -areas), len(shapes)), np.float64)

    return on_ellipsoid


def _write(out: Path, driver: str, crs: CRS | None, batches: Iterable[Features]) -> None:
    """Write to a GeoPackage, which can grow batch by batch, and convert that to the format of `driver`."""
    if driver == "Parquet":
        with replacement(out) as temporary:
            write_geoparquet(temporary, crs, _FIELDS, batches)
        return
    wkt = crs.to_wkt(version="WKT2_2019") if crs is not None else None
    with replacement(out) as temporary, warnings.catch_warnings():
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
    empty = np.array([], object)
    no_features: Features = (empty, np.array([], np.int32), empty, np.array([]))
    for number, (shapes, *columns) in enumerate(chain([no_features], batches)):
        write(
            package,
            shapely.to_wkb(shapes),
            columns,
            _FIELDS,
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
    """Check that the last feature is in the file: GDAL swallows the error if it does not fit on the disk."""
    if driver == "GeoJSON":
        with written.open("rb") as file:
            file.seek(-min(16, written.stat().st_size), os.SEEK_END)
            if not file.read().endswith(b"\n]\n}\n"):
                raise OSError("the disk is full")
    elif count:
        read_vector(written, columns=[], fids=[count - 1])
