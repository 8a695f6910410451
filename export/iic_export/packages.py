"""Optional packages: asked for before any work is done, named when they are missing."""

from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

from iic_geotools.errors import MissingPackageError

RECORDED = ("iic-edge", "torch", "onnx", "onnxscript", "onnxruntime", "numpy")


def require(module: str, extra: str) -> None:
    """Refuse to go on without a module.

    Raises:
        MissingPackageError: It is not installed; the message names the extra that brings it.
    """
    try:
        found = find_spec(module)
    except (ImportError, ValueError):  # its parent is missing, or it was blocked
        found = None
    if found is None:
        raise MissingPackageError(f"This needs the package {module}: pip install 'iic-edge[{extra}]'.")


def versions() -> dict[str, str]:
    """Versions of the packages that a model was made with."""
    found = {}
    for package in RECORDED:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
