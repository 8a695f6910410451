"""A map's legend for QGIS: `map.qml` beside `map.tif`, which QGIS takes up by itself.

Without it QGIS lists all 256 entries that a GeoTIFF's colour table always has, classes or not.
"""

from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree as ET

from iic_geotools.colours import MapClass


def style_path(raster: Path) -> Path:
    """Where QGIS looks for the style of `raster`."""
    return raster.with_suffix(".qml")


def map_style(classes: Sequence[MapClass]) -> bytes:
    """A style that draws the values 0, 1, ... in the colours and with the names of `classes`."""
    root = ET.Element("qgis", version="3.22", styleCategories="Symbology")
    renderer = ET.SubElement(
        ET.SubElement(root, "pipe"),
        "rasterrenderer",
        {"type": "paletted", "band": "1", "opacity": "1", "alphaBand": "-1", "nodataColor": ""},
    )
    palette = ET.SubElement(renderer, "colorPalette")
    for value, entry in enumerate(classes):
        shown = {"value": str(value), "color": entry.colour, "alpha": "255", "label": entry.name}
        ET.SubElement(palette, "paletteEntry", shown)
    ET.indent(root)
    head = b"<!DOCTYPE qgis PUBLIC 'http://mrcc.com/qgis.dtd' 'SYSTEM'>\n"
    return head + bytes(ET.tostring(root, encoding="utf-8"))
