"""Serve a model: the card, the engines, array to labels, scene to map. Never imports torch."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from iic_runtime.card import Card
    from iic_runtime.many import Outcome, segment_rasters
    from iic_runtime.segment import Summary, segment_raster
    from iic_runtime.segmenter import Segmentation, Segmenter
    from iic_runtime.validate import validate_model

__all__ = [
    "Card",
    "Outcome",
    "Segmentation",
    "Segmenter",
    "Summary",
    "segment_raster",
    "segment_rasters",
    "validate_model",
]

_HOMES = {
    "Card": "card",
    "Outcome": "many",
    "Segmentation": "segmenter",
    "Segmenter": "segmenter",
    "Summary": "segment",
    "segment_raster": "segment",
    "segment_rasters": "many",
    "validate_model": "validate",
}


def __getattr__(name: str) -> Any:
    """Import what is asked for when it is asked for: commands answer `--help` without loading rasterio."""
    from importlib import import_module

    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"iic_runtime.{_HOMES[name]}"), name)
