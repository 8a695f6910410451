"""How QGIS draws the polygons: the map's names and colours, kept in a .qml file beside them, as the map has its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from qgis.core import (
    QgsCategorizedSymbolRenderer,
    QgsFillSymbol,
    QgsPalettedRasterRenderer,
    QgsRasterLayer,
    QgsRendererCategory,
    QgsVectorLayer,
)


def classes(map_file: str) -> list[Any]:
    """Value, colour and label of each class, as the map itself has them."""
    layer = QgsRasterLayer(map_file, "map")
    table = QgsPalettedRasterRenderer.colorTableToClassData(layer.dataProvider().colorTable(1))
    # A GeoTIFF's colour table always has 256 entries; how many are classes is in the sidecar.
    names = ElementTree.parse(f"{map_file}.aux.xml").findall("PAMRasterBand/CategoryNames/Category")
    return list(table)[: len(names)]


def style_polygons(file: str, map_file: str) -> None:
    """Write the polygons' style: the colours of the map, without outlines."""
    layer = QgsVectorLayer(file, "polygons", "ogr")
    categories = []
    for entry in classes(map_file):
        symbol = QgsFillSymbol.createSimple({"color": entry.color.name(), "outline_style": "no"})
        categories.append(QgsRendererCategory(entry.label, symbol, entry.label))
    layer.setRenderer(QgsCategorizedSymbolRenderer("class", categories))
    layer.saveNamedStyle(_beside(file))


def _beside(file: str) -> str:
    """Where QGIS looks for the style of a file."""
    return str(Path(file).with_suffix(".qml"))
