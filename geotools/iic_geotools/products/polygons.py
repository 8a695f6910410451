"""Regions of a map as polygons in a vector file.

**Simplification.** Polygons are simplified tile by tile, because not all
of them fit into memory. Within a tile each border between two regions is simplified once, for both. Points where
three regions meet stay, and so do the points where borders cross the edge of a tile. So polygons have neither gaps
nor overlaps, and pieces of neighbouring tiles fit together.

**Tracing.** GDAL's polygoniser holds all polygons of a raster in
memory. Here a map is traced in tiles, and pieces that meet at the edges of tiles are joined as soon as no further
tile can add to them, so that memory holds only the regions that are still open. A region of too many corners is
refused. Coordinates are pixels, hence exact.
"""

import json
import math
import os
import sqlite3
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import rasterio
import rasterio.features
from affine import Affine
from rasterio.crs import CRS
from rasterio.errors import CRSError, RasterioError
from rasterio.windows import Window

from iic_geotools.classmap.class_map import CACHE_BYTES, open_map
from iic_geotools.classmap.classes import NODATA, MapClass
from iic_geotools.classmap.cog import stored_blocks
from iic_geotools.classmap.sidecars import polygon_style
from iic_geotools.errors import MissingPackageError, SceneError, UsageError
from iic_geotools.files import check_writable, replacement, scratch_folder
from iic_geotools.geobox import Floats, GeoBox, Ground
from iic_geotools.options import PolygonSettings, WorkSettings
from iic_geotools.packages import pyogrio, require_vector, shapely
from iic_geotools.products.cleaning import Cleaning, as_level, check_legend, check_sieve, clean_file
from iic_geotools.scene.info import open_raster
from iic_geotools.scene.vectors import check_package
from iic_geotools.settings import PathLike, takes
from iic_geotools.work import OnProgress, Progress, silent

Shapes = npt.NDArray[Any]

_DRIVERS = {
    ".gpkg": "GPKG",
    ".fgb": "FlatGeobuf",
    ".parquet": "Parquet",
    ".geojson": "GeoJSON",
    ".json": "GeoJSON",
    ".pmtiles": "PMTiles",
}
FIELDS = ("value", "class", "m2", "ha")
"""The fields of polygons; tables of areas call them the same."""
LAYER = "map"
_BATCH = 20_000
# Vector tiles: metres per unit of a tile at zoom 0, the finest zoom, the number of zooms, and the most bytes of a tile.
_TILE_UNIT, _FINEST, _LEVELS, _TILE_BYTES = 9783.94, 18, 8, 2_000_000
_STYLES = """CREATE TABLE layer_styles (id INTEGER PRIMARY KEY AUTOINCREMENT NOT NULL, f_table_catalog TEXT(256),
f_table_schema TEXT(256), f_table_name TEXT(256), f_geometry_column TEXT(256), styleName TEXT(30), styleQML TEXT,
styleSLD TEXT, useAsDefault BOOLEAN, description TEXT, owner TEXT(30), ui TEXT(30),
update_time DATETIME DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ','now')))"""
# Longer edges are cut before they are measured: a straight line of the map is not straight on the ground.
_PIXELS_PER_EDGE = 64

GEOMETRY = "geometry"

# Noise has a polygon for nearly every pixel: those of one tile are in memory at once.
TILE = 512
_TRACED = 4096
MAX_CORNERS = 4_000_000
"""The most corners of the regions that are open at once."""

Values = npt.NDArray[np.uint8]
Simplify = Callable[[npt.NDArray[Any]], npt.NDArray[Any]]
Edge = npt.NDArray[np.int64]
"""For each pixel along an edge of a tile, the piece that it belongs to, or -1."""


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


@dataclass(frozen=True)
class PolygonArguments(PolygonSettings, WorkSettings):
    """Arguments of `polygonise_map`."""

    map: PathLike
    out: PathLike


@takes(PolygonArguments)
def polygonise_map(arguments: PolygonArguments) -> int:
    """Write the regions of a map as polygons with the fields `value`, `class`, `m2` and `ha`.

    Pixels are joined across edges, not across corners. A GeoPackage holds the colours as its style.

    Args:
        map: The map: one band of bytes in which 255 is nodata.
        out: The vector file, .gpkg, .fgb, .parquet, .geojson or .pmtiles.

    Returns:
        The number of polygons.

    Raises:
        IICError: Something is wrong; the message says what, and what to do. No file is written.
    """
    source, target = Path(arguments.map), Path(arguments.out)
    check_writable([(target, tuple(_DRIVERS), "out")], [source], overwrite=arguments.overwrite)
    require_vector("Writing polygons")
    with open_map(source) as class_map:
        check_legend(class_map)
        classes = class_map.classes
    return polygonise(source, target, classes, arguments.min_area, arguments.simplify, arguments.progress)


