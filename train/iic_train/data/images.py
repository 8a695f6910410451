"""MNIST, Fashion-MNIST, CIFAR-10, the 20 superclasses of CIFAR-100, and STL10, read by torchvision.

torchvision checks the md5 sums of CIFAR and STL10 before it opens their files; those of CIFAR are pickled. The binary
version of CIFAR-10, which torchvision does not know, is plain bytes and is read here.
"""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from iic_geotools.errors import DataError, UsageError
from iic_train.data.base import Arrays, Dataset, Images, Joined, MappedArrays, Subset

_GREY = ("grey",)
_RGB = ("red", "green", "blue")
CIFAR10_BATCHES = {**{f"data_batch_{number}": "train" for number in range(1, 6)}, "test_batch": "test"}
"""The files of CIFAR-10 and their parts."""
CIFAR10_CLASSES = (
    *("airplane", "automobile", "bird", "cat", "deer"),
    *("dog", "frog", "horse", "ship", "truck"),
)
CIFAR10_BINARY = "cifar-10-batches-bin"
CIFAR10_SHAPE = (3, 32, 32)
_STL10_CLASSES = ("airplane", "bird", "car", "cat", "deer", "dog", "horse", "monkey", "ship", "truck")

SUPERCLASSES: dict[str, tuple[str, ...]] = {
    "aquatic mammals": ("beaver", "dolphin", "otter", "seal", "whale"),
    "fish": ("aquarium_fish", "flatfish", "ray", "shark", "trout"),
    "flowers": ("orchid", "poppy", "rose", "sunflower", "tulip"),
    "food containers": ("bottle", "bowl", "can", "cup", "plate"),
    "fruit and vegetables": ("apple", "mushroom", "orange", "pear", "sweet_pepper"),
    "household electrical devices": ("clock", "keyboard", "lamp", "telephone", "television"),
    "household furniture": ("bed", "chair", "couch", "table", "wardrobe"),
    "insects": ("bee", "beetle", "butterfly", "caterpillar", "cockroach"),
    "large carnivores": ("bear", "leopard", "lion", "tiger", "wolf"),
    "large man-made outdoor things": ("bridge", "castle", "house", "road", "skyscraper"),
    "large natural outdoor scenes": ("cloud", "forest", "mountain", "plain", "sea"),
    "large omnivores and herbivores": ("camel", "cattle", "chimpanzee", "elephant", "kangaroo"),
    "medium-sized mammals": ("fox", "porcupine", "possum", "raccoon", "skunk"),
    "non-insect invertebrates": ("crab", "lobster", "snail", "spider", "worm"),
    "people": ("baby", "boy", "girl", "man", "woman"),
    "reptiles": ("crocodile", "dinosaur", "lizard", "snake", "turtle"),
    "small mammals": ("hamster", "mouse", "rabbit", "shrew", "squirrel"),
    "trees": ("maple_tree", "oak_tree", "palm_tree", "pine_tree", "willow_tree"),
    "vehicles 1": ("bicycle", "bus", "motorcycle", "pickup_truck", "train"),
    "vehicles 2": ("lawn_mower", "rocket", "streetcar", "tank", "tractor"),
}
"""The superclasses of CIFAR-100 in the order of their ids; the ids of the 100 classes follow the alphabet."""


def read(name: str, root: Path, *, overcluster: bool, unlabelled: bool, download: bool) -> Dataset:
    """Open a data set under `root`.

    Args:
        name: Name of the data set.
        overcluster: Use the partitions of semi-supervised overclustering.
        unlabelled: Train on the unlabelled images of STL10 too; the other data sets have none.

    Raises:
        DataError: The files are missing or damaged.
    """
    if name == "stl10":
        return _stl10(root, overcluster=overcluster, unlabelled=unlabelled, download=download)
    train, test = (_load(name, root, download, train=train) for train in (True, False))
    if name == "cifar100-20":
        classes: tuple[str, ...] = tuple(SUPERCLASSES)
        ids = superclass_ids()
        labels = [ids[np.asarray(part.targets)] for part in (train, test)]
    else:
        classes = tuple(text.partition(" - ")[0] for text in train.classes)
        labels = [np.asarray(part.targets) for part in (train, test)]
    arrays = _grey if name.endswith("mnist") else _rgb
    return Dataset.of_labelled(
        name,
        arrays(np.asarray(train.data), labels[0]),
        arrays(np.asarray(test.data), labels[1]),
        classes,
        dense=False,
        overcluster=overcluster,
    )


def superclass_ids() -> NDArray[np.int64]:
    """Return the id of the superclass of each class of CIFAR-100."""
    members = [(member, number) for number, names in enumerate(SUPERCLASSES.values()) for member in names]
    return np.array([number for _, number in sorted(members)])


