"""A QGIS plugin: land cover maps with iic-segment-raster, as a Processing algorithm."""

from __future__ import annotations

from typing import Any


def classFactory(iface: Any) -> Any:  # noqa: N802  (QGIS calls it by this name)
    """What QGIS calls to make the plugin."""
    from .provider import Plugin

    return Plugin()
