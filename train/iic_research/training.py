"""Training a trunk by a task other than IIC, on the batches and views of a run."""

import math
from collections.abc import Iterable
from typing import Protocol

import torch
from torch import Tensor, nn

from iic_geotools.errors import TrainingError
from iic_geotools.progress import OnProgress, Progress, silent
from iic_train.config import TrainConfig
from iic_train.data.base import Dataset
from iic_train.data.loader import Batch, ImageSource, Loader, steps_of
from iic_train.losses.step import Pairs, make_pairs, plain_views, seed_of
from iic_train.models.layers import fresh_statistics
from iic_train.models.networks import Network
from iic_train.views.random_numbers import Draw

CALIBRATION_STEPS = 20
"""Number of batches from which batch norm takes its statistics."""


class Task(Protocol):
    """What a trunk is trained for."""

    def start_epoch(self, epoch: int) -> Iterable[nn.Parameter]:
        """Prepare an epoch, and return the parameters beside the trunk that it trains."""
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

    Args:
        network: The network, on its device.
        config: Settings of the run.
        dataset: Data set whose training part is used.
        task: What the trunk is trained for.
        device: Device to compute on.
        progress: Function that takes reports of progress.
    """
    loader, steps = _training_part(config, dataset)
    optimiser = torch.optim.Adam(network.trunk.parameters(), lr=config.lr)
    for epoch in range(1, config.epochs + 1):
        # A task may begin every epoch with new parameters, so their optimiser is new as well.
        beside = torch.optim.Adam(list(task.start_epoch(epoch)), lr=config.lr)
        network.train()
        total = torch.zeros((), device=device)
        for step, raw in enumerate(loader.batches(0, (config.seed, epoch, 0), steps)):
            batch = _moved(raw, device)
            key = (config.seed, epoch, 0, step)
            draw = Draw(seed_of((*key, 1)), device)
            loss = task.loss(batch, make_pairs(network, batch, config, key), draw)
            optimiser.zero_grad(set_to_none=True)
            beside.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            beside.step()
            total += loss.detach()
        mean = float(total) / steps
        if not math.isfinite(mean):
            raise TrainingError(
                f"The loss is not finite in epoch {epoch}: try a learning rate (`lr`) below {config.lr:g}."
            )
        progress(Progress("baseline", epoch, config.epochs, note=f"loss {mean:.4f}"))
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


def _moved(batch: Batch, device: torch.device | str) -> Batch:
    return Batch(batch.pixels.to(device), None if batch.valid is None else batch.valid.to(device))
