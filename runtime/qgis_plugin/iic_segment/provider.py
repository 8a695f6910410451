"""The provider "IIC" and the setting of the command's path."""

from __future__ import annotations

from processing.core.ProcessingConfig import ProcessingConfig, Setting
from qgis.core import QgsApplication, QgsProcessingProvider

from .algorithm import SETTING, SegmentRaster


class Provider(QgsProcessingProvider):
    """Processing's list of our algorithms."""

    def id(self) -> str:
        """What algorithms are called by: iic:..."""
        return "iic"

    def name(self) -> str:
        """What people see."""
        return "IIC"

    def load(self) -> bool:
        """Add the setting and the algorithms."""
        hint = "Path of iic-segment-raster (empty: the one on the PATH)"
        ProcessingConfig.addSetting(Setting(self.name(), SETTING, hint, "", valuetype=Setting.FILE))
        ProcessingConfig.readSettings()
        self.refreshAlgorithms()
        return True

    def unload(self) -> None:
        """Take the setting away again."""
        ProcessingConfig.removeSetting(SETTING)

    def loadAlgorithms(self) -> None:  # noqa: N802
        """Fill the list."""
        self.addAlgorithm(SegmentRaster())

    def supportedOutputRasterLayerExtensions(self) -> list[str]:  # noqa: N802
        """Maps are GeoTIFFs."""
        return ["tif"]

    def defaultVectorFileExtension(self, hasGeometry: bool = True) -> str:  # noqa: N802
        """Polygons go into GeoPackages unless told otherwise."""
        return "gpkg"

    def supportedOutputVectorLayerExtensions(self) -> list[str]:  # noqa: N802
        """What --polygons writes."""
        return ["gpkg", "fgb", "geojson"]

    def supportsNonFileBasedOutput(self) -> bool:  # noqa: N802
        """Everything is a file."""
        return False


class Plugin:
    """Registers the provider while the plugin is on."""

    def __init__(self) -> None:
        self._provider: Provider | None = None

    def initProcessing(self) -> None:  # noqa: N802
        """Called by qgis_process too, which has no window."""
        self._provider = Provider()
        QgsApplication.processingRegistry().addProvider(self._provider)

    def initGui(self) -> None:  # noqa: N802
        """Called by QGIS."""
        self.initProcessing()

    def unload(self) -> None:
        """Called when the plugin is switched off."""
        if self._provider is not None:
            QgsApplication.processingRegistry().removeProvider(self._provider)
