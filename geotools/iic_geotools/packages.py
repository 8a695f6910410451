"""Optional packages: pyogrio and shapely, with which vector files are read and written, are imported late.

They take 100 MB, a second GDAL among them. Modules that a map without vectors needs as well import them from here:

    from iic_geotools.packages import pyogrio, shapely
"""

from importlib import import_module
from importlib.util import find_spec
from typing import Any

from iic_geotools.errors import MissingPackageError

PACKAGES = ("pyogrio", "shapely")


def has_vector() -> bool:
    """Return whether the packages are installed."""
    return all(find_spec(package) is not None for package in PACKAGES)


def require_vector(what: str) -> None:
    """Make sure that vector files can be read and written.

    Args:
        what: What they are needed for, as the beginning of a sentence, e.g. "`polygons`".

    Raises:
        MissingPackageError: A package is not installed.
    """
    if not has_vector():
        raise MissingPackageError(
            f"{what} needs the packages {' and '.join(PACKAGES)}, with which vector files are read and written: run "
            '`pip install ".[vector]"` in your clone of iic-edge.'
        )


class _LatePackage:
    """A package that is imported when something of it is first used."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        require_vector("This")
        return getattr(import_module(self._name), attribute)


pyogrio: Any = _LatePackage("pyogrio")
shapely: Any = _LatePackage("shapely")
