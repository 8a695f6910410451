"""From the settings of a run to its data: what the heads train on, and what accuracy is measured on."""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from iic_geotools.errors import UsageError
from iic_geotools.work import OnProgress, silent
from iic_train.config import TrainConfig
from iic_train.data.base import Dataset
from iic_train.data.coco import read as read_coco
from iic_train.data.images import read as read_images
from iic_train.data.loader import ImageSource, Source
from iic_train.data.potsdam import read as read_potsdam
from iic_train.data.rasters import Windows, raster_dataset
from iic_train.data.scene_reader import Scenes
from iic_train.data.survey import Survey, describe_scenes, survey_scenes
from iic_train.finetune.chips import Chip, read_chips

IMAGE_SETS = ("mnist", "fashion-mnist", "cifar10", "cifar100-20", "stl10")
"""Data sets of images that torchvision reads and can download."""
DATASETS = (*IMAGE_SETS, "coco-stuff", "coco-stuff-3", "potsdam", "potsdam-3")
"""Names that `open_dataset` knows."""

RESOLUTIONS = {"potsdam": 0.1, "potsdam-3": 0.1}
"""Ground sample distance in metres of the images of data sets that have one."""


@dataclass(frozen=True)
class TrainingData:
    """What a run reads.

    Attributes:
        train_a: What head A is trained on.
        train_b: What head B is trained on.
        dataset: Images to evaluate on and to show; without labels it has no classes.
        facts: What goes into the record of the run.
        scenes: How the rasters are read, for a run on rasters.
    """

    train_a: Source
    train_b: Source
    dataset: Dataset
    facts: dict[str, Any] = field(default_factory=dict)
    scenes: Scenes | None = None

    def source(self, heads: str) -> Source:
        """Return what a pass that trains these heads reads."""
        return self.train_a if heads == "a" else self.train_b


def open_training_data(
    config: TrainConfig,
    *,
    survey: Survey | None = None,
    download: bool = False,
    progress: OnProgress = silent,
) -> TrainingData:
    """Open what the config of a run names.

    Args:
        survey: What is already known about the scenes of a run on rasters, so that they are not opened again.

    Raises:
        DataError: The data is missing or damaged.
    """
    if config.data.name == "rasters":
        return _open_rasters(config, survey)
    dataset = open_dataset_of(config, download=download, progress=progress)
    train_b = ImageSource(dataset.train_b, config.size)
    train_a = train_b if dataset.train_a is dataset.train_b else ImageSource(dataset.train_a, config.size)
    facts = {"fingerprint": dataset.fingerprint(), "gsd": RESOLUTIONS.get(config.data.name)}
    return TrainingData(train_a, train_b, dataset, facts)


def _open_rasters(config: TrainConfig, survey: Survey | None) -> TrainingData:
    survey = survey or survey_scenes(config.data, config.network.channels, config.network.offset)
    data, others = config.data, None
    if data.pair:
        others = describe_scenes(data, config.network.channels, data.pair).with_fill(config.network.offset)
    windows = Windows(survey.scenes, config.size or 0, survey.valid_shares, others)
    facts = {
        "fingerprint": survey.fingerprint,
        "scenes": [*survey.scenes.paths, *data.pair],
        "dtype": survey.scenes.dtype,
        "gsd": survey.scenes.gsd,
        "gsd_range": data.gsd,
    }
    return TrainingData(windows, windows, raster_dataset(data, survey.scenes), facts, survey.scenes)


def open_dataset_of(config: TrainConfig, *, download: bool = False, progress: OnProgress = silent) -> Dataset:
    """Open the images that a run is evaluated on; without labels they have no classes."""
    data = config.data
    if config.finetune is not None:
        return chip_dataset(config)
    if data.name == "rasters":
        scenes = describe_scenes(data, config.network.channels).with_fill(config.network.offset)
        return raster_dataset(data, scenes)
    return open_dataset(
        data.name,
        None if data.root is None else Path(data.root),
        overcluster=data.overcluster,
        unlabelled=data.unlabelled,
        download=download,
        progress=progress,
    )


def data_root(root: Path | None = None) -> Path:
    """Return `root`, else the folder that the variable IIC_DATA names, else `./data`."""
    return root if root is not None else Path(os.environ.get("IIC_DATA", "data"))


def open_dataset(
    name: str,
    root: Path | None = None,
    *,
    overcluster: bool = False,
    unlabelled: bool = True,
    download: bool = False,
    progress: OnProgress = silent,
) -> Dataset:
    """Open a data set of the paper from its standard files.

    Args:
        name: One of `DATASETS`.
        overcluster: Use the partitions of semi-supervised overclustering: train and match on the training part only
            and test on the test part, instead of doing all three on everything.
        unlabelled: Train on images without labels too; False is the ablation of table 2 for STL10.

    Raises:
        UsageError: The name is not known, or the data set cannot be downloaded.
        DataError: The files are missing or damaged.
    """
    if name not in DATASETS:
        raise UsageError(f"There is no data set {name!r}; choose one of {', '.join(DATASETS)}.")
    folder = data_root(root)
    if name in IMAGE_SETS:
        return read_images(name, folder, overcluster=overcluster, unlabelled=unlabelled, download=download)
    if download:
        raise UsageError(f"`download` does not know {name}: leave it out to see where to get the files.")
    if name.startswith("coco"):
        return read_coco(name, folder, overcluster=overcluster)
    return read_potsdam(name, folder, overcluster=overcluster, unlabelled=unlabelled, progress=progress)


class ChipImages:
    """Chips as images; their labels were learnt from, so they are not shown as something to be measured on."""

    def __init__(self, chips: list[Chip], channels: tuple[str, ...]) -> None:
        self.chips = chips
        self.channels = channels

    def __len__(self) -> int:
        return len(self.chips)

    def image(self, index: int) -> NDArray[Any]:
        """Return chip `index` as [C, H, W]."""
        return self.chips[index].pixels

    def label(self, index: int) -> None:
        """Return None: labels that were learnt from measure nothing."""
        return

    def valid(self, index: int) -> NDArray[np.bool_] | None:
        """Every pixel of a chip may be shown."""
        return None


def chip_dataset(config: TrainConfig) -> Dataset:
    """Read the chips that a run learnt from."""
    if config.finetune is None:
        raise UsageError("The run did not learn from labels.")
    images = ChipImages(read_chips(config.finetune, config.network).chips, config.network.channels)
    return Dataset("labels", True, images, images, map=images, test=images, classes=())
