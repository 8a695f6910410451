"""The unsupervised twin of a bundled model: the same network, trained by IIC alone and named afterwards.

`benchmarks/bundled.py` measures it beside the model that learns from labels. It sees the same crops of the places that
are not left out, without their labels; then each of its clusters gets the class that most of its labelled pixels on
these places have.
"""

from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from iic_train.config import TrainConfig
from iic_train.data.loader import Batch
from iic_train.finetune.chips import LabelledChips
from iic_train.finetune.crops import Crops
from iic_train.finetune.heldout import class_logs
from iic_train.losses.step import pair_terms
from iic_train.models.layers import fresh_statistics
from iic_train.models.networks import Network
from iic_train.recipes.rasters import FINE, PAIRS, jittered_pairs

CLUSTERS, STEPS, BATCH, RATE = 64, 500, 16, 4e-3
SIZE = 48
"""Side of the crops in pixels."""
JITTER = 0.3
"""Strength of the changes of light where pixels are large and brightness tells materials apart."""
NAMING_CROPS, CALIBRATION_STEPS = 600, 20
NAMING, CALIBRATION = 3_000_001, 3_000_002
"""Numbers of passes that are no epochs."""


def train_twin(config: TrainConfig, data: LabelledChips, fold: int) -> tuple[Network, NDArray[np.int64]]:
    """Train by IIC on the places that are not left out, and return the network and the class of each cluster."""
    config = _twin_config(config)
    crops = Crops(data, config, fold)
    torch.manual_seed(config.seed)
    network = Network(config.network)
    optimiser = torch.optim.Adam(network.parameters(), lr=RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, STEPS)
    network.train()
    for step in range(STEPS):
        crop = crops.read((1, step))
        terms = pair_terms(
            network,
            network.features,
            Batch(crop.pixels, crop.inside[:, 0]),
            "b",
            config,
            key=(config.seed, 1, step),
            autocast=torch.autocast("cpu", enabled=False),
        )["b"]
        loss = torch.stack([term.loss for term in terms]).mean()
        optimiser.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        schedule.step()
    with torch.no_grad(), fresh_statistics(network):
        for step in range(CALIBRATION_STEPS):
            network.features(network.scale(crops.read((CALIBRATION, step)).pixels))
    return network.eval(), _names(network, crops, data)


def _twin_config(config: TrainConfig) -> TrainConfig:
    fine = config.data.gsd is not None and config.data.gsd[0] < FINE
    return replace(
        config,
        network=replace(config.network, clusters_b=CLUSTERS),
        pairs=PAIRS if fine else jittered_pairs(JITTER, 0.0),
        size=SIZE,
        batch=BATCH,
    )


@torch.no_grad()
def _names(network: Network, crops: Crops, data: LabelledChips) -> NDArray[np.int64]:
    """Return the class that most labelled pixels of each cluster have, every crop alike."""
    members = data.legend.members()
    single = members.sum(1) == 1
    votes = np.zeros((CLUSTERS, members.shape[1]))
    for step in range(NAMING_CROPS // BATCH):
        crop = crops.read((NAMING, step))
        clusters = class_logs(network, network.scale(crop.pixels)).argmax(1).numpy()
        codes = crop.codes.numpy()
        chosen = single[codes] & (codes > 0)
        np.add.at(votes, (clusters[chosen], members.argmax(1)[codes[chosen]]), 1)
    return np.asarray(votes.argmax(1))
