"""Short training runs on a made scene, for the tests of what comes after training."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from iic_train.config import DataConfig, TrainConfig
from iic_train.models.registry import NetworkConfig
from iic_train.runs import Run
from iic_train.trainer import train
from iic_train.views.settings import DensePairs, Photometry
from support.scenes import BANDS


@dataclass(frozen=True)
class TrainedScene:
    """A run on a made scene, and where that scene is bright."""

    run: Path
    scene: Path
    bright: NDArray[np.bool_]


def bright_and_dark_fields(
    height: int, width: int, seed: int = 0
) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
    """Make a scene of dark smooth and bright rough squares, uint8 [4, H, W], and the mask of the bright ones."""
    rng = np.random.default_rng(seed)
    squares = np.kron(rng.integers(0, 2, (-(-height // 24), -(-width // 24))), np.ones((24, 24)))
    bright = squares[:height, :width].astype(bool)
    texture = rng.normal(0, 1, (4, height, width))
    values = np.where(bright, 165 + 30 * texture, 70 + 8 * texture)
    return np.clip(values, 1, 254).astype(np.uint8), bright


def train_on(scene: Path, runs: Path, name: str = "fields") -> Run:
    """Train a small network on a scene for a few steps."""
    config = TrainConfig(
        preset="fields",
        data=DataConfig("rasters", scenes=(str(scene),)),
        network=NetworkConfig("edge-8", BANDS, clusters_b=3, clusters_a=5, sub_heads=2),
        pairs=DensePairs(Photometry(all_brightness=0.1), flip_vertical=0.5, turn=0.5),
        size=24,
        epochs=2,
        batch=8,
        steps=6,
        lr=3e-3,
        radius=1,
        selection_steps=2,
    )
    return train(config, runs=runs, name=name, device="cpu")
