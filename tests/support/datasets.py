"""Small files in the true layout of the data sets of the paper."""

import hashlib
import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio
from numpy.typing import NDArray
from PIL import Image

CIFAR10_FILES = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]
POTSDAM_COLOURS = [(255, 255, 255), (0, 0, 255), (0, 255, 255), (0, 255, 0), (255, 255, 0), (255, 0, 0)]


def write_idx(path: Path, array: NDArray[np.uint8]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes())


def make_mnist(root: Path, folder: str = "MNIST") -> dict[str, NDArray[np.uint8]]:
    """Write 20 training and 10 test images; return the arrays by the names of their files."""
    rng = np.random.default_rng(0)
    arrays = {}
    for part, count in (("train", 20), ("t10k", 10)):
        arrays[f"{part}-images-idx3-ubyte"] = rng.integers(0, 256, (count, 28, 28), np.uint8)
        arrays[f"{part}-labels-idx1-ubyte"] = rng.integers(0, 10, count, np.uint8)
    for name, array in arrays.items():
        write_idx(root / folder / "raw" / name, array)
    return arrays


def make_cifar10(root: Path) -> dict[str, tuple[NDArray[np.uint8], list[int]]]:
    """Write batches of four images; return pixels and labels by the names of their files."""
    rng = np.random.default_rng(0)
    batches = {
        name: (rng.integers(0, 256, (4, 3072), np.uint8), rng.integers(0, 10, 4).tolist())
        for name in CIFAR10_FILES
    }
    classes = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
    folder = root / "cifar-10-batches-py"
    for name, (pixels, labels) in batches.items():
        _pickle(folder / name, {"data": pixels, "labels": labels})
    _pickle(folder / "batches.meta", {"label_names": classes})
    return batches


def make_cifar100(root: Path, fine_labels: list[int] | None = None) -> None:
    """Write eight training and eight test images with these labels."""
    rng = np.random.default_rng(0)
    labels = fine_labels or rng.integers(0, 100, 8).tolist()
    folder = root / "cifar-100-python"
    for name in ("train", "test"):
        pixels = rng.integers(0, 256, (len(labels), 3072), np.uint8)
        _pickle(folder / name, {"data": pixels, "fine_labels": labels})
    _pickle(folder / "meta", {"fine_label_names": [f"class {number}" for number in range(100)]})


def make_stl10(root: Path) -> None:
    """Write 4 training, 3 test and 9 unlabelled images of noise whose top left pixel is their number."""
    rng = np.random.default_rng(0)
    folder = root / "stl10_binary"
    folder.mkdir(parents=True)
    start = 0
    for part, count in (("train", 4), ("test", 3), ("unlabeled", 9)):
        images = rng.integers(0, 256, (count, 3, 96, 96), np.uint8)
        images[:, 0, 0, 0] = np.arange(start, start + count)
        images[:, 2, 5, 90] = 77  # row 5, column 90; the files hold columns first
        (folder / f"{part}_X.bin").write_bytes(images.transpose(0, 1, 3, 2).tobytes())
        if part != "unlabeled":
            (folder / f"{part}_y.bin").write_bytes(np.arange(1, count + 1, dtype=np.uint8).tobytes())
        start += count


def make_coco(root: Path) -> None:
    """Write three training and three test images of sky, plants and ground."""
    rng = np.random.default_rng(0)
    folder = root / "coco-stuff-164k"
    for split in ("train2017", "val2017"):
        for kind in ("images", "annotations"):
            (folder / kind / split).mkdir(parents=True)
        for number in range(3):
            labels = np.full((400, 420), 105, np.uint8)  # sky
            labels[200:] = 168  # plants
            labels[:, 300:] = 148  # ground
            pixels = rng.integers(0, 256, (400, 420, 3), np.uint8)
            Image.fromarray(pixels).save(folder / "images" / split / f"{number:012d}.jpg")
            Image.fromarray(labels).save(folder / "annotations" / split / f"{number:012d}.png")


def make_potsdam(root: Path) -> None:
    """Write two tiles of 800 pixels and their label images."""
    rng = np.random.default_rng(0)
    colours = np.array(POTSDAM_COLOURS, np.uint8)
    for tile in ("2_10", "7_7"):
        image = rng.integers(0, 256, (4, 800, 800), np.uint8)
        write_tiff(root / f"potsdam/4_Ortho_RGBIR/top_potsdam_{tile}_RGBIR.tif", image)
        labels = colours[rng.integers(0, 6, (800, 800))].transpose(2, 0, 1)
        write_tiff(root / f"potsdam/5_Labels_all/top_potsdam_{tile}_label.tif", labels)


MAKERS = {
    "mnist": make_mnist,
    "fashion-mnist": lambda root: make_mnist(root, "FashionMNIST"),
    "cifar10": make_cifar10,
    "cifar100-20": make_cifar100,
    "stl10": make_stl10,
    "coco-stuff": make_coco,
    "coco-stuff-3": make_coco,
    "potsdam": make_potsdam,
    "potsdam-3": make_potsdam,
}


def accept_checksums(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let torchvision take the checksums of the files under `root` for the true ones; it still checks them."""
    from torchvision import datasets

    for kind in (datasets.CIFAR10, datasets.CIFAR100, datasets.STL10):
        folder = root / kind.base_folder
        for attribute in ("train_list", "test_list"):
            files = [[name, _md5(folder / name)] for name, _ in getattr(kind, attribute)]
            monkeypatch.setattr(kind, attribute, files)
        if hasattr(kind, "meta"):
            meta = {**kind.meta, "md5": _md5(folder / kind.meta["filename"])}
            monkeypatch.setattr(kind, "meta", meta)


def write_tiff(path: Path, array: NDArray[Any], **profile: Any) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    count, height, width = array.shape
    with rasterio.open(
        path, "w", driver="GTiff", count=count, height=height, width=width, dtype=array.dtype, **profile
    ) as out:
        out.write(array)
        if count == 4:
            out.descriptions = ("red", "green", "blue", "nir")
    return str(path)


def _pickle(path: Path, content: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(content, protocol=2))


def _md5(path: Path) -> str:
    return hashlib.md5(path.read_bytes()).hexdigest() if path.is_file() else ""