def polygonise(
    map_path: Path,
    out: Path,
    classes: Sequence[MapClass],
    min_area: float = 0.0,
    simplify: float = 0.0,
    progress: OnProgress = silent,
) -> int:
    """Do the work of `polygonise_map`, replacing a file of that name; return the number of polygons.

    Pixels are joined across edges, not across corners. GeoJSON is in longitude and latitude, as its standard demands,
    PMTiles in Web Mercator; the other formats are in the CRS of the map. A GeoPackage holds the colours as its style.

    Args:
        out: Path of the vector file; its suffix decides the format: GeoPackage (.gpkg), FlatGeobuf (.fgb), GeoParquet
            (.parquet), GeoJSON (.geojson, .json) or vector tiles (.pmtiles).
        min_area: Smallest area of a polygon in m2. Smaller regions are merged into their neighbours (`sieve`), so that
            they leave no holes; those without a neighbour are left out.
        simplify: Borders are simplified (by the algorithm of Visvalingam and Whyatt) until bumps as large as a square
            of this side in metres are gone; neighbours keep sharing them. `m2` is that of the simplified polygon.
        progress: Called with the pixels that were merged and traced so far.

    Raises:
        SceneError: The map cannot be read, has values without a class, or is too noisy for polygons.
        MissingPackageError: GeoParquet needs pyarrow.
    """
    driver = vector_driver(out)
    try:
        with rasterio.Env(GDAL_CACHEMAX=CACHE_BYTES), rasterio.open(map_path) as dataset:
            grid = GeoBox.of(dataset)
            check_polygons(out, grid, min_area, simplify)
            simplifier = Simplifier.of(grid, simplify)
            with _regions(dataset, map_path, out, min_area, simplifier, progress) as regions:
                return _write(out, driver, grid, classes, _features(regions, grid, map_path, classes))
    except RasterioError as error:
        raise SceneError(f"The map {map_path} cannot be read: {error}") from error


def check_polygons(out: Path, grid: GeoBox, min_area: float, simplify: float = 0.0) -> None:
    """Check before any work that the polygons of a map can be written.

    Raises:
        MissingPackageError: GeoParquet needs pyarrow.
    """
    if vector_driver(out) in ("GeoJSON", "PMTiles") and grid.crs is None:
        raise UsageError(
            f"{vector_driver(out)} has a reference system of its own, and this map has none: write .gpkg or .fgb."
        )
    if vector_driver(out) == "Parquet":
        check_geoparquet()
    check_sieve("min_area", min_area, grid)
    if not 0 <= simplify < math.inf:
        raise UsageError(f"`simplify` must be 0 or more metres, not {simplify:g}.")
    if simplify and grid.pixel_size is None:
        raise UsageError("`simplify` is in metres, and this map has no reference system: leave it out.")


def vector_driver(path: Path) -> str:
    """GDAL's driver for a vector file, by its suffix."""
    driver = _DRIVERS.get(path.suffix.lower())
    if driver is None:
        raise UsageError(
            f"Polygons are written as {', '.join(_DRIVERS)}, not as {path.suffix or path.name!r}."
        )
    return driver


Features = tuple[npt.NDArray[Any], npt.NDArray[np.int32], npt.NDArray[Any], Floats, Floats]
"""Polygons with their values, class names, and areas in square metres and hectares."""


@contextmanager
def _regions(
    dataset: Any,
    map_path: Path,
    out: Path,
    min_area: float,
    simplify: Simplifier | None,
    progress: OnProgress,
) -> Iterator[Iterator[tuple[Any, int]]]:
    """Yield the regions of a map, after merging small ones in a copy of it next to the output."""
    if not min_area:
        yield trace_regions(dataset, *stored_blocks(dataset, map_path), simplify, progress)
        return
    cleaning = Cleaning(sieve=min_area, keep_islands=False)
    with scratch_folder(out) as folder:
        parts = clean_file(map_path, dataset, cleaning, folder, progress)
        level = as_level(parts, GeoBox.of(dataset), folder / "map.vrt")
        with open_raster(str(level.path)) as cleaned:
            yield trace_regions(cleaned, level.touched, (level.block, level.block), simplify, progress)


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
        areas = measure(shapes)
        yield polygons, values, names[values], areas, areas / 10_000


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


