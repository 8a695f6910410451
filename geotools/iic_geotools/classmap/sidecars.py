"""Files next to a map that hold what a GeoTIFF cannot.

GDAL reads class names, the attribute table and more of a georeference from `map.tif.aux.xml`. QGIS reads its legend
from `map.qml`; without it, QGIS lists all 256 entries that the colour table of a GeoTIFF always has.
"""

import json
import os
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

from rasterio.crs import CRS
from rasterio.errors import CRSError
from rasterio.transform import array_bounds
from rasterio.warp import transform_bounds

from iic_geotools.classmap.classes import NODATA, MapClass, rgb
from iic_geotools.geobox import GeoBox

# Numbers of GDAL's GDALRATFieldType and GDALRATFieldUsage.
_INTEGER, _REAL, _STRING = 0, 1, 2
_GENERIC, _COUNT, _NAME, _MINMAX, _RED, _GREEN, _BLUE, _ALPHA = 0, 1, 2, 5, 6, 7, 8, 9

_COLUMNS = (
    ("Value", _INTEGER, _MINMAX),
    ("Class", _STRING, _NAME),
    ("Red", _INTEGER, _RED),
    ("Green", _INTEGER, _GREEN),
    ("Blue", _INTEGER, _BLUE),
    ("Alpha", _INTEGER, _ALPHA),
)
_AREA_COLUMNS = (("Pixels", _REAL, _COUNT), ("Hectares", _REAL, _GENERIC))  # GDAL's integers end at 2 ** 31

_STAC = "https://stac-extensions.github.io"
_MEDIA_TYPES = {
    ".tif": "image/tiff; application=geotiff; profile=cloud-optimized",
    ".gpkg": "application/geopackage+sqlite3",
    ".fgb": "application/vnd.flatgeobuf",
    ".parquet": "application/vnd.apache.parquet",
    ".pmtiles": "application/vnd.pmtiles",
    ".geojson": "application/geo+json",
    ".json": "application/json",
    ".csv": "text/csv",
    ".png": "image/png",
    ".html": "text/html",
}
_DATE = re.compile(r"(?<!\d)(20[0-4]\d|19[789]\d)(0[1-9]|1[0-2])(0[1-9]|[12]\d|3[01])(?!\d)")


def sidecar_path(raster: Path) -> Path:
    """Path at which GDAL looks for the sidecar of `raster`."""
    return raster.with_name(f"{raster.name}.aux.xml")


def sidecar(classes: Sequence[MapClass] | None, georeference: str = "") -> bytes:
    """The content of GDAL's sidecar.

    Args:
        classes: Names and colours of the values 0, 1, ..., if the raster has classes.
        georeference: The georeference as XML (`vrt.georeference`), if the GeoTIFF could not hold all of it. GDAL
            trusts the sidecar more than the GeoTIFF.
    """
    root = ET.fromstring(f"<PAMDataset>{georeference}</PAMDataset>")
    if classes is not None:
        band = ET.SubElement(root, "PAMRasterBand", band="1")
        names = ET.SubElement(band, "CategoryNames")
        for map_class in classes:
            ET.SubElement(names, "Category").text = map_class.name
        table = ET.SubElement(band, "GDALRasterAttributeTable", tableType="thematic")
        rows = [(value, entry.name, *rgb(entry.colour), 255) for value, entry in enumerate(classes)]
        for value in range(len(rows)):
            ET.SubElement(table, "Row", index=str(value))
        _add_columns(table, _COLUMNS, rows)
    ET.indent(root)
    return bytes(ET.tostring(root, encoding="utf-8"))


def _add_columns(
    table: ET.Element, columns: Sequence[tuple[str, int, int]], rows: Sequence[Sequence[object]]
) -> None:
    first = len(table.findall("FieldDefn"))
    for index, (name, kind, usage) in enumerate(columns, first):
        column = ET.Element("FieldDefn", index=str(index))
        ET.SubElement(column, "Name").text = name
        ET.SubElement(column, "Type").text = str(kind)
        ET.SubElement(column, "Usage").text = str(usage)
        table.insert(index, column)
    for row, cells in zip(table.findall("Row"), rows, strict=True):
        for cell in cells:
            ET.SubElement(row, "F").text = str(cell)


def with_areas(content: bytes, areas: Sequence[tuple[int, float | None]]) -> bytes:
    """The content of a map's sidecar with what each class covers in its attribute table.

    Args:
        areas: Pixels and hectares of each class; None if they are not known.
    """
    root = ET.fromstring(content)
    table = root.find(".//GDALRasterAttributeTable")
    if table is not None:
        columns = _AREA_COLUMNS if all(hectares is not None for _, hectares in areas) else _AREA_COLUMNS[:1]
        _add_columns(table, columns, [row[: len(columns)] for row in areas])
        ET.indent(root)
    return bytes(ET.tostring(root, encoding="utf-8"))


def style_path(raster: Path) -> Path:
    """Path at which QGIS looks for the style of `raster`."""
    return raster.with_suffix(".qml")


def map_style(classes: Sequence[MapClass]) -> bytes:
    """The content of a QGIS style that shows the values 0, 1, ... with the colours and names of `classes`."""
    root = ET.Element("qgis", version="3.22", styleCategories="Symbology")
    renderer = ET.SubElement(
        ET.SubElement(root, "pipe"),
        "rasterrenderer",
        {"type": "paletted", "band": "1", "opacity": "1", "alphaBand": "-1", "nodataColor": ""},
    )
    palette = ET.SubElement(renderer, "colorPalette")
    for value, map_class in enumerate(classes):
        entry = {"value": str(value), "color": map_class.colour, "alpha": "255", "label": map_class.name}
        ET.SubElement(palette, "paletteEntry", entry)
    return _write_style(root)


