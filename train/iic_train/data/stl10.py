"""STL10 from its binary files: 5,000 training, 8,000 test and 100,000 unlabelled images of 96 px."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from iic_geotools.errors import DataError
from iic_train.data.base import Arrays, Dataset, Images, Joined, Subset

_FOLDER = "stl10_binary"
_CLASSES = ("airplane", "bird", "car", "cat", "deer", "dog", "horse", "monkey", "ship", "truck")
_IMAGE = (3, 96, 96)


def read(name: str, root: Path, *, overcluster: bool, unlabelled: bool) -> Dataset:
    """Open STL10 under `root`.

    Unsupervised, the auxiliary head sees all images and the main head those with labels, which are more
    often centred on one of the ten classes; with `overcluster` the only head sees all but the test part.
    """
    train, test = _labelled(root, "train"), _labelled(root, "test")
    train_all = mixed(train, _images(root, "unlabeled", labels=None)) if unlabelled else train
    if overcluster:
        return Dataset(name, False, train_all, train_all, map=train, test=test, classes=_CLASSES)
    labelled = Joined(train, test)
    return Dataset(
        name, False, Joined(train_all, test), labelled, map=labelled, test=labelled, classes=_CLASSES
    )


def mixed(labelled: Images, unlabelled: Images) -> Images:
    """Interleave as published: each labelled image is followed by its share of the unlabelled ones (20)."""
    if len(labelled) == 0:
        return unlabelled
    share = len(unlabelled) // len(labelled)
    first = np.arange(len(labelled))[:, None]
    followers = len(labelled) + np.arange(len(labelled) * share).reshape(len(labelled), share)
    rest = np.arange(len(labelled) * (1 + share), len(labelled) + len(unlabelled))
    order = np.concatenate([np.hstack([first, followers]).ravel(), rest])
    return Subset(Joined(labelled, unlabelled), order)


def _labelled(root: Path, part: str) -> Arrays:
    labels = np.fromfile(_find(root, f"{part}_y.bin"), np.uint8)
    if not len(labels) or labels.min() < 1 or labels.max() > len(_CLASSES):
        raise DataError(f"{part}_y.bin of STL10 does not hold labels from 1 to 10: download it again.")
    return _images(root, part, labels.astype(np.int64) - 1)


def _images(root: Path, part: str, labels: NDArray[np.integer[Any]] | None) -> Arrays:
    path = _find(root, f"{part}_X.bin")
    size = path.stat().st_size
    if size == 0 or size % int(np.prod(_IMAGE)):
        raise DataError(f"{path} does not hold whole images of 96x96 RGB pixels: download it again.")
    pixels = np.memmap(path, np.uint8, mode="r").reshape(-1, *_IMAGE)
    # the file holds columns first
    return Arrays(pixels.transpose(0, 1, 3, 2), labels, ("red", "green", "blue"))


def _find(root: Path, file: str) -> Path:
    path = root / _FOLDER / file
    if not path.is_file():
        raise DataError(
            f"STL10 is not there: put {file} into {path.parent}, for example with "
            f"torchvision.datasets.STL10({str(root)!r}, download=True), or name another folder with --data."
        )
    return path
