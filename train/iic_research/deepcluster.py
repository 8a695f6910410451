"""DeepCluster (Caron et al. 2018): k-means on features gives labels, which train the features, again and again."""

import copy
from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

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
from iic_train.data.loader import Batch
from iic_train.evaluation.evaluate import Predict
from iic_train.evaluation.kmeans import assign, kmeans
from iic_train.losses.step import Pairs
from iic_train.models.networks import Network
from iic_train.views.random_numbers import Draw

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
