import gzip
import struct
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from iic_geotools.errors import DataError
from iic_train.data import open_dataset


def write_idx(path: Path, array: NDArray[np.uint8]) -> None:
    header = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
    data = header + array.tobytes()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)


def make(root: Path, suffix: str) -> dict[str, NDArray[np.uint8]]:
    folder = root / "MNIST" / "raw"
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    arrays = {
        "train-images-idx3-ubyte": rng.integers(0, 256, (5, 28, 28), np.uint8),
        "train-labels-idx1-ubyte": rng.integers(0, 10, 5, np.uint8),
        "t10k-images-idx3-ubyte": rng.integers(0, 256, (3, 28, 28), np.uint8),
        "t10k-labels-idx1-ubyte": rng.integers(0, 10, 3, np.uint8),
    }
    for name, array in arrays.items():
        write_idx(folder / f"{name}{suffix}", array)
    return arrays


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_everything_is_used_without_labels(tmp_path: Path, suffix: str) -> None:
    files = make(tmp_path, suffix)
    data = open_dataset("mnist", tmp_path)
    assert [len(part) for part in (data.train_a, data.train_b, data.map, data.test)] == [8] * 4
    assert data.channels == ("grey",)
    assert len(data.classes) == 10
    assert np.array_equal(data.train_b.image(6)[0], files["t10k-images-idx3-ubyte"][1])
    assert data.map.label(6) == files["t10k-labels-idx1-ubyte"][1]
    assert data.map.valid(0) is None


def test_overclustering_keeps_the_test_part_apart(tmp_path: Path) -> None:
    make(tmp_path, "")
    data = open_dataset("mnist", tmp_path, overcluster=True)
    assert [len(part) for part in (data.train_b, data.map, data.test)] == [5, 5, 3]


def test_missing_and_damaged_files(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"MNIST/raw.*download=True"):
        open_dataset("mnist", tmp_path)
    make(tmp_path, "")
    path = tmp_path / "MNIST" / "raw" / "train-images-idx3-ubyte"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DataError, match="5x28x28"):
        open_dataset("mnist", tmp_path)
    path.write_bytes(b"<html>not found</html>")
    with pytest.raises(DataError, match="not an idx file"):
        open_dataset("mnist", tmp_path)
