"""The algorithm "Segment raster"."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from qgis.core import (
    QgsProcessingParameterFile,
    QgsProcessingParameterRasterDestination,
    QgsProcessingParameterRasterLayer,
    QgsProcessingParameterString,
)

from .algorithm import CommandAlgorithm, Step
from .command import SEGMENT, SHARES, arguments
from .parameters import POLYGONS, Values, optional_file, optional_layer, optional_raster, probability
from .style import style_polygons


class SegmentRaster(CommandAlgorithm):
    """Maps the land cover of a raster layer with one model."""

    NAME, TITLE = "segmentraster", "Segment raster"
    HELP = (
        "Maps the land cover of an image with a model that was trained without labels. The map has the image's "
        "grid and CRS, and the model's class names and colours; its attribute table has the areas.\n\n"
        "Model: an .onnx file made by iic-export, or the name of a bundled model, e.g. aerial. If empty, the "
        "bundled model made for the image's ground resolution is used.\n"
        "Bands: the image's bands for those of the model, in the model's order, by number or name, e.g. 4,1,2. If "
        "empty, they are matched by name.\n"
        "Rescale: MIN,MAX or auto, for images with other values than the model was trained on, e.g. 16 bit; "
        "off takes the values as they are. If empty, the model decides.\n"
        "Reflectance: SCALE,OFFSET, for models that take reflectance. If empty, the image decides.\n"
        "Minimum confidence: pixels whose label has a lower probability become nodata.\n"
        "Novelty: how foreign each pixel is to a model of reflectance; pixels from 128 to 254 are unlike any that it "
        "knows.\n\n"
        "A run that was cancelled resumes when it is started again with the same output file."
    )

    def inputs(self) -> tuple[Any, ...]:
        """Return the parameters."""
        return (
            QgsProcessingParameterRasterLayer("INPUT", "Image"),
            QgsProcessingParameterFile(
                "MODEL", "Model", optional=True, fileFilter="Models (*.onnx *.engine);;All files (*)"
            ),
            QgsProcessingParameterString("BANDS", "Bands", optional=True),
            QgsProcessingParameterString("RESCALE", "Rescale", optional=True),
            QgsProcessingParameterString("REFLECTANCE", "Reflectance", optional=True),
            probability("MIN_CONFIDENCE", "Minimum confidence"),
            QgsProcessingParameterRasterDestination("OUTPUT", "Land cover"),
            optional_raster("CONFIDENCE", "Confidence"),
            optional_raster("NOVELTY", "Novelty"),
            optional_layer("POLYGONS", "Polygons", POLYGONS),
            optional_file("STATS", "Areas", "CSV files (*.csv);;JSON files (*.json)"),
        )

    def steps(self, values: Values) -> Iterator[Step]:
        """Yield the command."""
        options = arguments(
            values.raster("INPUT"),
            values.output_layer("OUTPUT"),
            model=values.file("MODEL"),
            bands=values.text("BANDS"),
            rescale=values.text("RESCALE"),
            reflectance=values.text("REFLECTANCE"),
            min_confidence=values.real("MIN_CONFIDENCE"),
            confidence=values.output_layer("CONFIDENCE"),
            novelty=values.output_layer("NOVELTY"),
            polygons=values.output_layer("POLYGONS"),
            stats=values.output_file("STATS") or values.scratch("areas.csv"),  # areas go into the map, too
        )
        yield Step(SEGMENT, options, SHARES)

    def style(self, values: Values) -> None:
        """Give the polygons the colours of the map."""
        if "POLYGONS" in values.outputs:
            style_polygons(values.outputs["POLYGONS"], values.outputs["OUTPUT"])
