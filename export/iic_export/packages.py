"""Packages that an export needs."""

from importlib.util import find_spec


def missing_extra() -> str:
    """Return the extras to advise, with ONNX Runtime only where no build of it is there: two overwrite each other."""
    return "train" if find_spec("onnxruntime") else "cpu,train"
