"""The style of vector layers in QGIS: names and colours of the map, in a .qml file next to them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from osgeo import gdal
from qgis.core import (
    QgsCategorizedSymbolRenderer,
    QgsEditorWidgetSetup,
    QgsExpression,
    QgsFillSymbol,
    QgsMarkerSymbol,
    QgsRendererCategory,
    QgsVectorLayer,
)
from qgis.PyQt.QtGui import QColor

OTHERWISE = "#ffffff"


class LegendClass(NamedTuple):
    """Name and colour of a class of a map."""

    name: str
    colour: str


def classes(map_file: str) -> list[LegendClass]:
    """Return the classes of a map; none if it does not name them."""
    dataset = gdal.Open(map_file)  # its bands live only as long as it does
    band = dataset.GetRasterBand(1)
    table = band.GetColorTable()
    legend = []
    for value, name in enumerate(band.GetCategoryNames() or []):
        if table is not None and value < table.GetCount():
            colour = QColor(*table.GetColorEntry(value)[:3])
        else:  # a map of another program; neighbouring values get hues that lie far apart
            colour = QColor.fromHsv(value * 137 % 360, 160, 200)
        legend.append(LegendClass(name, colour.name()))
    return legend


def style_polygons(file: str, map_file: str) -> None:
    """Write the style of a map's polygons: the colours of the map, without outlines."""
    layer = QgsVectorLayer(file, "polygons", "ogr")
    _categorise(layer, "class", classes(map_file), _fill)
    _save(layer, file)


def style_samples(file: str, map_file: str) -> None:
    """Write the style of a sample: coloured by label, white before, and a form that offers the names of the map."""
    layer = QgsVectorLayer(file, "samples", "ogr")
    legend = classes(map_file)
    if not legend:
        return
    _categorise(layer, "class", legend, _marker, otherwise="no label yet")
    choices = [{entry.name: entry.name} for entry in legend]
    layer.setEditorWidgetSetup(
        layer.fields().indexOf("class"), QgsEditorWidgetSetup("ValueMap", {"map": choices})
    )
    _save(layer, file)


def style_zones(file: str, map_file: str) -> None:
    """Write the style of polygons with areas: the colour of the class with the largest one."""
    layer = QgsVectorLayer(file, "areas", "ogr")
    legend = [entry for entry in classes(map_file) if layer.fields().indexOf(f"{entry.name}_ha") >= 0]
    if not legend:
        return
    names = ", ".join(QgsExpression.quotedString(entry.name) for entry in legend)
    areas = ", ".join(QgsExpression.quotedColumnRef(f"{entry.name}_ha") for entry in legend)
    largest = f"array_max(array({areas}))"
    expression = (
        f"CASE WHEN {largest} > 0 THEN array_get(array({names}), array_find(array({areas}), {largest})) END"
    )
    _categorise(layer, expression, legend, _outlined, otherwise="no data")
    _save(layer, file)


def _fill(colour: str) -> Any:
    return QgsFillSymbol.createSimple({"color": colour, "outline_style": "no"})


def _outlined(colour: str) -> Any:
    return QgsFillSymbol.createSimple({"color": colour, "outline_color": "#404040", "outline_width": "0.2"})


def _marker(colour: str) -> Any:
    return QgsMarkerSymbol.createSimple({"color": colour, "outline_color": "#000000", "size": "3"})


def _categorise(
    layer: QgsVectorLayer,
    expression: str,
    legend: list[LegendClass],
    symbol: Callable[[str], Any],
    otherwise: str = "",
) -> None:
    """Colour features by the class that a field or an expression says, and others white if they have a name."""
    categories = [QgsRendererCategory(entry.name, symbol(entry.colour), entry.name) for entry in legend]
    if otherwise:
        categories.append(QgsRendererCategory("", symbol(OTHERWISE), otherwise))
    layer.setRenderer(QgsCategorizedSymbolRenderer(expression, categories))


def _save(layer: QgsVectorLayer, file: str) -> None:
    """Save the style next to a file, unless that is the place of the style of a map with the same name."""
    style = Path(file).with_suffix(".qml")
    if not style.with_suffix(".tif").exists():
        layer.saveNamedStyle(str(style))
