"""The algorithm "Segment raster"."""

from __future__ import annotations

from typing import Any

from processing.core.ProcessingConfig import ProcessingConfig
from qgis.core import (
    QgsProcessing,
    QgsProcessingAlgorithm,
    QgsProcessingException,
    QgsProcessingParameterFile,
    QgsProcessingParameterRasterDestination,
    QgsProcessingParameterRasterLayer,
    QgsProcessingParameterString,
    QgsProcessingParameterVectorDestination,
)

from .command import CommandError, arguments, find_command, run
from .style import style_polygons

SETTING = "IIC_COMMAND"


class SegmentRaster(QgsProcessingAlgorithm):
    """Land cover of a raster layer, by one model."""

    def createInstance(self) -> SegmentRaster:  # noqa: N802
        """A fresh one for each run."""
        return SegmentRaster()

    def name(self) -> str:
        """The name in iic:segmentraster."""
        return "segmentraster"

    def displayName(self) -> str:  # noqa: N802
        """What people see."""
        return "Segment raster"

    def shortHelpString(self) -> str:  # noqa: N802
        """The text beside the dialog."""
        return (
            "Maps the land cover of an image with a model that was trained without labels. The map has the image's "
            "grid and CRS, and the model's class names and colours.\n\n"
            "Model: an .onnx file made by iic-export, or the name of a bundled model, e.g. aerial; empty for the "
            "bundled one that is made for the image's ground resolution.\n"
            "Bands: which bands of the image are the model's, in its order, by number or name, e.g. 4,1,2. Empty: by "
            "their names.\n"
            "Rescale: MIN,MAX or auto, for images whose values are not those the model was trained on, e.g. 16 bit; "
            "off takes values as they are. Empty: as the model says.\n\n"
            "A run that was cancelled goes on where it was when it is started again with the same output file."
        )

    def initAlgorithm(self, configuration: dict[str, Any] | None = None) -> None:  # noqa: N802
        """Declare what is asked for."""
        confidence = QgsProcessingParameterRasterDestination(
            "CONFIDENCE", "Confidence", optional=True, createByDefault=False
        )
        polygons = QgsProcessingParameterVectorDestination(
            "POLYGONS", "Polygons", QgsProcessing.TypeVectorPolygon, optional=True, createByDefault=False
        )
        for parameter in (
            QgsProcessingParameterRasterLayer("INPUT", "Image"),
            QgsProcessingParameterFile(
                "MODEL", "Model", optional=True, fileFilter="Models (*.onnx *.engine);;All files (*)"
            ),
            QgsProcessingParameterString("BANDS", "Bands", optional=True),
            QgsProcessingParameterString("RESCALE", "Rescale", optional=True),
            QgsProcessingParameterRasterDestination("OUTPUT", "Land cover"),
            confidence,
            polygons,
        ):
            self.addParameter(parameter)

    def processAlgorithm(  # noqa: N802
        self, parameters: dict[str, Any], context: Any, feedback: Any
    ) -> dict[str, str]:
        """Run the command and style what it made."""
        layer = self.parameterAsRasterLayer(parameters, "INPUT", context)
        if layer is None or layer.providerType() != "gdal":
            raise QgsProcessingException("The image must be a raster file; save the layer as GeoTIFF first.")
        outputs = {
            name: self.parameterAsOutputLayer(parameters, name, context)
            for name in ("OUTPUT", "CONFIDENCE", "POLYGONS")
            if parameters.get(name)
        }
        options = arguments(
            layer.source(),
            outputs["OUTPUT"],
            model=self.parameterAsFile(parameters, "MODEL", context),
            bands=self.parameterAsString(parameters, "BANDS", context),
            rescale=self.parameterAsString(parameters, "RESCALE", context),
            confidence=outputs.get("CONFIDENCE", ""),
            polygons=outputs.get("POLYGONS", ""),
        )
        try:
            command = [find_command(ProcessingConfig.getSetting(SETTING) or ""), *options]
            feedback.pushCommandInfo(" ".join(command))
            if not run(command, feedback.setProgress, feedback.pushInfo, feedback.isCanceled):
                return {}
        except CommandError as error:
            raise QgsProcessingException(str(error)) from error
        if "POLYGONS" in outputs:
            style_polygons(outputs["POLYGONS"], outputs["OUTPUT"])
        return outputs
