"""Which part of a scene is wanted: bounds and areas of interest, in pixels."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rasterio.features import geometry_mask
from rasterio.transform import Affine

from iic_geotools.errors import SceneError, UsageError
from iic_geotools.grid import Rect

Bounds = tuple[float, float, float, float]


def parse_bounds(text: str) -> Bounds:
    """Read "LEFT,BOTTOM,RIGHT,TOP", separated by commas or spaces."""
    try:
        left, bottom, right, top = (float(number) for number in text.replace(",", " ").split())
    except ValueError:
        raise UsageError(f'--bounds takes "LEFT BOTTOM RIGHT TOP", not "{text}".') from None
    return left, bottom, right, top


def pixels_within(bounds: Bounds, transform: Affine, width: int, height: int) -> Rect:
    """The pixels that touch `bounds` (left, bottom, right, top in the scene's CRS).

    Raises:
        UsageError: the bounds hold no area.
        SceneError: they lie outside the scene.
    """
    left, bottom, right, top = bounds
    if not (left < right and bottom < top):
        raise UsageError(
            f"--bounds {left:g} {bottom:g} {right:g} {top:g} hold no area; the order is left bottom right top."
        )
    rect = _touched(_corners(bounds), transform).intersection(Rect(0, 0, width, height))
    if rect.empty:
        raise SceneError(
            f"The bounds {left:g} {bottom:g} {right:g} {top:g} lie outside the scene; give them in its CRS."
        )
    return rect


@dataclass(frozen=True)
class Area:
    """Polygons in a scene's CRS, as a mask of its pixels: a pixel is inside if its centre is."""

    geometries: tuple[dict[str, Any], ...]
    transform: Affine

    def rect(self, width: int, height: int) -> Rect:
        """The pixels that the polygons' bounding box touches.

        Raises:
            SceneError: they lie outside the scene.
        """
        boxes = self._boxes
        col, row = min(box.col for box in boxes), min(box.row for box in boxes)
        right, bottom = max(box.right for box in boxes), max(box.bottom for box in boxes)
        rect = Rect(col, row, right - col, bottom - row).intersection(Rect(0, 0, width, height))
        if rect.empty:
            raise SceneError(
                "The area of interest lies outside the scene; check that both cover the same place."
            )
        return rect

    def touches(self, rect: Rect) -> bool:
        """False only if no pixel of `rect` is inside."""
        return any(not box.intersection(rect).empty for box in self._boxes)

    def inside(self, rect: Rect) -> NDArray[np.bool_]:
        """Which pixels of `rect` are inside."""
        pairs = zip(self.geometries, self._boxes, strict=True)
        near = [geometry for geometry, box in pairs if not box.intersection(rect).empty]
        if not near:
            return np.zeros((rect.height, rect.width), bool)
        window = self.transform @ Affine.translation(rect.col, rect.row)
        mask = geometry_mask(near, (rect.height, rect.width), window, invert=True)
        return np.asarray(mask, bool)

    @cached_property
    def _boxes(self) -> list[Rect]:
        return [_touched(list(_points(each["coordinates"])), self.transform) for each in self.geometries]


def _corners(bounds: Bounds) -> list[tuple[float, float]]:
    left, bottom, right, top = bounds
    return [(x, y) for x in (left, right) for y in (bottom, top)]


def _touched(points: Sequence[tuple[float, float]], transform: Affine) -> Rect:
    inverse = ~transform
    pixels = [inverse @ (x, y) for x, y in points]
    # A bound that falls on a pixel's edge but for rounding must not drag in the next pixel.
    columns, rows = ([round(value, 6) for value in axis] for axis in zip(*pixels, strict=True))
    col, row = math.floor(min(columns)), math.floor(min(rows))
    return Rect(col, row, math.ceil(max(columns)) - col, math.ceil(max(rows)) - row)


def _points(coordinates: Any) -> Any:
    if isinstance(coordinates[0], int | float):
        yield coordinates[0], coordinates[1]
    else:
        for part in coordinates:
            yield from _points(part)
