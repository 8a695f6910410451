"""K-means: the algorithm, and as a baseline on raw values in the protocol of the trained networks."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from iic_geotools.errors import DataError
from iic_train.data.base import Dataset, Images
from iic_train.evaluation.evaluate import (
    Evaluation,
    Predict,
    Protocol,
    evaluate_clusters,
)

SAMPLE = 200_000
"""Number of images or pixels from which centres are computed."""
_CHUNK = 1 << 18


def kmeans_baseline(
    dataset: Dataset,
    *,
    clusters: int | None = None,
    overcluster: bool = False,
    crop: int | None = None,
    standardise: bool | None = None,
    sample: int | None = None,
    seed: int = 0,
) -> Evaluation:
    """Cluster raw values with k-means and score the clusters like those of a network.

    Images are clustered by all of their values, pixels by the values of their channels.

    Args:
        crop: Side of the central square to look at. None means whole images.
        standardise: Scale every value to unit deviation. By default pixels are, because bands differ in spread, and
            images are not, because all of their values have the same unit.
        sample: Number of pixels of the training part from which centres are computed, equally many from each image;
            200,000 by default. Images are all used unless a number is given.
    """
    clusters = clusters or len(dataset.classes)
    generator = torch.Generator().manual_seed(seed)
    if dataset.dense:
        points = _sampled_pixels(dataset.train_b, seed, SAMPLE if sample is None else sample)
    else:
        points = flat_images(dataset.train_b, sample, seed)
    mean, deviation = torch.zeros(points.shape[1]), torch.ones(points.shape[1])
    if dataset.dense if standardise is None else standardise:
        # A corner that is black in every image has no deviation, and nothing to say.
        mean, deviation = points.mean(0), points.std(0).clamp(min=1e-6)
    # In place, because all images of a data set may be most of the memory.
    centres = kmeans(points.sub_(mean).div_(deviation), clusters, generator)
    return evaluate_clusters(
        _nearest(centres, mean, deviation, dense=dataset.dense),
        dataset,
        clusters,
        protocol=Protocol(
            overcluster=overcluster,
            crop=crop,
            batch_size=50,
        ),
    )


def kmeans(
    points: Tensor,
    clusters: int,
    generator: torch.Generator,
    *,
    restarts: int = 4,
    steps: int = 100,
    weights: Tensor | None = None,
) -> Tensor:
    """Return the centres `[clusters, D]` of points: Lloyd, the best of a few k-means++ starts.

    Args:
        weights: How much each point counts `[N]`; all alike by default.
    """
    if len(points) < clusters:
        raise DataError(f"{len(points)} points cannot make {clusters} clusters.")
    weights = torch.ones(len(points)) if weights is None else weights
    best: tuple[float, Tensor] | None = None
    for _ in range(restarts):
        centres = _spread_centres(points, weights, clusters, generator)
        inertia = np.inf
        for _ in range(steps):
            owners, distances = assign(points, centres)
            previous, inertia = inertia, float((weights * distances).double().sum())
            if inertia > previous * (1 - 1e-5):
                break
            sums = torch.zeros_like(centres).index_add_(0, owners, weights[:, None] * points)
            sizes = torch.zeros(clusters).index_add_(0, owners, weights)
            filled = sizes > 0
            centres[filled] = sums[filled] / sizes[filled, None]
        if best is None or inertia < best[0]:
            best = inertia, centres
    if best is None:
        raise DataError("k-means needs at least one start.")
    return best[1]


def _spread_centres(points: Tensor, weights: Tensor, clusters: int, generator: torch.Generator) -> Tensor:
    """Choose first centres by k-means++: the farther from the others, the likelier a point is drawn."""
    chosen = [points[int(torch.randint(len(points), (1,), generator=generator))]]
    distances = (points - chosen[0]).square().sum(1)
    while len(chosen) < clusters:
        chances = (weights * distances).double().cumsum(0)
        draw = torch.rand(1, generator=generator, dtype=torch.float64) * chances[-1]
        chosen.append(points[min(int(torch.searchsorted(chances, draw)), len(points) - 1)])
        distances = torch.minimum(distances, (points - chosen[-1]).square().sum(1))
    return torch.stack(chosen)


def assign(points: Tensor, centres: Tensor) -> tuple[Tensor, Tensor]:
    """Return the nearest centre of each point and the squared distance to it."""
    owners, distances = [], []
    for chunk in torch.split(points, _CHUNK):
        squared = chunk.square().sum(1, keepdim=True) - 2 * chunk @ centres.T + centres.square().sum(1)
        nearest, owner = squared.min(1)
        owners.append(owner)
        distances.append(nearest.clamp(min=0))
    return torch.cat(owners), torch.cat(distances)


def _nearest(centres: Tensor, mean: Tensor, deviation: Tensor, *, dense: bool) -> Predict:
    def predict(images: Tensor) -> Tensor:
        points = images.movedim(1, -1).flatten(0, 2) if dense else images.flatten(1)
        owners, _ = assign((points.float() - mean) / deviation, centres)
        return owners.view(1, len(images), *images.shape[2:]) if dense else owners[None]

    return predict


def flat_images(images: Images, sample: int | None = None, seed: int = 0) -> Tensor:
    """Return the values of images, all or as many as are asked for, `[N, values]`."""
    drawn = np.arange(len(images))
    if sample is not None and sample < len(images):
        drawn = np.sort(np.random.default_rng(seed).permutation(len(images))[:sample])
    return torch.from_numpy(np.stack([images.image(int(index)).ravel() for index in drawn])).float()


def _sampled_pixels(images: Images, seed: int, sample: int) -> Tensor:
    """Return about `sample` valid pixels, equally many from each image."""
    rng = np.random.default_rng(seed)
    share = max(1, sample // len(images))

    def pixels() -> Iterator[Any]:
        for index in range(len(images)):
            values = images.image(index).reshape(len(images.channels), -1)
            valid = images.valid(index)
            if valid is not None:
                values = values[:, valid.ravel()]
            if values.shape[1] > share:
                values = values[:, rng.choice(values.shape[1], share, replace=False)]
            yield values.T

    return torch.from_numpy(np.concatenate(list(pixels()))).float()
