"""Majority smoothing: each pixel takes the most common class of the square around it.

A pixel depends only on the square of 2 x radius + 1 pixels around it, clipped at the edge of the map. So tiles read
with `radius` extra pixels give exactly what the whole map gives. Pixels without data stay so and are not counted. Of
classes that are equally common the pixel keeps its own, or else takes the one with the lowest value.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from iic_geotools.classmap.classes import NODATA
from iic_geotools.products.patches import Bytes, Read
from iic_geotools.tiling import Rect

MAX_RADIUS = 100
"""Larger squares blur everything that a map shows, and their pixels no longer fit into 16 bits."""


@dataclass(frozen=True)
class Majority:
    """Smooth a map by majority.

    Attributes:
        radius: Number of pixels that the square reaches in each direction.
        whole: The rectangle of the whole map.
    """

    radius: int
    whole: Rect

    def __call__(self, read: Read, core: Rect) -> Bytes:
        """The pixels of a rectangle of the map after smoothing the whole map."""
        window = core.grow(self.radius).intersection(self.whole)
        pixels = read(window)
        place = core.relative_to(window).slices
        own = pixels[place]
        winner = np.zeros_like(own)
        most, own_count = np.zeros(own.shape, np.uint16), np.zeros(own.shape, np.uint16)
        for value in np.flatnonzero(np.bincount(pixels.ravel(), minlength=256)[:NODATA]).tolist():
            count = _count(pixels == value, self.radius)[place]
            np.copyto(winner, np.uint8(value), where=count > most)
            np.maximum(most, count, out=most)
            np.copyto(own_count, count, where=own == value)
        return np.where((own_count == most) | (own == NODATA), own, winner)


def _count(flags: npt.NDArray[np.bool_], radius: int) -> npt.NDArray[np.uint16]:
    """The number of flags in the square around each pixel."""
    return _count_along(_count_along(flags, radius, 0), radius, 1)


def _count_along(values: npt.NDArray[Any], radius: int, axis: int) -> npt.NDArray[np.uint16]:
    length = values.shape[axis]
    shape = list(values.shape)
    shape[axis] += 2 * radius + 1
    sums = np.zeros(shape, np.uint16)
    view = sums.swapaxes(0, axis)
    # Sums may exceed 16 bits and begin at 0 again; their differences are right nevertheless.
    np.cumsum(values.swapaxes(0, axis), 0, np.uint16, out=view[radius + 1 : radius + 1 + length])
    view[radius + 1 + length :] = view[radius + length]
    return (view[2 * radius + 1 :] - view[: -2 * radius - 1]).swapaxes(0, axis)
