"""Small networks, batches and steps of both kinds, whose gradients tests compare."""

from collections.abc import Iterator, Sequence
from contextlib import nullcontext

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from iic_train.config import DataConfig, TrainConfig
from iic_train.data.base import Arrays
from iic_train.data.loader import Batch, ImageSource, Loader, Source
from iic_train.distributed import sum_gradients
from iic_train.losses.step import Step, StepObjective, step_objective
from iic_train.models.networks import Network
from iic_train.models.registry import NetworkConfig
from iic_train.views.settings import DensePairs, ImagePairs, Photometry

IMAGES = 7
KEY = (4, 1, 0)
JITTER = Photometry(0.3, 0.3, all_brightness=0.2)
DENSE = TrainConfig(
    preset="dense",
    data=DataConfig("dense"),
    network=NetworkConfig("edge-8", ("grey",), 2, 5, 2),
    pairs=DensePairs(JITTER, flip_vertical=0.5, turn=0.5, rotation=10.0),
    size=16,
    batch=IMAGES,
    radius=2,
)
IMAGE = TrainConfig(
    preset="image",
    data=DataConfig("image"),
    network=NetworkConfig("6c", ("grey",), 3, 6, 2, size=8, widths=(4, 8, 8, 8), family="vgg"),
    pairs=ImagePairs(8, 10, (8, 10), centred=0.5, rotation=10.0, photometry=JITTER),
    size=None,
    batch=3 * IMAGES,
    repeats=3,
)


def make_network(config: TrainConfig) -> Network:
    """A network in double precision, whose batch norm must not see how batches are split."""
    torch.manual_seed(0)
    network = Network(config.network).double().eval()
    with torch.no_grad():
        for weight in network.heads.parameters():
            weight.mul_(5.0 if config.dense else 5000.0)  # far from uniform probabilities
    return network


def source_of(config: TrainConfig) -> ImageSource:
    """Images of noise that differ in brightness, so that they can be distinguished."""
    rng = np.random.default_rng(0)
    images = rng.integers(0, 60, (20, 1, 16, 16)) + rng.integers(0, 195, (20, 1, 1, 1))
    return ImageSource(Arrays(images.astype(np.uint8), None, ("grey",)), config.size)


def batches(
    source: Source, images: int, key: Sequence[int], *, steps: int, **options: int
) -> Iterator[Batch]:
    """The batches of one pass over a source."""
    return Loader([source], images, **options).batches(0, key, steps)


def share_of_batch(config: TrainConfig, rank: int = 0, ranks: int = 1) -> Batch:
    batch = next(batches(source_of(config), IMAGES, KEY, steps=1, rank=rank, ranks=ranks))
    valid = torch.ones(batch.pixels.shape[-2:], dtype=torch.bool).expand(len(batch.pixels), -1, -1).clone()
    valid[:, :3] = False
    return Batch(batch.pixels, valid if config.dense else None)


def losses(objective: StepObjective) -> Tensor:
    return torch.stack([term.loss for head in objective.terms.values() for term in head]).sum()


def gradient(network: Network, objective: StepObjective) -> tuple[Tensor, Tensor]:
    network.zero_grad()
    loss = losses(objective)
    objective.backward(loss)
    sum_gradients(network.parameters())
    return loss.detach(), torch.cat([p.grad.flatten() for p in network.parameters() if p.grad is not None])


def make_objective(network: Network, batch: Batch, config: TrainConfig, heads: str) -> StepObjective:
    key = (*KEY, dist.get_rank() if dist.is_initialized() else 0)
    return step_objective(network, network.features, batch, heads, config, Step(key, nullcontext()))
