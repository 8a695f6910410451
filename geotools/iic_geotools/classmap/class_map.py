"""Read class maps: their grid, the names and colours of their classes, their pixels."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from rasterio.errors import RasterioError
from rasterio.windows import Window

from iic_geotools.classmap.classes import MAX_CLASSES, NODATA, MapClass, class_colours
from iic_geotools.errors import SceneError
from iic_geotools.geobox import GeoBox, places_pixels
from iic_geotools.scene.info import cause, open_foreign
from iic_geotools.scene.labels import category_names
from iic_geotools.tiling import Rect

CACHE_BYTES = 64 << 20
"""Size of GDAL's block cache while a map is open; by default it would be a twentieth of the memory."""
Bytes = npt.NDArray[np.uint8]

FINGERPRINT_TAG = "IIC_WORK"
"""The metadata item that ties a map to the work that made it; a changed copy does not have it."""
LABELS_TAG = "IIC_LABELS"
"""The metadata item that says which labels the model has seen."""
PLACES_TAG = "IIC_LABELLED_PLACES"
"""The metadata item with the points that named the model: longitude and latitude of each."""

NAMED_BY = "named by "
"""How the text about labels begins if they only named the model's classes; otherwise the model has learnt from them."""


@dataclass(frozen=True)
class ClassMap:
    """A map that is open for reading.

    Attributes:
        path: Path of the map.
        dataset: The open dataset.
        grid: Its grid.
        classes: The classes of the values 0, 1, ...
        tags: Its metadata.
        has_names: Whether the map names its classes.
    """

    path: Path
    dataset: Any
    grid: GeoBox
    classes: tuple[MapClass, ...]
    tags: Mapping[str, str]
    has_names: bool

    @property
    def names(self) -> list[str]:
        """Names of the classes."""
        return [map_class.name for map_class in self.classes]

    def read(self, rect: Rect) -> Bytes:
        """Read the values of a rectangle.

        Raises:
            SceneError: The pixels cannot be read, or have a value without a class.
        """
        return read_values(self.dataset, rect, len(self.classes), self.path)


def read_values(dataset: Any, rect: Rect, classes: int, path: Path) -> Bytes:
    """Read the values of a rectangle of an open dataset, which may be a view of a map on another grid."""
    try:
        values: Bytes = dataset.read(1, window=Window(rect.col, rect.row, rect.width, rect.height))
    except RasterioError as error:
        raise SceneError(f"The map {path} cannot be read: {cause(error)}.") from error
    unnamed = values[(values >= classes) & (values != NODATA)]
    if unnamed.size:
        raise SceneError(
            f"The map {path} has the value {unnamed[0]}, and its legend names {classes} classes; keep the map and its "
            ".aux.xml file together."
        )
    return values


@contextmanager
def open_map(path: Path) -> Iterator[ClassMap]:
    """Open a map: one band of bytes in which 255 is nodata.

    The names of the classes are those of the map's sidecar. A map without names has the classes "class 0", "class 1",
    ... to 253, so that maps of other programs can be read too.
    """
    with open_foreign(str(path), GDAL_CACHEMAX=CACHE_BYTES) as dataset:
        if dataset.count != 1 or dataset.dtypes[0] != "uint8":
            raise SceneError(
                f"{path} has {dataset.count} bands of {dataset.dtypes[0] if dataset.count else 'nothing'}, and a map "
                "has one of uint8; give a map of classes."
            )
        if dataset.nodata not in (None, NODATA):
            raise SceneError(
                f"{path} has the nodata value {dataset.nodata:g}, and maps have {NODATA}; convert it, e.g. with "
                f"gdalwarp -dstnodata {NODATA}."
            )
        if not places_pixels(dataset.transform):
            raise SceneError(
                f"The transform of {path} gives its pixels no place or no size; set another, e.g. with gdal_edit.py."
            )
        names = _legend(path)
        classes = _make_classes(names or [""] * MAX_CLASSES, dataset)
        yield ClassMap(path, dataset, GeoBox.of(dataset), classes, dataset.tags(), bool(names))


def _legend(path: Path) -> list[str]:
    """Class names of a map, without any name of the nodata value."""
    names = category_names(path)[:NODATA]
    if len(names) > MAX_CLASSES and names[MAX_CLASSES]:
        raise SceneError(
            f"The map {path} names more than {MAX_CLASSES} classes, and a map holds at most {MAX_CLASSES}; merge some."
        )
    return names[:MAX_CLASSES]


def _make_classes(names: Sequence[str], dataset: Any) -> tuple[MapClass, ...]:
    try:
        table: dict[int, tuple[int, ...]] = dataset.colormap(1)
    except ValueError:
        table = {}
    palette = class_colours(names)
    return tuple(
        MapClass(
            name or f"class {value}",
            "#{:02x}{:02x}{:02x}".format(*table[value][:3]) if value in table else palette[value],
        )
        for value, name in enumerate(names)
    )


def values_by_name(class_map: ClassMap) -> dict[str, int]:
    """The value of each class."""
    names = class_map.names
    for name in names:
        if names.count(name) > 1:
            raise SceneError(f"The map {class_map.path} has two classes called {name}; rename one of them.")
    return {name: value for value, name in enumerate(names)}


def check_placed(class_map: ClassMap) -> None:
    """Refuse a map that cannot be placed on the ground."""
    if class_map.grid.crs is None:
        raise SceneError(
            f"The map {class_map.path} has no CRS, so its pixels cannot be placed; set one, e.g. with gdal_edit.py."
        )


def format_places(places: Sequence[tuple[float, float]]) -> str:
    """Longitudes and latitudes as a metadata item."""
    return " ".join(f"{longitude:.7f},{latitude:.7f}" for longitude, latitude in places)


def unlisted_labels(tags: Mapping[str, str]) -> str:
    """Labels that the model of a map learnt from at places that its metadata does not list; empty for none."""
    labels = tags.get(LABELS_TAG, "")
    return "" if labels.startswith(NAMED_BY) and read_places(tags) else labels


def read_places(tags: Mapping[str, str]) -> list[tuple[float, float]]:
    """Longitudes and latitudes of the points that named the model of a map; none if its metadata lists none."""
    try:
        pairs = [entry.split(",") for entry in tags.get(PLACES_TAG, "").split()]
        return [(float(longitude), float(latitude)) for longitude, latitude in pairs]
    except ValueError:
        return []
