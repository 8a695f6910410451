"""Polygons as GeoParquet 1.1, written batch by batch. GDAL's wheels have no driver for it; pyarrow writes it."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import shapely
from rasterio.crs import CRS
from rasterio.errors import CRSError

from iic_geotools.errors import MissingPackageError

GEOMETRY = "geometry"


def check_geoparquet() -> None:
    """Make sure that GeoParquet can be written.

    Raises:
        MissingPackageError: pyarrow is not installed.
    """
    try:
        import pyarrow.parquet  # noqa: F401
    except ImportError as error:
        raise MissingPackageError.for_extra("pyarrow", "parquet") from error


def write_geoparquet(
    path: Path, crs: CRS | None, names: Sequence[str], batches: Iterable[tuple[Any, ...]]
) -> None:
    """Write polygons with their fields.

    Args:
        path: Path of the file.
        crs: Their reference system.
        names: Names of the fields: a whole number, a text and a real number.
        batches: Polygons, and one array per field; each batch becomes a row group.
    """
    import pyarrow as pa
    from pyarrow.parquet import ParquetWriter

    types = (pa.int32(), pa.string(), pa.float64())
    schema = pa.schema([*zip(names, types, strict=True), (GEOMETRY, pa.binary())])
    bounds = np.array([[np.inf, np.inf, -np.inf, -np.inf]])
    # An Arrow schema within the file would hide the metadata that follows the last batch.
    with ParquetWriter(path, schema, compression="zstd", store_schema=False) as writer:
        for shapes, *columns in batches:
            arrays = [pa.array(column, kind) for column, kind in zip(columns, types, strict=True)]
            arrays.append(pa.array(shapely.to_wkb(shapes), pa.binary()))
            writer.write_table(pa.Table.from_arrays(arrays, schema=schema))
            bounds = np.vstack([bounds, shapely.bounds(shapes).reshape(-1, 4)])
            bounds = np.hstack([bounds[:, :2].min(0), bounds[:, 2:].max(0)])[None]
        writer.add_key_value_metadata({"geo": json.dumps(_metadata(crs, bounds[0].tolist()))})


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
