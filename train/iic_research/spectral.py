"""Spectral clustering of whole images: clusters that are connected, though they may be far from round.

Images are joined with their nearest neighbours, near being relative to how far apart neighbours are there (Zelnik-Manor
and Perona 2004). k-means clusters the leading eigenvectors of the normalised graph (Ng, Jordan and Weiss 2001). Only a
sample of the images is in the graph; all others are placed between their neighbours in it.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from iic_geotools.errors import DataError
from iic_train.evaluation.evaluate import Predict
from iic_train.evaluation.kmeans import kmeans

SAMPLE_IMAGES = 10_000
NEIGHBOURS = 20
SCALE_NEIGHBOUR = 7
"""The neighbour whose distance says how far apart neighbours are."""
_CHUNK = 1024


@dataclass(frozen=True)
class Spectrum:
    """A clustered sample.

    Attributes:
        points: The sample, `[M, D]`.
        scales: How far apart neighbours of each point are, `[M]`.
        vectors: What each point adds to the coordinates of its neighbours, `[M, clusters]`.
        centres: Centres of the clusters among coordinates of unit length.
    """

    points: Tensor
    scales: Tensor
    vectors: Tensor
    centres: Tensor

    def assign(self, points: Tensor) -> Tensor:
        """Return the cluster of each point `[N, D]`."""
        distances, neighbours = nearest(points, self.points, min(NEIGHBOURS, len(self.points)))
        scales = _scales(distances)
        weights = _affinity(distances, scales[:, None], self.scales[neighbours])
        places = (weights[..., None] * self.vectors[neighbours]).sum(1)
        return torch.cdist(F.normalize(places, dim=1), self.centres).argmin(1)


def spectral_clusters(points: Tensor, clusters: int, generator: torch.Generator) -> Spectrum:
    """Cluster points `[M, D]`."""
    from scipy.sparse import coo_array
    from scipy.sparse.linalg import eigsh

    count = len(points)
    if count <= max(clusters, SCALE_NEIGHBOUR) + 1:
        raise DataError(f"{count} images are too few for a graph with {clusters} clusters.")
    # The nearest neighbour of a point of the sample is the point itself.
    distances, neighbours = nearest(points, points, min(NEIGHBOURS + 1, count))
    distances, neighbours = distances[:, 1:], neighbours[:, 1:]
    scales = _scales(distances)
    weights = _affinity(distances, scales[:, None], scales[neighbours]).double().numpy()
    rows = np.repeat(np.arange(count), neighbours.shape[1])
    graph = coo_array((weights.ravel(), (rows, neighbours.numpy().ravel())), shape=(count, count)).tocsr()
    graph = graph.maximum(graph.T)
    roots = 1 / np.sqrt(np.maximum(graph.sum(1), 1e-12))
    normalised = graph.multiply(roots[:, None]).multiply(roots[None, :]).tocsr()
    start = np.random.default_rng(int(torch.randint(2**31, (), generator=generator))).random(count)
    values, columns = eigsh(normalised, k=clusters, which="LA", v0=start)
    vectors = torch.from_numpy(columns).float()
    centres = kmeans(F.normalize(vectors, dim=1), clusters, generator)
    # Divided by the root of its degree, an eigenvector at a point is the weighted mean of it at the point's neighbours,
    # divided by the eigenvalue.
    placed = columns * roots[:, None] / np.maximum(values, 1e-3)
    return Spectrum(points, scales, torch.from_numpy(placed).float(), centres)


def spectral_predict(spectrum: Spectrum) -> Predict:
    """Return a function from raw images to their clusters."""
    return lambda images: spectrum.assign(images.flatten(1).float())[None]


def nearest(points: Tensor, among: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return distances and numbers of the nearest points of `among`, the nearest first, `[N, count]` each."""
    parts = []
    squares = among.square().sum(1)
    for chunk in torch.split(points, _CHUNK):
        squared = chunk.square().sum(1, keepdim=True) - 2 * chunk @ among.T + squares
        parts.append(squared.topk(count, largest=False))
    distances = torch.cat([values for values, _ in parts]).clamp_min(0).sqrt()
    return distances, torch.cat([numbers for _, numbers in parts])


def _scales(distances: Tensor) -> Tensor:
    return distances[:, min(SCALE_NEIGHBOUR, distances.shape[1]) - 1].clamp_min(1e-6)


def _affinity(distances: Tensor, scales: Tensor, others: Tensor) -> Tensor:
    return (-distances.square() / (scales * others)).exp()
