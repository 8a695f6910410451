"""The algorithms that turn clicks into classes: "Name clusters" and "Suggest places to click"."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from qgis.core import (
    QgsProcessingParameterField,
    QgsProcessingParameterFile,
    QgsProcessingParameterFileDestination,
    QgsProcessingParameterNumber,
    QgsProcessingParameterRasterDestination,
    QgsProcessingParameterRasterLayer,
    QgsProcessingParameterString,
    QgsProcessingParameterVectorDestination,
    QgsProcessingParameterVectorLayer,
)

from .algorithm import CommandAlgorithm, Step
from .command import MODEL, NAMING_SHARES, SEGMENT, SHARES, arguments
from .parameters import POINTS, SHAPES, Values, optional_layer

MODEL_FILTER = "Models (*.onnx);;All files (*)"


def _scene_parameters() -> tuple[Any, ...]:
    return (
        QgsProcessingParameterString("BANDS", "Bands", optional=True),
        QgsProcessingParameterString("RESCALE", "Rescale", optional=True),
    )


class NameClusters(CommandAlgorithm):
    """Names the classes of a model by points or polygons with a class field, and maps the image with it."""

    NAME, TITLE = "nameclusters", "Name clusters"
    HELP = (
        "Turns a few clicks into a map: draw points or polygons on the image, with a field that says the class, "
        "five to twenty per class in different places. A small classifier is fitted to what the model sees there, "
        "and the image is mapped with it. Seconds; nothing is trained.\n\n"
        "Model: an .onnx file made by iic-export, or the name of a bundled model.\n"
        "Class field: if empty, the only field, or the one named class.\n"
        "Places to click next: points where the named model is least sure. Fill in their class, add them to your "
        "clicks, and run this again.\n\n"
        "The log says how many clicks are recognised by a model that saw none of the same place, and which classes "
        "need more."
    )

    def inputs(self) -> tuple[Any, ...]:
        """Return the parameters."""
        return (
            QgsProcessingParameterRasterLayer("INPUT", "Image"),
            QgsProcessingParameterFile("MODEL", "Model", fileFilter=MODEL_FILTER),
            QgsProcessingParameterVectorLayer("LABELS", "Clicks", [SHAPES]),
            QgsProcessingParameterField(
                "FIELD", "Class field", parentLayerParameterName="LABELS", optional=True
            ),
            *_scene_parameters(),
            QgsProcessingParameterFileDestination("NAMED", "Named model", fileFilter="Models (*.onnx)"),
            QgsProcessingParameterRasterDestination("OUTPUT", "Land cover"),
            optional_layer("PLACES", "Places to click next", POINTS),
        )

    def steps(self, values: Values) -> Iterator[Step]:
        """Yield the command that names the model, then the one that maps the image with it."""
        scene, named = values.raster("INPUT"), values.output_file("NAMED")
        reading = {"bands": values.text("BANDS"), "rescale": values.text("RESCALE")}
        options = arguments(
            "name",
            values.file("MODEL"),
            labels=values.vector("LABELS"),
            scene=scene,
            out=named,
            label_field=values.text("FIELD"),
            suggest=values.output_layer("PLACES"),
            **reading,
        )
        yield Step(MODEL, options, NAMING_SHARES)
        yield Step(SEGMENT, arguments(scene, values.output_layer("OUTPUT"), model=named, **reading), SHARES)


class SuggestPlaces(CommandAlgorithm):
    """Writes the places of an image that a model is least sure of."""

    NAME, TITLE = "suggestplaces", "Suggest places to click"
    HELP = (
        "Finds the largest areas of an image that a model is unsure of, and writes a point in each. Look at them, "
        "fill in their field class, and give them to Name clusters together with your other clicks.\n\n"
        "Model: an .onnx file, or the name of a bundled model."
    )

    def inputs(self) -> tuple[Any, ...]:
        """Return the parameters."""
        return (
            QgsProcessingParameterRasterLayer("INPUT", "Image"),
            QgsProcessingParameterFile("MODEL", "Model", fileFilter=MODEL_FILTER),
            QgsProcessingParameterNumber("COUNT", "Number of places", defaultValue=10, minValue=1),
            *_scene_parameters(),
            QgsProcessingParameterVectorDestination("OUTPUT", "Places to click", POINTS),
        )

    def steps(self, values: Values) -> Iterator[Step]:
        """Yield the command."""
        options = arguments(
            "suggest",
            values.file("MODEL"),
            scene=values.raster("INPUT"),
            out=values.output_layer("OUTPUT"),
            count=values.integer("COUNT"),
            bands=values.text("BANDS"),
            rescale=values.text("RESCALE"),
        )
        yield Step(MODEL, options, {})
