"""Labels made by people, on the grid of a scene: a raster of classes, or points and polygons with a class field."""

import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, Protocol
from xml.etree import ElementTree as ET

import numpy as np
import rasterio
from numpy.typing import NDArray
from rasterio.crs import CRS
from rasterio.enums import ColorInterp
from rasterio.errors import CRSError, RasterioError
from rasterio.features import rasterize
from rasterio.warp import transform as reproject
from rasterio.warp import transform_bounds
from rasterio.windows import Window

from iic_geotools.classmap.classes import MAX_CLASSES, check_class_name
from iic_geotools.classmap.sidecars import sidecar_path
from iic_geotools.errors import NetworkError, SceneError, UsageError, assume
from iic_geotools.gdal import gdal_errors, network_options
from iic_geotools.geobox import GeoBox
from iic_geotools.packages import shapely
from iic_geotools.scene.info import cause, open_foreign, open_raster
from iic_geotools.scene.vectors import list_fields, read_shapes
from iic_geotools.scene.warp import nearest_on
from iic_geotools.tiling import Rect

NOT_LABELLED = int(np.iinfo(np.int64).min)
"""Stands for pixels without a label: -1 and other small numbers may be classes of a raster."""
Values = NDArray[np.int64]
_COLOUR = re.compile("#[0-9a-fA-F]{6}")
_USUAL_FIELDS = ("class", "label", "name", "class_name", "landcover")


class SceneLabels(Protocol):
    """Labels on the grid of one scene."""

    @property
    def numbered(self) -> bool:
        """Whether values are the file's own numbers, which can be grouped into classes."""

    def read(self, rect: Rect) -> Values:
        """Read the values of a rectangle `[H, W]`, `NOT_LABELLED` where there is no label."""

    def name(self, value: int) -> str:
        """Name of a value's class."""

    def colour(self, value: int) -> str | None:
        """Colour of a value in the file, "#rrggbb", if it has one."""


@contextmanager
def open_labels(
    path: str | os.PathLike[str], grid: GeoBox, label_field: str | None = None, *, elsewhere: bool = False
) -> Iterator[SceneLabels]:
    """Open labels on the grid of a scene; labels in another CRS are reprojected.

    Whether there are enough classes, and whether a raster of classes labels any pixel at all, is for the caller to
    judge: only reading shows.

    Args:
        path: Any raster or vector file that GDAL opens.
        elsewhere: Whether the labels may all lie outside the scene, as when one file has those of several scenes.

    Raises:
        SceneError: The file cannot be read or reprojected, has no labels or too many classes, lies outside the
            scene, has points of different classes on one pixel, or refers to addresses while the network is not
            allowed.
        UsageError: The field does not exist, or has to be named.
    """
    try:
        with open_foreign(os.fspath(path)):
            pass
    except NetworkError:
        raise
    except SceneError:
        yield LabelShapes(Path(path), grid, label_field, elsewhere)
        return
    if label_field is not None:
        raise UsageError(
            f"`label_field` applies only to points and polygons, and {path} is a raster; leave it out."
        )
    options = network_options(os.fspath(path))
    with ExitStack() as stack:
        with rasterio.Env(
            **options
        ):  # only here and in `read`: the scene may be read in between, by its own rules
            source = stack.enter_context(open_raster(os.fspath(path)))
            aligned = stack.enter_context(closing(_on_grid(source, grid)))
        if not elsewhere and not _overlaps(source, grid):
            raise _outside(path)
        yield LabelRaster(Path(path), source, aligned, options)


def _on_grid(source: Any, grid: GeoBox) -> Any:
    """Bring a raster onto a grid; the caller closes what comes back."""
    if not np.issubdtype(np.dtype(source.dtypes[0]), np.integer):
        raise SceneError(f"The labels {source.name} are {source.dtypes[0]}; give integers, one per class.")
    if (source.crs or None) is None or grid.crs is None:
        if (source.height, source.width) != (grid.height, grid.width):
            raise SceneError(
                f"The labels {source.name} or the scene have no CRS, and their sizes differ; put them on one grid."
            )
        return source
    no_mask = source.nodata is None and ColorInterp.alpha not in source.colorinterp
    return nearest_on(source, grid, add_alpha=no_mask)


def _overlaps(source: Any, grid: GeoBox) -> bool:
    """Whether a raster may share ground with a grid."""
    if (source.crs or None) is None or grid.crs is None:
        return True
    try:
        with gdal_errors():
            left, bottom, right, top = transform_bounds(source.crs, grid.crs, *source.bounds)
    except RasterioError:  # off the earth
        return False
    west, south, east, north = grid.extent
    return bool(left < east and right > west and bottom < north and top > south)


def _outside(path: str | os.PathLike[str]) -> SceneError:
    return SceneError(f"The labels {path} lie outside the scene; give those that were made for it.")


