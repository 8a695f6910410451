"""Vector files: points and polygons with the values of their fields.

pyogrio brings a GDAL of its own, to which rasterio's options do not apply.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from errno import ENOSPC
from hashlib import sha256
from pathlib import Path
from typing import Any
from warnings import catch_warnings, filterwarnings, simplefilter

import numpy as np
from numpy.typing import NDArray

from iic_geotools.errors import SceneError
from iic_geotools.files import check_no_stream, is_utf8, replacement
from iic_geotools.gdal import allows_network, network_options
from iic_geotools.packages import has_vector, pyogrio, require_vector, shapely

STYLED = r"More than one layer found in '.*': '[^']*' \(default\), 'layer_styles'\."
"""What pyogrio says about a GeoPackage that holds a layer and its style."""
_NO_PROXY = ("no_proxy", "NO_PROXY")


@dataclass(frozen=True)
class Shapes:
    """The shapes of a vector file; all their coordinates are finite.

    Attributes:
        geometries: shapely geometries `[N]`, flat.
        crs: Their coordinate reference system as WKT, if the file says one.
        fields: Their values `[N]` of the fields that were asked for, by name.
        numbers: Their numbers `[N]` in the file.
    """

    geometries: NDArray[Any]
    crs: str | None
    fields: Mapping[str, NDArray[Any]]
    numbers: NDArray[np.int64]

    @property
    def digest(self) -> str:
        """A checksum of all of it: a vector file may be a folder or lie in an archive, and has no bytes of its own."""
        content = sha256(repr((self.crs, self.numbers.tolist())).encode())
        for shape in shapely.to_wkb(self.geometries):
            content.update(shape)
        for name, values in self.fields.items():
            content.update(repr((name, values.dtype.str, values.tolist())).encode())
        return content.hexdigest()


def list_fields(path: Path, what: str) -> list[str]:
    """The names of the fields of a vector file.

    Args:
        path: Path of the file, of any format that GDAL opens; the first layer counts.
        what: What the file is to the user, e.g. "The labels".

    Raises:
        SceneError: The file cannot be read.
        MissingPackageError: Vector files cannot be read here.
    """
    with _reading(path, what):
        return [str(name) for name in pyogrio.read_info(path)["fields"]]


def read_metadata(path: Path, what: str) -> dict[str, str]:
    """Metadata of the first layer of a vector file.

    Raises:
        SceneError: The file cannot be read.
        MissingPackageError: Vector files cannot be read here.
    """
    with _reading(path, what):
        return dict(pyogrio.read_info(path)["layer_metadata"] or {})


def read_shapes(
    path: Path, what: str, fields: Sequence[str] | None = (), *, keep_empty: bool = False
) -> Shapes:
    """Read the shapes of a vector file.

    Args:
        path: Path of the file, of any format that GDAL opens; the first layer is read.
        what: What the file is to the user, e.g. "The labels".
        fields: Fields whose values are read too; None for all.
        keep_empty: Whether empty shapes are returned too, and missing ones as empty polygons.

    Raises:
        SceneError: The file cannot be read, or coordinates are not finite numbers.
        MissingPackageError: Vector files cannot be read here.
    """
    chosen = None if fields is None else list(fields)
    with _reading(path, what):
        meta, numbers, wkb, columns = pyogrio.raw.read(path, columns=chosen, force_2d=True, return_fids=True)
        geometries = shapely.from_wkb(np.array([None] * len(numbers) if wkb is None else wkb, object))
    geometries[shapely.is_missing(geometries)] = shapely.Polygon()
    present = keep_empty | ~shapely.is_empty(geometries)
    if not np.isfinite(shapely.get_coordinates(geometries)).all():
        raise SceneError(
            f"{what} {path} cannot be used: some coordinates are not finite numbers; repair or remove them."
        )
    names = [str(name) for name in meta["fields"]]
    values = {name: column[present] for name, column in zip(names, columns, strict=True)}
    return Shapes(geometries[present], meta["crs"], values, np.asarray(numbers, np.int64)[present])


def read_names(path: Path, field: str, unless: str) -> list[str] | None:
    """The texts in a field of a vector file; None if it cannot be read here or has no such field.

    Args:
        unless: A key of the layer's metadata; None is returned if the layer has it.
    """
    if not has_vector():
        return None
    try:
        metadata = read_metadata(path, "The index")
        with _reading(path, "The index"):
            _, _, _, columns = pyogrio.raw.read(path, columns=[field], read_geometry=False)
    except SceneError:
        return None
    return None if unless in metadata or len(columns) != 1 else [str(name) for name in columns[0]]


@contextmanager
def _reading(path: Path, what: str) -> Iterator[None]:
    """Raise errors as sentences, silence GDAL's own warnings, and keep GDAL off the network."""
    require_vector(f"Reading {what[0].lower()}{what[1:]} {path}")
    if not is_utf8(str(path)):
        raise SceneError(f"The name {str(path)!r} is not valid UTF-8: rename the file.")
    check_no_stream(path)
    options = network_options(str(path))
    before = {key: pyogrio.get_gdal_config_option(key) for key in options}
    pyogrio.set_gdal_config_options(options)
    # libcurl itself reads which hosts need no proxy; they would be reached past the one that keeps files local.
    hosts = {} if allows_network(str(path)) else {name: os.environ.pop(name, None) for name in _NO_PROXY}
    try:
        with catch_warnings():
            simplefilter("ignore", RuntimeWarning)
            filterwarnings("ignore", STYLED, UserWarning)
            yield
    except _unreadable() as error:
        if not path.exists():
            raise SceneError(
                f"{what} {path} cannot be read (there is no such file): check the path."
            ) from error
        raise SceneError(
            f"{what} {path} cannot be read ({_reason(error)}): give a vector file, e.g. GeoPackage or GeoJSON."
        ) from error
    finally:
        pyogrio.set_gdal_config_options(before)
        os.environ.update({name: value for name, value in hosts.items() if value is not None})


