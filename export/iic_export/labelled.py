"""Labels that people made, over a scene: a raster of classes, or points and polygons with a class field."""

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Protocol
from xml.etree import ElementTree as ET

import numpy as np
import rasterio
import shapely
from numpy.typing import NDArray
from pyogrio import read_info
from pyogrio.errors import DataLayerError, DataSourceError
from pyogrio.raw import read as read_vector
from rasterio.crs import CRS
from rasterio.enums import ColorInterp, Resampling
from rasterio.errors import CRSError, RasterioError
from rasterio.features import rasterize
from rasterio.vrt import WarpedVRT
from rasterio.warp import transform as reproject
from rasterio.windows import Window

from iic_geotools.errors import SceneError, UsageError
from iic_geotools.grid import Rect
from iic_geotools.scene import open_raster
from iic_geotools.vrt import MapGrid

NOT_LABELLED = -1
Values = NDArray[np.int64]
_USUAL_FIELDS = ("class", "label", "name", "class_name", "landcover")


class Labelled(Protocol):
    """Labels on the grid of one scene."""

    @property
    def numbered(self) -> bool:
        """Whether values are the file's own numbers, which `--label-class` can gather."""

    def read(self, rect: Rect) -> Values:
        """Values of a rectangle [H, W], `NOT_LABELLED` where nobody said what is there."""

    def name(self, value: int) -> str:
        """What a value is called."""

    def colour(self, value: int) -> str | None:
        """The colour it has in the file, "#rrggbb"."""


@contextmanager
def open_labels(path: str | os.PathLike[str], grid: MapGrid, field: str | None = None) -> Iterator[Labelled]:
    """Open labels on the grid of a scene.

    Args:
        path: Anything GDAL opens.
        grid: The scene's pixels and where they are.
        field: The field of a vector file that holds the class.

    Raises:
        SceneError: It cannot be read, or not brought to the scene's place.
        UsageError: The field is not there, or which one it is cannot be told.
    """
    try:
        with open_raster(os.fspath(path)):
            pass
    except SceneError:
        yield LabelShapes(Path(path), grid, field)
        return
    if field is not None:
        raise UsageError(f"--label-field is about points and polygons, and {path} is a raster.")
    with open_raster(os.fspath(path)) as source, closing(_on_grid(source, grid)) as placed:
        yield LabelRaster(Path(path), source, placed)


def _on_grid(source: Any, grid: MapGrid) -> Any:
    if not np.issubdtype(np.dtype(source.dtypes[0]), np.integer):
        raise SceneError(f"The labels {source.name} are {source.dtypes[0]}; give whole numbers, one a class.")
    if (source.crs or None) is None or grid.crs is None:
        if (source.height, source.width) != (grid.height, grid.width):
            raise SceneError(
                f"The labels {source.name} or the scene have no reference system, and their sizes differ: "
                "put them on one grid."
            )
        return source
    return WarpedVRT(
        source,
        crs=grid.crs,
        transform=grid.transform,
        width=grid.width,
        height=grid.height,
        resampling=Resampling.nearest,
        tolerance=1e-9,
        add_alpha=source.nodata is None and ColorInterp.alpha not in source.colorinterp,
    )


class LabelRaster:
    """A raster of classes, brought onto the scene's grid by nearest neighbour."""

    numbered = True

    def __init__(self, path: Path, source: Any, placed: Any) -> None:
        self._placed = placed
        self._names = _category_names(path)
        try:
            self._colours: dict[int, tuple[int, ...]] = source.colormap(1)
        except ValueError:
            self._colours = {}

    def read(self, rect: Rect) -> Values:
        """Values of a rectangle, `NOT_LABELLED` where there is no data."""
        window = Window(rect.col, rect.row, rect.width, rect.height)
        values = self._placed.read(1, window=window).astype(np.int64)
        values[self._placed.read_masks(1, window=window) == 0] = NOT_LABELLED
        return np.asarray(values)

    def name(self, value: int) -> str:
        """The category's name, or its number."""
        named = self._names[value] if 0 <= value < len(self._names) else ""
        return named or f"class {value}"

    def colour(self, value: int) -> str | None:
        """The colour in the raster's table."""
        found = self._colours.get(value)
        return None if found is None else "#{:02x}{:02x}{:02x}".format(*found[:3])


