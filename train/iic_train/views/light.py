"""How the same ground looks to other sensors, through other air, in other light: changes of scaled images.

Unlike `photometry`, which makes views that must share a cluster, these changes keep what a label means: most of them
are small, and all of them happen to imagery in practice.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from iic_train.models.layers import band_slices
from iic_train.views.photometry import RED_SHARE
from iic_train.views.random_numbers import Draw, constant
from iic_train.views.settings import Light

AIR = {"blue": 1.0, "green": 0.5, "red": 0.3, "nir": 0.08}
"""Light that air adds to a band, relative to blue; other bands get none."""
THICK_AIR = (0.02, 0.09)
"""What air adds to blue between the surface and the top of the atmosphere, smallest and largest."""
WIDE_GAIN = (-0.5, 0.6)
"""Range of the logarithm of a wide gain."""
SHADE = {"red": 1.0, "green": 0.95, "blue": 0.85, "nir": 1.1}
"""How much darker a shadow makes a band: the blue of the sky remains."""
PIVOT = 0.4
"""Value that a change of contrast keeps."""


def change_light(
    settings: Light, images: Tensor, channels: Sequence[str], draw: Draw, through_air: Tensor | None = None
) -> Tensor:
    """Change the light of a batch of images; some stay as they are, as the settings say.

    Args:
        settings: How strongly.
        images: Scaled images.
        channels: Names of their bands.
        draw: Random numbers.
        through_air: Which images `[N]` show the ground through air already; by default none.
    """
    count = len(images)
    whole = torch.ones(count, 1, 1, 1, device=images.device)
    strength = draw.uniform((count, 1, 1, 1), 0.0, 1.0) if settings.varied else whole
    lit = images.clamp(-0.2, 1.2)
    lit = _change_plants(settings, lit, channels, draw, strength)
    lit = _cast_shadows(settings, lit, channels, draw)
    lit = _change_colours(settings, lit, channels, draw, strength)
    lit = _change_gain(settings, lit, draw, strength)
    lit = _add_air(settings, lit, channels, draw, strength, through_air)
    lit = _change_sharpness(settings, lit, draw, strength)
    unchanged = draw.chance(count, settings.plain).view(-1, 1, 1, 1)
    return torch.where(unchanged, images, lit)


def _change_plants(
    settings: Light, images: Tensor, channels: Sequence[str], draw: Draw, strength: Tensor
) -> Tensor:
    if not settings.vegetation or not {"red", "nir"} <= set(channels):
        return images
    red, nir = channels.index("red"), channels.index("nir")
    change = draw.uniform((len(images), 1, 1, 1), -settings.vegetation, settings.vegetation) * strength
    excess = (images[:, nir] - images[:, red]).clamp_min(0.0) * change[:, 0]
    images = images.clone()
    images[:, nir] += (1.0 - RED_SHARE) * excess
    images[:, red] -= RED_SHARE * excess
    return images


def _cast_shadows(settings: Light, images: Tensor, channels: Sequence[str], draw: Draw) -> Tensor:
    if not settings.shadow:
        return images
    count = len(images)
    coarse = draw.normal(images[:, :1, :6, :6].expand(-1, -1, 6, 6))
    blobs = torch.sigmoid(
        30.0 * (F.interpolate(coarse, images.shape[-2:], mode="bicubic", align_corners=True) - 0.9)
    )
    depth = draw.uniform((count, 1, 1, 1), 0.3, 0.7) * draw.chance(count, settings.shadow).view(-1, 1, 1, 1)
    return images * (1.0 - blobs * depth * _per_band(SHADE, channels, 1.0, images))


def _change_colours(
    settings: Light, images: Tensor, channels: Sequence[str], draw: Draw, strength: Tensor
) -> Tensor:
    count, bands = images.shape[:2]
    colours = [index for index, name in enumerate(channels) if name in ("red", "green", "blue")]
    if settings.saturation and len(colours) == 3:
        factor = 1.0 + strength * draw.uniform((count, 1, 1, 1), -settings.saturation, settings.saturation)
        seen = torch.cat(band_slices(images, colours), 1)
        grey = seen.mean(1, keepdim=True)
        changed, images = grey + (seen - grey) * factor, images.clone()
        for index, band in enumerate(colours):
            images[:, band] = changed[:, index]
    if settings.mixing:
        mixture = draw.normal(images.new_zeros(count, bands, bands)) * settings.mixing * strength[:, :, 0]
        mixture = mixture + torch.eye(bands, device=images.device)
        images = torch.einsum("nij,njhw->nihw", mixture / mixture.sum(2, keepdim=True), images)
    return images


def _change_gain(settings: Light, images: Tensor, draw: Draw, strength: Tensor) -> Tensor:
    count, bands = images.shape[:2]

    def normal(*shape: int) -> Tensor:
        return draw.normal(images.new_zeros(shape)) * strength

    if settings.gamma:
        images = images.clamp_min(0.0) ** torch.exp(settings.gamma * normal(count, 1, 1, 1))
    common = settings.gain * normal(count, 1, 1, 1)
    if settings.wide_gain:
        wide = draw.chance(count, settings.wide_gain).view(-1, 1, 1, 1)
        common = torch.where(wide, draw.uniform((count, 1, 1, 1), *WIDE_GAIN), common)
    images = images * torch.exp(common + settings.band_gain * normal(count, bands, 1, 1))
    if settings.contrast:
        factor = 1.0 + strength * draw.uniform((count, 1, 1, 1), -settings.contrast, settings.contrast)
        images = PIVOT + (images - PIVOT) * factor
    if settings.offset or settings.band_offset:
        images = images + settings.offset * normal(count, 1, 1, 1)
        images = images + settings.band_offset * normal(count, bands, 1, 1)
    return images


def _add_air(
    settings: Light,
    images: Tensor,
    channels: Sequence[str],
    draw: Draw,
    strength: Tensor,
    through_air: Tensor | None,
) -> Tensor:
    if not settings.haze and not settings.air:
        return images
    count = len(images)
    air = settings.haze * draw.normal(images.new_zeros(count, 1, 1, 1)) * strength
    if settings.air:
        thick = draw.uniform((count, 1, 1, 1), *THICK_AIR)
        if through_air is not None:  # the other way: as at the surface
            removed = draw.uniform((count, 1, 1, 1), -0.06, 0.0)
            thick = torch.where(through_air.to(images.device).view(-1, 1, 1, 1), removed, thick)
        air = torch.where(draw.chance(count, settings.air).view(-1, 1, 1, 1), thick, air)
    return images + air * _per_band(AIR, channels, 0.0, images)


def _change_sharpness(settings: Light, images: Tensor, draw: Draw, strength: Tensor) -> Tensor:
    count = len(images)
    if settings.blur and min(images.shape[-2:]) > 1:
        soft = F.avg_pool2d(F.pad(images, (1, 1, 1, 1), mode="reflect"), 3, 1)
        amount = draw.uniform((count, 1, 1, 1), -0.8, 1.0) * draw.chance(count, settings.blur).view(
            -1, 1, 1, 1
        )
        images = images + amount * (soft - images)
    if settings.noise:
        level = settings.noise * draw.uniform((count, 1, 1, 1), 0.0, 1.0).square() * strength
        images = images + level * draw.normal(images)
    return images


def _per_band(factors: dict[str, float], channels: Sequence[str], other: float, like: Tensor) -> Tensor:
    values = tuple(factors.get(name, other) for name in channels)
    return constant(values, like.device, like.dtype).view(1, -1, 1, 1)
