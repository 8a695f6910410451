"""Pairs of views of the same content, made in batches on the device.

Dense views: the second view is changed photometrically and moved by a `Move`, whose `undo` brings
probability maps back onto the pixels of the first view. Flips and quarter turns are exact. Affine moves are
bilinear, with zeros where the other view has no pixels.
Image views: crops, rotations and flips of whole images, which are not undone.

Photometric changes of batches of scaled images `[N, C, H, W]` are drawn for each image, on their device. Results are
clamped to 0..1 or, where the values of an image itself reach further, to their range.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from iic_train.models.layers import LUMINANCE, band_slices
from iic_train.views.random_numbers import Draw, constant, normal
from iic_train.views.settings import DensePairs, ImagePairs, Photometry

Operation = Callable[[Tensor, Tensor], Tensor]
"""From colours `[N, C, H, W]` and amounts `[N, 1, 1, 1]` to changed colours."""
RED_SHARE = 0.4
"""Part of a change of vegetation that red takes; infrared takes the rest."""

LENGTHS = (0.25, 0.5)
"""Shortest and longest stroke, as shares of the side of the view."""
MIDDLES = (0.25, 0.75)
"""Where the middle of a stroke may lie, in both directions, as shares of the side."""
SLOPE = 0.6
"""Largest angle to the horizontal, in radians."""
THICKNESS = 1.3
"""Half of the thickness in pixels, to where a stroke has half of its value."""


class ValueNumbers(NamedTuple):
    """The random numbers of a change of values; None where the settings leave a property alone.

    Attributes:
        vegetation: Change of the excess of infrared over red, `[N, 1, 1]`.
        operations: For each turn, the images in the order of the operation that it applies to them, `[turns, N]`.
        sizes: For each turn, the number of images of each operation.
        amounts: Amount of each operation in -1..1, `[operations, N, 1, 1, 1]`.
        brightness: Change of all bands together, `[N, 1, 1, 1]`.
        contrast: Change of the distance to the mean of a band, `[N, 1, 1, 1]`.
        gain: Change of each band, `[N, bands, 1, 1]`.
        gamma: Logarithm of the power of all bands, `[N, 1, 1, 1]`.
        blur: Standard deviation of the blur in pixels, `[N]`.
        noise: Seed of the noise.
    """

    vegetation: Tensor | None = None
    operations: Tensor | None = None
    sizes: tuple[tuple[int, ...], ...] = ()
    amounts: Tensor | None = None
    brightness: Tensor | None = None
    contrast: Tensor | None = None
    gain: Tensor | None = None
    gamma: Tensor | None = None
    blur: Tensor | None = None
    noise: int | None = None


def change_values(settings: Photometry, images: Tensor, channels: Sequence[str], draw: Draw) -> Tensor:
    """Change the values of a batch of images.

    Infrared and other bands that are not colours are changed by the settings for all bands only.
    """
    numbers = draw_values(settings, len(images), channels, draw.on_host())
    return apply_values(settings, images, channels, draw.send(numbers))


def draw_values(settings: Photometry, count: int, channels: Sequence[str], draw: Draw) -> ValueNumbers:
    """Draw the numbers of a change of `count` images, on the CPU."""

    def amounts(strength: float, bands: int = 1) -> Tensor | None:
        return draw.uniform((count, bands, 1, 1), -strength, strength) if strength else None

    vegetation, limit = None, settings.vegetation_jitter
    if limit and "red" in channels and "nir" in channels:
        vegetation = draw.uniform((count, 1, 1), -limit, limit)
    operations, sizes, changes = None, [], None
    active = len(_active_operations(settings, channels))
    if active and _colours(channels):
        orders = draw.orders(count, active)
        changes = draw.uniform((active, count, 1, 1, 1), -1.0, 1.0)
        # Grouped here, where the sizes of the groups are known: on a GPU the host would wait for each of them.
        operations = orders.T.argsort(dim=1, stable=True)
        sizes = [tuple(torch.bincount(turn, minlength=active).tolist()) for turn in orders.T]
    return ValueNumbers(
        vegetation,
        operations,
        tuple(sizes),
        changes,
        brightness=amounts(settings.all_brightness),
        contrast=amounts(settings.all_contrast),
        gain=amounts(settings.band_gain, len(channels)),
        gamma=amounts(settings.all_gamma),
        blur=draw.uniform((count,), 0.0, settings.blur) if settings.blur else None,
        noise=draw.seed() if settings.noise else None,
    )


def apply_values(
    settings: Photometry, images: Tensor, channels: Sequence[str], numbers: ValueNumbers
) -> Tensor:
    """Change the values of a batch of images by numbers on their device."""
    low = images.amin((1, 2, 3), keepdim=True).clamp_max(0.0)
    high = images.amax((1, 2, 3), keepdim=True).clamp_min(1.0)
    if numbers.vegetation is not None:
        images = _change_vegetation(images, channels.index("red"), channels.index("nir"), numbers.vegetation)
    if numbers.operations is not None:
        images = _change_colours(settings, images, channels, numbers, low, high)
    images = _change_all_bands(images, numbers)
    if numbers.blur is not None:
        images = gaussian_blur(images, numbers.blur, settings.blur)
    if numbers.noise is not None:
        images = images + settings.noise * normal(images, numbers.noise)
    return torch.clamp(images, low, high)


def _colours(channels: Sequence[str]) -> list[int]:
    return [i for i, name in enumerate(channels) if name in LUMINANCE or name == "grey"]


def _active_operations(settings: Photometry, channels: Sequence[str]) -> list[tuple[float, Operation]]:
    in_colour = len(_colours(channels)) == len(LUMINANCE)
    operations = [
        (settings.brightness, _brighten),
        (settings.contrast, _stretch),
        (settings.saturation if in_colour else 0.0, _saturate),
        (settings.hue if in_colour else 0.0, _turn_hue),
    ]
    return [(strength, operation) for strength, operation in operations if strength]


def _change_colours(
    settings: Photometry,
    images: Tensor,
    channels: Sequence[str],
    numbers: ValueNumbers,
    low: Tensor,
    high: Tensor,
) -> Tensor:
    """Change brightness, contrast, saturation and hue, in an order that is drawn for each image."""
    assert numbers.operations is not None
    assert numbers.amounts is not None
    colours = _colours(channels)
    changed = torch.cat(band_slices(images, colours), 1)
    for turn, sizes in zip(numbers.operations, numbers.sizes, strict=True):
        groups = torch.split(turn, list(sizes))
        for (strength, operation), chosen, amounts in zip(
            _active_operations(settings, channels), groups, numbers.amounts, strict=True
        ):
            result = operation(changed[chosen], strength * amounts[chosen])
            changed[chosen] = torch.clamp(result, low[chosen], high[chosen])
    if len(colours) == len(channels):
        return changed
    others = images.clone()
    for index, band in enumerate(colours):
        others[:, band] = changed[:, index]
    return others


def _change_vegetation(images: Tensor, red: int, nir: int, amounts: Tensor) -> Tensor:
    """Scale the excess of infrared over red; infrared changes more than red, as in drying plants."""
    excess = (images[:, nir] - images[:, red]).clamp_min(0.0)
    change = excess * amounts.clamp_min(-1.0)
    images = images.clone()
    images[:, nir] += (1.0 - RED_SHARE) * change
    images[:, red] -= RED_SHARE * change
    return images


def _change_all_bands(images: Tensor, numbers: ValueNumbers) -> Tensor:
    if numbers.brightness is not None:
        images = images * (1.0 + numbers.brightness)
    if numbers.contrast is not None:
        mean = images.mean((2, 3), keepdim=True)
        images = mean + (images - mean) * (1.0 + numbers.contrast)
    if numbers.gain is not None:
        images = images * (1.0 + numbers.gain)
    if numbers.gamma is not None:
        images = images.clamp_min(1e-4) ** numbers.gamma.exp()
    return images


def luminance(colours: Tensor) -> Tensor:
    """Return the luminance `[N, 1, H, W]` of red, green and blue, or of grey."""
    if colours.shape[1] == 1:
        return colours
    weights = constant(tuple(LUMINANCE.values()), colours.device, colours.dtype)
    return torch.einsum("nchw,c->nhw", colours, weights)[:, None]


def _brighten(colours: Tensor, amount: Tensor) -> Tensor:
    return colours * (1.0 + amount).clamp_min(0.0)


def _stretch(colours: Tensor, amount: Tensor) -> Tensor:
    mean = luminance(colours).mean((1, 2, 3), keepdim=True)
    return mean + (colours - mean) * (1.0 + amount).clamp_min(0.0)


def _saturate(colours: Tensor, amount: Tensor) -> Tensor:
    grey = luminance(colours)
    return grey + (colours - grey) * (1.0 + amount).clamp_min(0.0)


def _turn_hue(colours: Tensor, amount: Tensor) -> Tensor:
    """Turn hue in the HSV model, keeping value and saturation."""
    value, lowest = colours.amax(1, keepdim=True), colours.amin(1, keepdim=True)
    chroma = value - lowest
    red, green, blue = colours.unbind(1)
    safe = torch.where(chroma > 0, chroma, 1.0).squeeze(1)
    top = value.squeeze(1)
    sector = (
        torch.where(
            top == red,
            (green - blue) / safe,
            torch.where(top == green, 2.0 + (blue - red) / safe, 4.0 + (red - green) / safe),
        )[:, None]
        + 6.0 * amount
    )
    # value - chroma * max(0, min(k, 4 - k, 1)) with k = (n + hue) mod 6 and n = 5, 3, 1 returns red, green, blue
    starts = constant((5.0, 3.0, 1.0), colours.device, colours.dtype).view(1, 3, 1, 1)
    k = (starts + sector) % 6.0
    return value - chroma * torch.minimum(k, 4.0 - k).clamp(0.0, 1.0)


def gaussian_blur(images: Tensor, sigmas: Tensor, largest: float) -> Tensor:
    """Blur each image by its own standard deviation in pixels; edges are reflected."""
    radius = min(max(1, math.ceil(3 * largest)), min(images.shape[-2:]) - 1)
    offsets = torch.arange(-radius, radius + 1, device=images.device, dtype=images.dtype)
    kernels = torch.exp(-0.5 * (offsets / sigmas.to(images.dtype).clamp_min(1e-3)[:, None]) ** 2)
    kernels = (kernels / kernels.sum(1, keepdim=True)).repeat_interleave(images.shape[1], 0)[:, None]
    flat = images.flatten(0, 1)[None]
    flat = F.conv2d(
        F.pad(flat, (radius, radius, 0, 0), mode="reflect"), kernels[:, :, None], groups=flat.shape[1]
    )
    flat = F.conv2d(
        F.pad(flat, (0, 0, radius, radius), mode="reflect"), kernels[..., None], groups=flat.shape[1]
    )
    return flat.view_as(images)


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
    settings: DensePairs, images: Tensor, channels: Sequence[str], draw: Draw, other: Tensor | None = None
) -> tuple[Tensor, Tensor, Move]:
    """Return two views of scaled images `[N, C, H, W]` and the move from the first to the second.

    Args:
        other: What second views are made of, if not of the same images.
    """
    host, count = draw.on_host(), len(images)
    moved = _draw_move(settings, count, host)
    # for the first view, if it is changed at all, then for the second
    changes = [draw_values(settings.photometry, count, channels, host) for _ in range(1 + settings.both)]
    numbers = draw.send(_DenseNumbers(moved, tuple(changes)))
    move = Move(*numbers.move)
    sources = (images, images if other is None else other)[-len(changes) :]
    views = [
        apply_values(settings.photometry, source, channels, values)
        for source, values in zip(sources, numbers.values, strict=True)
    ]
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
    """Return the central squares, resized, as in evaluation and deployment."""
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
