"""Training a trunk by a task other than IIC, on the batches and views of a run.

`Triplets` brings an image nearer to a changed view of itself than to another image. `DeepCluster` (Caron et al. 2018)
learns the labels that k-means finds in its own features, again and again.
"""

import copy
from collections.abc import Iterable
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from iic_geotools.work import OnProgress, Progress, silent
from iic_research.features import (
    Features,
    feature_count,
    nearest_centres,
    on_device,
    sample_features,
    trunk_features,
    whiten,
)
from iic_train.config import TrainConfig
from iic_train.data.base import Dataset
from iic_train.data.loader import Batch, ImageSource, Loader, steps_of
from iic_train.evaluation.evaluate import Predict
from iic_train.evaluation.kmeans import assign, kmeans
from iic_train.loop import Loop, Loss
from iic_train.losses.step import Pairs, make_pairs, plain_views, seed_of
from iic_train.models.layers import fresh_statistics
from iic_train.models.networks import Network
from iic_train.views.random_numbers import Draw

CALIBRATION_STEPS = 20
"""Number of batches from which batch norm takes its statistics."""


class Task(Protocol):
    """What a trunk is trained for."""

    def start_epoch(self, epoch: int) -> Iterable[nn.Parameter]:
        """Prepare an epoch, and return the parameters that it trains in addition to the trunk."""
        ...

    def loss(self, batch: Batch, pairs: Pairs, draw: Draw) -> Tensor:
        """Return the loss of a batch of raw images and of the views made of it."""
        ...


def train_trunk(
    network: Network,
    config: TrainConfig,
    dataset: Dataset,
    task: Task,
    *,
    device: torch.device | str = "cpu",
    progress: OnProgress = silent,
) -> None:
    """Train the trunk of a network by a task.

    Epochs, steps, images per step, learning rate, views and seed are those of the run. The heads do not change.
    """
    loader, steps = _training_part(config, dataset)
    loop = Loop(
        [{"params": list(network.trunk.parameters())}], config.lr, torch.device(device), amp=config.amp
    )

    def train_epoch(epoch: int) -> float:
        def objective(raw: Batch, step: int) -> Loss:
            batch, key = raw.to(loop.device), (config.seed, epoch, 0, step)
            pairs = make_pairs(network, batch, config, key)
            with loop.autocast():
                return Loss(task.loss(batch, pairs, Draw(seed_of((*key, 1)), device)))

        batches = loader.batches(0, (config.seed, epoch, 0), steps)
        # A task may begin every epoch with new parameters, so their moments are new as well.
        loop.train_with(task.start_epoch(epoch))
        network.train()
        return loop.train(batches, objective, steps, f"epoch {epoch}")

    for epoch in range(1, config.epochs + 1):
        note = f"loss {train_epoch(epoch):.4f}"
        progress(Progress("baseline", epoch, config.epochs, note=note))
    calibrate(network, config, dataset, device)


@torch.no_grad()
def calibrate(
    network: Network, config: TrainConfig, dataset: Dataset, device: torch.device | str = "cpu"
) -> None:
    """Let batch norm take its statistics from unaltered images of the training part; leaves eval mode on."""
    loader, steps = _training_part(config, dataset)
    with fresh_statistics(network):
        for raw in loader.batches(0, (config.seed, 0, 0), min(steps, CALIBRATION_STEPS)):
            network.features(plain_views(network.scale(raw.pixels.to(device)), config))
    network.eval()


