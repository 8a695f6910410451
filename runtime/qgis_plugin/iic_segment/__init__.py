"""A QGIS plugin that runs the commands of iic-edge as Processing algorithms."""

from __future__ import annotations

from typing import Any


def classFactory(iface: Any) -> Any:  # noqa: N802  (QGIS calls it by this name)
    """Make the plugin; QGIS calls this function."""
    from .provider import Plugin

    return Plugin()
