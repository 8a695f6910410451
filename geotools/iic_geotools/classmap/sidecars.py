"""Files beside a map that hold what a GeoTIFF cannot.

GDAL reads class names, the attribute table and more of a georeference from `map.tif.aux.xml`. QGIS reads its legend
from `map.qml`; without it, QGIS lists all 256 entries that the colour table of a GeoTIFF always has.
"""

from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree as ET

from iic_geotools.classmap.classes import MapClass, rgb

# Numbers of GDAL's GDALRATFieldType and GDALRATFieldUsage.
_INTEGER, _STRING = 0, 2
_NAME, _MINMAX, _RED, _GREEN, _BLUE, _ALPHA = 2, 5, 6, 7, 8, 9

_COLUMNS = (
    ("Value", _INTEGER, _MINMAX),
    ("Class", _STRING, _NAME),
    ("Red", _INTEGER, _RED),
    ("Green", _INTEGER, _GREEN),
    ("Blue", _INTEGER, _BLUE),
    ("Alpha", _INTEGER, _ALPHA),
)


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
        band.append(_attribute_table(classes))
    ET.indent(root)
    return bytes(ET.tostring(root, encoding="utf-8"))


def _attribute_table(classes: Sequence[MapClass]) -> ET.Element:
    table = ET.Element("GDALRasterAttributeTable", tableType="thematic")
    for index, (name, kind, usage) in enumerate(_COLUMNS):
        column = ET.SubElement(table, "FieldDefn", index=str(index))
        ET.SubElement(column, "Name").text = name
        ET.SubElement(column, "Type").text = str(kind)
        ET.SubElement(column, "Usage").text = str(usage)
    for value, map_class in enumerate(classes):
        row = ET.SubElement(table, "Row", index=str(value))
        for cell in (value, map_class.name, *rgb(map_class.colour), 255):
            ET.SubElement(row, "F").text = str(cell)
    return table


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
