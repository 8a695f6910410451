"""From a run's settings to its data: what the heads train on and, if there are labels, what accuracy is taken on."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from iic_train.config import TrainConfig
from iic_train.data import Dataset, Images, Subset, open_dataset
from iic_train.evaluate import evaluate_network
from iic_train.loading import ImageSource, Source
from iic_train.networks import Network


@dataclass(frozen=True)
class TrainingData:
    """What a run reads.

    Attributes:
        train_a: What head A is trained on.
        train_b: What head B is trained on.
        dataset: Labelled images, or None if there are none.
        facts: What goes into the run's record.
    """

    train_a: Source
    train_b: Source
    dataset: Dataset | None = None
    facts: dict[str, Any] = field(default_factory=dict)

    def source(self, heads: str) -> Source:
        """What a pass that trains these heads reads."""
        return self.train_a if heads == "a" else self.train_b

    def accuracy(self, network: Network, config: TrainConfig, sub_head: int) -> dict[str, Any] | None:
        """Accuracy on a part of the labelled images, to follow training with; None without labels."""
        if self.dataset is None or not config.evaluation_images:
            return None
        mapped = _evenly(self.dataset.map, config.evaluation_images)
        same = self.dataset.map is self.dataset.test
        tested = mapped if same else _evenly(self.dataset.test, config.evaluation_images)
        found = evaluate_network(
            network, config, replace(self.dataset, map=mapped, test=tested), chosen=sub_head
        )
        return {
            "chosen": found.accuracy,
            "sub_heads": list(found.accuracies),
            "label_picked": max(found.accuracies),
        }


def open_training_data(config: TrainConfig) -> TrainingData:
    """Open what a run's config names.

    Raises:
        DataError: It is missing or damaged.
    """
    data = config.data
    if data.name == "rasters":
        return _open_rasters(config)
    root = None if data.root is None else Path(data.root)
    dataset = open_dataset(data.name, root, overcluster=data.overcluster, unlabelled=data.unlabelled)
    train_b = ImageSource(dataset.train_b, config.size)
    train_a = train_b if dataset.train_a is dataset.train_b else ImageSource(dataset.train_a, config.size)
    return TrainingData(train_a, train_b, dataset, {"fingerprint": dataset.fingerprint()})


def _open_rasters(config: TrainConfig) -> TrainingData:
    from iic_train.data.rasters import Windows, find_constants, raster_dataset
    from iic_train.data.scenes import fingerprint, scenes_of

    scenes = scenes_of(config.data, config.network.channels, config.network.offset)
    windows = Windows(scenes, config.size or 0, find_constants(scenes).valid_shares)
    facts = {
        "fingerprint": fingerprint(scenes),
        "scenes": list(dict.fromkeys(source.path for source in scenes.sources)),
        "dtype": scenes.dtype,
        "gsd": scenes.gsd,
        "gsd_range": config.data.gsd,
    }
    dataset = (
        raster_dataset(config.data, config.network.channels, config.network.offset)
        if config.data.labels
        else None
    )
    return TrainingData(windows, windows, dataset, facts)


def _evenly(images: Images, count: int) -> Images:
    if len(images) <= count:
        return images
    return Subset(images, np.linspace(0, len(images) - 1, count).round().astype(np.int64))
