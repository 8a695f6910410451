"""Photometric changes of batches of scaled images `[N, C, H, W]`, drawn anew for each image, on their device.

Results are kept inside 0..1 or, where an image reached further itself, inside its own range.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from iic_train.layers import LUMINANCE

RED_SHARE = 0.4
"""Part of a change of vigour that red takes; infrared takes the rest."""


class Draw:
    """Random numbers for batches on any device; small ones come from the CPU, so devices agree on them."""

    def __init__(self, seed: int, device: torch.device | str = "cpu") -> None:
        self.device = torch.device(device)
        self._generator = torch.Generator().manual_seed(seed)

    def uniform(self, shape: Sequence[int], low: float, high: float) -> Tensor:
        """Uniform numbers in [low, high)."""
        return (low + (high - low) * torch.rand(tuple(shape), generator=self._generator)).to(self.device)

    def integers(self, count: int, low: int, high: int) -> Tensor:
        """Whole numbers in [low, high), `[count]`."""
        return torch.randint(low, high, (count,), generator=self._generator).to(self.device)

    def chance(self, count: int, probability: float) -> Tensor:
        """Whether something happens to each of `count` images."""
        return (torch.rand(count, generator=self._generator) < probability).to(self.device)

    def orders(self, count: int, things: int) -> Tensor:
        """A permutation of `things` for each of `count` images, `[count, things]`."""
        return torch.rand(count, things, generator=self._generator).argsort(1).to(self.device)

    def normal(self, like: Tensor) -> Tensor:
        """Normal numbers in the shape of `like`, drawn on the device."""
        seed = int(torch.randint(2**62, (), generator=self._generator))
        generator = torch.Generator(like.device).manual_seed(seed)
        return torch.randn(like.shape, generator=generator, device=like.device, dtype=like.dtype)


@dataclass(frozen=True)
class Photometry:
    """How strongly a view's values are changed; 0 leaves a property alone.

    Attributes:
        brightness: Colour bands are multiplied by 1 +- this.
        contrast: Distance of the colour bands to the image's mean luminance, likewise.
        saturation: Distance of the colour bands to each pixel's luminance, likewise.
        hue: Colours are turned by up to this part of the colour circle.
        all_brightness: All bands together, infrared included, are multiplied by 1 +- this.
        all_contrast: Distance of every band to its mean in the image, by one factor for all bands.
        all_gamma: All bands are raised to one power between exp(-this) and exp(this).
        band_gain: Each band on its own is multiplied by 1 +- this.
        noise: Standard deviation of noise added to every value.
        blur: Largest standard deviation in pixels of a Gaussian blur.
        vigour: Where infrared is above red, the distance between them is multiplied by 1 +- this, as if plants
            were drier or greener; needs bands named red and nir, and is left alone without them.
    """

    brightness: float = 0.0
    contrast: float = 0.0
    saturation: float = 0.0
    hue: float = 0.0
    all_brightness: float = 0.0
    all_contrast: float = 0.0
    all_gamma: float = 0.0
    band_gain: float = 0.0
    noise: float = 0.0
    blur: float = 0.0
    vigour: float = 0.0

    def __call__(self, images: Tensor, channels: Sequence[str], draw: Draw) -> Tensor:
        """Change a batch; infrared and other bands that are no colours are left to the `all_` options."""
        low = images.amin((1, 2, 3), keepdim=True).clamp_max(0.0)
        high = images.amax((1, 2, 3), keepdim=True).clamp_min(1.0)
        if self.vigour and "red" in channels and "nir" in channels:
            images = self._change_vigour(images, channels.index("red"), channels.index("nir"), draw)
        images = self._colours(images, channels, draw, low, high)
        images = self._all_bands(images, draw)
        if self.blur:
            images = gaussian_blur(images, draw.uniform((len(images),), 0.0, self.blur), self.blur)
        if self.noise:
            images = images + self.noise * draw.normal(images)
        return torch.clamp(images, low, high)

    def _colours(
        self, images: Tensor, channels: Sequence[str], draw: Draw, low: Tensor, high: Tensor
    ) -> Tensor:
        """Brightness, contrast, saturation and hue in an order of its own for each image."""
        colours = [i for i, name in enumerate(channels) if name in LUMINANCE or name == "grey"]
        in_colour = len(colours) == len(LUMINANCE)
        operations = [
            (self.brightness, _brighten),
            (self.contrast, _stretch),
            (self.saturation if in_colour else 0.0, _saturate),
            (self.hue if in_colour else 0.0, _turn_hue),
        ]
        active = [(strength, operation) for strength, operation in operations if strength]
        if not active or not colours:
            return images
        changed = images[:, colours]
        orders = draw.orders(len(images), len(active))
        amounts = draw.uniform((len(active), len(images), 1, 1, 1), -1.0, 1.0)
        for turn in range(len(active)):
            for which, (strength, operation) in enumerate(active):
                chosen = (orders[:, turn] == which).nonzero().squeeze(1)
                found = operation(changed[chosen], strength * amounts[which, chosen])
                changed[chosen] = torch.clamp(found, low[chosen], high[chosen])
        if len(colours) == len(channels):
            return changed
        return images.index_copy(1, torch.tensor(colours, device=images.device), changed)

    def _change_vigour(self, images: Tensor, red: int, nir: int, draw: Draw) -> Tensor:
        """Scale the excess of infrared over red; infrared moves more than red, as in drying plants."""
        excess = (images[:, nir] - images[:, red]).clamp_min(0.0)
        change = excess * draw.uniform((len(images), 1, 1), -self.vigour, self.vigour).clamp_min(-1.0)
        images = images.clone()
        images[:, nir] += (1.0 - RED_SHARE) * change
        images[:, red] -= RED_SHARE * change
        return images

    def _all_bands(self, images: Tensor, draw: Draw) -> Tensor:
        def amounts(strength: float, bands: int = 1) -> Tensor:
            return draw.uniform((len(images), bands, 1, 1), -strength, strength)

        if self.all_brightness:
            images = images * (1.0 + amounts(self.all_brightness))
        if self.all_contrast:
            mean = images.mean((2, 3), keepdim=True)
            images = mean + (images - mean) * (1.0 + amounts(self.all_contrast))
        if self.band_gain:
            images = images * (1.0 + amounts(self.band_gain, images.shape[1]))
        if self.all_gamma:
            images = images.clamp_min(1e-4) ** amounts(self.all_gamma).exp()
        return images


def luminance(colours: Tensor) -> Tensor:
    """Brightness `[N, 1, H, W]` of red, green and blue, or of grey."""
    if colours.shape[1] == 1:
        return colours
    weights = torch.tensor(list(LUMINANCE.values()), device=colours.device, dtype=colours.dtype)
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
    # value - chroma * max(0, min(k, 4 - k, 1)) with k = (n + hue) mod 6 and n = 5, 3, 1 gives red, green, blue back
    starts = torch.tensor([5.0, 3.0, 1.0], device=colours.device, dtype=colours.dtype).view(1, 3, 1, 1)
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
