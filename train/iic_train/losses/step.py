"""The loss of one step: from a batch of raw images to the objective of each head and sub-head."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional as F

from iic_train.config import TrainConfig
from iic_train.data.loader import Batch
from iic_train.losses.objective import (
    CLUSTERING_FLOOR,
    SEGMENTATION_FLOOR,
    Terms,
    clustering_counts,
    segmentation_counts,
    sum_over_ranks,
    terms,
)
from iic_train.models.networks import Network
from iic_train.models.registry import HeadName
from iic_train.views.pairs import Move, central_views, dense_views, image_views
from iic_train.views.random_numbers import Draw
from iic_train.views.settings import DensePairs, ImagePairs

PEAK = 1.5
"""What a step takes at its peak, next to what autograd keeps: less than `benchmarks/train_step.py --peak` prints."""


class Pairs(NamedTuple):
    """Pairs of views of a batch.

    Attributes:
        first: First views `[N, C, H, W]`.
        second: Second views, `[repeats * N, C, H, W]`, one round after the other.
        move: How the second views of segmentation were moved.
        valid: Which pixels of the first views count, `[N, H, W]`, or None if all do.
    """

    first: Tensor
    second: Tensor
    move: Move
    valid: Tensor | None

    def split(self, images: int | None) -> list["Pairs"]:
        """Return parts of about the same size with at most this number of first views."""
        parts = slices_of(len(self.first), images)
        return [self] if len(parts) == 1 else [self._part(part) for part in parts]

    def _part(self, part: slice) -> "Pairs":
        rounds = torch.unflatten(self.second, 0, (-1, len(self.first)))
        valid = None if self.valid is None else self.valid[part]
        return Pairs(self.first[part], rounds[:, part].flatten(0, 1), self.move.part(part), valid)


def slices_of(count: int, most: int | None) -> list[slice]:
    """Return slices of about the same size, at most `most` long, that cover `count` images."""
    parts = 1 if most is None else -(-count // most)
    bounds = [count * part // parts for part in range(parts + 1)]
    return [slice(*ends) for ends in pairwise(bounds)]


class StepObjective:
    """The objective of a batch, and its gradient.

    A joint is a sum over pairs. If `images` limits how many of them pass the network at once, the sum is taken first,
    without gradients; then each part runs again, and is given the gradient of the loss with respect to that sum. This
    is the gradient of the whole batch, for a second run of the network forwards. Only batch norm sees the parts.

    Attributes:
        terms: For each head, one `Terms` per sub-head, over all ranks.
    """

    def __init__(
        self,
        counts: Callable[[Pairs], dict[HeadName, list[Tensor]]],
        pairs: Pairs,
        images: int | None,
        reduce: Callable[[HeadName, Tensor], Terms],
    ) -> None:
        self._counts, self._parts = counts, pairs.split(images)
        if len(self._parts) == 1:
            total = counts(pairs)
        else:
            with torch.no_grad():
                total = _sum_counts(map(counts, self._parts))
        # One message per joint after all parts: ranks may have different numbers of parts.
        joints = {head: [sum_over_ranks(joint) for joint in joints] for head, joints in total.items()}
        if len(self._parts) > 1:
            joints = {head: [joint.requires_grad_() for joint in joints] for head, joints in joints.items()}
        self._joints = [joint for joints in joints.values() for joint in joints]
        self.terms = {head: [reduce(head, joint) for joint in joints] for head, joints in joints.items()}

    def loss(self) -> Tensor:
        """Return the sum over the heads of the mean over their sub-heads."""
        heads = [torch.stack([term.loss for term in terms]).mean() for terms in self.terms.values()]
        return torch.stack(heads).sum()

    def backward(self, loss: Tensor) -> None:
        """Add the gradient of a loss that was made of `terms` to the parameters."""
        if len(self._parts) == 1:
            loss.backward()  # type: ignore[no-untyped-call]
            return
        gradients = torch.autograd.grad(loss, self._joints)
        for part in self._parts:
            joints = [joint for joints in self._counts(part).values() for joint in joints]
            torch.autograd.backward(joints, gradients)


def _sum_counts(parts: Iterator[dict[HeadName, list[Tensor]]]) -> dict[HeadName, list[Tensor]]:
    total = next(parts)
    for part in parts:
        for head, joints in part.items():
            total[head] = [before + counts for before, counts in zip(total[head], joints, strict=True)]
    return total


class Step(NamedTuple):
    """A step of training.

    Attributes:
        key: Integers from which all randomness follows.
        autocast: Context that sets the precision of the network.
        progress: Part of training that is done, 0 to 1.
    """

    key: tuple[int, ...]
    autocast: AbstractContextManager[Any]
    progress: float = 1.0


def step_objective(
    network: Network,
    features: Callable[[Tensor], Tensor],
    batch: Batch,
    heads: Sequence[HeadName] | str,
    config: TrainConfig,
    step: Step,
) -> StepObjective:
    """Make pairs of a batch and compute the objective of `heads`.

    Args:
        features: The network's `features`, perhaps compiled.
        heads: Letters of the heads to train, which share one run of the trunk.
        step: Where in training this is, and in which precision.
    """
    floor = SEGMENTATION_FLOOR if config.dense else CLUSTERING_FLOOR

    def counts(pairs: Pairs) -> dict[HeadName, list[Tensor]]:
        with step.autocast:
            # Two passes, so that each view has batch statistics of its own; all repeats share one first view.
            features1, features2 = features(pairs.first), features(pairs.second)
            joint = _dense_counts if config.dense else _image_counts
            names: list[HeadName] = ["a" if head == "a" else "b" for head in heads]
            return {
                name: joint(
                    network,
                    network.probabilities(features1, name),
                    network.probabilities(features2, name),
                    pairs,
                    config,
                )
                for name in names
            }

    def reduce(head: HeadName, joint: Tensor) -> Terms:
        return terms(joint, config.entropy_weight_of(head, step.progress), floor)

    return StepObjective(counts, make_pairs(network, batch, config, step.key), config.micro_images, reduce)


def estimate_memory(config: TrainConfig, pairs: int) -> float:
    """Return about how many bytes a step of segmentation takes with so many pairs in the network at once.

    What autograd keeps is counted on two small windows. It grows with the pixels, and the rest of a step with it.
    """
    small = 32 * -(-max(64, 2 * (config.radius + config.margin) + 32) // 32)
    fewer, more = (_kept_bytes(config, side) for side in (small, 2 * small))
    per_pixel = (more - fewer) / (3 * small**2)
    return PEAK * per_pixel * pairs * (config.size or 0) ** 2


def _kept_bytes(config: TrainConfig, side: int) -> int:
    """Return how many bytes autograd keeps for one pair of windows."""
    kept: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor)
        return tensor

    config = replace(config, size=side, batch=1, micro_batch=None)
    shape = (1, len(config.network.channels), side, side)
    with torch.random.fork_rng(devices=()), saved_tensors_hooks(keep, lambda tensor: tensor):
        network = Network(config.network).train()
        batch = Batch(torch.randint(0, 256, shape, dtype=torch.uint8), None)
        step_objective(
            network, network.features, batch, "".join(config.passes), config, Step((0,), nullcontext())
        )
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in kept}
    return sum(storages.values())


def pair_terms(
    network: Network,
    features: Callable[[Tensor], Tensor],
    batch: Batch,
    heads: Sequence[HeadName] | str,
    config: TrainConfig,
    step: Step,
) -> dict[HeadName, list[Terms]]:
    """Return the terms of `step_objective` for the whole batch at once, so that they can be part of another loss."""
    whole = replace(config, micro_batch=None)
    return step_objective(network, features, batch, heads, whole, step).terms


def make_pairs(network: Network, batch: Batch, config: TrainConfig, key: tuple[int, ...]) -> Pairs:
    """Make pairs of views of raw images; all randomness follows from `key`."""
    draw = Draw(seed_of(key), batch.pixels.device)
    scaled = network.scale(batch.pixels)
    if isinstance(config.pairs, DensePairs):
        other = None if batch.other is None else network.scale(batch.other)
        return Pairs(*dense_views(config.pairs, scaled, config.network.channels, draw, other), batch.valid)
    first, second = image_views(config.pairs, scaled, config.network.channels, draw, config.repeats)
    return Pairs(first, second, Move(), None)


def _image_counts(
    network: Network, p1: Tensor, p2: Tensor, pairs: Pairs, config: TrainConfig
) -> list[Tensor]:
    p1 = p1.repeat(config.repeats, 1, 1)
    return [clustering_counts(p1[:, i], p2[:, i]) for i in range(p1.shape[1])]


def _dense_counts(
    network: Network, p1: Tensor, p2: Tensor, pairs: Pairs, config: TrainConfig
) -> list[Tensor]:
    height, width = pairs.first.shape[-2:]
    mask = pairs.valid
    if not config.cells:
        p1, p2 = network.upsample(p1, height, width), network.upsample(p2, height, width)
    elif mask is not None:
        # a cell counts if all of its pixels do
        mask = F.max_pool2d((~mask)[:, None].float(), network.cell, ceil_mode=True)[:, 0] == 0
    p2 = pairs.move.undo(p2.flatten(1, 2)).view_as(p1)
    if config.margin:
        # In cells at least one is left out, and one left in.
        margin = -(-config.margin // network.cell) if config.cells else config.margin
        margin = min(margin, (min(p1.shape[-2:]) - 1) // 2)
        p1, p2 = p1[..., margin:-margin, margin:-margin], p2[..., margin:-margin, margin:-margin]
        mask = None if mask is None else mask[..., margin:-margin, margin:-margin]
    return [
        segmentation_counts(
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
    """Return the input in evaluation and deployment: the image, or for clustering its central square."""
    return central_views(config.pairs, scaled) if isinstance(config.pairs, ImagePairs) else scaled


def seed_of(key: tuple[int, ...]) -> int:
    """Return a seed for PyTorch from integers that identify a step of training."""
    return int(np.random.SeedSequence(key).generate_state(1, np.uint64)[0] >> 1)
