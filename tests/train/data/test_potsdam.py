import pickle
from pathlib import Path

import numpy as np
import pytest
import rasterio
from numpy.typing import NDArray
from scipy.io import savemat

from iic_geotools.errors import DataError
from iic_train.data.base import Dataset
from iic_train.data.potsdam import colours_to_classes
from iic_train.data.training_data import open_dataset

COLOURS = np.array(
    [(255, 255, 255), (0, 0, 255), (0, 255, 255), (0, 255, 0), (255, 255, 0), (255, 0, 0), (0, 0, 0)],
    np.uint8,
)
pytestmark = pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")


def write(path: Path, array: NDArray[np.uint8]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    bands, height, width = array.shape
    with rasterio.open(
        path, "w", driver="GTiff", count=bands, height=height, width=width, dtype="uint8"
    ) as file:
        file.write(array)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Three tiles of 2x3 chips; 2_13 was withheld by the benchmark although its labels are there."""
    rng = np.random.default_rng(0)
    for tile in ("2_10", "7_7", "2_13"):
        image = rng.integers(0, 256, (4, 801, 1210), np.uint8)
        write(tmp_path / "potsdam" / "4_Ortho_RGBIR" / f"top_potsdam_{tile}_RGBIR.tif", image)
        labels = COLOURS[rng.integers(0, 7, (801, 1210))].transpose(2, 0, 1)
        write(tmp_path / "potsdam" / "5_Labels_all" / f"top_potsdam_{tile}_label.tif", labels)
    return tmp_path


def sizes(data: Dataset) -> list[int]:
    return [len(part) for part in (data.train_a, data.train_b, data.map, data.test)]


def test_colours() -> None:
    assert colours_to_classes(COLOURS.T[:, None])[0].tolist() == [0, 1, 2, 3, 4, 5, 255]
    off = np.array([[[252, 128]], [[255, 255]], [[0, 0]]], np.uint8)
    assert colours_to_classes(off).tolist() == [[4, 255]]


def test_partitions(root: Path) -> None:
    data = open_dataset("potsdam", root)
    assert sizes(data) == [18, 18, 12, 12]
    assert data.channels == ("red", "green", "blue", "nir")
    assert sizes(open_dataset("potsdam", root, overcluster=True)) == [16, 16, 10, 2]
    assert sizes(open_dataset("potsdam", root, unlabelled=False)) == [12] * 4
    assert all(data.map.label(i) is not None for i in range(12))
    assert sum(data.train_b.label(i) is None for i in range(18)) == 6


def test_chips_are_means_of_four_and_labels_their_upper_left(root: Path) -> None:
    data = open_dataset("potsdam", root)
    with rasterio.open(root / "potsdam/4_Ortho_RGBIR/top_potsdam_7_7_RGBIR.tif") as file:
        tile = file.read()
    with rasterio.open(root / "potsdam/5_Labels_all/top_potsdam_7_7_label.tif") as file:
        rgb = file.read()
    row, column = 1, 2
    corner = tile[:, 400:402, 800:802].reshape(4, 4).mean(1)
    chips = [data.map.image(i) for i in range(12)]
    (index,) = [i for i, chip in enumerate(chips) if np.abs(chip[:, 0, 0] - corner).max() <= 0.5]
    whole = tile[:, 400 * row : 800, 400 * column : 1200].reshape(4, 200, 2, 200, 2).mean((2, 4))
    assert np.abs(chips[index] - whole).max() <= 0.5
    expected = colours_to_classes(rgb)[400:800:2, 800:1200:2]
    assert np.array_equal(data.map.label(index), expected)
    three = open_dataset("potsdam-3", root).map.label(index)
    assert np.array_equal(three, np.array([0, 1, 2, 2, 0, 1] + [255] * 250)[expected])


def test_chips_are_cut_once_and_again_when_a_tile_changes(root: Path) -> None:
    open_dataset("potsdam", root)
    cached = root / "potsdam" / "chips" / "images.npy"
    first = cached.stat().st_ino
    assert open_dataset("potsdam", root).fingerprint() == open_dataset("potsdam-3", root).fingerprint()
    assert cached.stat().st_ino == first
    write(root / "potsdam/4_Ortho_RGBIR/top_potsdam_7_7_RGBIR.tif", np.zeros((4, 400, 400), np.uint8))
    (root / "potsdam/5_Labels_all/top_potsdam_7_7_label.tif").unlink()
    assert len(open_dataset("potsdam", root).train_b) == 13


def test_an_interrupted_cut_is_done_again(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import iic_train.data.potsdam as tiles

    label_row = tiles._label_row

    def full_disk(*args: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(tiles, "_label_row", full_disk)
    with pytest.raises(DataError, match="no space left"):
        open_dataset("potsdam", root)
    assert list((root / "potsdam" / "chips").iterdir()) == []
    monkeypatch.setattr(tiles, "_label_row", label_row)
    assert sizes(open_dataset("potsdam", root)) == [18, 18, 12, 12]


def test_partitions_travel_to_worker_processes(root: Path) -> None:
    part = open_dataset("potsdam", root).train_b
    before = part.image(3)
    frozen = pickle.dumps(part)
    assert len(frozen) < 100_000
    assert np.array_equal(pickle.loads(frozen).image(3), before)


def test_the_authors_archive(tmp_path: Path) -> None:
    folder = tmp_path / "potsdam"
    for kind in ("imgs", "gt"):
        (folder / kind).mkdir(parents=True)
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (5, 200, 200, 4), np.uint8)
    labels = rng.integers(0, 6, (5, 200, 200), np.int32)
    for index in range(5):
        savemat(folder / "imgs" / f"{index}.mat", {"img": images[index]})
        if index > 1:
            savemat(folder / "gt" / f"{index}.mat", {"gt": labels[index]})
    for file, ids in (("unlabelled_train", "0\n1\n"), ("labelled_train", "4\n2\n"), ("labelled_test", "3\n")):
        (folder / f"{file}.txt").write_text(ids)
    data = open_dataset("potsdam-3", tmp_path)
    assert sizes(data) == [5, 5, 3, 3]
    assert np.array_equal(data.map.image(0), images[4].transpose(2, 0, 1))
    assert np.array_equal(data.map.label(1), np.array([0, 1, 2, 2, 0, 1])[labels[2]])
    assert data.train_b.label(0) is None
    assert sizes(open_dataset("potsdam", tmp_path, overcluster=True)) == [4, 4, 2, 1]


def test_missing_data(tmp_path: Path, root: Path) -> None:
    with pytest.raises(DataError, match=r"4_Ortho_RGBIR.*Potsdam\.tar\.gz"):
        open_dataset("potsdam", tmp_path / "elsewhere")
    for path in (root / "potsdam" / "5_Labels_all").iterdir():
        path.unlink()
    with pytest.raises(DataError, match="no label images"):
        open_dataset("potsdam", root)
    write(root / "potsdam/4_Ortho_RGBIR/top_potsdam_7_7_RGBIR.tif", np.zeros((3, 400, 400), np.uint8))
    with pytest.raises(DataError, match="infrared"):
        open_dataset("potsdam", root)
