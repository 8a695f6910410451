"""Triplets: an image is to be nearer to a changed view of itself than to another image."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from iic_research.features import Features, feature_count
from iic_train.config import TrainConfig
from iic_train.data.loader import Batch
from iic_train.losses.step import Pairs, plain_views
from iic_train.models.networks import Network
from iic_train.views.random_numbers import Draw

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
