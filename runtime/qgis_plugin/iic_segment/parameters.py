"""What the algorithms of this plugin ask for, and what the user has answered, as texts for a command."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from osgeo import gdal
from qgis.core import (
    Qgis,
    QgsProcessing,
    QgsProcessingAlgorithm,
    QgsProcessingException,
    QgsProcessingParameterFileDestination,
    QgsProcessingParameterNumber,
    QgsProcessingParameterRasterDestination,
    QgsProcessingParameterVectorDestination,
    QgsProviderRegistry,
    QgsVectorFileWriter,
    QgsVectorLayer,
)

# QGIS 3.36 has moved these names, and QGIS 4 need not know the old ones.
if hasattr(Qgis, "ProcessingSourceType"):
    POINTS = Qgis.ProcessingSourceType.VectorPoint
    POLYGONS = Qgis.ProcessingSourceType.VectorPolygon
    SHAPES = Qgis.ProcessingSourceType.VectorAnyGeometry
    REAL = Qgis.ProcessingNumberParameterType.Double
else:
    POINTS = QgsProcessing.TypeVectorPoint
    POLYGONS = QgsProcessing.TypeVectorPolygon
    SHAPES = QgsProcessing.TypeVectorAnyGeometry
    REAL = QgsProcessingParameterNumber.Double


def optional_raster(name: str, description: str) -> Any:
    """Declare a raster that is written only if the user asks for it."""
    return QgsProcessingParameterRasterDestination(name, description, optional=True, createByDefault=False)


def optional_layer(name: str, description: str, kind: Any) -> Any:
    """Declare a vector layer that is written only if the user asks for it."""
    return QgsProcessingParameterVectorDestination(
        name, description, kind, optional=True, createByDefault=False
    )


def optional_file(name: str, description: str, file_filter: str) -> Any:
    """Declare a file that is written only if the user asks for it."""
    return QgsProcessingParameterFileDestination(
        name, description, fileFilter=file_filter, optional=True, createByDefault=False
    )


def probability(name: str, description: str) -> Any:
    """Declare a number from 0 to 1, by default 0."""
    return QgsProcessingParameterNumber(name, description, REAL, defaultValue=0.0, minValue=0.0, maxValue=1.0)


class Values:
    """What the user has answered; nothing where there is no answer.

    Attributes:
        outputs: The outputs that were asked for so far, by name of the parameter.
    """

    def __init__(
        self, algorithm: QgsProcessingAlgorithm, parameters: dict[str, Any], context: Any, folder: Path
    ) -> None:
        self.outputs: dict[str, str] = {}
        self._algorithm, self._parameters, self._context = algorithm, parameters, context
        self._folder = folder

    def text(self, name: str) -> str:
        """Return a text or the name of a field."""
        return str(self._algorithm.parameterAsString(self._parameters, name, self._context))

    def choice(self, name: str) -> str:
        """Return the choice among texts."""
        return str(self._algorithm.parameterAsEnumString(self._parameters, name, self._context))

    def flag(self, name: str) -> bool:
        """Return whether a box is ticked."""
        return bool(self._algorithm.parameterAsBoolean(self._parameters, name, self._context))

    def integer(self, name: str) -> str:
        """Return a whole number."""
        return str(self._algorithm.parameterAsInt(self._parameters, name, self._context))

    def real(self, name: str) -> str:
        """Return a number."""
        return f"{self._algorithm.parameterAsDouble(self._parameters, name, self._context):.15g}"

    def file(self, name: str) -> str:
        """Return the path of a file, or a name that is none, such as that of a bundled model."""
        return _absolute(self._algorithm.parameterAsFile(self._parameters, name, self._context))

    def raster(self, name: str) -> str:
        """Return the file of a raster layer."""
        if not self._parameters.get(name):
            return ""
        layer = self._algorithm.parameterAsRasterLayer(self._parameters, name, self._context)
        if layer is None or layer.providerType() != "gdal":
            raise QgsProcessingException(
                f"{self._title(name)}: this is not a raster file; save the layer as GeoTIFF first."
            )
        return _absolute(layer.source())

    def vector(self, name: str) -> str:
        """Return the file of a vector layer.

        A layer that is not the whole of a file as QGIS shows it is saved first: a scratch layer, edits that are not
        saved yet, a filter, one of several layers of a file.
        """
        layer = self._algorithm.parameterAsVectorLayer(self._parameters, name, self._context)
        if layer is None:
            raise QgsProcessingException(f"{self._title(name)}: there is no such layer.")
        path = _absolute(layer.source().partition("|")[0])
        if _is_whole_file(layer) and Path(path).exists():
            return path
        options = QgsVectorFileWriter.SaveVectorOptions()
        options.driverName = "GPKG"
        file = self._folder / f"{name.lower()}.gpkg"
        error, message, *_ = QgsVectorFileWriter.writeAsVectorFormatV3(
            layer, str(file), self._context.transformContext(), options
        )
        if error != QgsVectorFileWriter.WriterError.NoError:
            raise QgsProcessingException(f"{self._title(name)}: the layer cannot be read ({message}).")
        _copy_metadata(layer, file)
        return str(file)

    def output_layer(self, name: str) -> str:
        """Return the file of a layer to write; QGIS adds it to the project."""
        return self._output(name, self._algorithm.parameterAsOutputLayer)

    def output_file(self, name: str) -> str:
        """Return the path of another file to write."""
        return self._output(name, self._algorithm.parameterAsFileOutput)

    def scratch(self, name: str) -> str:
        """Return the path of a file that is removed after the run."""
        return str(self._folder / name)

    def _output(self, name: str, read: Any) -> str:
        if not self._parameters.get(name):
            return ""
        self.outputs[name] = str(Path(read(self._parameters, name, self._context)).absolute())
        return self.outputs[name]

    def _title(self, name: str) -> str:
        return str(self._algorithm.parameterDefinition(name).description())


def _absolute(name: str) -> str:
    """Commands run in another folder than QGIS."""
    return str(Path(name).absolute()) if name and Path(name).exists() else name


def _copy_metadata(layer: QgsVectorLayer, file: Path) -> None:
    """Copy what a layer says about itself, e.g. which map a sample was drawn from. QGIS does not."""
    if layer.providerType() != "ogr":
        return
    parts = QgsProviderRegistry.instance().decodeUri("ogr", layer.source())
    source = gdal.OpenEx(parts["path"], gdal.OF_VECTOR)
    target = gdal.OpenEx(str(file), gdal.OF_VECTOR | gdal.OF_UPDATE)
    if source is not None:
        target.GetLayer(0).SetMetadata(source.GetLayer(parts["layerName"] or 0).GetMetadata())


def _is_whole_file(layer: QgsVectorLayer) -> bool:
    if layer.providerType() != "ogr" or layer.isModified() or layer.subsetString():
        return False
    return len(layer.dataProvider().subLayers()) <= 1
