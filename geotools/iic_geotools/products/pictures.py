"""Scenes and maps as pictures, reduced to a given size. Memory is that of the picture."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import rasterio
from rasterio.enums import Resampling
from rasterio.errors import NodataShadowWarning, NotGeoreferencedWarning
from rasterio.windows import Window

from iic_geotools.classmap.classes import MapClass, rgb
from iic_geotools.geobox import GeoBox
from iic_geotools.tiling import Rect

EMPTY = "#ececec"
"""The colour of pixels without data."""
_PERCENTILES = (2.0, 98.0)
# At a stronger reduction, averaging would read every pixel of a scene without overviews: a sample is enough.
_MOST_AVERAGED = 16
# Rows that are stretched at once, in double precision.
_ROWS = 256

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Pictures:
    """A scene and its map at one size.

    Attributes:
        scene: The scene [H, W, 3].
        values: The values of the map [H, W].
        metres: Metres on the ground per pixel; None if they are unknown.
        reduced: Whether their size is not that of the map.
    """

    scene: Bytes
    values: Bytes
    metres: float | None
    reduced: bool


def read_pictures(
    scene_path: str | Path,
    map_path: Path,
    choose_size: Callable[[int, int], tuple[int, int]],
    bidx: Sequence[int],
    region: Rect | None = None,
) -> Pictures:
    """Read a scene and its map at the same size.

    Args:
        scene_path: Path or address of the scene.
        map_path: Path of the map, which may cover only a part of the scene.
        choose_size: Function from width and height of the map to those of the pictures.
        bidx: As in `scene_picture`.
        region: The pixels of the scene that the map covers; by default all of them.

    Raises:
        RasterioError: Scene or map cannot be read.
    """
    with warnings.catch_warnings():
        # Neither warning matters for a picture.
        warnings.simplefilter("ignore", NotGeoreferencedWarning)
        warnings.simplefilter("ignore", NodataShadowWarning)
        with rasterio.open(scene_path) as scene, rasterio.open(map_path) as labels:
            size = choose_size(labels.width, labels.height)
            covered = region or Rect(0, 0, scene.width, scene.height)
            window = Window(covered.col, covered.row, covered.width, covered.height)
            return Pictures(
                scene_picture(scene, window, size, bidx),
                map_values(labels, size),
                metres_per_pixel(labels, size[0]),
                size != (labels.width, labels.height),
            )


def scene_picture(scene: Any, window: Window, size: tuple[int, int], bidx: Sequence[int]) -> Bytes:
    """Draw a part of a scene, each band stretched from its 2nd to its 98th percentile: [H, W, 3].

    Args:
        scene: The scene, an open rasterio dataset.
        window: The part of it that is drawn.
        size: Width and height of the picture.
        bidx: Bands to show as red, green and blue, counted from 1; with fewer than three, the first one in grey.
    """
    bands = list(bidx[:3]) if len(bidx) >= 3 else [bidx[0]]
    shape = (size[1], size[0])
    shrink = max(window.width / size[0], window.height / size[1])
    averaged = 1 < shrink <= _MOST_AVERAGED or (shrink > 1 and scene.overviews(bands[0]))
    resampling = Resampling.average if averaged else Resampling.nearest
    kwargs = {"window": window, "out_shape": (len(bands), *shape), "resampling": resampling}
    values = scene.read(bands, **kwargs)
    valid = (scene.read_masks(bands, **{**kwargs, "resampling": Resampling.nearest}) > 0).all(0)
    valid &= np.isfinite(values).all(0)
    image = np.empty((3, *shape), np.uint8)
    for target, band in zip(image, values if len(bands) == 3 else [values[0]] * 3, strict=True):
        _stretch(band.astype(np.float32), valid, target)
    image[:, ~valid] = np.array(rgb(EMPTY), np.uint8)[:, None]
    return np.ascontiguousarray(image.transpose(1, 2, 0))


def map_values(labels: Any, size: tuple[int, int]) -> Bytes:
    """Read the values of a map, an open rasterio dataset, at another size: [H, W]."""
    return np.asarray(labels.read(1, out_shape=(size[1], size[0]), resampling=Resampling.nearest))


def palette(classes: Sequence[MapClass]) -> Bytes:
    """The colours of the 256 values of a map, [256, 3]; values without a class have the colour of no data."""
    colours = np.full((256, 3), rgb(EMPTY), np.uint8)
    colours[: len(classes)] = [rgb(map_class.colour) for map_class in classes]
    return colours


def metres_per_pixel(labels: Any, width: int) -> float | None:
    """Metres on the ground per pixel of a picture of a map that is `width` pixels wide; None if they are unknown."""
    pixel_size = GeoBox.of(labels).pixel_size
    return None if pixel_size is None else pixel_size[0] * labels.width / width


def percent(share: float) -> str:
    """Format a share: "12.3 %"."""
    return f"{share:.1%}".replace("%", " %") if share == 0 or share >= 0.0005 else "< 0.1 %"


def _stretch(band: npt.NDArray[np.float32], valid: npt.NDArray[np.bool_], target: Bytes) -> None:
    if not valid.any():
        target[:] = 0
        return
    low, high = np.percentile(band[valid], _PERCENTILES)
    for top in range(0, len(band), _ROWS):
        rows = slice(top, top + _ROWS)
        scaled = (np.where(valid[rows], band[rows], low) - low) / max(high - low, 1e-9)
        target[rows] = np.clip(scaled * 255, 0, 255)