def _write(
    out: Path, driver: str, grid: GeoBox, classes: Sequence[MapClass], batches: Iterable[Features]
) -> int:
    """Write to a GeoPackage, which can grow batch by batch, and convert that to the format of `driver`."""
    crs = grid.crs
    if driver == "Parquet":
        with replacement(out) as temporary:
            return write_geoparquet(temporary, crs, FIELDS, batches)
    wkt = crs.to_wkt(version="WKT2_2019") if crs is not None else None
    with replacement(out) as temporary, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "'crs' was not provided", UserWarning)
        package = temporary if driver == "GPKG" else temporary.with_suffix(".gpkg")
        try:
            count = _write_package(package, wkt, batches, index=driver == "GPKG")
            if driver == "GPKG":
                _put_style(package, polygon_style(classes, FIELDS[1]).decode())
                check_package(package, LAYER, count)
            else:
                _convert(package, temporary, driver, wkt, _zooms(grid))
                _check(temporary, driver, count)
        finally:
            if package != temporary:
                package.unlink(missing_ok=True)
            for ending in ("-journal", "-wal", "-shm"):
                package.with_name(package.name + ending).unlink(missing_ok=True)
    return count


def _write_package(package: Path, wkt: str | None, batches: Iterable[Features], index: bool) -> int:
    """Write features batch by batch and return their number."""
    count = 0
    empty = np.array([], object)
    no_features: Features = (empty, np.array([], np.int32), empty, np.array([]), np.array([]))
    for number, (shapes, *columns) in enumerate(chain([no_features], batches)):
        pyogrio.raw.write(
            package,
            shapely.to_wkb(shapes),
            columns,
            list(FIELDS),
            layer=LAYER,
            driver="GPKG",
            geometry_type="Polygon",
            crs=wkt,
            append=number > 0,
            **({"SPATIAL_INDEX": "YES" if index else "NO"} if number == 0 else {}),
        )
        count += len(shapes)
    return count


def _put_style(package: Path, style: str) -> None:
    """Make a style the default of the layer, in the table in which QGIS looks for it."""
    try:
        with closing(sqlite3.connect(package)) as database, database:
            database.execute(_STYLES)
            database.execute(
                "INSERT INTO layer_styles (f_table_name, f_geometry_column, styleName, styleQML, useAsDefault, "
                "f_table_catalog, f_table_schema) VALUES (?, 'geom', ?, ?, TRUE, '', '')",
                (LAYER, LAYER, style),
            )
            database.execute(
                "INSERT INTO gpkg_contents (table_name, identifier, data_type) VALUES "
                "('layer_styles', 'layer_styles', 'attributes')"
            )
    except sqlite3.Error as error:
        raise OSError(f"no style can be put into it: {error}") from error


def _zooms(grid: GeoBox) -> dict[str, str]:
    """The zoom levels of vector tiles: down to where corners are kept to about a pixel."""
    side = grid.pixel_side or 1.0
    finest = min(max(math.ceil(math.log2(_TILE_UNIT / side)), 0), _FINEST)
    return {"MINZOOM": str(max(0, finest - _LEVELS)), "MAXZOOM": str(finest), "MAX_SIZE": str(_TILE_BYTES)}


