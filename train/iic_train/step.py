"""One step's loss: a batch of raw images in, the objective of each head and sub-head out."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from iic_train.config import TrainConfig
from iic_train.loading import Batch
from iic_train.networks import HeadName, Network
from iic_train.objective import (
    CLUSTERING_FLOOR,
    SEGMENTATION_FLOOR,
    Terms,
    clustering_joint,
    segmentation_joint,
    terms,
)
from iic_train.pairs import DensePairs, ImagePairs, Move
from iic_train.photometry import Draw


def pair_terms(
    network: Network,
    features: Callable[[Tensor], Tensor],
    batch: Batch,
    heads: Sequence[HeadName] | str,
    config: TrainConfig,
    *,
    key: tuple[int, ...],
    autocast: AbstractContextManager[Any],
    progress: float = 1.0,
) -> dict[HeadName, list[Terms]]:
    """Make pairs of a batch and take the objective of `heads`, one `Terms` a sub-head.

    Args:
        network: What is trained.
        features: Its `features`, perhaps compiled.
        batch: Raw images.
        heads: Letters of the heads wanted; they share the trunk's work.
        config: Settings.
        key: Whole numbers from which all randomness follows.
        autocast: Precision of the network.
        progress: Part of training that is done.
    """
    draw = Draw(seed_of(key), batch.pixels.device)
    scaled = network.scale(batch.pixels)
    if isinstance(config.pairs, DensePairs):
        first, second, move = config.pairs(scaled, config.network.channels, draw)
    else:
        first, second = config.pairs(scaled, config.network.channels, draw, config.repeats)
        move = Move()
    with autocast:
        # Two passes, so that each view has batch statistics of its own; all repeats share one first view.
        features1, features2 = features(first), features(second)
        found: dict[HeadName, list[Terms]] = {}
        for head in heads:
            name: HeadName = "a" if head == "a" else "b"
            p1, p2 = network.probabilities(features1, name), network.probabilities(features2, name)
            joint = _dense_joint if config.dense else _image_joint
            floor = SEGMENTATION_FLOOR if config.dense else CLUSTERING_FLOOR
            joints = joint(network, p1, p2, batch, move, config)
            found[name] = [terms(counts, config.lamb(name, progress), floor) for counts in joints]
    return found


def _image_joint(
    network: Network, p1: Tensor, p2: Tensor, batch: Batch, move: Move, config: TrainConfig
) -> list[Tensor]:
    p1 = p1.repeat(config.repeats, 1, 1)
    return [clustering_joint(p1[:, i], p2[:, i]) for i in range(p1.shape[1])]


def _dense_joint(
    network: Network, p1: Tensor, p2: Tensor, batch: Batch, move: Move, config: TrainConfig
) -> list[Tensor]:
    height, width = batch.pixels.shape[-2:]
    mask = batch.valid
    if not config.cells:
        p1, p2 = network.upsample(p1, height, width), network.upsample(p2, height, width)
    elif mask is not None:
        # a cell counts if all of its pixels do
        mask = F.max_pool2d((~mask)[:, None].float(), network.stride, ceil_mode=True)[:, 0] == 0
    p2 = move.undo(p2.flatten(1, 2)).view_as(p1)
    if config.margin:
        margin = config.margin // network.stride if config.cells else config.margin
        p1, p2 = p1[..., margin:-margin, margin:-margin], p2[..., margin:-margin, margin:-margin]
        mask = None if mask is None else mask[..., margin:-margin, margin:-margin]
    return [
        segmentation_joint(
            p1[:, i],
            p2[:, i],
            radius=config.radius,
            mask=mask,
            collapsed=config.collapsed,
            chunk=config.chunk,
        )
        for i in range(p1.shape[1])
    ]


def plain_views(scaled: Tensor, config: TrainConfig) -> Tensor:
    """What evaluation and serving show the network: the image itself, or its central square for clustering."""
    return config.pairs.evaluation(scaled) if isinstance(config.pairs, ImagePairs) else scaled


def seed_of(key: tuple[int, ...]) -> int:
    """A seed for torch from whole numbers that stand for a moment of training."""
    return int(np.random.SeedSequence(key).generate_state(1, np.uint64)[0] >> 1)


class HeadMeans:
    """Means over steps of a head's terms, one a sub-head."""

    def __init__(self) -> None:
        self.count = 0
        self._sums: Tensor | None = None

    def add(self, found: Sequence[Terms]) -> Tensor:
        """Take note of a step and return its loss: the mean over sub-heads."""
        rows = [torch.cat([torch.stack([t.loss, t.information, t.entropy]), t.masses]) for t in found]
        rows_now = torch.stack(rows).detach().double()
        self._sums = rows_now if self._sums is None else self._sums + rows_now
        self.count += 1
        return torch.stack([t.loss for t in found]).mean()

    def losses(self) -> list[float]:
        """Mean loss of each sub-head."""
        return list(self.to_json()["loss"])

    def best(self) -> int:
        """The sub-head of the lowest loss."""
        losses = self.losses()
        return losses.index(min(losses))

    def to_json(self) -> dict[str, Any]:
        """The means by name, a list with one entry a sub-head each."""
        if self._sums is None:
            return {"loss": [], "information": [], "entropy": [], "occupancy": []}
        means = (self._sums / self.count).cpu()
        return {
            "loss": means[:, 0].tolist(),
            "information": means[:, 1].tolist(),
            "entropy": means[:, 2].tolist(),
            "occupancy": means[:, 3:].tolist(),
        }
