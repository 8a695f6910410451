"""Neighbours: two tasks on pairs of places in an image, and spectral clustering of whole images.

Isola et al. 2016 ask whether two patches occur together, Doersch et al. 2015 where one lies as seen from the other. As
in the paper's comparison, patches are what the cells of the trunk see, and k-means clusters the features of the cells.

Spectral clustering joins images with their nearest neighbours, near being relative to how far apart neighbours are
there (Zelnik-Manor and Perona 2004). k-means clusters the leading eigenvectors of the normalised graph (Ng, Jordan and
Weiss 2001). Only a sample of the images is in the graph; all others are placed between their neighbours in it.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from iic_geotools.errors import DataError, UsageError
from iic_research.features import Features, feature_count, trunk_features
from iic_train.config import TrainConfig
from iic_train.data.loader import Batch
from iic_train.evaluation.evaluate import Predict
from iic_train.evaluation.kmeans import kmeans
from iic_train.losses.step import Pairs
from iic_train.models.networks import Network
from iic_train.views.random_numbers import Draw

PAIRS = 256
"""Number of pairs of places per image and step."""
HIDDEN = 256
DIRECTIONS = ((-1, -1), (-1, 0), (-1, 1), (0, -1), (0, 1), (1, -1), (1, 0), (1, 1))


class _PairTask:
    """What the two tasks share: a head of two layers that sees the features of two places."""

    def __init__(self, network: Network, config: TrainConfig, answers: int) -> None:
        self.network, self.config = network, config
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.seed + 1)
            head = nn.Sequential(
                nn.Linear(2 * feature_count(network), HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, answers)
            )
        self.head = head.to(next(network.parameters()).device)

    def start_epoch(self, epoch: int) -> Iterable[nn.Parameter]:
        """Return the parameters of the head."""
        return self.head.parameters()

    def features(self) -> Features:
        """Return the features of the trunk."""
        return trunk_features(self.network, self.config)

    def _answers(self, first: Tensor, second: Tensor) -> Tensor:
        answers: Tensor = self.head(torch.cat([first, second], 1).transpose(1, 2))
        return answers

    def _valid(self, batch: Batch, like: Tensor) -> Tensor:
        """Return which cells of features `[N, F, h, w]` count, `[N, 1, h, w]`."""
        if batch.valid is None:
            return like.new_ones(len(like), 1, *like.shape[-2:])
        cell = self.network.cell
        return batch.valid[:, None, ::cell, ::cell].to(like.dtype)


class Isola(_PairTask):
    """Whether two places are near each other in one image, or come from two images."""

    def __init__(self, network: Network, config: TrainConfig) -> None:
        super().__init__(network, config, answers=1)
        self.radius = max(1, config.radius // network.cell)

    def loss(self, batch: Batch, pairs: Pairs, draw: Draw) -> Tensor:
        """Return the cross-entropy of the answers for as many near pairs as pairs from two images."""
        features = self.network.features(pairs.first)
        count, _, height, width = features.shape
        rows, columns = (_whole(draw, (count, PAIRS), length) for length in (height, width))
        shifts = _whole(draw, (2, count, PAIRS), 2 * self.radius + 1) - self.radius
        near = ((rows + shifts[0]).clamp(0, height - 1), (columns + shifts[1]).clamp(0, width - 1))
        far = tuple(_whole(draw, (count, PAIRS), length) for length in (height, width))
        valid = self._valid(batch, features)
        first, first_valid = _take(features, rows, columns), _take(valid, rows, columns)
        losses, weights = [], []
        for truth, (places, shifted) in enumerate(((far, 1), (near, 0))):
            second, second_valid = (
                _take(maps.roll(shifted, 0), places[0], places[1]) for maps in (features, valid)
            )
            answers = self._answers(first, second).squeeze(2)
            target = torch.full_like(answers, float(truth))
            losses.append(F.binary_cross_entropy_with_logits(answers, target, reduction="none"))
            weights.append((first_valid * second_valid)[:, 0])
        return _mean(torch.stack(losses), torch.stack(weights))


class Doersch(_PairTask):
    """In which of eight directions the second of two places lies, which are too far apart to see the same pixels."""

    def __init__(self, network: Network, config: TrainConfig) -> None:
        super().__init__(network, config, answers=len(DIRECTIONS))
        side, cell = config.size or 0, network.cell
        self.nearest = -(-network.receptive_field // cell)
        self.farthest = min(self.nearest * 3 // 2, -(-side // cell) - 1)
        if self.farthest < self.nearest:
            raise UsageError(
                f"Doersch compares places {self.nearest * cell} pixels apart, and windows of {side} pixels are too "
                f"small for that: choose a `network` that sees less than {network.receptive_field} pixels."
            )

    def loss(self, batch: Batch, pairs: Pairs, draw: Draw) -> Tensor:
        """Return the cross-entropy of the directions."""
        features = self.network.features(pairs.first)
        count, _, height, width = features.shape
        truth = _whole(draw, (count, PAIRS), len(DIRECTIONS))
        distance = self.nearest + _whole(draw, (count, PAIRS), self.farthest - self.nearest + 1)
        shifts = torch.tensor(DIRECTIONS, device=features.device)[truth] * distance[..., None]
        rows, columns = (
            _inside(draw, shift, length)
            for shift, length in zip(shifts.unbind(-1), (height, width), strict=True)
        )
        valid = self._valid(batch, features)
        first, first_valid = (_take(maps, rows, columns) for maps in (features, valid))
        second, second_valid = (
            _take(maps, rows + shifts[..., 0], columns + shifts[..., 1]) for maps in (features, valid)
        )
        losses = F.cross_entropy(self._answers(first, second).transpose(1, 2), truth, reduction="none")
        return _mean(losses, (first_valid * second_valid)[:, 0])


def _whole(draw: Draw, shape: tuple[int, ...], below: int) -> Tensor:
    """Draw whole numbers from 0 to `below` - 1."""
    return (draw.uniform(shape, 0.0, 1.0) * below).long().clamp_max(below - 1)


def _inside(draw: Draw, shift: Tensor, length: int) -> Tensor:
    """Draw positions in a row of this length that stay in it when they are shifted."""
    room = length - shift.abs()
    place = (draw.uniform(tuple(shift.shape), 0.0, 1.0) * room).long().minimum(room - 1)
    return place - shift.clamp_max(0)


def _take(maps: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Return the values of maps `[N, F, h, w]` at places `[N, P]`, `[N, F, P]`."""
    places = (rows * maps.shape[-1] + columns)[:, None].expand(-1, maps.shape[1], -1)
    return maps.flatten(2).gather(2, places)


def _mean(losses: Tensor, weights: Tensor) -> Tensor:
    return (losses * weights).sum() / weights.sum().clamp_min(1)


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