def _convert(package: Path, target: Path, driver: str, wkt: str | None, zooms: dict[str, str]) -> None:
    options = {"GeoJSON": {"RFC7946": "YES"}, "PMTiles": zooms}.get(driver, {})
    with pyogrio.raw.open_arrow(package, layer=LAYER) as (meta, features):
        pyogrio.raw.write_arrow(
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
    """Check that the last feature is in the file: GDAL reports no error if the disk is full."""
    if driver == "GeoJSON":
        with written.open("rb") as file:
            file.seek(-min(16, written.stat().st_size), os.SEEK_END)
            if not file.read().endswith(b"\n]\n}\n"):
                raise OSError("the disk is full")
    elif driver == "PMTiles":
        if count and not pyogrio.read_info(written, layer=LAYER)["features"]:
            raise OSError("the disk is full")
    elif count:
        pyogrio.raw.read(written, columns=[], fids=[count - 1])


def check_geoparquet() -> None:
    """Make sure that GeoParquet can be written."""
    try:
        import pyarrow.parquet  # noqa: F401
    except ImportError as error:
        raise MissingPackageError.for_extra("pyarrow", "parquet") from error


def write_geoparquet(
    path: Path, crs: CRS | None, names: Sequence[str], batches: Iterable[tuple[Any, ...]]
) -> int:
    """Write polygons with their fields; return how many there are.

    Args:
        names: Names of the fields: a whole number, a text and two real numbers.
        batches: Polygons, and one array per field; each batch becomes a row group.
    """
    import pyarrow as pa
    from pyarrow.parquet import ParquetWriter

    types = (pa.int32(), pa.string(), pa.float64(), pa.float64())
    schema = pa.schema([*zip(names, types, strict=True), (GEOMETRY, pa.binary())])
    bounds, count = np.array([[np.inf, np.inf, -np.inf, -np.inf]]), 0
    # An Arrow schema within the file would hide the metadata that follows the last batch.
    with ParquetWriter(path, schema, compression="zstd", store_schema=False) as writer:
        for shapes, *columns in batches:
            arrays = [pa.array(column, kind) for column, kind in zip(columns, types, strict=True)]
            arrays.append(pa.array(shapely.to_wkb(shapes), pa.binary()))
            writer.write_table(pa.Table.from_arrays(arrays, schema=schema))
            count += len(shapes)
            bounds = np.vstack([bounds, shapely.bounds(shapes).reshape(-1, 4)])
            bounds = np.hstack([bounds[:, :2].min(0), bounds[:, 2:].max(0)])[None]
        writer.add_key_value_metadata({"geo": json.dumps(_metadata(crs, bounds[0].tolist()))})
    return count


def _metadata(crs: CRS | None, bounds: list[float]) -> dict[str, Any]:
    """The content of the key "geo" of a GeoParquet file."""
    column: dict[str, Any] = {"encoding": "WKB", "geometry_types": ["Polygon"], "crs": _projjson(crs)}
    if np.isfinite(bounds).all():
        column["bbox"] = bounds
    return {"version": "1.1.0", "primary_column": GEOMETRY, "columns": {GEOMETRY: column}}


def _projjson(crs: CRS | None) -> dict[str, Any] | None:
    try:
        return None if crs is None else dict(crs.to_dict(projjson=True))
    except CRSError:
        return None


def trace_regions(
    dataset: Any,
    present: npt.NDArray[np.bool_],
    block: tuple[int, int],
    simplify: Simplify | None = None,
    progress: OnProgress = silent,
) -> Iterator[tuple[Any, int]]:
    """Yield each 4-connected region of a one-band raster of bytes as a shapely polygon in pixels, and its value.

    Args:
        dataset: An open rasterio dataset; pixels that are NODATA belong to no region.
        simplify: Simplifies the polygons of a tile, which cover it without gaps; those that it returns must do so too.
        progress: Called with the pixels done so far.

    Raises:
        SceneError: A region has too many corners.
    """
    pieces = _Pieces(joins_exactly=simplify is not None)
    above = np.full(dataset.width, -1)
    for top in range(0, dataset.height, TILE):
        high = min(TILE, dataset.height - top)
        below = np.full(dataset.width, -1)
        left = np.full(high, -1)
        for start in range(0, dataset.width, TILE):
            window = Window(start, top, min(TILE, dataset.width - start), high)
            right = np.full(high, -1)
            if _any_present(present, block, window):
                complete, edges = _trace(dataset.read(1, window=window), window, pieces, simplify)
                yield from complete
                span = slice(start, start + window.width)
                below[span], right = edges["bottom"], edges["right"]
                pieces.join(above[span], edges["top"])
                pieces.join(left, edges["left"])
            left = right
        yield from pieces.take_closed(below)
        above = below
        progress(
            Progress("polygons", (top + high) * dataset.width, dataset.height * dataset.width, unit="px")
        )
    yield from pieces.take_closed(np.empty(0, np.int64))


def _any_present(present: npt.NDArray[np.bool_], block: tuple[int, int], window: Window) -> bool:
    high, wide = block
    rows = slice(window.row_off // high, -(-(window.row_off + window.height) // high))
    cols = slice(window.col_off // wide, -(-(window.col_off + window.width) // wide))
    return bool(present[rows, cols].any())


class _Pieces:
    """Pieces of regions and which of them belong together: a union-find structure.

    Args:
        joins_exactly: Whether regions keep the corners at which their pieces were joined, because others share them.
    """

    def __init__(self, joins_exactly: bool = False) -> None:
        self._joins_exactly = joins_exactly
        self._corners = 0
        self._parent: dict[int, int] = {}
        self._shapes: dict[int, tuple[Any, int]] = {}
        self._next = 0

    def add(self, shape: Any, value: int) -> int:
        """Add a piece and return its number."""
        self._parent[self._next] = self._next
        self._shapes[self._next] = (shape, value)
        self._next += 1
        self._corners += shapely.get_num_coordinates(shape)
        if self._corners > MAX_CORNERS:
            raise SceneError(
                f"Regions of this map have more than {MAX_CORNERS:,} corners, which is noise, not polygons; clean "
                "the map with `sieve` or `majority`, or give `min_area`."
            )
        return self._next - 1

    def join(self, one: Edge, other: Edge) -> None:
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

    def take_closed(self, growing: Edge) -> Iterator[tuple[Any, int]]:
        """Yield and remove the regions without a piece along an edge that still grows."""
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
            self._corners -= int(shapely.get_num_coordinates([shape for shape, _ in shapes]).sum())
            pieces = np.array([shape for shape, _ in shapes], object)
            yield pieces[0] if len(pieces) == 1 else self._join(pieces), shapes[0][1]

    def _join(self, pieces: npt.NDArray[Any]) -> Any:
        """One polygon of pieces that meet at the edges of tiles."""
        # Holes lie within tiles, so that only shells meet: joining noise with its holes takes ten times the memory.
        whole = shapely.union_all(shapely.polygons(shapely.get_exterior_ring(pieces)))
        # Joining leaves vertices within straight edges: simplifying with tolerance 0 drops them.
        whole = whole if self._joins_exactly else shapely.simplify(whole, 0)
        rings, owner = shapely.get_rings(pieces, return_index=True)
        is_hole = np.append(False, owner[1:] == owner[:-1])
        holes = np.concatenate([shapely.get_rings(whole)[1:], rings[is_hole]])
        return shapely.polygons(whole.exterior, holes=holes)


def _trace(
    pixels: npt.NDArray[np.uint8], window: Window, pieces: _Pieces, simplify: Simplify | None
) -> tuple[list[tuple[Any, int]], dict[str, Edge]]:
    """The regions that lie inside a tile, and the pieces along its edges.

    Regions that reach an edge are added to `pieces`.
    """
    x, y = window.col_off, window.row_off
    edges = {
        "top": np.full(window.width, -1),
        "bottom": np.full(window.width, -1),
        "left": np.full(window.height, -1),
        "right": np.full(window.height, -1),
    }
    origin = Affine.translation(x, y)
    # Simplifying needs regions without data as well: otherwise their borders would be the edge of all polygons.
    mask = pixels != NODATA if simplify is None else None
    geometries = rasterio.features.shapes(pixels, mask=mask, connectivity=4, transform=origin)
    shapes, values = _polygons(geometries)
    if simplify is not None and len(shapes):
        shapes, values = simplify(shapes)[values != NODATA], values[values != NODATA]
    left, top, right, bottom = shapely.bounds(shapes).reshape(-1, 4).T
    inner = (left > x) & (top > y) & (right < x + window.width) & (bottom < y + window.height)
    for index in np.flatnonzero(~inner).tolist():
        shape = shapes[index]
        piece = pieces.add(shape, int(values[index]))
        # Only the shell can run along the tile's edge: a hole is enclosed.
        points = shapely.get_coordinates(shape.exterior).astype(np.int64) - (x, y)
        _mark(edges["top"], points, piece, along=0, at=0)
        _mark(edges["bottom"], points, piece, along=0, at=window.height)
        _mark(edges["left"], points, piece, along=1, at=0)
        _mark(edges["right"], points, piece, along=1, at=window.width)
    return list(zip(shapes[inner], values[inner].tolist(), strict=True)), edges


def _polygons(geometries: Iterator[tuple[dict[str, Any], float]]) -> tuple[npt.NDArray[Any], Values]:
    """Polygons and values of what rasterio traced; many at once, because one by one takes longer than the tracing."""
    shapes: list[npt.NDArray[Any]] = [np.empty(0, object)]
    values: list[float] = []
    while batch := list(islice(geometries, _TRACED)):
        rings = [
            (owner, ring) for owner, (geometry, _) in enumerate(batch) for ring in geometry["coordinates"]
        ]
        points = np.array(list(chain.from_iterable(ring for _, ring in rings)))
        index = np.repeat(np.arange(len(rings)), [len(ring) for _, ring in rings])
        owners = np.array([owner for owner, _ in rings])
        shapes.append(shapely.polygons(shapely.linearrings(points, indices=index), indices=owners))
        values += [value for _, value in batch]
    return np.concatenate(shapes), np.array(values, np.uint8)


def _mark(edge: Edge, points: npt.NDArray[np.int64], piece: int, *, along: int, at: int) -> None:
    """Mark the pixels of an edge of the tile that a ring runs along."""
    across = points[:, 1 - along]
    on_edge = (across[:-1] == at) & (across[1:] == at)
    for index in np.flatnonzero(on_edge).tolist():
        start, stop = sorted((int(points[index, along]), int(points[index + 1, along])))
        edge[start:stop] = piece
