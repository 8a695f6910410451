"""The provider "IIC", and the setting for the path of the command."""

from __future__ import annotations

from processing.core.ProcessingConfig import ProcessingConfig, Setting
from qgis.core import QgsApplication, QgsProcessingProvider

from .algorithm import SETTING
from .maps import AssessMap, ChangeMap, CleanMap, DrawSample, PolygonStatistics
from .naming import NameClusters, SuggestPlaces
from .segment import SegmentRaster
from .setup import SetUp

ALGORITHMS = (
    SegmentRaster,
    NameClusters,
    SuggestPlaces,
    CleanMap,
    DrawSample,
    AssessMap,
    ChangeMap,
    PolygonStatistics,
    SetUp,
)


class Provider(QgsProcessingProvider):
    """The provider of the algorithms of this plugin."""

    def id(self) -> str:
        """Return the prefix of the algorithms' identifiers."""
        return "iic"

    def name(self) -> str:
        """Return the name that users see."""
        return "IIC"

    def load(self) -> bool:
        """Add the setting and the algorithms."""
        hint = "Path of iic-segment-raster (empty: that of the plugin's own environment)"
        ProcessingConfig.addSetting(Setting(self.name(), SETTING, hint, "", valuetype=Setting.FILE))
        ProcessingConfig.readSettings()
        self.refreshAlgorithms()
        return True

    def unload(self) -> None:
        """Remove the setting."""
        ProcessingConfig.removeSetting(SETTING)

    def loadAlgorithms(self) -> None:  # noqa: N802
        """Add the algorithms."""
        for algorithm in ALGORITHMS:
            self.addAlgorithm(algorithm())

    def supportedOutputRasterLayerExtensions(self) -> list[str]:  # noqa: N802
        """Return the suffix of maps, which are GeoTIFF files."""
        return ["tif"]

    def defaultVectorFileExtension(self, hasGeometry: bool = True) -> str:  # noqa: N802
        """Return the default suffix of polygons."""
        return "gpkg"

    def supportedOutputVectorLayerExtensions(self) -> list[str]:  # noqa: N802
        """Return the suffixes of the formats that polygons can be written in."""
        return ["gpkg", "fgb", "geojson"]

    def supportsNonFileBasedOutput(self) -> bool:  # noqa: N802
        """Return False: every output is a file."""
        return False


class Plugin:
    """Registers the provider while the plugin is active."""

    def __init__(self) -> None:
        self._provider: Provider | None = None

    def initProcessing(self) -> None:  # noqa: N802
        """Register the provider; also called by qgis_process, which has no window."""
        self._provider = Provider()
        QgsApplication.processingRegistry().addProvider(self._provider)

    def initGui(self) -> None:  # noqa: N802
        """Register the provider; called by QGIS."""
        self.initProcessing()

    def unload(self) -> None:
        """Remove the provider when the plugin is deactivated."""
        if self._provider is not None:
            QgsApplication.processingRegistry().removeProvider(self._provider)
