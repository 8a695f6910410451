"""How large a pixel is on the ground, and how much ground each class of a map covers."""

import csv
import io
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt
import rasterio
from affine import Affine
from rasterio.crs import CRS
from rasterio.errors import CRSError, RasterioError
from rasterio.windows import Window

from iic_geotools.colours import MapClass
from iic_geotools.ellipsoid import Floats, Ground
from iic_geotools.errors import OutputError, SceneError, UsageError
from iic_geotools.files import write_atomically
from iic_geotools.levels import NODATA
from iic_geotools.tiff import present_tiles

Method = Literal["planar", "ellipsoidal", "none"]

# A projection that changes areas by more than this at the scene is not trusted with them.
AREA_TOLERANCE = 0.01
_CELL = 64


@dataclass(frozen=True)
class ClassArea:
    """What one class covers; areas are None if the map is not on the ground.

    Attributes:
        value: Its value in the map.
        name: Its name.
        pixels: How many pixels have it.
        m2: Their area in square metres.
        ha: The same in hectares.
        share: Its part of what has data: of the area if known, else of the pixels.
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
        method: "planar" (pixels times their size in the projection), "ellipsoidal" (true ground area, for
            degrees and for projections that distort areas) or "none" (no reference system: pixels only).
        classes: One entry a class, in order.
        nodata: What has no data; its share is of the whole map.
    """

    method: Method
    classes: tuple[ClassArea, ...]
    nodata: ClassArea


def pixel_side(crs: CRS | None, transform: Affine, width: int, height: int) -> float | None:
    """Side in metres of a square as large as a pixel at the centre of the raster; None if that cannot be known."""
    sides = ground_sample_distance(crs, transform, width, height)
    return None if sides is None else math.sqrt(sides[0] * sides[1])


def ground_sample_distance(
    crs: CRS | None, transform: Affine, width: int, height: int
) -> tuple[float, float] | None:
    """Width and height of a pixel in metres, at the centre of the raster; None if that cannot be known."""
    if crs is None:
        return None
    across, down = (transform.a, transform.d), (transform.b, transform.e)
    if area_method(crs, transform, width, height) != "ellipsoidal":
        factor = _linear_factor(crs)
        return (
            None if factor is None else (factor * float(np.hypot(*across)), factor * float(np.hypot(*down)))
        )
    ground = Ground.of(crs)
    if ground is None:
        return None
    # Steps of many pixels: an inverse projection is good to about a millimetre, too little for one.
    cols, rows = width / 2 + np.array([0.0, _CELL, 0.0]), height / 2 + np.array([0.0, 0.0, _CELL])
    lon, lat = ground.radians(*_place(transform, cols, rows))
    if not (np.isfinite(lon).all() and np.isfinite(lat).all()):
        return None
    east, north = ground.ellipsoid.metres_per_radian(float(lat[0]))
    turn = lon[1:] - lon[0]
    turn -= 2 * np.pi * np.round(turn / (2 * np.pi))
    lengths = np.hypot(turn * east, (lat[1:] - lat[0]) * north) / _CELL
    return float(lengths[0]), float(lengths[1])


def area_method(crs: CRS | None, transform: Affine, width: int, height: int) -> Method:
    """How areas of this raster are found: see `ClassAreas.method`."""
    if crs is None:
        return "none"
    if crs.is_geographic:
        return "ellipsoidal"
    pixel = pixel_area(crs, transform)
    if np.isnan(pixel):
        return "none"
    ground = Ground.of(crs)
    if ground is None:
        return "planar"
    wide, high = min(_CELL, width), min(_CELL, height)
    cols, rows = np.meshgrid(np.linspace(0, width - wide, 5), np.linspace(0, height - high, 5))
    true = _cell_areas(ground, transform, cols, rows, wide, high)
    planar = pixel * wide * high
    known = np.isfinite(true)
    distortion = np.abs(planar / true[known] - 1).max(initial=0.0)
    return "ellipsoidal" if distortion > AREA_TOLERANCE else "planar"


def pixel_area(crs: CRS, transform: Affine) -> float:
    """Area of a pixel in m2 by the reference system's own coordinates; NaN if those are not lengths."""
    factor = _linear_factor(crs)
    return np.nan if factor is None else float(abs(transform.determinant) * factor**2)


