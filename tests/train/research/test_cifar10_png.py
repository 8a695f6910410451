import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from iic_geotools.errors import DataError
from iic_research.cifar10_png import convert_cifar10
from iic_train.data.training_data import open_dataset

FILES = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]


def make_package(folder: Path) -> tuple[dict[str, NDArray[np.uint8]], list[int], list[int]]:
    """Write three images a file as npm's package has them; return the images [3, 32, 32, 3] and all labels."""
    rng = np.random.default_rng(0)
    folder.mkdir()
    images = {name: rng.integers(0, 256, (3, 32, 32, 3), np.uint8) for name in FILES}
    for name, pixels in images.items():
        Image.fromarray(pixels.reshape(3, 1024, 3)).save(folder / f"{name}.png")
    train, test = rng.integers(0, 10, 15).tolist(), [9, 0, 3]
    (folder / "train_lables.json").write_text(json.dumps(train))
    (folder / "test_lables.json").write_text(json.dumps(test))
    return images, train, test


def test_every_row_of_a_png_becomes_an_image(tmp_path: Path) -> None:
    images, train, test = make_package(tmp_path / "package")
    folder = convert_cifar10(tmp_path / "package", tmp_path / "data")
    assert sorted(path.name for path in folder.iterdir()) == [f"{name}.bin" for name in FILES]
    data = open_dataset("cifar10", tmp_path / "data")
    everything = np.concatenate(list(images.values())).transpose(0, 3, 1, 2)
    assert np.array_equal(np.stack([data.train_b.image(index) for index in range(18)]), everything)
    assert [data.map.label(index) for index in range(18)] == [*train, *test]
    assert data.classes[:2] == ("airplane", "automobile")
    assert data.channels == ("red", "green", "blue")
    apart = open_dataset("cifar10", tmp_path / "data", overcluster=True)
    assert [len(part) for part in (apart.train_b, apart.map, apart.test)] == [15, 15, 3]


def test_packages_of_another_layout_are_refused(tmp_path: Path) -> None:
    package = tmp_path / "package"
    make_package(package)
    (package / "test_lables.json").write_text("[1, 2]")
    with pytest.raises(DataError, match=r"test_lables.json has fewer labels"):
        convert_cifar10(package, tmp_path)
    (package / "test_lables.json").write_text("[1, 2, 3, 4]")
    with pytest.raises(DataError, match=r"test_lables.json has more labels"):
        convert_cifar10(package, tmp_path)
    (package / "test_lables.json").write_text("[1, 2, 10]")
    with pytest.raises(DataError, match="numbers from 0 to 9"):
        convert_cifar10(package, tmp_path)
    Image.new("RGB", (1023, 3)).save(package / "data_batch_1.png")
    (package / "test_lables.json").write_text("[1, 2, 3]")
    with pytest.raises(DataError, match="1024 colour pixels in a row"):
        convert_cifar10(package, tmp_path)
    (package / "data_batch_1.png").unlink()
    with pytest.raises(DataError, match=r"data_batch_1.png is missing"):
        convert_cifar10(package, tmp_path)


def test_damaged_and_missing_binary_files(tmp_path: Path) -> None:
    make_package(tmp_path / "package")
    folder = convert_cifar10(tmp_path / "package", tmp_path)
    path = folder / "data_batch_2.bin"
    good = path.read_bytes()
    for bad in (good[:-1], b"", b"\x0a" + good[1:]):
        path.write_bytes(bad)
        with pytest.raises(DataError, match=r"data_batch_2.bin is damaged"):
            open_dataset("cifar10", tmp_path)
    path.unlink()
    with pytest.raises(DataError, match=r"data_batch_2.bin is missing"):
        open_dataset("cifar10", tmp_path)


def test_it_runs_as_a_command(tmp_path: Path) -> None:
    make_package(tmp_path / "package")

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "iic_research.cifar10_png", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    assert run(str(tmp_path / "package"), str(tmp_path)).returncode == 0
    assert len(open_dataset("cifar10", tmp_path).train_b) == 18
    assert run(str(tmp_path / "nothing"), str(tmp_path)).returncode == 1
    assert "usage" in run().stderr
