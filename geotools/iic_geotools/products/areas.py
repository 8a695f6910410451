"""Areas of the classes of a map."""

import csv
import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import rasterio
from rasterio.errors import RasterioError
from rasterio.windows import Window

from iic_geotools.classmap.classes import NODATA, MapClass
from iic_geotools.classmap.cog import present_tiles
from iic_geotools.errors import SceneError, UsageError
from iic_geotools.files import write_atomically
from iic_geotools.geobox import CELL, AreaMethod, Floats, GeoBox, Ground
from iic_geotools.tiling import Rect

Counts = npt.NDArray[np.int64]
"""The number of pixels of each of the 256 values."""
# Side of the windows that a map without tiles is read in.
_WINDOW = 1024
ZONE_SUFFIXES = (".csv", ".gpkg")
"""Suffixes of files with the areas in each polygon of a file."""


@dataclass(frozen=True)
class ClassArea:
    """What one class covers; areas are None if the map has no reference system.

    Attributes:
        value: Value of the class in the map.
        name: Name of the class.
        pixels: Number of its pixels.
        m2: Area of its pixels in square metres.
        ha: The same area in hectares.
        share: Its share of all pixels with data: by area if that is known, else by number.
    """

    value: int
    name: str
    pixels: int
    m2: float | None
    ha: float | None
    share: float


@dataclass(frozen=True)
class ClassAreas:
    """Areas of the classes of a map.

    Attributes:
        method: How the areas were measured: "planar", "ellipsoidal" or "none".
        classes: One entry per class, in order.
        nodata: The pixels without data; their share is one of the whole map.
    """

    method: AreaMethod
    classes: tuple[ClassArea, ...]
    nodata: ClassArea


def class_areas(map_path: Path, classes: Sequence[MapClass]) -> ClassAreas:
    """Measure the area of each class of a map, block by block."""
    try:
        with rasterio.open(map_path) as dataset:
            grid = GeoBox.of(dataset)
            method = grid.area_method
            pixels, areas = _totals(dataset, map_path, _measure(method, grid))
    except RasterioError as error:
        raise SceneError(f"The map {map_path} cannot be read: {error}") from error
    unnamed = np.flatnonzero(pixels[len(classes) : NODATA])
    if len(unnamed):
        raise SceneError(
            f"The map {map_path} has the value {len(classes) + unnamed[0]} but only {len(classes)} classes"
            " were given: give the classes it was made with."
        )

    amounts = areas if method != "none" else pixels

    def entry(value: int, name: str, whole: float) -> ClassArea:
        m2 = float(areas[value]) if method != "none" else None
        share = float(amounts[value] / whole) if whole else 0.0
        return ClassArea(value, name, int(pixels[value]), m2, None if m2 is None else m2 / 10_000, share)

    valid = float(amounts[:NODATA].sum())
    return ClassAreas(
        method,
        tuple(entry(value, map_class.name, valid) for value, map_class in enumerate(classes)),
        entry(NODATA, "nodata", float(amounts.sum())),
    )


class PixelAreas:
    """The areas of the pixels of a grid, in square metres; without a reference system each counts as 1."""

    def __init__(self, grid: GeoBox) -> None:
        self.method: AreaMethod = grid.area_method
        self._measure = _Plane(1.0) if self.method == "none" else _measure(self.method, grid)

    def of(self, rect: Rect) -> Floats:
        """Areas of the pixels of a rectangle, in a shape that broadcasts to it; 0 off the earth."""
        return self._measure.per_pixel(Window(rect.col, rect.row, rect.width, rect.height))


def write_stats(path: Path, areas: ClassAreas) -> None:
    """Write areas as JSON or CSV."""
    suffix = path.suffix.lower()
    *classes, nodata = rows = [_plain(row) for row in (*areas.classes, areas.nodata)]
    if suffix == ".json":
        content = {"method": areas.method, "classes": classes, "nodata": nodata}
        text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
    elif suffix == ".csv":
        buffer = io.StringIO()
        writer = csv.DictWriter(buffer, [*rows[0], "method"], lineterminator="\n")
        writer.writeheader()
        writer.writerows({**row, "class": plain_cell(row["class"]), "method": areas.method} for row in rows)
        text = buffer.getvalue()
    else:
        raise UsageError(f"Statistics are written as .json or .csv, not as {suffix or path.name!r}.")
    write_atomically(path, text.encode())


def ten_digits(value: float) -> float:
    """Round a figure to be written: no map is accurate to more than ten digits."""
    return float(f"{value:.10g}")


def plain_cell(text: str) -> str:
    """A text as a cell of a CSV file: an apostrophe keeps spreadsheets from taking it for a formula."""
    return f"'{text}" if text.lstrip().startswith(("=", "+", "-", "@", "|", "%")) else text


def _plain(row: ClassArea) -> dict[str, Any]:
    """A row as it is written, with the fields of polygons."""
    return {
        "class" if key == "name" else key: ten_digits(value) if isinstance(value, float) else value
        for key, value in asdict(row).items()
    }


class _Measure(Protocol):
    """A way to measure areas on a grid."""

    def __call__(self, window: Window, pixels: npt.NDArray[np.uint8]) -> tuple[Counts, Floats]:
        """Number and area of the pixels of each value."""

    def whole(self, windows: Sequence[Window]) -> float:
        """Area of whole windows."""

    def per_pixel(self, window: Window) -> Floats:
        """Area of each pixel of a window, in a shape that broadcasts to it."""


