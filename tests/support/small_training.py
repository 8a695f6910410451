"""Trainings of seconds: small images of two materials, or of three brightnesses, and networks that fit them."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from iic_geotools.work import OnProgress, silent
from iic_train.config import DataConfig, TrainConfig
from iic_train.data.base import Arrays, Dataset
from iic_train.data.loader import ImageSource
from iic_train.data.training_data import TrainingData
from iic_train.distributed import Ranks
from iic_train.finetune.chips import Chip, LabelledChips, Legend
from iic_train.finetune.learner import Learner
from iic_train.finetune.settings import FinetuneConfig, LabelSource
from iic_train.models.networks import Network
from iic_train.models.registry import NetworkConfig
from iic_train.runs import Run
from iic_train.trainer import Trainer
from iic_train.views.settings import DensePairs, ImagePairs, Photometry


class Mosaics:
    """Small images of two materials, smooth dark and rough bright, with their label maps."""

    channels = ("grey",)

    def __init__(self, count: int = 24) -> None:
        rng = np.random.default_rng(0)
        self.labels = np.kron(rng.integers(0, 2, (count, 2, 2)), np.ones((20, 20))).astype(np.uint8)
        texture = rng.normal(0, 1, self.labels.shape)
        values = np.where(self.labels == 1, 170 + 40 * texture, 70 + 6 * texture)
        self.images = np.clip(values, 0, 255).astype(np.uint8)[:, None]

    def __len__(self) -> int:
        return len(self.images)

    def image(self, index: int) -> NDArray[np.uint8]:
        return self.images[index]

    def label(self, index: int) -> NDArray[np.uint8]:
        return self.labels[index]

    def valid(self, index: int) -> None:
        return


def dense_config(**changes: Any) -> TrainConfig:
    settings: dict[str, Any] = {
        "preset": "mosaics",
        "data": DataConfig("mosaics"),
        "network": NetworkConfig("edge-8", ("grey",), 2, 5, 2),
        "pairs": DensePairs(Photometry(all_brightness=0.1), flip_vertical=0.5, turn=0.5),
        "size": 16,
        "epochs": 3,
        "batch": 8,
        "lr": 3e-3,
        "radius": 2,
        "selection_steps": 2,
        "evaluation_images": 8,
    }
    return TrainConfig(**{**settings, **changes})


def dense_data(config: TrainConfig) -> TrainingData:
    images = Mosaics()
    dataset = Dataset("mosaics", True, images, images, images, images, ("dark", "bright"))
    source = ImageSource(images, config.size)
    return TrainingData(source, source, dataset, {"fingerprint": dataset.fingerprint()})


def image_config(**changes: Any) -> TrainConfig:
    settings: dict[str, Any] = {
        "preset": "blobs",
        "data": DataConfig("blobs"),
        "network": NetworkConfig("6c", ("grey",), 3, 6, 2, size=8, widths=(4, 8, 8, 8), family="vgg"),
        "pairs": ImagePairs(8, 10, (8, 10), centred=0.5, rotation=10.0),
        "size": None,
        "passes": ("b", "a"),
        "epochs": 2,
        "batch": 24,
        "repeats": 2,
        "selection_steps": 2,
        "evaluation_images": 10,
    }
    return TrainConfig(**{**settings, **changes})


def image_data(config: TrainConfig) -> TrainingData:
    rng = np.random.default_rng(1)
    labels = rng.integers(0, 3, 60)
    images = (rng.integers(0, 60, (60, 1, 12, 12)) + 60 * labels[:, None, None, None]).astype(np.uint8)
    part = Arrays(images, labels, ("grey",))
    source = ImageSource(part)
    dataset = Dataset.of_labelled("blobs", part, part, ("0", "1", "2"), dense=False, overcluster=True)
    return TrainingData(source, source, dataset, {"fingerprint": dataset.fingerprint()})


def small_learner(device: torch.device) -> Learner:
    """Fine-tuning of a small network on noise in which two thirds of the pixels are labelled."""
    legend = Legend(("dark", "bright"))
    codes = np.array([0, *(legend.code((name,)) for name in legend.classes)], np.uint8)
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (4, 48, 48)).astype(np.uint8)
    chip = Chip(0, "here", pixels, codes[rng.integers(0, 3, (48, 48))], 0)
    config = dense_config(
        network=NetworkConfig("context-small", ("red", "green", "blue", "nir"), 2, bias=True),
        passes=("b",),
        steps=2,
        finetune=FinetuneConfig(legend.classes, (LabelSource("labels", ("scene.tif",)),), dropout=0.1),
    )
    return Learner(Network(config.network).to(device), LabelledChips([chip], legend, "", None), config)


def make_trainer(run: Run, data: TrainingData, workers: int = 0, progress: OnProgress = silent) -> Trainer:
    return Trainer(run, data, torch.device("cpu"), Ranks(), workers, progress)
