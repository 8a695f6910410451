"""CIFAR-10 and the 20 coarse classes of CIFAR-100, from the python or binary version of their archives."""

import io
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from iic_geotools.errors import DataError
from iic_train.data.base import Arrays, Dataset

_SHAPE = (3, 32, 32)
_PIXELS = 3 * 32 * 32
_RGB = ("red", "green", "blue")


@dataclass(frozen=True)
class _Archive:
    python: str
    binary: str
    train: tuple[str, ...]
    test: tuple[str, ...]
    label_key: bytes
    label_bytes: int
    """Labels before each image of the binary version; the first is ours (CIFAR-100: coarse, then fine)."""
    torchvision: str
    classes: tuple[str, ...]


_ARCHIVES = {
    "cifar10": _Archive(
        python="cifar-10-batches-py",
        binary="cifar-10-batches-bin",
        train=tuple(f"data_batch_{number}" for number in range(1, 6)),
        test=("test_batch",),
        label_key=b"labels",
        label_bytes=1,
        torchvision="CIFAR10",
        classes=(
            *("airplane", "automobile", "bird", "cat", "deer"),
            *("dog", "frog", "horse", "ship", "truck"),
        ),
    ),
    "cifar100-20": _Archive(
        python="cifar-100-python",
        binary="cifar-100-binary",
        train=("train",),
        test=("test",),
        label_key=b"coarse_labels",
        label_bytes=2,
        torchvision="CIFAR100",
        classes=(
            *("aquatic mammals", "fish", "flowers", "food containers", "fruit and vegetables"),
            *("household electrical devices", "household furniture", "insects", "large carnivores"),
            *("large man-made outdoor things", "large natural outdoor scenes"),
            *("large omnivores and herbivores", "medium-sized mammals", "non-insect invertebrates", "people"),
            *("reptiles", "small mammals", "trees", "vehicles 1", "vehicles 2"),
        ),
    ),
}


def read(name: str, root: Path, *, overcluster: bool, unlabelled: bool) -> Dataset:
    """Open CIFAR under `root`; there are no images without labels, so `unlabelled` changes nothing."""
    archive = _ARCHIVES[name]
    train, test = (_part(archive, root, files) for files in (archive.train, archive.test))
    return Dataset.of_labelled(name, train, test, archive.classes, dense=False, overcluster=overcluster)


def _part(archive: _Archive, root: Path, files: tuple[str, ...]) -> Arrays:
    batches = [_batch(archive, root, file) for file in files]
    images = np.concatenate([images for images, _ in batches])
    return Arrays(images, np.concatenate([labels for _, labels in batches]), _RGB)


def _batch(archive: _Archive, root: Path, file: str) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    python, binary = root / archive.python / file, root / archive.binary / f"{file}.bin"
    if python.is_file():
        return _read_python(python, archive)
    if binary.is_file():
        return _read_binary(binary, archive)
    raise DataError(
        f"{archive.torchvision} is not there: put {file} into {root / archive.python}, for example with "
        f"torchvision.datasets.{archive.torchvision}({str(root)!r}, download=True), "
        "or name another folder with --data."
    )


def _read_binary(path: Path, archive: _Archive) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    record = archive.label_bytes + _PIXELS
    data = np.frombuffer(path.read_bytes(), np.uint8)
    if not len(data) or len(data) % record:
        raise DataError(f"{path} does not hold whole records of {record} bytes: download it again.")
    records = data.reshape(-1, record)
    return _checked(path, records[:, archive.label_bytes :], records[:, 0], archive)


def _read_python(path: Path, archive: _Archive) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    content = _ArrayUnpickler.load_bytes(path)
    if not isinstance(content, dict) or not {b"data", archive.label_key} <= content.keys():
        raise DataError(f"{path} is not a batch of {archive.torchvision}: download it again.")
    return _checked(path, np.asarray(content[b"data"]), np.asarray(content[archive.label_key]), archive)


def _checked(
    path: Path, pixels: NDArray[Any], labels: NDArray[Any], archive: _Archive
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    if pixels.dtype != np.uint8 or pixels.ndim != 2 or pixels.shape[1] != _PIXELS:
        raise DataError(f"{path} does not hold images of 32x32 RGB pixels: download it again.")
    if len(labels) != len(pixels) or labels.min() < 0 or labels.max() >= len(archive.classes):
        raise DataError(
            f"{path} does not hold one of {len(archive.classes)} labels an image: download it again."
        )
    return pixels.reshape(-1, *_SHAPE), labels.astype(np.int64)


class _ArrayUnpickler(pickle.Unpickler):
    """Reads dictionaries, lists, numbers, strings and numpy arrays: the file can run nothing else."""

    ADMITTED: ClassVar = {
        ("numpy.core.multiarray", "_reconstruct"),
        ("numpy._core.multiarray", "_reconstruct"),
        ("numpy", "ndarray"),
        ("numpy", "dtype"),
        ("_codecs", "encode"),  # how Python 3 spells bytes in the old protocols
    }

    @classmethod
    def load_bytes(cls, path: Path) -> object:
        try:
            return cls(io.BytesIO(path.read_bytes()), encoding="bytes").load()
        except (pickle.UnpicklingError, EOFError, ValueError, IndexError, KeyError, TypeError) as error:
            raise DataError(f"{path} cannot be read ({error}): download it again.") from error

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self.ADMITTED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no data file needs")
        # numpy moved the module in 2.0; the alias of the old name warns.
        return super().find_class(module.replace("numpy.core", "numpy._core"), name)
