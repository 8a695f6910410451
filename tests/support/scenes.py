"""Made scenes, and the files of rasters and points that tests need."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import rasterio
import shapely
from numpy.typing import NDArray
from pyogrio.raw import write
from rasterio.transform import from_origin
from rasterio.warp import transform as reproject

BANDS = ("red", "green", "blue", "nir")
CRS = "EPSG:32631"
WEST, NORTH, PIXEL = 500000, 5400000, 0.5


def landscape(height: int, width: int, bands: int = 4, seed: int = 0) -> np.ndarray:
    """Smooth random fields with noise, uint8: large classes with ragged edges."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:height, :width]
    image = np.zeros((bands, height, width))
    for band in range(bands):
        for _ in range(4):
            a, b, phase = rng.normal(0, 0.08), rng.normal(0, 0.08), rng.uniform(0, 6.3)
            image[band] += np.sin(a * x + b * y + phase)
    image += rng.normal(0, 0.5, image.shape)
    return np.clip(127 + 30 * image, 1, 254).astype(np.uint8)


def write_raster(path: Path, values: NDArray[Any], **profile: Any) -> Path:
    """Write an array [bands, H, W] as a GeoTIFF, with band names if it has four bands."""
    settings = {
        "driver": "GTiff",
        "count": len(values),
        "height": values.shape[1],
        "width": values.shape[2],
        "dtype": values.dtype,
        "crs": CRS,
        "transform": from_origin(WEST, NORTH, PIXEL, PIXEL),
    } | profile
    with rasterio.open(path, "w", **settings) as dataset:
        dataset.write(values)
        if len(values) == len(BANDS):
            dataset.descriptions = BANDS
    return path


def write_points(
    path: Path,
    rows: Sequence[int] | NDArray[Any],
    columns: Sequence[int] | NDArray[Any],
    names: Sequence[str],
    crs: str = CRS,
    field: str = "class",
    extra: Mapping[str, Sequence[str]] | None = None,
) -> Path:
    """Write points at the centres of pixels, with their classes in a field."""
    xs, ys = WEST + (np.asarray(columns) + 0.5) * PIXEL, NORTH - (np.asarray(rows) + 0.5) * PIXEL
    xs, ys = reproject(CRS, crs, xs, ys)
    fields, data = [field], [np.array(names, object)]
    for key, values in (extra or {}).items():
        fields.append(key)
        data.append(np.array(values, object))
    write(path, shapely.to_wkb(shapely.points(xs, ys)), data, fields, geometry_type="Point", crs=crs)
    return path