class LabelShapes:
    """Points and polygons with a class field; where two overlap, the later one counts."""

    numbered = False

    def __init__(self, path: Path, grid: MapGrid, field: str | None) -> None:
        self._grid = grid
        field = _class_field(path, field)
        try:
            meta, _, wkb, columns = read_vector(path, columns=[field], force_2d=True)
        except (DataSourceError, DataLayerError, OSError) as error:
            raise SceneError(f"The labels {path} cannot be read ({error}).") from error
        classes = [_text(value) for value in columns[0]]
        kept = [index for index, name in enumerate(classes) if name and wkb[index] is not None]
        shapes = _placed(shapely.from_wkb(wkb[kept]), meta["crs"], grid, path)
        self._names = sorted({classes[index] for index in kept})
        self._shapes = shapes
        self._values = [self._names.index(classes[index]) for index in kept]
        self._bounds = shapely.bounds(shapes).reshape(-1, 4)

    def read(self, rect: Rect) -> Values:
        """Values of a rectangle, `NOT_LABELLED` outside all shapes."""
        transform = self._grid.transform @ rasterio.Affine.translation(rect.col, rect.row)
        xs, ys = zip(
            *(
                transform @ corner
                for corner in ((0, 0), (rect.width, 0), (0, rect.height), (rect.width, rect.height))
            ),
            strict=True,
        )
        low_x, low_y, high_x, high_y = self._bounds.T if len(self._bounds) else np.zeros((4, 0))
        near = (low_x <= max(xs)) & (high_x >= min(xs)) & (low_y <= max(ys)) & (high_y >= min(ys))
        shapes = [(self._shapes[index], self._values[index]) for index in np.flatnonzero(near)]
        if not shapes:
            return np.full((rect.height, rect.width), NOT_LABELLED, np.int64)
        burned = rasterize(
            shapes, (rect.height, rect.width), fill=NOT_LABELLED, transform=transform, dtype="int32"
        )
        return np.asarray(burned, np.int64)

    def name(self, value: int) -> str:
        """What the class field says."""
        return self._names[value]

    def colour(self, value: int) -> str | None:
        """Shapes have none."""
        return None


def _class_field(path: Path, field: str | None) -> str:
    try:
        fields = [str(name) for name in read_info(path)["fields"]]
    except (DataSourceError, DataLayerError, OSError) as error:
        if not path.exists():
            raise SceneError(f"There are no labels {path}; check the path.") from error
        raise SceneError(
            f"The labels {path} are neither a raster nor a vector file that GDAL can open."
        ) from error
    there = ", ".join(fields) or "none"
    if field is not None:
        if field not in fields:
            raise UsageError(f"The labels {path} have no field {field}; there are: {there}.")
        return field
    usual = [name for name in fields if name.lower() in _USUAL_FIELDS]
    if len(usual) == 1 or len(fields) == 1:
        return (usual or fields)[0]
    raise UsageError(f"Say with --label-field which field of {path} holds the class; there are: {there}.")


def _placed(shapes: NDArray[Any], wkt: str | None, grid: MapGrid, path: Path) -> NDArray[Any]:
    if wkt is None or grid.crs is None:
        return shapes
    try:
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
        raise SceneError(f"The labels {path} cannot be brought to the scene's place: {error}") from error


def _text(value: Any) -> str:
    """A class as text, empty where there is none: 3.0 of a float field is class 3."""
    if value is None or (isinstance(value, float | np.floating) and np.isnan(value)):
        return ""
    whole = isinstance(value, float | np.floating) and float(value).is_integer()
    text = str(int(value) if whole else value).strip()
    return f"class {text}" if text.lstrip("-").isdigit() else text


def _category_names(raster: Path) -> list[str]:
    """GDAL's category names, which stand in its sidecar."""
    sidecar = raster.with_name(f"{raster.name}.aux.xml")
    if not sidecar.exists():
        return []
    try:
        return [each.text or "" for each in ET.parse(sidecar).iterfind(".//CategoryNames/Category")]
    except ET.ParseError:
        return []
