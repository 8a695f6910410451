"""Run by QGIS's own Python: open layers as QGIS does, report their legends, draw them with a legend to a picture.

python3 qgis_render.py PICTURE.png LAYER...
"""

import json
import sys
from pathlib import Path
from typing import Any

from qgis.core import (
    QgsApplication,
    QgsLayout,
    QgsLayoutExporter,
    QgsLayoutItemLegend,
    QgsLayoutItemMap,
    QgsLayoutPoint,
    QgsLayoutSize,
    QgsProject,
    QgsRasterLayer,
    QgsVectorLayer,
)
from qgis.PyQt.QtCore import QRectF


def legend(layer: Any) -> Any:
    renderer = layer.renderer()
    if isinstance(layer, QgsVectorLayer):
        return {entry.value(): entry.symbol().color().name() for entry in renderer.categories()}
    if renderer.type() != "paletted":
        return renderer.type()
    return {entry.label: entry.color.name() for entry in renderer.classes()}


def draw(layers: list[Any], picture: str) -> Any:
    project = QgsProject.instance()
    project.addMapLayers(layers)
    layout = QgsLayout(project)
    layout.initializeDefaults()
    view = QgsLayoutItemMap(layout)
    view.attemptSetSceneRect(QRectF(5, 5, 220, 200))
    # the first on top, as in QGIS's list of layers
    view.setLayers(layers)
    view.setCrs(layers[0].crs())
    view.zoomToExtent(layers[0].extent())
    layout.addLayoutItem(view)
    key = QgsLayoutItemLegend(layout)
    key.setLinkedMap(view)
    key.attemptMove(QgsLayoutPoint(230, 5))
    key.attemptResize(QgsLayoutSize(60, 100))
    layout.addLayoutItem(key)
    settings = QgsLayoutExporter.ImageExportSettings()
    settings.dpi = 100
    return QgsLayoutExporter(layout).exportToImage(picture, settings)


application = QgsApplication([], False)
application.initQgis()
picture, *files = sys.argv[1:]
opened = [
    (QgsRasterLayer if file.endswith((".tif", ".vrt")) else QgsVectorLayer)(file, Path(file).stem)
    for file in files
]
told = {"legends": [legend(layer) for layer in opened], "drawn": draw(opened, picture) == 0}
sys.stdout.write(json.dumps(told) + "\n")
sys.stdout.flush()
application.exitQgis()
