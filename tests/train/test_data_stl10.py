from pathlib import Path

import numpy as np
import pytest

from iic_geotools.errors import DataError
from iic_train.data import open_dataset


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """4 training, 3 test and 9 unlabelled images whose top left pixel is their number."""
    folder = tmp_path / "stl10_binary"
    folder.mkdir()
    start = 0
    for part, count in (("train", 4), ("test", 3), ("unlabeled", 9)):
        images = np.zeros((count, 3, 96, 96), np.uint8)
        images[:, 0, 0, 0] = np.arange(start, start + count)
        images[:, 2, 5, 90] = 77  # row 5, column 90
        (folder / f"{part}_X.bin").write_bytes(images.transpose(0, 1, 3, 2).tobytes())
        if part != "unlabeled":
            (folder / f"{part}_y.bin").write_bytes(np.arange(1, count + 1, dtype=np.uint8).tobytes())
        start += count
    return tmp_path


def numbers(part: object) -> list[int]:
    return [int(part.image(i)[0, 0, 0]) for i in range(len(part))]  # type: ignore[attr-defined,arg-type]


def test_partitions_of_the_unsupervised_protocol(root: Path) -> None:
    data = open_dataset("stl10", root)
    # one labelled, then its share (9 // 4 = 2) of the unlabelled, the odd one out, then the test part
    assert numbers(data.train_a) == [0, 7, 8, 1, 9, 10, 2, 11, 12, 3, 13, 14, 15, 4, 5, 6]
    assert numbers(data.train_b) == numbers(data.map) == numbers(data.test) == list(range(7))
    assert [data.map.label(i) for i in range(7)] == [0, 1, 2, 3, 0, 1, 2]
    assert data.train_a.label(1) is None
    assert data.train_b.image(0)[2, 5, 90] == 77


def test_partitions_of_overclustering_and_without_unlabelled_images(root: Path) -> None:
    data = open_dataset("stl10", root, overcluster=True)
    assert sorted(numbers(data.train_b)) == [0, 1, 2, 3, *range(7, 16)]
    assert (numbers(data.map), numbers(data.test)) == ([0, 1, 2, 3], [4, 5, 6])
    (root / "stl10_binary" / "unlabeled_X.bin").unlink()
    assert numbers(open_dataset("stl10", root, unlabelled=False).train_a) == list(range(7))
    with pytest.raises(DataError, match="unlabeled_X"):
        open_dataset("stl10", root)


def test_damaged_files(root: Path) -> None:
    (root / "stl10_binary" / "train_y.bin").write_bytes(bytes([0, 1, 2, 3]))
    with pytest.raises(DataError, match="1 to 10"):
        open_dataset("stl10", root)
    (root / "stl10_binary" / "train_y.bin").write_bytes(bytes([1, 2, 3]))
    with pytest.raises(DataError, match="4 images but 3 labels"):
        open_dataset("stl10", root)
    (root / "stl10_binary" / "train_X.bin").write_bytes(bytes(100))
    with pytest.raises(DataError, match="whole images"):
        open_dataset("stl10", root)
