"""The interface of every data set: partitions with random access to raw images."""

import bisect
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from iic_geotools.errors import DataError

UNLABELLED = 255
"""Value of a label map where there is no label."""

Label = int | NDArray[np.uint8]


@runtime_checkable
class Images(Protocol):
    """One partition of a data set: random access to raw images, no augmentation."""

    @property
    def channels(self) -> tuple[str, ...]:
        """Names of the channels in order, such as ("red", "green", "blue", "nir") or ("grey",)."""
        ...

    def __len__(self) -> int:
        """Return the number of images."""
        ...

    def image(self, index: int) -> NDArray[Any]:
        """Return an image [C, H, W] in the dtype of its file."""
        ...

    def label(self, index: int) -> Label | None:
        """Return a class id, a map [H, W] of class ids with 255 = not labelled, or None if unknown."""
        ...

    def valid(self, index: int) -> NDArray[np.bool_] | None:
        """Return which pixels [H, W] may enter the objective; None means all."""
        ...


@dataclass(frozen=True)
class Dataset:
    """The partitions of one experiment.

    Attributes:
        name: Name of the data set, such as `mnist`.
        dense: True if labels are maps (segmentation), False if they are one class per image (clustering).
        train_a: What the auxiliary overclustering head is trained on.
        train_b: What the main head is trained on; with `overcluster`, what the only head is trained on.
        map: Labelled images on which clusters are matched to classes.
        test: Labelled images on which accuracy is measured; the same as `map` in the unsupervised protocol.
        classes: Names of the ground-truth classes in label order.
    """

    name: str
    dense: bool
    train_a: Images
    train_b: Images
    map: Images
    test: Images
    classes: tuple[str, ...]

    @classmethod
    def of_labelled(
        cls,
        name: str,
        train: Images,
        test: Images,
        classes: tuple[str, ...],
        *,
        dense: bool,
        overcluster: bool,
    ) -> "Dataset":
        """Return the partitions of a data set in which every image has a label.

        The unsupervised protocol trains, matches and tests on everything, because training without labels cannot
        overfit to them. Overclustering keeps the test part apart.
        """
        if overcluster:
            return cls(name, dense, train, train, map=train, test=test, classes=classes)
        everything = Joined(train, test)
        return cls(name, dense, everything, everything, map=everything, test=everything, classes=classes)

    @property
    def channels(self) -> tuple[str, ...]:
        """Names of the channels in order."""
        return self.train_b.channels

    def fingerprint(self) -> str:
        """Return a short hash of the sizes of the partitions and of images sampled evenly from them."""
        digest = hashlib.sha256()
        for partition in (self.train_a, self.train_b, self.map, self.test):
            digest.update(str(len(partition)).encode())
            for index in np.linspace(0, len(partition) - 1, num=min(8, len(partition)), dtype=int):
                digest.update(np.ascontiguousarray(partition.image(int(index))).tobytes())
        return digest.hexdigest()[:16]


class Arrays:
    """Images and class ids that fit in memory (or in a memory map): MNIST, CIFAR, STL10."""

    def __init__(
        self, images: NDArray[Any], labels: NDArray[np.integer[Any]] | None, channels: tuple[str, ...]
    ) -> None:
        if images.ndim != 4 or images.shape[1] != len(channels):
            raise DataError(f"Images of shape {images.shape} do not have the channels {', '.join(channels)}.")
        if labels is not None and len(labels) != len(images):
            raise DataError(f"There are {len(images)} images but {len(labels)} labels: a file is incomplete.")
        self.images = images
        self.labels = labels
        self.channels = channels

    def __len__(self) -> int:
        return len(self.images)

    def image(self, index: int) -> NDArray[Any]:
        """Return image `index` as [C, H, W]."""
        return np.asarray(self.images[index])

    def label(self, index: int) -> int | None:
        """Return the class id of image `index`, or None if the partition has no labels."""
        return None if self.labels is None else int(self.labels[index])

    def valid(self, index: int) -> None:
        """Every pixel may enter the objective."""
        return


class MappedArrays(Arrays):
    """Images in a file of raw bytes that is mapped into memory.

    A process that reads ahead maps the file again, instead of being sent what it holds.

    Args:
        shape: Channels, height and width of an image as the file holds it.
        axes: Order in which its axes become channels, height and width.
        labels: Class ids, if there are any.
        channels: Names of the channels.
    """

    def __init__(
        self,
        path: Path,
        shape: tuple[int, int, int],
        axes: tuple[int, int, int],
        labels: NDArray[np.integer[Any]] | None,
        channels: tuple[str, ...],
    ) -> None:
        stored = np.memmap(path, np.uint8, "r").reshape(-1, *shape)
        super().__init__(stored.transpose(0, *(axis + 1 for axis in axes)), labels, channels)
        self._opened_with = (path, shape, axes, labels, channels)

    def __reduce__(self) -> tuple[Any, ...]:
        return MappedArrays, self._opened_with


class Joined:
    """Several partitions, one after the other."""

    def __init__(self, *parts: Images) -> None:
        if len({part.channels for part in parts}) != 1:
            raise DataError("Partitions with different channels cannot be joined.")
        self.parts = parts
        self.ends = list(accumulate(len(part) for part in parts))
        self.channels = parts[0].channels

    def __len__(self) -> int:
        return self.ends[-1]

    def image(self, index: int) -> NDArray[Any]:
        """Return image `index` as [C, H, W]."""
        part, local = self._locate(index)
        return part.image(local)

    def label(self, index: int) -> Label | None:
        """Return the label of image `index`, or None where its part has none."""
        part, local = self._locate(index)
        return part.label(local)

    def valid(self, index: int) -> NDArray[np.bool_] | None:
        """Return the pixels of image `index` that may enter the objective."""
        part, local = self._locate(index)
        return part.valid(local)

    def _locate(self, index: int) -> tuple[Images, int]:
        if not 0 <= index < len(self):
            raise IndexError(index)
        number = bisect.bisect_right(self.ends, index)
        return self.parts[number], index - (self.ends[number] - len(self.parts[number]))


class Subset:
    """Chosen images of a partition in a chosen order."""

    def __init__(self, images: Images, indices: Sequence[int] | NDArray[np.integer[Any]]) -> None:
        self.images = images
        self.indices = np.asarray(indices, dtype=np.int64)
        self.channels = images.channels

    def __len__(self) -> int:
        return len(self.indices)

    def image(self, index: int) -> NDArray[Any]:
        """Return image `index` as [C, H, W]."""
        return self.images.image(int(self.indices[index]))

    def label(self, index: int) -> Label | None:
        """Return the label of image `index`, or None if it has none."""
        return self.images.label(int(self.indices[index]))

    def valid(self, index: int) -> NDArray[np.bool_] | None:
        """Return the pixels of image `index` that may enter the objective."""
        return self.images.valid(int(self.indices[index]))