def _load(name: str, root: Path, download: bool, **split: Any) -> Any:
    from torchvision import datasets

    kinds = {
        "mnist": datasets.MNIST,
        "fashion-mnist": datasets.FashionMNIST,
        "cifar10": datasets.CIFAR10,
        "cifar100-20": datasets.CIFAR100,
        "stl10": datasets.STL10,
    }
    kind = kinds[name]
    if name == "cifar10" and not (root / kind.base_folder).is_dir() and (root / CIFAR10_BINARY).is_dir():
        return _load_binary(root / CIFAR10_BINARY, "train" if split["train"] else "test")
    try:
        return kind(root, download=download, **split)
    except (RuntimeError, ValueError, AssertionError, OSError, EOFError) as error:
        if download:
            raise DataError(
                f"{kind.__name__} cannot be downloaded to {root} ({error}): try again later."
            ) from error
        raise DataError(
            f"{kind.__name__} is missing or damaged in {root}: get it with `download`, or name another folder with "
            "`data`."
        ) from error


def _load_binary(folder: Path, split: str) -> SimpleNamespace:
    """Read a part of the binary version of CIFAR-10, rows of a label and its image, as torchvision would."""
    width = 1 + np.prod(CIFAR10_SHAPE)
    rows = []
    for path in (folder / f"{batch}.bin" for batch, part in CIFAR10_BATCHES.items() if part == split):
        try:
            values = np.fromfile(path, np.uint8)
        except OSError as error:
            raise DataError(f"{path} is missing: CIFAR-10 consists of six files.") from error
        if not values.size or values.size % width or values[::width].max() >= len(CIFAR10_CLASSES):
            raise DataError(f"{path} is damaged: it is not made of rows of a label and {width - 1} values.")
        rows.append(values.reshape(-1, width))
    images = np.concatenate(rows)
    data = images[:, 1:].reshape(-1, *CIFAR10_SHAPE).transpose(0, 2, 3, 1)
    return SimpleNamespace(data=data, targets=images[:, 0].astype(np.int64), classes=CIFAR10_CLASSES)


def _grey(images: NDArray[np.uint8], labels: NDArray[np.int64]) -> Images:
    return Arrays(images[:, None], labels, _GREY)


def _rgb(images: NDArray[np.uint8], labels: NDArray[np.int64]) -> Images:
    return Arrays(images.transpose(0, 3, 1, 2), labels, _RGB)


def _stl10(root: Path, *, overcluster: bool, unlabelled: bool, download: bool) -> Dataset:
    """Open STL10.

    In the unsupervised protocol the auxiliary head sees all images and the main head those with labels, which are
    more often centred on one of the ten classes. With `overcluster` the only head sees all but the test part.
    """
    # torchvision checks the sums of all files, of which the one without labels would take 2.8 GB of memory.
    parts = {split: _load("stl10", root, download, split=split) for split in ("train", "test")}

    def mapped(split: str, labels: NDArray[np.integer[Any]] | None) -> Images:
        path = root / parts["train"].base_folder / f"{split}_X.bin"
        return MappedArrays(path, (3, 96, 96), (0, 2, 1), labels, _RGB)

    train, test = (mapped(split, part.labels.astype(np.int64)) for split, part in parts.items())
    train_all = mix(train, mapped("unlabeled", None)) if unlabelled else train
    if overcluster:
        return Dataset("stl10", False, train_all, train_all, map=train, test=test, classes=_STL10_CLASSES)
    seen, labelled = Joined(train_all, test), Joined(train, test)
    return Dataset("stl10", False, seen, labelled, map=labelled, test=labelled, classes=_STL10_CLASSES)


def read_folds(name: str, root: Path) -> list[NDArray[np.int64]]:
    """Return the training images of each fold that a data set defines: ten of 1000 images for STL10."""
    if name != "stl10":
        raise UsageError(f"{name} defines no folds; only stl10 does.")
    path = root / "stl10_binary" / "fold_indices.txt"
    try:
        lines = path.read_text().splitlines()
        return [np.array(line.split(), np.int64) for line in lines if line.strip()]
    except (OSError, ValueError) as error:
        raise DataError(
            f"{path}, which names the training images of each fold, is missing or damaged: get it with `download`."
        ) from error


def mix(labelled: Images, unlabelled: Images) -> Images:
    """Interleave as published: each labelled image is followed by its share of the unlabelled ones (20)."""
    if len(labelled) == 0:
        return unlabelled
    share = len(unlabelled) // len(labelled)
    first = np.arange(len(labelled))[:, None]
    followers = len(labelled) + np.arange(len(labelled) * share).reshape(len(labelled), share)
    rest = np.arange(len(labelled) * (1 + share), len(labelled) + len(unlabelled))
    order = np.concatenate([np.hstack([first, followers]).ravel(), rest])
    return Subset(Joined(labelled, unlabelled), order)
