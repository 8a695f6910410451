"""The data sets by name, and where their files are looked for."""

import importlib
import os
from pathlib import Path
from typing import cast

from iic_geotools.errors import UsageError
from iic_train.data.base import Dataset

_READERS = {
    "mnist": "mnist",
    "cifar10": "cifar",
    "cifar100-20": "cifar",
    "stl10": "stl10",
    "coco-stuff": "coco",
    "coco-stuff-3": "coco",
    "potsdam": "potsdam",
    "potsdam-3": "potsdam",
}

DATASETS = tuple(_READERS)
"""Names that `open_dataset` knows."""


def data_root(root: Path | None = None) -> Path:
    """Return `root`, else what `IIC_DATA` names, else `./data`."""
    return root if root is not None else Path(os.environ.get("IIC_DATA", "data"))


def open_dataset(
    name: str, root: Path | None = None, *, overcluster: bool = False, unlabelled: bool = True
) -> Dataset:
    """Open a data set of the paper from its standard files.

    Args:
        name: One of `DATASETS`.
        root: Folder that holds the data set's own folder; by default as `data_root` says.
        overcluster: Partitions of semi-supervised overclustering: train and match on the training part only
            and test on the test part, instead of doing all three on everything.
        unlabelled: False leaves out the images without labels (STL10's ablation of table 2).

    Raises:
        UsageError: The name is not known.
        DataError: The files are missing or damaged; the message says where to put them and where to get them.
    """
    if name not in _READERS:
        raise UsageError(f"There is no data set {name!r}; choose one of {', '.join(DATASETS)}.")
    reader = importlib.import_module(f"iic_train.data.{_READERS[name]}")
    return cast(Dataset, reader.read(name, data_root(root), overcluster=overcluster, unlabelled=unlabelled))
