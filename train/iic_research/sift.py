"""Dense SIFT (Lowe 2004): histograms of gradient directions around every pixel. Nothing is learnt."""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from iic_research.features import Features
from iic_train.config import TrainConfig
from iic_train.models.layers import LUMINANCE
from iic_train.models.networks import Network

ORIENTATIONS = 8
BINS = 4
"""Number of histograms along each side of the square that a descriptor covers."""
BIN = 4
"""Side of a histogram in pixels."""
CLIP = 0.2
"""Largest value of a descriptor of unit length, so that one strong edge does not decide."""


def sift_features(network: Network, config: TrainConfig) -> Features:
    """Return the descriptors of all pixels, of the luminance or, without red, green and blue, of the mean band."""
    channels = config.network.channels
    if set(LUMINANCE) <= set(channels):
        weights = [LUMINANCE.get(channel, 0.0) for channel in channels]
    else:
        weights = [1 / len(channels)] * len(channels)

    def compute(images: Tensor) -> Tensor:
        scaled = network.scale(images)
        mixed = scaled * torch.tensor(weights, device=scaled.device)[:, None, None]
        return dense_sift(mixed.sum(1, keepdim=True))

    return Features(compute)


def dense_sift(grey: Tensor) -> Tensor:
    """Return a descriptor of every pixel of grey images `[N, 1, H, W]`, `[N, 128, H, W]`.

    Each of 4 x 4 squares of 4 pixels has a histogram of eight directions. A gradient counts by its strength, shared
    between the two nearest directions and, linearly, between the nearest squares; outer squares count less.
    """
    directions = _directions(grey)
    kernel = 1 - torch.arange(1 - BIN, BIN, device=grey.device, dtype=grey.dtype).abs() / BIN
    pooled = _filter(_filter(directions, kernel[:, None]), kernel[None, :])
    offsets = [round(BIN * (place - (BINS - 1) / 2)) for place in range(BINS)]
    reach = max(offsets)
    padded = F.pad(pooled, (reach,) * 4)
    height, width = grey.shape[-2:]
    squares = []
    for row in offsets:
        for column in offsets:
            weight = math.exp(-(row**2 + column**2) / (2 * (BIN * BINS / 2) ** 2))
            top, left = row + reach, column + reach
            squares.append(weight * padded[..., top : top + height, left : left + width])
    descriptors = torch.cat(squares, 1)
    return F.normalize(F.normalize(descriptors, dim=1, eps=1e-6).clamp_max(CLIP), dim=1, eps=1e-6)


def _directions(grey: Tensor) -> Tensor:
    """Return the strength of gradients in each direction, `[N, 8, H, W]`."""
    padded = F.pad(grey, (1, 1, 1, 1), mode="replicate")
    across = (padded[..., 1:-1, 2:] - padded[..., 1:-1, :-2]) / 2
    down = (padded[..., 2:, 1:-1] - padded[..., :-2, 1:-1]) / 2
    strength = (across.square() + down.square()).sqrt()
    turn = torch.atan2(down, across) / (2 * math.pi) * ORIENTATIONS
    numbers = torch.arange(ORIENTATIONS, device=grey.device, dtype=grey.dtype)[:, None, None]
    apart = (turn - numbers).remainder(ORIENTATIONS)
    apart = torch.minimum(apart, ORIENTATIONS - apart)
    return strength * F.relu(1 - apart)


def _filter(maps: Tensor, kernel: Tensor) -> Tensor:
    count = maps.shape[1]
    padding = (kernel.shape[0] // 2, kernel.shape[1] // 2)
    return F.conv2d(maps, kernel.expand(count, 1, -1, -1), padding=padding, groups=count)
