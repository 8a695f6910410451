"""From features to clusters: k-means on what a method computes, scored like a network.

Dense SIFT (Lowe 2004) is such a method: histograms of gradient directions around every pixel. Nothing is learnt.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from iic_train.config import TrainConfig
from iic_train.data.base import Dataset, Images
from iic_train.evaluation.evaluate import (
    Evaluation,
    Predict,
    Protocol,
    evaluate_clusters,
    evaluation_crop,
    is_overclustered,
)
from iic_train.evaluation.kmeans import SAMPLE, kmeans
from iic_train.losses.step import plain_views
from iic_train.models.layers import LUMINANCE
from iic_train.models.networks import Network

_SAMPLE_IMAGES = 1000
"""Number of images from which pixels are drawn."""
_VALUES = 1 << 27
"""Largest number of values in a sample, half a gigabyte."""
_BATCH = 500
_COMPONENTS = 256


class Whitening(NamedTuple):
    """Principal components with unit variance, after which every point is scaled to unit length.

    Attributes:
        mean: Mean of the points, `[D]`.
        basis: Linear map to the components, `[D, components]`.
    """

    mean: Tensor
    basis: Tensor

    def apply(self, values: Tensor) -> Tensor:
        """Whiten `[N, D]`, or `[N, D, h, w]`."""
        points = (values.movedim(1, -1) - self.mean) @ self.basis
        return F.normalize(points, dim=-1).movedim(-1, 1)


@dataclass(frozen=True)
class Features:
    """What k-means is to cluster.

    Attributes:
        compute: Function from raw images `[N, C, H, W]` to `[N, D]`, or for segmentation to `[N, D, h, w]`.
        cell: Number of pixels between two places of `[h, w]`.
        whitening: How features are whitened, if they are.
    """

    compute: Callable[[Tensor], Tensor]
    cell: int = 1
    whitening: Whitening | None = None

    def of(self, images: Tensor) -> Tensor:
        """Return the features of raw images, whitened if they are to be."""
        values = self.compute(images)
        return values if self.whitening is None else self.whitening.apply(values)


def trunk_features(network: Network, config: TrainConfig) -> Features:
    """Return the features that the heads of a network take, in eval mode."""
    network.eval()
    cell = network.cell if config.dense else 1
    return Features(lambda images: network.features(plain_views(network.scale(images), config)), cell)


def feature_count(network: Network) -> int:
    """Return the number of features that head B of a network sees."""
    head = network.heads["b"]
    return int(head.in_channels if isinstance(head, nn.Conv2d) else cast(nn.Linear, head).in_features)


def cluster_features(
    features: Features,
    config: TrainConfig,
    dataset: Dataset,
    *,
    sample: int | None = None,
    device: torch.device | str = "cpu",
) -> Evaluation:
    """Cluster features with k-means and score the clusters like those of a network.

    Args:
        sample: Number of images or pixels from which centres are computed; fewer if they have many features.
    """
    clusters = config.network.clusters_b
    points = sample_features(features, config, dataset, sample=sample, device=device)
    centres = kmeans(points, clusters, torch.Generator().manual_seed(config.seed)).to(device)
    return evaluate_clusters(
        nearest_centres(features, centres),
        dataset,
        clusters,
        protocol=Protocol(
            overcluster=is_overclustered(config, dataset),
            crop=evaluation_crop(config),
            batch_size=8 if dataset.dense else _BATCH,
            device=device,
            seed=config.seed,
        ),
    )


@torch.no_grad()
def sample_features(
    features: Features,
    config: TrainConfig,
    dataset: Dataset,
    *,
    sample: int | None = None,
    device: torch.device | str = "cpu",
) -> Tensor:
    """Return features of the training part on the CPU, `[points, D]`: of whole images, or of as many pixels of each."""
    images, rng = dataset.train_b, np.random.default_rng(config.seed)
    limit = _SAMPLE_IMAGES if dataset.dense else len(images)
    most = SAMPLE if sample is None else sample
    first = features.of(_read(images, [0], device))
    most = min(most, _VALUES // first.shape[1])
    drawn = np.sort(rng.permutation(len(images))[: min(limit, most)]).tolist()
    if not dataset.dense:
        return torch.cat([features.of(batch).cpu() for batch in _batches(images, drawn, device)])
    share = -(-most // len(drawn))
    parts = []
    for index in drawn:
        values = features.of(_read(images, [index], device))[0].flatten(1).T
        valid = images.valid(index)
        places = np.arange(len(values))
        if valid is not None:
            places = places[valid[:: features.cell, :: features.cell].ravel()]
        parts.append(values[torch.from_numpy(rng.permutation(places)[:share]).to(values.device)].cpu())
    return torch.cat(parts)


def nearest_centres(features: Features, centres: Tensor) -> Predict:
    """Return a function from raw images to the nearest centre of each image, or of each pixel.

    Features between cells are interpolated linearly. As the squared distances to centres differ by what is linear in
    the features, it is these differences that are interpolated, which is the same and takes less memory.
    """
    squares = centres.square().sum(1)

    def predict(images: Tensor) -> Tensor:
        values = features.of(images)
        if values.ndim == 2:
            return (squares - 2 * values @ centres.T).argmin(1)[None]
        scores = F.conv2d(values, -2 * centres[:, :, None, None], squares)
        if features.cell > 1:
            scores = F.interpolate(scores, scale_factor=features.cell, mode="bilinear", align_corners=False)
        return scores[..., : images.shape[-2], : images.shape[-1]].argmin(1)[None]

    return predict


def whiten(features: Features, points: Tensor, seed: int) -> tuple[Features, Tensor]:
    """Return whitened features and points: at most 256 principal components, and no more than half of them."""
    count = max(1, min(_COMPONENTS, points.shape[1] // 2, len(points) // 2))
    mean = points.mean(0)
    with torch.random.fork_rng(devices=[]):  # the decomposition starts from random vectors
        torch.manual_seed(seed)
        _, deviations, axes = torch.pca_lowrank(points, count)
    scale = (deviations / len(points) ** 0.5).clamp_min(1e-3 * float(deviations.max()) / len(points) ** 0.5)
    whitening = Whitening(mean, axes / scale.clamp_min(1e-12))
    return replace(features, whitening=whitening), whitening.apply(points)


def on_device(features: Features, device: torch.device | str) -> Features:
    """Return features whose whitening is computed on a device."""
    if features.whitening is None:
        return features
    return replace(features, whitening=Whitening(*(part.to(device) for part in features.whitening)))


def _read(images: Images, indices: list[int], device: torch.device | str) -> Tensor:
    pixels = np.ascontiguousarray(np.stack([images.image(index) for index in indices]))
    return torch.from_numpy(pixels).to(device)


def _batches(images: Images, indices: list[int], device: torch.device | str) -> Iterator[Tensor]:
    for start in range(0, len(indices), _BATCH):
        yield _read(images, indices[start : start + _BATCH], device)


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
