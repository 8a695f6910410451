"""Maps on the grid of another one: each pixel takes the value under its centre."""

import math
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rasterio.errors import CRSError, RasterioError
from rasterio.warp import transform_bounds

from iic_geotools.classmap.class_map import Bytes, read_values
from iic_geotools.classmap.classes import NODATA
from iic_geotools.errors import SceneError
from iic_geotools.gdal import gdal_errors
from iic_geotools.geobox import GeoBox
from iic_geotools.scene.warp import nearest_on
from iic_geotools.tiling import Rect

# Grids that differ by less than this share of a pixel, over their whole size, are the same.
_TOLERANCE = 1e-3


@dataclass(frozen=True)
class View:
    """A map as it is read on a grid.

    Attributes:
        dataset: The dataset that is read.
        col: Column of the dataset that is the first one of the grid.
        row: Row of the dataset that is the first one of the grid.
        classes: Number of values that the map may have.
        path: Path of the map.
    """

    dataset: Any
    col: int
    row: int
    classes: int
    path: Path

    def read(self, rect: Rect) -> Bytes:
        """Read the values of a rectangle of the grid."""
        shifted = Rect(rect.col + self.col, rect.row + self.row, rect.width, rect.height)
        return read_values(self.dataset, shifted, self.classes, self.path)


@contextmanager
def view_on(dataset: Any, grid: GeoBox, classes: int, path: Path) -> Iterator[View]:
    """View a one-band map of bytes on a grid of any CRS; 255 is nodata.

    Args:
        grid: The grid, which lies inside the map if both have the same pixels.
        classes: Number of values that the map may have.
    """
    shift = shared_pixels(GeoBox.of(dataset), grid)
    if shift is not None:
        yield View(dataset, *shift, classes, path)
        return
    try:
        with gdal_errors():
            warped = nearest_on(dataset, grid, src_nodata=NODATA, nodata=NODATA)
    except (CRSError, RasterioError) as error:
        raise SceneError(f"The map {path} cannot be brought onto the grid of the other ({error}).") from error
    with closing(warped):
        yield View(warped, 0, 0, classes, path)


def shared_pixels(source: GeoBox, grid: GeoBox) -> tuple[int, int] | None:
    """Column and row of `source` that are the first of `grid`, if both have the same pixels, one inside the other."""
    if source.crs != grid.crs:
        return None
    between = ~source.transform @ grid.transform
    size = max(grid.width, grid.height)
    turned = max(abs(between.a - 1), abs(between.e - 1), abs(between.b), abs(between.d)) * size
    col, row = round(between.c), round(between.f)
    if turned > _TOLERANCE or max(abs(between.c - col), abs(between.f - row)) > _TOLERANCE:
        return None
    inside = col >= 0 and row >= 0 and col + grid.width <= source.width and row + grid.height <= source.height
    return (col, row) if inside else None


def common_rect(grid: GeoBox, others: tuple[GeoBox, ...]) -> Rect:
    """The pixels of a grid on which other grids may lie too; `empty` if there is none."""
    rect = Rect(0, 0, grid.width, grid.height)
    for other in others:
        try:
            with gdal_errors():
                left, bottom, right, top = (
                    other.extent
                    if other.crs == grid.crs
                    else transform_bounds(other.crs, grid.crs, *other.extent)
                )
        except (CRSError, RasterioError) as error:
            raise SceneError(f"The maps cannot be brought to one CRS ({error}).") from error
        corners = [~grid.transform @ (x, y) for x in (left, right) for y in (bottom, top)]
        if not all(math.isfinite(number) for corner in corners for number in corner):
            continue
        columns, rows = zip(*corners, strict=True)
        # Cut to the grid first: numbers that are far too large would not fit into pixels.
        low_x, high_x = max(min(columns), -1.0), min(max(columns), grid.width + 1.0)
        low_y, high_y = max(min(rows), -1.0), min(max(rows), grid.height + 1.0)
        col, row = math.floor(low_x + _TOLERANCE), math.floor(low_y + _TOLERANCE)
        around = Rect(col, row, math.ceil(high_x - _TOLERANCE) - col, math.ceil(high_y - _TOLERANCE) - row)
        rect = rect.intersection(around)
    return rect