def _training_part(config: TrainConfig, dataset: Dataset) -> tuple[Loader, int]:
    """Return what reads the images of a run's steps, and the number of steps of an epoch."""
    images = max(2, config.batch // config.repeats)
    source = ImageSource(dataset.train_b, config.size)
    return Loader([source], images), steps_of(source, images, config.steps)


EMBEDDING = 128
"""Number of values by which an image is compared."""
MARGIN = 1.0
"""By how much nearer, in squared distance between points on the unit sphere."""


class Triplets:
    """The task, with a linear embedding above the trunk."""

    def __init__(self, network: Network, config: TrainConfig) -> None:
        self.network, self.config = network, config
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.seed + 1)
            embedding = nn.Linear(feature_count(network), EMBEDDING)
        self.embedding = embedding.to(next(network.parameters()).device)

    def start_epoch(self, epoch: int) -> Iterable[nn.Parameter]:
        """Return the parameters of the embedding."""
        return self.embedding.parameters()

    def loss(self, batch: Batch, pairs: Pairs, draw: Draw) -> Tensor:
        """Return the mean excess of the distance to a view of the same image over that to another image."""
        anchors, same = self._embed(pairs.first), self._embed(pairs.second)
        anchors = anchors.repeat(self.config.repeats, 1)
        # Images are shuffled, so any other image of the batch is a random one.
        other = same.roll(int(draw.on_host().integers(1, 1, len(pairs.first))), 0)
        near, far = ((anchors - views).square().sum(1) for views in (same, other))
        return F.relu(near - far + MARGIN).mean()

    def features(self) -> Features:
        """Return the embedding of the central view of an image."""
        return Features(self._central)

    def _central(self, images: Tensor) -> Tensor:
        return self._embed(plain_views(self.network.scale(images), self.config))

    def _embed(self, views: Tensor) -> Tensor:
        embedded: Tensor = self.embedding(self.network.features(views))
        return F.normalize(embedded, dim=1)


LABELS_PER_CLASS = 10
"""How many times more labels than clusters there are."""
STARTS = 1


class DeepCluster:
    """The task.

    At the start of an epoch, whitened features are clustered into ten times as many labels as clusters are wanted. The
    network as it was then labels every image, or cell, of the epoch; a new linear head learns to tell the label from a
    changed view. Labels count by the inverse of their size, which is what drawing images equally from all labels does.
    """

    def __init__(
        self,
        network: Network,
        config: TrainConfig,
        dataset: Dataset,
        *,
        sample: int | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        self.network, self.config, self.dataset = network, config, dataset
        self.sample, self.device = sample, device
        self.head: nn.Module = nn.Identity()
        self.weights = torch.ones(0)
        self.label: Predict | None = None

    def start_epoch(self, epoch: int) -> Iterable[nn.Parameter]:
        """Cluster the present features, and return the parameters of a new head."""
        before = copy.deepcopy(self.network)
        features, points = self._whitened(before)
        generator = torch.Generator().manual_seed(self.config.seed + epoch)
        count = min(LABELS_PER_CLASS * self.config.network.clusters_b, len(points) // 2)
        centres = kmeans(points, count, generator, restarts=STARTS)
        sizes = torch.bincount(assign(points, centres)[0], minlength=count).clamp_min(1)
        self.weights = (len(points) / (count * sizes)).to(self.device)
        # Labels of cells, not of pixels: the head sees cells.
        coarse = Features(features.compute, whitening=features.whitening)
        self.label = nearest_centres(coarse, centres.to(self.device))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.config.seed + epoch)
            inputs = feature_count(self.network)
            head: nn.Conv2d | nn.Linear
            head = nn.Conv2d(inputs, count, 1) if self.config.dense else nn.Linear(inputs, count)
        nn.init.normal_(head.weight, std=0.01, generator=generator)
        self.head = head.to(self.device)
        return self.head.parameters()

    def loss(self, batch: Batch, pairs: Pairs, draw: Draw) -> Tensor:
        """Return the cross-entropy between the labels of unaltered images and the answers to changed views."""
        assert self.label is not None
        with torch.no_grad():
            labels = self.label(batch.pixels)[0]
        logits: Tensor = self.head(self.network.features(pairs.second))
        if not self.config.dense:
            return F.cross_entropy(logits, labels.repeat(self.config.repeats), self.weights)
        if batch.valid is not None:
            cell = self.network.cell
            labels = labels.masked_fill(~batch.valid[:, ::cell, ::cell], -1)
        return F.cross_entropy(pairs.move.undo(logits), labels, self.weights, ignore_index=-1)

    def features(self) -> Features:
        """Return the whitened features of the trained trunk."""
        return on_device(self._whitened(self.network)[0], self.device)

    def _whitened(self, network: Network) -> tuple[Features, Tensor]:
        plain = trunk_features(network, self.config)
        points = sample_features(plain, self.config, self.dataset, sample=self.sample, device=self.device)
        features, points = whiten(plain, points, self.config.seed)
        return on_device(features, self.device), points