def read_reduced(labels: SceneLabels, rect: Rect, times: int) -> Values:
    """Read labels at a coarser resolution: a pixel has the label of its centre, else any of those that it holds.

    Args:
        rect: The rectangle to read, in coarse pixels.
        times: Number of the scene's pixels along the side of a coarse one.
    """
    fine = labels.read(Rect(rect.col * times, rect.row * times, rect.width * times, rect.height * times))
    if times == 1:
        return fine
    blocks = fine.reshape(rect.height, times, rect.width, times)
    centre = blocks[:, times // 2, :, times // 2]
    return np.where(centre == NOT_LABELLED, blocks.max((1, 3)), centre)


class LabelRaster:
    """A raster of classes, brought onto the scene's grid by nearest neighbour."""

    numbered = True

    def __init__(self, path: Path, source: Any, aligned: Any, options: Mapping[str, str]) -> None:
        self._path = path
        self._options = options
        self._aligned = aligned
        self._names = category_names(path)
        try:
            self._colours: dict[int, tuple[int, ...]] = source.colormap(1)
        except ValueError:
            self._colours = {}

    def read(self, rect: Rect) -> Values:
        """Read the values of a rectangle, `NOT_LABELLED` where the raster has no data."""
        window = Window(rect.col, rect.row, rect.width, rect.height)
        try:
            with gdal_errors(), rasterio.Env(**self._options):
                values = self._aligned.read(1, window=window).astype(np.int64)
                values[self._aligned.read_masks(1, window=window) == 0] = NOT_LABELLED
        except RasterioError as error:
            raise SceneError(
                f"The labels {self._path} cannot be read ({cause(error)}); check that the file is whole."
            ) from error
        return np.asarray(values)

    def name(self, value: int) -> str:
        """Name of the category, or its number."""
        name = self._names[value] if 0 <= value < len(self._names) else ""
        if name:
            check_class(name, self._path)
        return name or f"class {value}"

    def colour(self, value: int) -> str | None:
        """Colour in the raster's colour table."""
        colour = self._colours.get(value)
        return None if colour is None else "#{:02x}{:02x}{:02x}".format(*colour[:3])


class LabelShapes:
    """Points and polygons with a class field; where two overlap, the later one counts.

    Two points of different classes on one pixel are refused: a pixel has one class, and neither is the finer shape.
    """

    numbered = False

    def __init__(self, path: Path, grid: GeoBox, label_field: str | None, elsewhere: bool) -> None:
        self._grid = grid
        field, colour_field = class_fields(path, label_field)
        fields = [field] if colour_field is None else [field, colour_field]
        shapes = read_shapes(path, "The labels", fields)
        classes = [class_text(value) for value in shapes.fields[field]]
        kept = [index for index, name in enumerate(classes) if name]
        if not kept:
            raise SceneError(f"The labels {path} have no point or polygon with a class in the field {field}.")
        self._names = sorted({classes[index] for index in kept})
        self._colours = (
            {} if colour_field is None else _class_colours(classes, shapes.fields[colour_field], kept)
        )
        if len(self._names) > MAX_CLASSES:
            raise SceneError(
                f"The labels {path} have {len(self._names)} classes in the field {field}, and a map holds at most "
                f"{MAX_CLASSES}; check that it is the right field."
            )
        for name in self._names:
            check_class(name, path)
        if shapes.crs is None and grid.crs is not None:
            assume(f"The labels {path} have no CRS, and are taken to be in that of the scene.")
        self._shapes = reprojected(shapes.geometries[kept], shapes.crs, grid, path)
        self._values = [self._names.index(classes[index]) for index in kept]
        self._bounds = shapely.bounds(self._shapes).reshape(-1, 4)
        self._check_points(path)
        if not elsewhere and not self._near(grid.extent).any():
            raise _outside(path)

    def _check_points(self, path: Path) -> None:
        """Refuse points of different classes on one pixel."""
        parts, owners = shapely.get_parts(self._shapes, return_index=True)
        points = (shapely.get_type_id(parts) == shapely.GeometryType.POINT) & ~shapely.is_empty(parts)
        coordinates, owners = shapely.get_coordinates(parts[points]), owners[points]
        to_pixel = ~self._grid.transform
        seen: dict[tuple[int, int], int] = {}
        for (x, y), index in zip(coordinates.tolist(), owners.tolist(), strict=True):
            if not (math.isfinite(x) and math.isfinite(y)):  # not on this side of the earth
                continue
            column, row = to_pixel @ (x, y)
            if not (0 <= column < self._grid.width and 0 <= row < self._grid.height):
                continue
            pixel = math.floor(column), math.floor(row)
            first = seen.setdefault(pixel, self._values[index])
            if first != self._values[index]:
                raise SceneError(
                    f"The labels {path} call one pixel both {self._names[first]} and "
                    f"{self._names[self._values[index]]} in column {pixel[0]}, row {pixel[1]}; remove one of them."
                )

    def _near(self, bounds: Sequence[float]) -> NDArray[np.bool_]:
        """Which shapes may touch a rectangle on the ground: left, bottom, right, top."""
        left, bottom, right, top = bounds
        low_x, low_y, high_x, high_y = self._bounds.T
        near = (low_x <= right) & (high_x >= left) & (low_y <= top) & (high_y >= bottom)
        return np.asarray(near)

    def read(self, rect: Rect) -> Values:
        """Read the values of a rectangle, `NOT_LABELLED` outside all shapes."""
        transform = self._grid.transform @ rasterio.Affine.translation(rect.col, rect.row)
        near = self._near(GeoBox(rect.width, rect.height, transform, None).extent)
        shapes = [(self._shapes[index], self._values[index]) for index in np.flatnonzero(near)]
        if not shapes:
            return np.full((rect.height, rect.width), NOT_LABELLED, np.int64)
        burned = rasterize(shapes, (rect.height, rect.width), fill=-1, transform=transform, dtype="int32")
        return np.where(burned < 0, NOT_LABELLED, burned.astype(np.int64))

    def name(self, value: int) -> str:
        """Class as the field names it."""
        return self._names[value]

    def colour(self, value: int) -> str | None:
        """Colour that a field of this name gives the class."""
        return self._colours.get(self._names[value])


def check_class(name: str, path: Path) -> None:
    """Refuse the name of a class that no map can show."""
    try:
        check_class_name(name)
    except UsageError as error:
        raise SceneError(f"The labels {path} cannot be used: {error}") from error


def _class_colours(classes: Sequence[str], colours: Iterable[Any], kept: Sequence[int]) -> dict[str, str]:
    """The first colour, written as #rrggbb, that each class has."""
    texts = [str(colour).strip() for colour in colours]
    named = {classes[index]: texts[index] for index in reversed(kept) if _COLOUR.fullmatch(texts[index])}
    return {name: colour.lower() for name, colour in named.items()}


def class_fields(path: Path, label_field: str | None) -> tuple[str, str | None]:
    """Find the field of classes, the one named, the only one or one with a usual name, and that of colours."""
    if not path.exists():
        raise SceneError(f"There is no file of labels {path}; check the path.")
    try:
        fields = list_fields(path, "The labels")
    except SceneError as error:
        raise SceneError(
            f"The labels {path} are neither a raster nor a vector file that GDAL can open."
        ) from error
    if not fields:
        raise SceneError(f"The labels {path} have no field that could hold a class; add one.")
    colour_field = next((name for name in fields if name.lower() in ("colour", "color")), None)
    existing = ", ".join(fields) or "none"
    if label_field is not None:
        if label_field not in fields:
            raise UsageError(f"The labels {path} have no field {label_field}; their fields are: {existing}.")
        return label_field, colour_field
    usual = [name for name in fields if name.lower() in _USUAL_FIELDS]
    others = [name for name in fields if name != colour_field]
    if len(usual) == 1 or len(others) == 1:
        return (usual or others)[0], colour_field
    raise UsageError(
        f"Name the field of {path} that holds the class as `label_field`; its fields are: {existing}."
    )


def reprojected(shapes: NDArray[Any], wkt: str | None, grid: GeoBox, path: Path) -> NDArray[Any]:
    """Return the shapes of a file of labels in the CRS of a grid, if both are known."""
    if wkt is None or grid.crs is None:
        return shapes
    try:
        with gdal_errors():
            source = CRS.from_user_input(wkt)
            if source == grid.crs:
                return shapes
            return np.asarray(
                shapely.transform(
                    shapes,
                    lambda points: np.column_stack(reproject(source, grid.crs, points[:, 0], points[:, 1])),
                )
            )
    except (CRSError, RasterioError) as error:
        raise SceneError(f"The labels {path} cannot be brought to the CRS of the scene ({error}).") from error


def class_text(value: Any) -> str:
    """A class as text, empty where there is none; 3.0 in a float field is class 3."""
    if value is None or (isinstance(value, float | np.floating) and np.isnan(value)):
        return ""
    whole = isinstance(value, float | np.floating) and float(value).is_integer()
    text = str(int(value) if whole else value).strip()
    return f"class {text}" if text.lstrip("-").isdigit() else text


def category_names(raster: Path) -> list[str]:
    """Read GDAL's category names from the sidecar of a raster, or from a virtual raster itself."""
    sidecar = raster if raster.suffix.lower() == ".vrt" else sidecar_path(raster)
    if not sidecar.exists():
        return []
    try:
        return [category.text or "" for category in ET.parse(sidecar).iterfind(".//CategoryNames/Category")]
    except (ET.ParseError, ValueError, LookupError, OSError) as error:
        raise SceneError(
            f"The names of the classes in {sidecar} cannot be read ({error}); restore the file or move it away."
        ) from error