def polygon_style(classes: Sequence[MapClass], field: str) -> bytes:
    """The content of a QGIS style that shows polygons with the colours of `classes`, whose names are in a field."""
    root = ET.Element("qgis", version="3.22", styleCategories="Symbology")
    renderer = ET.SubElement(root, "renderer-v2", {"type": "categorizedSymbol", "attr": field})
    categories, symbols = ET.SubElement(renderer, "categories"), ET.SubElement(renderer, "symbols")
    for number, map_class in enumerate(classes):
        name = str(number)
        entry = {"symbol": name, "value": map_class.name, "label": map_class.name, "type": "string"}
        ET.SubElement(categories, "category", {**entry, "render": "true"})
        symbol = ET.SubElement(symbols, "symbol", {"name": name, "type": "fill", "alpha": "1"})
        layer = ET.SubElement(symbol, "layer", {"class": "SimpleFill", "enabled": "1"})
        options = ET.SubElement(layer, "Option", type="Map")
        colour = ",".join(map(str, (*rgb(map_class.colour), 255)))
        for key, value in (("color", colour), ("style", "solid"), ("outline_style", "no")):
            ET.SubElement(options, "Option", name=key, type="QString", value=value)
    ET.SubElement(root, "layerGeometryType").text = "2"
    return _write_style(root)


def _write_style(root: ET.Element) -> bytes:
    ET.indent(root)
    head = b"<!DOCTYPE qgis PUBLIC 'http://mrcc.com/qgis.dtd' 'SYSTEM'>\n"
    return head + bytes(ET.tostring(root, encoding="utf-8"))


def stac_item(
    out: Path, files: Mapping[str, Path], grid: GeoBox, classes: Sequence[MapClass], scene: str, software: str
) -> bytes:
    """The content of a STAC item that describes a map, its classes and what was made from it.

    Its date is that in the name of the scene, if there is one, and otherwise the present.
    """
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    date = _DATE.search(scene)
    when = f"{'-'.join(date.groups())}T00:00:00Z" if date else now
    bounds = _lon_lat(grid)
    legend = [
        {
            "value": value,
            "name": _slug(entry.name, value),
            "title": entry.name,
            "color_hint": entry.colour[1:].upper(),
        }
        for value, entry in enumerate(classes)
    ]
    assets: dict[str, dict[str, Any]] = {}
    for name, file in files.items():
        href = Path(os.path.relpath(file, out.parent)).as_posix()
        kind = _MEDIA_TYPES.get(file.suffix.lower(), "application/octet-stream")
        roles = ["overview"] if file.suffix.lower() == ".png" else ["data"]
        assets[name] = {"href": f"./{href}", "type": kind, "roles": roles}
    assets["map"] |= {
        "classification:classes": legend,
        "raster:bands": [{"data_type": "uint8", "nodata": NODATA}],
    }
    item = {
        "type": "Feature",
        "stac_version": "1.0.0",
        "stac_extensions": [
            f"{_STAC}/{name}/schema.json"
            for name in ("projection/v2.0.0", "classification/v2.0.0", "raster/v1.1.0", "processing/v1.2.0")
        ],
        "id": out.stem,
        "geometry": None if bounds is None else _rectangle(*bounds),
        **({} if bounds is None else {"bbox": list(bounds)}),
        "properties": {
            "datetime": when,
            "created": now,
            "title": f"Land cover of {scene}",
            "processing:software": {software.partition(" ")[0]: software.partition(" ")[2]},
            **_projection(grid),
        },
        "links": [],
        "assets": assets,
    }
    return (json.dumps(item, indent=1, ensure_ascii=False) + "\n").encode()


def _lon_lat(grid: GeoBox) -> tuple[float, float, float, float] | None:
    if grid.crs is None or grid.gcps:
        return None
    bounds = array_bounds(grid.height, grid.width, grid.transform)
    try:
        west, south, east, north = transform_bounds(grid.crs, CRS.from_epsg(4326), *bounds)
    except CRSError:
        return None
    return round(west, 7), round(south, 7), round(east, 7), round(north, 7)


def _rectangle(west: float, south: float, east: float, north: float) -> dict[str, Any]:
    def box(left: float, right: float) -> list[list[list[float]]]:
        return [[[left, south], [right, south], [right, north], [left, north], [left, south]]]

    if west <= east:
        return {"type": "Polygon", "coordinates": box(west, east)}
    return {"type": "MultiPolygon", "coordinates": [box(west, 180.0), box(-180.0, east)]}


def _projection(grid: GeoBox) -> dict[str, Any]:
    if grid.crs is None:
        return {}
    code = grid.crs.to_epsg()
    name = {"proj:code": f"EPSG:{code}"} if code else {"proj:code": None, "proj:wkt2": grid.crs.to_wkt()}
    transform = [] if grid.gcps else [float(number) for number in tuple(grid.transform)[:6]]
    return {
        **name,
        "proj:shape": [grid.height, grid.width],
        **({"proj:transform": transform} if transform else {}),
    }


def _slug(name: str, value: int) -> str:
    """The name of a class in the letters that the extension allows: letters, digits, - and _."""
    return re.sub(r"[^0-9A-Za-z_-]+", "-", name).strip("-") or f"class-{value}"
