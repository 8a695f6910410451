"""Water where the labels have too little of it: bodies of real spectra, seen by a camera, painted into images."""

import math

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from iic_train.views.settings import Painting

SCATTERED = (1.0, 1.12, 1.3, 1.0)
"""Light that air scatters into red, green, blue and infrared of a camera, in relation to each other."""


def paint(settings: Painting, image: Tensor, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
    """Paint a body of the painted class into an image.

    Args:
        settings: What is painted.
        image: Scaled values `[C, H, W]` of red, green, blue and infrared.
        rng: Random numbers.

    Returns:
        The image and which pixels `[H, W]` were painted.
    """
    shape = image.shape[-2:]

    def normal(*size: int) -> Tensor:
        return torch.from_numpy(rng.normal(size=size).astype(np.float32))

    spectrum = torch.tensor(settings.spectra[int(rng.integers(len(settings.spectra)))])
    other = spectrum * math.exp(rng.normal(0.0, 0.3)) * torch.exp(0.1 * normal(4))
    gain, dark, gamma = rng.uniform(0.8, 1.2), rng.uniform(0.06, 0.18), rng.uniform(0.5, 0.8)
    haze = dark * torch.tensor(SCATTERED) * torch.exp(torch.tensor([0.08, 0.08, 0.08, 0.2]) * normal(4))
    ends = [haze + gain * reflectance.clamp(0.001, 1.0) ** gamma for reflectance in (spectrum, other)]
    mixture = torch.sigmoid(rng.uniform(0.3, 2.0) * _field(shape, int(rng.integers(2, 9)), rng))
    body = ends[0].view(-1, 1, 1) * (1.0 - mixture) + ends[1].view(-1, 1, 1) * mixture
    noise = 0.7 * normal(1, *shape) + 0.7 * normal(4, *shape)
    body = body + rng.uniform(0.001, 0.012) * noise
    painted = torch.ones(shape, dtype=torch.bool)
    if rng.random() >= settings.whole:
        painted = _field(shape, int(rng.integers(3, 8)), rng) > rng.uniform(-0.8, 0.8)
    edge = F.avg_pool2d(painted[None, None].float(), 3, 1, 1, count_include_pad=False)[0]
    return image * (1.0 - edge) + body * edge, painted


def _field(shape: torch.Size, cells: int, rng: np.random.Generator) -> Tensor:
    """Return smooth noise of mean 0 and deviation 1."""
    coarse = torch.from_numpy(rng.normal(size=(1, 1, cells, cells)).astype(np.float32))
    field = F.interpolate(coarse, shape, mode="bicubic", align_corners=True)[0, 0]
    return (field - field.mean()) / (field.std() + 1e-6)
