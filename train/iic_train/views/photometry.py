"""Photometric changes of batches of scaled images `[N, C, H, W]`, drawn for each image, on their device.

Results are clamped to 0..1 or, where the values of an image itself reach further, to their range.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from iic_train.models.layers import LUMINANCE, band_slices
from iic_train.views.random_numbers import Draw, constant, normal
from iic_train.views.settings import Photometry

Operation = Callable[[Tensor, Tensor], Tensor]
"""From colours `[N, C, H, W]` and amounts `[N, 1, 1, 1]` to changed colours."""
RED_SHARE = 0.4
"""Part of a change of vegetation that red takes; infrared takes the rest."""


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
