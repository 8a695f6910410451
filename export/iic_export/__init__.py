"""From a run folder to one proven model file: the deployable graph, its card, ONNX and TensorRT."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from iic_export.exporting import Exported, export

__all__ = ["Exported", "export"]


def __getattr__(name: str) -> Any:
    """Import what is asked for when it is asked for: `--help` answers without loading torch."""
    from importlib import import_module

    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("iic_export.exporting"), name)
