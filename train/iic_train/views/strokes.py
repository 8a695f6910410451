"""Strokes in views: a short line that is drawn across, as some people write a seven."""

from typing import NamedTuple

import torch
from torch import Tensor

from iic_train.views.random_numbers import Draw

LENGTHS = (0.25, 0.5)
"""Shortest and longest stroke, as shares of the side of the view."""
MIDDLES = (0.25, 0.75)
"""Where the middle of a stroke may lie, in both directions, as shares of the side."""
SLOPE = 0.6
"""Largest angle to the horizontal, in radians."""
THICKNESS = 1.3
"""Half of the thickness in pixels, to where a stroke has half of its value."""


class StrokeNumbers(NamedTuple):
    """The random numbers of strokes.

    Attributes:
        drawn: Which views get one, `[N]`.
        middles: Row and column of its middle, as shares of the side, `[2, N]`.
        lengths: Its length, as a share of the side, `[N]`.
        angles: Its angle to the horizontal in radians, `[N]`.
    """

    drawn: Tensor
    middles: Tensor
    lengths: Tensor
    angles: Tensor


def draw_strokes(probability: float, count: int, draw: Draw) -> StrokeNumbers | None:
    """Draw the numbers of a batch; None if there are no strokes at all."""
    if not probability:
        return None
    return StrokeNumbers(
        draw.chance(count, probability),
        draw.uniform((2, count), *MIDDLES),
        draw.uniform((count,), *LENGTHS),
        draw.uniform((count,), -SLOPE, SLOPE),
    )


def apply_strokes(views: Tensor, numbers: StrokeNumbers | None) -> Tensor:
    """Draw strokes of the value 1 into views `[N, C, side, side]`, whose ground is 0."""
    if numbers is None:
        return views
    side = views.shape[-1]
    places = torch.arange(side, device=views.device, dtype=views.dtype) + 0.5
    row, column = (side * middle.view(-1, 1, 1) for middle in numbers.middles)
    down, right = places.view(1, -1, 1) - row, places.view(1, 1, -1) - column
    cos, sin = numbers.angles.cos().view(-1, 1, 1), numbers.angles.sin().view(-1, 1, 1)
    beyond = (right * cos + down * sin).abs() - side / 2 * numbers.lengths.view(-1, 1, 1)
    distance = torch.hypot(beyond.clamp_min(0.0), down * cos - right * sin)
    strokes = (THICKNESS + 0.5 - distance).clamp(0.0, 1.0) * numbers.drawn.view(-1, 1, 1)
    return torch.maximum(views, strokes[:, None].to(views.dtype))