def _measure(method: AreaMethod, grid: GeoBox) -> _Measure:
    ground = Ground.of(grid.crs) if grid.crs is not None else None
    if method == "ellipsoidal" and ground is not None:
        upright = ground.crs.is_geographic and grid.transform.b == grid.transform.d == 0
        return _Rows(ground, grid) if upright else _Cells(ground, grid)
    return _Plane(grid.planar_pixel_area if method == "planar" else 0.0)


@dataclass(frozen=True)
class _Plane:
    """All pixels have the same area."""

    pixel: float

    def __call__(self, window: Window, pixels: npt.NDArray[np.uint8]) -> tuple[Counts, Floats]:
        counts = np.bincount(pixels.ravel(), minlength=256).astype(np.int64)
        return counts, counts * np.float64(self.pixel)

    def whole(self, windows: Sequence[Window]) -> float:
        return float(self.pixel * sum(window.width * window.height for window in windows))

    def per_pixel(self, window: Window) -> Floats:
        return np.full((1, 1), self.pixel)


@dataclass(frozen=True)
class _Rows:
    """Degrees, north up: all pixels of a row have the same area, which is known exactly."""

    ground: Ground
    grid: GeoBox

    def _pixel_areas(self, window: Window) -> Floats:
        return self.grid.row_areas(self.ground, window.row_off, window.height)

    def __call__(self, window: Window, pixels: npt.NDArray[np.uint8]) -> tuple[Counts, Floats]:
        histogram = _histograms(pixels, 1, pixels.shape[1])
        return histogram.sum(0), self._pixel_areas(window) @ histogram

    def whole(self, windows: Sequence[Window]) -> float:
        return float(sum(self._pixel_areas(window).sum() * window.width for window in windows))

    def per_pixel(self, window: Window) -> Floats:
        return self._pixel_areas(window)[:, None]


@dataclass(frozen=True)
class _Cells:
    """Anything else on the earth: all pixels of a small cell have the same area, found from its corners."""

    ground: Ground
    grid: GeoBox

    def __call__(self, window: Window, pixels: npt.NDArray[np.uint8]) -> tuple[Counts, Floats]:
        histogram = _histograms(pixels, CELL, CELL)
        return histogram.sum(0), self._cells(window).ravel() @ histogram

    def _cells(self, window: Window) -> Floats:
        """Area of a pixel of each cell."""
        rows, cols = np.arange(0, window.height, CELL), np.arange(0, window.width, CELL)
        wide, high = np.meshgrid(
            np.minimum(CELL, window.width - cols), np.minimum(CELL, window.height - rows)
        )
        left, top = np.meshgrid(window.col_off + cols, window.row_off + rows)
        areas = self.grid.cell_areas(self.ground, left, top, wide, high)
        return np.asarray(np.nan_to_num(areas / (wide * high)))

    def per_pixel(self, window: Window) -> Floats:
        cells = self._cells(window).repeat(CELL, 0).repeat(CELL, 1)
        return np.asarray(cells[: window.height, : window.width])

    def whole(self, windows: Sequence[Window]) -> float:
        left, top, wide, high = np.array([window.flatten() for window in windows], float).T
        return float(np.nansum(self.grid.cell_areas(self.ground, left, top, wide, high)))


def _totals(dataset: Any, path: Path, measure: _Measure) -> tuple[Counts, Floats]:
    """Number and area of the pixels of each value; tiles that are not in the file are not read."""
    pixels, areas = np.zeros(256, np.int64), np.zeros(256)
    for row in _rows_of_windows(dataset, path):
        for window in (window for window, stored in row if stored):
            counts, window_areas = measure(window, dataset.read(1, window=window))
            pixels += counts
            areas += window_areas
        missing = [window for window, stored in row if not stored]
        if missing:
            pixels[NODATA] += sum(window.width * window.height for window in missing)
            areas[NODATA] += measure.whole(missing)
    return pixels, areas


def _rows_of_windows(dataset: Any, path: Path) -> Iterator[list[tuple[Window, bool]]]:
    """The blocks of a map, row by row, and whether each is in the file."""
    high, wide = dataset.block_shapes[0]
    tiled = wide < dataset.width and dataset.nodata == NODATA
    wide, high = (wide, high) if tiled else (_WINDOW, _WINDOW)
    across, down = -(-dataset.width // wide), -(-dataset.height // high)
    stored = present_tiles(path, across, down) if tiled else np.ones((down, across), bool)
    for row in range(down):
        top = row * high
        windows = []
        for col in range(across):
            left = col * wide
            size = min(wide, dataset.width - left), min(high, dataset.height - top)
            windows.append((Window(left, top, *size), bool(stored[row, col])))
        yield windows


def _histograms(pixels: npt.NDArray[np.uint8], high: int, wide: int) -> npt.NDArray[np.int64]:
    """How often each value occurs in each cell of `high` x `wide` pixels, row by row of cells."""
    rows, cols = np.arange(pixels.shape[0]) // high, np.arange(pixels.shape[1]) // wide
    across = int(cols[-1]) + 1
    cells = rows[:, None] * across + cols[None, :]
    size = (int(rows[-1]) + 1) * across
    return np.bincount((cells * 256 + pixels).ravel(), minlength=size * 256).reshape(size, 256)
