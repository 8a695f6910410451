"""The simplest rows of the paper's tables, in the protocol of the trained networks.

They are k-means on raw pixels, and a network with random weights.
"""

from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from iic_geotools.errors import DataError
from iic_train.config import TrainConfig
from iic_train.data.base import Dataset, Images
from iic_train.evaluate import Evaluation, Predict, evaluate_clusters, evaluate_network, evaluation_crop
from iic_train.networks import Network

Baseline = Literal["kmeans", "random"]

_SAMPLE_PIXELS = 200_000
_CHUNK = 1 << 18


def baseline(kind: Baseline, config: TrainConfig, dataset: Dataset) -> Evaluation:
    """Score what a run with these settings has to beat.

    Args:
        kind: `kmeans` on raw pixels, or the `random` network the run would start from.
        config: Settings of the run: clusters, network, views and seed.
        dataset: What the run would be trained on.
    """
    if kind == "random":
        torch.manual_seed(config.seed)
        return evaluate_network(Network(config.network), config, dataset)
    return kmeans_baseline(
        dataset,
        clusters=config.network.clusters_b,
        overcluster=config.data.overcluster,
        crop=evaluation_crop(config),
        seed=config.seed,
    )


def kmeans_baseline(
    dataset: Dataset,
    *,
    clusters: int | None = None,
    overcluster: bool = False,
    crop: int | None = None,
    seed: int = 0,
) -> Evaluation:
    """Cluster raw values with k-means and score the clusters as if a network had found them.

    Clustering data sets are clustered by all values of an image, segmentation ones by those of a pixel, each
    channel scaled to unit deviation; the centres are found on up to 200,000 pixels of the training part.

    Args:
        dataset: What to cluster.
        clusters: Number of clusters; as many as classes by default.
        overcluster: Score many-to-one, as with `clusters` above the number of classes.
        crop: Side of the central square to look at; None means whole images.
        seed: Of the sampling and of the first centres.
    """
    clusters = clusters or len(dataset.classes)
    generator = torch.Generator().manual_seed(seed)
    sample = _sampled_pixels(dataset.train_b, seed) if dataset.dense else _flat_images(dataset.train_b)
    mean, deviation = sample.mean(0), sample.std(0).clamp(min=1e-6)
    if not dataset.dense:
        # pixels of an image share their unit: only segmentation compares bands of different spread
        mean, deviation = torch.zeros_like(mean), torch.full_like(deviation, 255.0)
    centres = kmeans((sample - mean) / deviation, clusters, generator)
    return evaluate_clusters(
        _nearest(centres, mean, deviation, dense=dataset.dense),
        dataset,
        clusters,
        overcluster=overcluster,
        crop=crop,
        batch_size=50,
    )


def kmeans(
    points: Tensor, clusters: int, generator: torch.Generator, *, restarts: int = 4, steps: int = 100
) -> Tensor:
    """Return the centres [clusters, D] of `points` [N, D]: Lloyd, the best of a few k-means++ starts."""
    if len(points) < clusters:
        raise DataError(f"{len(points)} points cannot make {clusters} clusters.")
    best: tuple[float, Tensor] | None = None
    for _ in range(restarts):
        centres = _spread_centres(points, clusters, generator)
        inertia = np.inf
        for _ in range(steps):
            owners, distances = _assign(points, centres)
            previous, inertia = inertia, float(distances.double().sum())
            if inertia > previous * (1 - 1e-5):
                break
            sums = torch.zeros_like(centres).index_add_(0, owners, points)
            sizes = torch.bincount(owners, minlength=clusters)
            filled = sizes > 0
            centres[filled] = sums[filled] / sizes[filled, None]
        if best is None or inertia < best[0]:
            best = inertia, centres
    if best is None:
        raise DataError("k-means needs at least one start.")
    return best[1]


def _spread_centres(points: Tensor, clusters: int, generator: torch.Generator) -> Tensor:
    """First centres by k-means++: each is drawn with a chance that grows with its distance to the others."""
    chosen = [points[int(torch.randint(len(points), (1,), generator=generator))]]
    distances = (points - chosen[0]).square().sum(1)
    while len(chosen) < clusters:
        weights = distances.double().cumsum(0)
        draw = torch.rand(1, generator=generator, dtype=torch.float64) * weights[-1]
        chosen.append(points[min(int(torch.searchsorted(weights, draw)), len(points) - 1)])
        distances = torch.minimum(distances, (points - chosen[-1]).square().sum(1))
    return torch.stack(chosen)


def _assign(points: Tensor, centres: Tensor) -> tuple[Tensor, Tensor]:
    """Nearest centre of each point and the squared distance to it."""
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
        owners, _ = _assign((points.float() - mean) / deviation, centres)
        return owners.view(1, len(images), *images.shape[2:]) if dense else owners[None]

    return predict


def _flat_images(images: Images) -> Tensor:
    return torch.from_numpy(np.stack([images.image(i).ravel() for i in range(len(images))])).float()


def _sampled_pixels(images: Images, seed: int) -> Tensor:
    """Up to 200,000 valid pixels, as many from each image."""
    rng = np.random.default_rng(seed)
    share = max(1, _SAMPLE_PIXELS // len(images))

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
