"""Small class maps for tests."""

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import NoneType
from typing import Any

import numpy as np
import rasterio
import shapely
from affine import Affine
from pyogrio.raw import write
from rasterio.crs import CRS

from iic_geotools.classmap.classes import NODATA, MapClass, distinct_colours
from iic_geotools.classmap.sidecars import sidecar, sidecar_path

LAMBERT = CRS.from_epsg(2154)
TRANSFORM = Affine(0.5, 0, 770000, 0, -0.5, 6279000)


def make_classes(count: int) -> list[MapClass]:
    """Classes with a non-ASCII letter in their names."""
    return [MapClass(f"class {index} é", colour) for index, colour in enumerate(distinct_colours(count))]


def random_labels(height: int, width: int, classes: int, seed: int = 0, patch: int = 1) -> np.ndarray:
    """Labels in square patches, one class in `classes` + 1 of them without data."""
    rng = np.random.default_rng(seed)
    values = rng.integers(0, classes + 1, (height // patch + 1, width // patch + 1), dtype=np.uint8)
    values[values == classes] = NODATA
    return values.repeat(patch, 0).repeat(patch, 1)[:height, :width]


def read_band(path: Path) -> np.ndarray:
    """The values of the first band of a raster."""
    with rasterio.open(path) as dataset:
        return np.asarray(dataset.read(1))


def write_map(
    path: Path,
    labels: np.ndarray,
    crs: CRS | None = LAMBERT,
    transform: Affine = TRANSFORM,
    block: int = 32,
    classes: Sequence[MapClass] | None = None,
    tags: Mapping[str, str] | None = None,
) -> Path:
    """Write labels as a tiled GeoTIFF in which empty tiles are left out, with the names of classes next to it."""
    height, width = labels.shape
    profile: dict[str, Any] = {"driver": "GTiff", "count": 1, "dtype": "uint8", "nodata": NODATA, "crs": crs}
    tiling = {"tiled": True, "blockxsize": block, "blockysize": block, "SPARSE_OK": True}
    with rasterio.open(
        path, "w", width=width, height=height, transform=transform, **profile, **tiling
    ) as dataset:
        dataset.write(labels, 1)
        dataset.update_tags(**(tags or {}))
    if classes is not None:
        sidecar_path(path).write_bytes(sidecar(classes))
    return path


def named(*names: str) -> list[MapClass]:
    """Classes of these names."""
    return [MapClass(name, colour) for name, colour in zip(names, distinct_colours(len(names)), strict=True)]


def write_shapes(path: Path, shapes: Sequence[Any], crs: str | None, **fields: Sequence[Any]) -> Path:
    """Write points or polygons with some fields."""
    kind = {shape.geom_type for shape in shapes}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "'crs' was not provided", UserWarning)
        write(
            path,
            shapely.to_wkb(np.array(shapes, object)),
            [
                np.array(values, object if isinstance(values[0], str | NoneType) else None)
                for values in fields.values()
            ],
            list(fields),
            geometry_type=kind.pop() if len(kind) == 1 else "Unknown",
            crs=crs,
        )
    return path
