"""Two dates of one place, whose materials change their colours with the season."""

from pathlib import Path

import numpy as np
import rasterio
from affine import Affine
from rasterio.crs import CRS
from scipy import ndimage

from support.scenes import write_raster

SIDE, CORNER = 160, (500_000, 5_000_000)
SPRING = np.array([[40, 60, 50, 20], [60, 90, 60, 180], [180, 160, 140, 150], [90, 80, 60, 90]])
AUTUMN = np.array([[30, 45, 40, 15], [110, 90, 40, 70], [150, 140, 120, 120], [60, 100, 60, 190]])
"""Colours of water, wood, gravel and field: the wood turns brown while the field turns green."""
BANDS = ("red", "green", "blue", "nir")


def ground(seed: int = 0) -> np.ndarray:
    """Which of four materials is where, in patches."""
    rng = np.random.default_rng(seed)
    return ndimage.zoom(rng.choice(4, (8, 8), p=(0.3, 0.3, 0.2, 0.2)), SIDE // 8, order=0)


def date(truth: np.ndarray, colours: np.ndarray, seed: int, dtype: type = np.uint8) -> np.ndarray:
    """What a date shows of it."""
    noise = 6 * np.random.default_rng(seed).normal(size=(4, *truth.shape))
    return np.clip(np.moveaxis(colours[truth], -1, 0) + noise, 1, 254).astype(dtype)


def write(
    path: Path, values: np.ndarray, col: float = 0, row: float = 0, size: float = 10.0, **profile: object
) -> Path:
    """Write a date whose first pixel is at this column and row of the place."""
    transform = Affine.translation(CORNER[0] + 10 * col, CORNER[1] - 10 * row) @ Affine.scale(size, -size)
    write_raster(path, values, transform=transform, crs=CRS.from_epsg(32631), **profile)
    with rasterio.open(path, "r+") as dataset:
        dataset.descriptions = BANDS[: len(values)]
    return path


def write_cloudy(path: Path, values: np.ndarray, clouds: tuple[slice, slice]) -> Path:
    """Write a date under clouds, and the mask that comes with it."""
    values = values.copy()
    values[:, *clouds] = 250
    clear = np.ones((1, *values.shape[1:]), np.uint8)
    clear[:, *clouds] = 0
    write(path.with_name(f"{path.stem}_udm2.tif"), clear)
    return write(path, values)