def _unreadable() -> tuple[type[Exception], ...]:
    """What pyogrio and shapely raise about a file that they cannot read."""
    errors = pyogrio.errors
    layers = errors.DataSourceError, errors.DataLayerError, errors.FeatureError
    # An IndexError is what a file without any layer gives.
    return (
        *layers,
        errors.FieldError,
        errors.GeometryError,
        shapely.GEOSException,
        OSError,
        ValueError,
        IndexError,
    )


def _reason(error: Exception) -> str:
    """The reason why a file cannot be read, without pyogrio's advice about other names."""
    return str(error).partition("; It might help")[0].strip().rstrip(".")


def write_package(
    out: Path,
    shapes: Any,
    fields: Mapping[str, NDArray[Any]],
    crs: str | None,
    *,
    layer: str | None = None,
    geometry_type: str = "Point",
    **options: Any,
) -> None:
    """Write a GeoPackage of one layer, all of it or nothing.

    Args:
        crs: Their CRS as WKT; None if it is unknown.
        layer: Name of the layer; by default that of the file.
    """
    layer, shapes = layer or out.stem, np.atleast_1d(shapes)
    with replacement(out) as temporary, catch_warnings():
        simplefilter("ignore", UserWarning)  # there may be no CRS
        pyogrio.raw.write(
            *(temporary, shapely.to_wkb(shapes), list(fields.values()), list(fields)),
            **{"layer": layer, "crs": crs, "geometry_type": geometry_type, "driver": "GPKG", **options},
        )
        check_package(temporary, layer, len(shapes))


def check_package(written: Path, layer: str, count: int) -> None:
    """Check that a layer is whole: GDAL goes on without its spatial index if that does not fit on the disk."""
    info = pyogrio.read_info(written, layer=layer, force_feature_count=True)
    if info["features"] != count or not info["capabilities"]["fast_spatial_filter"]:
        raise OSError(ENOSPC, os.strerror(ENOSPC))
