"""Pairs of views of the same content, made in batches on the device.

Dense views: the second view is changed photometrically and moved by a `Move`, whose `undo` brings
probability maps back onto the pixels of the first view. Flips and quarter turns are exact. Affine moves are
bilinear, with zeros where the other view has no pixels.
Image views: crops, rotations and flips of whole images, which are not undone.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from iic_train.views.photometry import ValueNumbers, apply_values, draw_values
from iic_train.views.random_numbers import Draw, constant
from iic_train.views.settings import DensePairs, ImagePairs

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


@dataclass(frozen=True)
class Move:
    """A geometric change of each image of a batch: affine, then transposition, then flips. None means no change.

    Attributes:
        transposed: Whether rows and columns of each image are exchanged, `[N]`.
        flipped_x: Whether each image is flipped horizontally, `[N]`.
        flipped_y: Whether each image is flipped vertically, `[N]`.
        matrix: Where a moved pixel comes from, in (x, y) counted from the centre of the image, `[N, 2, 2]`.
    """

    transposed: Tensor | None = None
    flipped_x: Tensor | None = None
    flipped_y: Tensor | None = None
    matrix: Tensor | None = None

    def apply(self, images: Tensor) -> Tensor:
        """Move images `[N, C, H, W]`."""
        if self.matrix is not None:
            images = resample(images, self.matrix)
        return self._flip_y(self._flip_x(self._transpose(images)))

    def undo(self, maps: Tensor) -> Tensor:
        """Move maps `[N, C, H, W]` of moved images back; pixels that were not seen are zero."""
        maps = self._transpose(self._flip_x(self._flip_y(maps)))
        return maps if self.matrix is None else resample(maps, torch.linalg.inv_ex(self.matrix).inverse)

    def part(self, images: slice) -> "Move":
        """Return the move of a part of the batch."""
        changes = (self.transposed, self.flipped_x, self.flipped_y, self.matrix)
        return Move(*(None if change is None else change[images] for change in changes))

    def _transpose(self, images: Tensor) -> Tensor:
        if self.transposed is None:
            return images
        if images.shape[-2] != images.shape[-1]:
            raise ValueError("Quarter turns need square images.")
        return _where(self.transposed, images.transpose(-2, -1), images)

    def _flip_x(self, images: Tensor) -> Tensor:
        return images if self.flipped_x is None else _where(self.flipped_x, images.flip(-1), images)

    def _flip_y(self, images: Tensor) -> Tensor:
        return images if self.flipped_y is None else _where(self.flipped_y, images.flip(-2), images)


def _where(chosen: Tensor, changed: Tensor, images: Tensor) -> Tensor:
    return torch.where(chosen.view(-1, 1, 1, 1), changed, images)


def resample(images: Tensor, matrix: Tensor) -> Tensor:
    """Sample images bilinearly at `matrix @ position`, positions being pixels counted from the centre."""
    height, width = images.shape[-2:]
    shape = constant((width, height), images.device, matrix.dtype)
    normalised = matrix * (shape[None, None, :] / shape[None, :, None])
    theta = torch.cat([normalised, torch.zeros_like(normalised[..., :1])], dim=2).to(images.dtype)
    # Half precision has coordinates of half a pixel in large images.
    with torch.autocast(images.device.type, enabled=False):
        grid = F.affine_grid(theta, list(images.shape), align_corners=False)
        return F.grid_sample(images, grid, mode="bilinear", padding_mode="zeros", align_corners=False)


class _DenseNumbers(NamedTuple):
    """The random numbers of dense pairs: the attributes of a `Move`, and of the changes of the changed views."""

    move: tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None]
    values: tuple[ValueNumbers, ...]


def dense_views(
    settings: DensePairs, images: Tensor, channels: Sequence[str], draw: Draw
) -> tuple[Tensor, Tensor, Move]:
    """Return two views of scaled images `[N, C, H, W]` and the move from the first to the second."""
    host, count = draw.on_host(), len(images)
    moved = _draw_move(settings, count, host)
    # for the first view, if it is changed at all, then for the second
    changes = [draw_values(settings.photometry, count, channels, host) for _ in range(1 + settings.both)]
    numbers = draw.send(_DenseNumbers(moved, tuple(changes)))
    move = Move(*numbers.move)
    views = [apply_values(settings.photometry, images, channels, values) for values in numbers.values]
    return views[0] if settings.both else images, move.apply(views[-1]), move


def _draw_move(
    settings: DensePairs, count: int, draw: Draw
) -> tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None]:
    """Draw the attributes of a `Move`."""
    transposed, flipped_x, flipped_y = (
        draw.chance(count, probability) if probability else None
        for probability in (settings.turn, settings.flip, settings.flip_vertical)
    )
    return transposed, flipped_x, flipped_y, _draw_matrix(settings, count, draw)


def _draw_matrix(settings: DensePairs, count: int, draw: Draw) -> Tensor | None:
    if not (settings.rotation or settings.shear or settings.zoom):
        return None
    angle, shear = (
        draw.uniform((count,), -limit, limit) * math.pi / 180 for limit in (settings.rotation, settings.shear)
    )
    zoom = draw.uniform((count,), 1 - settings.zoom, 1 + settings.zoom)
    rows = [angle.cos(), -(angle + shear).sin(), angle.sin(), (angle + shear).cos()]
    return torch.stack([zoom * value for value in rows], 1).view(-1, 2, 2)


class _SecondNumbers(NamedTuple):
    """The random numbers of second views.

    Attributes:
        bent: Which images are rotated, slanted and stretched, `[N]`; None if none is.
        bend: How, `[N, 2, 2]`.
        sides: Sides of the squares that are cut, `[N]`.
        corners: First row and column of these squares, `[N, 2]`.
        flipped: Which views are flipped, `[N]`.
        values: Numbers of the change of values.
        strokes: Numbers of the strokes; None if there are none.
    """

    bent: Tensor | None
    bend: Tensor | None
    sides: Tensor
    corners: Tensor
    flipped: Tensor
    values: ValueNumbers
    strokes: StrokeNumbers | None


class _ImageNumbers(NamedTuple):
    """The random numbers of image pairs: the squares of the first views, and each round of second ones."""

    sides: Tensor
    corners: Tensor
    rounds: tuple[_SecondNumbers, ...]


def image_views(
    settings: ImagePairs, images: Tensor, channels: Sequence[str], draw: Draw, repeats: int = 1
) -> tuple[Tensor, Tensor]:
    """Return the first views `[N, C, size, size]` and `repeats` rounds of second ones, `[repeats * N, ...]`."""
    count, host, shape = len(images), draw.on_host(), images.shape[-2:]
    sides = torch.full((count,), settings.crop)
    corners = _draw_corners(shape, sides, host)
    centred = host.chance(count, settings.centred)
    corners = torch.where(centred[:, None], torch.tensor([_central_corner(settings, shape)]), corners)
    rounds = [_draw_second(settings, count, shape, channels, host) for _ in range(repeats)]
    numbers = draw.send(_ImageNumbers(sides, corners, tuple(rounds)))
    first = crop_and_resize(images, numbers.corners, numbers.sides, settings.size)
    return first, torch.cat([_second_views(settings, images, channels, second) for second in numbers.rounds])


def central_views(settings: ImagePairs, images: Tensor) -> Tensor:
    """Return the central squares, resized: what evaluation and a deployed model look at."""
    count, device = len(images), images.device
    sides = torch.full((count,), settings.crop, device=device)
    corner = _central_corner(settings, images.shape[-2:])
    corners = torch.stack([torch.full((count,), place, device=device) for place in corner], 1)
    return crop_and_resize(images, corners, sides, settings.size)


def _draw_second(
    settings: ImagePairs, count: int, shape: Sequence[int], channels: Sequence[str], draw: Draw
) -> _SecondNumbers:
    bent = bend = None
    if settings.rotation or settings.shear or settings.stretch:
        bent = draw.chance(count, settings.rotated)
        bend = _draw_bend(settings, count, draw)
    sides = torch.tensor(settings.crops)[draw.integers(count, 0, len(settings.crops))]
    corners = _draw_corners(shape, sides, draw)
    flipped = draw.chance(count, settings.flip)
    values = draw_values(settings.photometry, count, channels, draw)
    strokes = draw_strokes(settings.strokes, count, draw)
    return _SecondNumbers(bent, bend, sides, corners, flipped, values, strokes)


def _second_views(
    settings: ImagePairs, images: Tensor, channels: Sequence[str], numbers: _SecondNumbers
) -> Tensor:
    if numbers.bent is not None and numbers.bend is not None:
        images = _where(numbers.bent, resample(images, numbers.bend), images)
    view = crop_and_resize(images, numbers.corners, numbers.sides, settings.size)
    view = _where(numbers.flipped, view.flip(-1), view)
    return apply_strokes(apply_values(settings.photometry, view, channels, numbers.values), numbers.strokes)


def _draw_bend(settings: ImagePairs, count: int, draw: Draw) -> Tensor:
    """Return rotations after slants after stretches, `[N, 2, 2]`."""
    angle, slant = (
        draw.uniform((count,), -limit, limit) * math.pi / 180 for limit in (settings.rotation, settings.shear)
    )
    width, height = draw.uniform((2, count), -settings.stretch, settings.stretch).exp()
    upright = torch.stack([width, slant.tan() * height, torch.zeros_like(width), height], 1)
    turns = torch.stack([angle.cos(), -angle.sin(), angle.sin(), angle.cos()], 1)
    return turns.view(-1, 2, 2) @ upright.view(-1, 2, 2)


def _draw_corners(shape: Sequence[int], sides: Tensor, draw: Draw) -> Tensor:
    """Return row and column of the first pixel of random squares in images of this height and width, `[N, 2]`."""
    room = torch.tensor(shape) - sides[:, None] + 1
    return (draw.uniform((len(sides), 2), 0.0, 1.0) * room).floor().minimum(room - 1).long()


def _central_corner(settings: ImagePairs, shape: Sequence[int]) -> list[int]:
    return [round((side - settings.crop) / 2) for side in shape]


def crop_and_resize(images: Tensor, corners: Tensor, sides: Tensor, size: int) -> Tensor:
    """Cut a square out of each image and resize it bilinearly, without looking outside the square."""
    height, width = images.shape[-2:]
    steps = (torch.arange(size, device=images.device, dtype=images.dtype) + 0.5) / size
    inside = (steps[None] * sides[:, None] - 0.5).clamp_min(0.0).minimum(sides[:, None] - 1.0)
    rows, columns = inside + corners[:, :1], inside + corners[:, 1:]
    x = ((2 * columns + 1) / width - 1)[:, None, :].expand(-1, size, -1)
    y = ((2 * rows + 1) / height - 1)[:, :, None].expand(-1, -1, size)
    grid = torch.stack([x, y], dim=-1)
    return F.grid_sample(images, grid, mode="bilinear", padding_mode="border", align_corners=False)
