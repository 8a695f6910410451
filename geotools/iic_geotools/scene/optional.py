"""Bands that a model can do without: a value of the model's own says at which pixels one is missing."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class OptionalBand:
    """A band that a model can do without.

    Attributes:
        position: Its position among the model's bands, counted from 0.
        missing: The value, in the model's data type, that says that the band is missing at a pixel.
        absent: Whether the scene lacks it.
    """

    position: int
    missing: float
    absent: bool


def mark_missing(values: NDArray[Any], optional: Sequence[OptionalBand]) -> NDArray[Any]:
    """Add the bands that a scene lacks, and keep the values of the others apart from those that say "missing".

    Args:
        values: Values [bands, H, W] of the bands that the scene has, in the model's data type; they may be changed.
        optional: The bands that the model can do without, in its order.

    Returns:
        Values of all bands of the model.
    """
    for band in optional:
        if band.absent:
            values = np.insert(values, band.position, band.missing, axis=0)
        else:
            plane = values[band.position]
            np.putmask(plane, plane == band.missing, _next_inside(band.missing, values.dtype))
    return values


def _next_inside(value: float, dtype: np.dtype[Any]) -> Any:
    """The value of a data type next to another one, towards the middle of the type's range."""
    if not np.issubdtype(dtype, np.integer):
        return np.nextafter(dtype.type(value), dtype.type(np.inf if value <= 0 else 0))
    limits = np.iinfo(dtype)
    return int(value) + (1 if value <= (limits.min + limits.max) / 2 else -1)
