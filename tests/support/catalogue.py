"""Items of a catalogue as those of Sentinel-2 are: one asset per band, at 10 and 20 m, and a raster of classes."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import rasterio
from rasterio.transform import from_origin

from support.scenes import landscape
from support.web import CATALOGUE

WEST, NORTH = 500000, 5400000
COMMON_NAMES = {"B04": "red", "B03": "green", "B02": "blue", "B08": "nir", "B11": "swir16"}
CLOUDS = (3, 8, 9, 10)


def write_band(path: Path, values: np.ndarray, pixel: float, nodata: float | None = 0) -> Path:
    """Write an array [H, W] as a tiled GeoTIFF with its directory first, as those on servers are."""
    height, width = values.shape
    profile = {"driver": "COG", "count": 1, "dtype": values.dtype, "crs": "EPSG:32631", "nodata": nodata}
    place = from_origin(WEST, NORTH, pixel, pixel)
    with rasterio.open(path, "w", height=height, width=width, transform=place, **profile) as dataset:
        dataset.write(values, 1)
    return path


def write_item(folder: Path, height: int = 120, width: int = 160, dtype: str = "uint8") -> dict[str, Any]:
    """Write the assets of an item to a folder, and return the item; its assets have relative addresses."""
    folder.mkdir(exist_ok=True)
    values = landscape(height, width, 5).astype(dtype)
    classes = landscape(height // 2, width // 2, 1, seed=7)[0] // 22
    assets: dict[str, dict[str, Any]] = {"thumbnail": {"href": "./t.png", "roles": ["thumbnail"]}}
    for band, (name, common) in enumerate(COMMON_NAMES.items()):
        coarse = name == "B11"
        write_band(
            folder / f"{name}.tif", values[band, ::2, ::2] if coarse else values[band], 20 if coarse else 10
        )
        entry = {"name": name, "common_name": common}
        assets[name] = {"href": f"./{name}.tif", "roles": ["data"], "eo:bands": [entry]}
    write_band(folder / "SCL.tif", classes.astype(np.uint8), 20)
    assets["scl"] = {"href": "./SCL.tif", "roles": ["data"]}
    return {
        "type": "Feature",
        "stac_version": "1.0.0",
        "stac_extensions": [],
        "id": "S2A_31UDQ_20240612_0_L2A",
        "collection": "sentinel-2-l2a",
        "geometry": {"type": "Polygon", "coordinates": [[[3, 48.7], [3.1, 48.7], [3.1, 48.8], [3, 48.7]]]},
        "bbox": [3.0, 48.7, 3.1, 48.8],
        "properties": {"datetime": "2024-06-12T10:56:00Z", "eo:cloud_cover": 7.5},
        "links": [],
        "assets": assets,
    }


def write_catalogue(folder: Path, address: str) -> None:
    """Write a catalogue of five items of one place, on days with more and more clouds, the last of another collection.

    Args:
        folder: The folder of a server.
        address: The address of the server.
    """
    item = write_item(folder, 20, 30)
    items = []
    for day in range(1, 6):
        properties = {"datetime": f"2024-06-0{day}T10:56:00Z", "eo:cloud_cover": 10.0 * day}
        if day == 4:
            del properties["eo:cloud_cover"]
        link = {"rel": "self", "href": f"{address}/item{day}.json"}
        items.append(item | {"id": f"day {day}", "properties": properties, "links": [link]})
    items[4]["collection"] = "landsat-c2-l2"
    (folder / CATALOGUE).write_text(json.dumps(items))
