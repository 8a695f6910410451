import pickle
from pathlib import Path

import numpy as np
import pytest
from support.datasets import accept_checksums, make_cifar10, make_cifar100, make_mnist, make_stl10

from iic_geotools.errors import DataError, UsageError
from iic_train.data.base import Images
from iic_train.data.images import superclass_ids
from iic_train.data.training_data import open_dataset


def first_values(part: Images) -> list[int]:
    return [int(part.image(index)[0, 0, 0]) for index in range(len(part))]


@pytest.mark.parametrize(("name", "folder"), [("mnist", "MNIST"), ("fashion-mnist", "FashionMNIST")])
def test_mnist_uses_everything_without_labels(tmp_path: Path, name: str, folder: str) -> None:
    files = make_mnist(tmp_path, folder)
    data = open_dataset(name, tmp_path)
    assert [len(part) for part in (data.train_a, data.train_b, data.map, data.test)] == [30] * 4
    assert data.channels == ("grey",)
    assert data.classes[0] == {"mnist": "0", "fashion-mnist": "T-shirt/top"}[name]
    assert np.array_equal(data.train_b.image(21)[0], files["t10k-images-idx3-ubyte"][1])
    assert data.map.label(21) == files["t10k-labels-idx1-ubyte"][1]
    assert data.map.valid(0) is None


def test_overclustering_keeps_the_test_part_apart(tmp_path: Path) -> None:
    make_mnist(tmp_path)
    data = open_dataset("mnist", tmp_path, overcluster=True)
    assert [len(part) for part in (data.train_b, data.map, data.test)] == [20, 20, 10]


def test_missing_and_damaged_mnist(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"MNIST is missing .*`download`"):
        open_dataset("mnist", tmp_path)
    make_mnist(tmp_path)
    path = tmp_path / "MNIST" / "raw" / "train-images-idx3-ubyte"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DataError, match="damaged"):
        open_dataset("mnist", tmp_path)


def test_cifar10_keeps_the_order_of_its_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    batches = make_cifar10(tmp_path)
    accept_checksums(tmp_path, monkeypatch)
    data = open_dataset("cifar10", tmp_path)
    assert [len(part) for part in (data.train_a, data.train_b, data.map, data.test)] == [24] * 4
    pixels, labels = batches["data_batch_3"]
    assert np.array_equal(data.train_b.image(9), pixels[1].reshape(3, 32, 32))
    assert data.test.label(9) == labels[1]
    apart = open_dataset("cifar10", tmp_path, overcluster=True)
    assert [len(part) for part in (apart.train_b, apart.map, apart.test)] == [20, 20, 4]


def test_cifar_files_with_another_checksum_are_not_unpickled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_cifar10(tmp_path)
    accept_checksums(tmp_path, monkeypatch)
    path = tmp_path / "cifar-10-batches-py" / "data_batch_2"
    path.write_bytes(path.read_bytes() + b" ")
    with pytest.raises(DataError, match="damaged"):
        open_dataset("cifar10", tmp_path)


def test_cifar100_is_labelled_by_superclasses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    apple, beaver, clock, tractor, worm = 0, 4, 22, 89, 99
    make_cifar100(tmp_path, [apple, beaver, clock, tractor, worm])
    accept_checksums(tmp_path, monkeypatch)
    data = open_dataset("cifar100-20", tmp_path)
    names = [data.classes[data.test.label(index)] for index in range(5)]  # type: ignore[index]
    assert names == [
        "fruit and vegetables",
        "aquatic mammals",
        "household electrical devices",
        "vehicles 2",
        "non-insect invertebrates",
    ]


def test_every_superclass_has_five_classes() -> None:
    assert np.bincount(superclass_ids()).tolist() == [5] * 20


def test_stl10_in_the_unsupervised_protocol(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_stl10(tmp_path)
    accept_checksums(tmp_path, monkeypatch)
    data = open_dataset("stl10", tmp_path)
    # Each labelled image, then its share (9 // 4 = 2) of the unlabelled ones, the remaining one, then the test part.
    assert first_values(data.train_a) == [0, 7, 8, 1, 9, 10, 2, 11, 12, 3, 13, 14, 15, 4, 5, 6]
    assert first_values(data.train_b) == first_values(data.map) == first_values(data.test) == list(range(7))
    assert [data.map.label(index) for index in range(7)] == [0, 1, 2, 3, 0, 1, 2]
    assert data.train_a.label(1) is None
    assert data.train_b.image(0)[2, 5, 90] == 77


def test_stl10_with_overclustering_and_without_unlabelled_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_stl10(tmp_path)
    accept_checksums(tmp_path, monkeypatch)
    data = open_dataset("stl10", tmp_path, overcluster=True)
    assert sorted(first_values(data.train_b)) == [0, 1, 2, 3, *range(7, 16)]
    assert (first_values(data.map), first_values(data.test)) == ([0, 1, 2, 3], [4, 5, 6])
    assert first_values(open_dataset("stl10", tmp_path, unlabelled=False).train_a) == list(range(7))


def test_only_data_sets_of_torchvision_are_downloaded(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="`download` does not know potsdam"):
        open_dataset("potsdam", tmp_path, download=True)


def test_processes_that_read_ahead_are_not_sent_all_of_stl10(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_stl10(tmp_path)
    accept_checksums(tmp_path, monkeypatch)
    data = open_dataset("stl10", tmp_path)
    sent = pickle.dumps(data.train_a)
    assert len(sent) < 96 * 96  # less than one band of one image
    received = pickle.loads(sent)
    assert first_values(received) == first_values(data.train_a)
    assert received.image(3)[2, 5, 90] == 77
