"""Optional and heavy packages, imported on first use.

pyogrio and shapely, with which vector files are read and written, take 100 MB, a second GDAL among them. Modules that
are needed without them import them from here:

    from iic_geotools.packages import pyogrio, shapely
"""

from dataclasses import dataclass
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
    """
    if not has_vector():
        raise MissingPackageError(
            f"{what} needs the packages {' and '.join(PACKAGES)}, with which vector files are read and written: run "
            '`pip install ".[vector]"` in your clone of iic-edge.'
        )


@dataclass(frozen=True)
class _LatePackage:
    """A package that is imported on first use.

    Attributes:
        _name: The package or a module of it.
        _extra: The extra of iic-edge that brings it; empty for the standard library.
    """

    _name: str
    _extra: str = ""

    def __getattr__(self, attribute: str) -> Any:
        if self._extra == "vector":
            require_vector("This")
        try:
            module = import_module(self._name)
        except ImportError as error:
            raise MissingPackageError.for_extra(self._name.partition(".")[0], self._extra) from error
        return getattr(module, attribute)


asyncio: Any = _LatePackage("asyncio")
distributed: Any = _LatePackage("distributed", "dask")
pyarrow: Any = _LatePackage("pyarrow", "parquet")
pyogrio: Any = _LatePackage("pyogrio", "vector")
shapely: Any = _LatePackage("shapely", "vector")