def class_areas(map_path: Path, classes: Sequence[MapClass]) -> ClassAreas:
    """Measure what each class of a map covers, block by block.

    Raises:
        SceneError: The map cannot be read, or has values without a class.
    """
    try:
        with rasterio.open(map_path) as dataset:
            place = (dataset.crs or None, dataset.transform, dataset.width, dataset.height)
            method = area_method(*place)
            measure = _measure(method, *place)
            pixels, areas = _totals(dataset, map_path, measure)
    except RasterioError as error:
        raise SceneError(f"The map {map_path} cannot be read: {error}") from error
    strays = np.flatnonzero(pixels[len(classes) : NODATA])
    if len(strays):
        raise SceneError(
            f"The map {map_path} has the value {len(classes) + strays[0]} but only {len(classes)} classes"
            " were given: give the classes it was made with."
        )

    def entry(value: int, name: str, whole: float) -> ClassArea:
        amount = areas[value] if method != "none" else pixels[value]
        m2 = float(areas[value]) if method != "none" else None
        share = float(amount / whole) if whole else 0.0
        return ClassArea(value, name, int(pixels[value]), m2, None if m2 is None else m2 / 10_000, share)

    amounts = areas if method != "none" else pixels
    valid = float(amounts[:NODATA].sum())
    return ClassAreas(
        method,
        tuple(entry(value, c.name, valid) for value, c in enumerate(classes)),
        entry(NODATA, "nodata", float(amounts.sum())),
    )


def write_stats(path: Path, areas: ClassAreas) -> None:
    """Write the areas as JSON or CSV, by the suffix of `path`.

    Raises:
        UsageError: Neither of these suffixes.
        OutputError: It cannot be written.
    """
    suffix = path.suffix.lower()
    *classes, nodata = rows = [_plain(row) for row in (*areas.classes, areas.nodata)]
    if suffix == ".json":
        content = {"method": areas.method, "classes": classes, "nodata": nodata}
        text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
    elif suffix == ".csv":
        buffer = io.StringIO()
        writer = csv.DictWriter(buffer, [*rows[0], "method"], lineterminator="\n")
        writer.writeheader()
        writer.writerows({**row, "method": areas.method} for row in rows)
        text = buffer.getvalue()
    else:
        raise UsageError(f"Statistics are written as .json or .csv, not as {suffix or path.name!r}.")
    try:
        write_atomically(path, text.encode())
    except OSError as error:
        raise OutputError(f"The statistics {path} cannot be written: {error}") from error


def _plain(row: ClassArea) -> dict[str, Any]:
    """A row as it is written: ten digits are more than any map is good for."""
    return {
        key: float(f"{value:.10g}") if isinstance(value, float) else value
        for key, value in asdict(row).items()
    }


class _Measure(Protocol):
    """Turns pixels into areas."""

    def __call__(self, window: Window, pixels: npt.NDArray[np.uint8]) -> tuple[npt.NDArray[np.int64], Floats]:
        """Number and area of the pixels of each value."""

    def whole(self, windows: Sequence[Window]) -> float:
        """Area of whole windows."""


def _measure(method: Method, crs: CRS | None, transform: Affine, width: int, height: int) -> _Measure:
    ground = Ground.of(crs) if crs is not None else None
    if method == "ellipsoidal" and ground is not None:
        upright = ground.crs.is_geographic and transform.b == transform.d == 0
        return _Rows(ground, transform) if upright else _Cells(ground, transform)
    return _Plane(pixel_area(crs, transform) if method == "planar" and crs is not None else 0.0)


@dataclass(frozen=True)
class _Plane:
    """Every pixel alike."""

    pixel: float

    def __call__(self, window: Window, pixels: npt.NDArray[np.uint8]) -> tuple[npt.NDArray[np.int64], Floats]:
        counts = np.bincount(pixels.ravel(), minlength=256).astype(np.int64)
        return counts, counts * np.float64(self.pixel)

    def whole(self, windows: Sequence[Window]) -> float:
        return float(self.pixel * sum(window.width * window.height for window in windows))


@dataclass(frozen=True)
class _Rows:
    """Degrees, north up: the pixels of a row are alike, and their area is known exactly."""

    ground: Ground
    transform: Affine

    def _pixel_areas(self, window: Window) -> Floats:
        edges = np.arange(window.row_off, window.row_off + window.height + 1)
        x, y = _place(self.transform, np.array([0.0, 1.0]), np.zeros(2))
        lon, _ = self.ground.radians(x, y)
        _, lat = self.ground.radians(*_place(self.transform, np.zeros(len(edges)), edges))
        # Whole-world rasters overshoot the poles by rounding.
        zones = self.ground.ellipsoid.zone(np.clip(lat, -np.pi / 2, np.pi / 2))
        return np.asarray(np.abs(np.diff(zones)) * abs(lon[1] - lon[0]))

    def __call__(self, window: Window, pixels: npt.NDArray[np.uint8]) -> tuple[npt.NDArray[np.int64], Floats]:
        histogram = _histograms(pixels, 1, pixels.shape[1])
        return histogram.sum(0), self._pixel_areas(window) @ histogram

    def whole(self, windows: Sequence[Window]) -> float:
        return float(sum(self._pixel_areas(window).sum() * window.width for window in windows))


