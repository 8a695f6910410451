"""Whether rasters on different grids lie on each other."""

import numpy as np
from affine import Affine
from rasterio.errors import RasterioError
from rasterio.warp import transform as reproject

from iic_geotools.gdal import gdal_errors
from iic_geotools.geobox import GeoBox

SAME_PLACE = 0.01
"""Grids whose corners differ by less than this many pixels are the same."""
EDGE_POINTS = 33
"""Points along each edge of a grid that are looked for in another CRS, in which edges are curved."""


def same_pixels(one: GeoBox, other: GeoBox) -> bool:
    """Whether two grids have the same pixels in the same place; without a georeference, the same number of them."""
    if (one.width, one.height) != (other.width, other.height):
        return False
    if not (_is_placed(one) and _is_placed(other)):
        return True
    if one.crs != other.crs:
        return False
    corners = [(0, 0), (one.width, 0), (0, one.height), (one.width, one.height)]
    away = [~one.transform @ (other.transform @ corner) for corner in corners]
    return bool(np.abs(np.subtract(away, corners)).max() < SAME_PLACE)


def can_lie_on(raster: GeoBox, grid: GeoBox) -> bool:
    """Whether a raster can be brought onto another grid: both have a transform and a CRS."""
    return all(_is_placed(one) and one.crs is not None for one in (raster, grid))


def reach_beyond(raster: GeoBox, grid: GeoBox) -> float:
    """How many pixels of a raster the centres of a grid's pixels reach beyond it; infinite if none lies on it.

    Args:
        grid: The other grid; both must have a transform and a CRS.
    """
    across, down = (
        np.linspace(0.5, grid.width - 0.5, EDGE_POINTS),
        np.linspace(0.5, grid.height - 0.5, EDGE_POINTS),
    )
    # The inside too: a raster may lie within the grid, without touching its edges.
    cols, rows = (axis.ravel() for axis in np.meshgrid(across, down))
    xs, ys = grid.to_ground(cols, rows)
    if grid.crs != raster.crs:
        try:
            with gdal_errors():
                xs, ys = (np.asarray(axis) for axis in reproject(grid.crs, raster.crs, xs, ys))
        except RasterioError:
            return np.inf
    a, b, c, d, e, f, *_ = ~raster.transform
    cols, rows = a * xs + b * ys + c, d * xs + e * ys + f
    if not (np.isfinite(cols).all() and np.isfinite(rows).all()):
        return np.inf
    over = np.maximum.reduce([-cols, cols - raster.width, -rows, rows - raster.height, np.zeros_like(cols)])
    left, top, right, bottom = cols.min(), rows.min(), cols.max(), rows.max()
    apart = right < 0 or bottom < 0 or left > raster.width or top > raster.height
    return np.inf if apart else float(over.max())


def _is_placed(grid: GeoBox) -> bool:
    return grid.transform != Affine.identity()