@dataclass(frozen=True)
class _Cells:
    """Anything else on the earth: the pixels of a small cell are alike, and its corners tell its area."""

    ground: Ground
    transform: Affine

    def __call__(self, window: Window, pixels: npt.NDArray[np.uint8]) -> tuple[npt.NDArray[np.int64], Floats]:
        histogram = _histograms(pixels, _CELL, _CELL)
        rows, cols = np.arange(0, window.height, _CELL), np.arange(0, window.width, _CELL)
        wide, high = np.meshgrid(
            np.minimum(_CELL, window.width - cols), np.minimum(_CELL, window.height - rows)
        )
        left, top = np.meshgrid(window.col_off + cols, window.row_off + rows)
        areas = _cell_areas(self.ground, self.transform, left, top, wide, high)
        return histogram.sum(0), np.nan_to_num(areas / (wide * high)).ravel() @ histogram

    def whole(self, windows: Sequence[Window]) -> float:
        left, top, wide, high = np.array([window.flatten() for window in windows], float).T
        return float(np.nansum(_cell_areas(self.ground, self.transform, left, top, wide, high)))


def _totals(dataset: Any, path: Path, measure: _Measure) -> tuple[npt.NDArray[np.int64], Floats]:
    """Number and area of the pixels of each value; tiles that the file leaves out are not read."""
    pixels, areas = np.zeros(256, np.int64), np.zeros(256)
    for row in _rows_of_windows(dataset, path):
        for window in (window for window, there in row if there):
            counts, ground = measure(window, dataset.read(1, window=window))
            pixels += counts
            areas += ground
        missing = [window for window, there in row if not there]
        if missing:
            pixels[NODATA] += sum(window.width * window.height for window in missing)
            areas[NODATA] += measure.whole(missing)
    return pixels, areas


def _rows_of_windows(dataset: Any, path: Path) -> Iterator[list[tuple[Window, bool]]]:
    """The blocks of a map, row by row, and whether each is in the file."""
    high, wide = dataset.block_shapes[0]
    tiled = wide < dataset.width and dataset.nodata == NODATA
    wide, high = (wide, high) if tiled else (1024, 1024)
    across, down = -(-dataset.width // wide), -(-dataset.height // high)
    there = present_tiles(path, across, down) if tiled else np.ones((down, across), bool)
    for row in range(down):
        top = row * high
        windows = []
        for col in range(across):
            left = col * wide
            size = min(wide, dataset.width - left), min(high, dataset.height - top)
            windows.append((Window(left, top, *size), bool(there[row, col])))
        yield windows


def _histograms(pixels: npt.NDArray[np.uint8], high: int, wide: int) -> npt.NDArray[np.int64]:
    """How often each value occurs in each cell of `high` x `wide` pixels, cells in rows."""
    rows, cols = np.arange(pixels.shape[0]) // high, np.arange(pixels.shape[1]) // wide
    across = int(cols[-1]) + 1
    cells = rows[:, None] * across + cols[None, :]
    size = (int(rows[-1]) + 1) * across
    return np.bincount((cells * 256 + pixels).ravel(), minlength=size * 256).reshape(size, 256)


def _cell_areas(ground: Ground, transform: Affine, left: Floats, top: Floats, wide: Any, high: Any) -> Floats:
    """True areas of rectangles of pixels; not finite off the earth."""
    cols = np.stack([left, left + wide, left + wide, left, left], -1)
    rows = np.stack([top, top, top + high, top + high, top], -1)
    ring = np.repeat(np.arange(cols.size // 5), 5)
    with np.errstate(invalid="ignore"):
        areas = ground.ring_areas(*_place(transform, cols.ravel(), rows.ravel()), ring)
    return areas.reshape(cols.shape[:-1])


def _place(transform: Affine, cols: npt.NDArray[Any], rows: npt.NDArray[Any]) -> tuple[Floats, Floats]:
    x = transform.a * cols + transform.b * rows + transform.c
    y = transform.d * cols + transform.e * rows + transform.f
    return x, y


def _linear_factor(crs: CRS) -> float | None:
    """Metres in a unit of a reference system that is not geographic."""
    try:
        return None if crs.is_geographic else float(crs.units_factor[1])
    except CRSError:
        return None
