import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from iic_geotools.errors import DataError
from iic_train.data import open_dataset

TRAIN10 = [f"data_batch_{number}" for number in range(1, 6)]


def batch(count: int, classes: int, seed: int) -> tuple[NDArray[np.uint8], list[int]]:
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (count, 3072), np.uint8), rng.integers(0, classes, count).tolist()


def python2_dump(path: Path, content: dict[bytes, Any]) -> None:
    """As the distributed files are: protocol 2 with the module names of old numpy."""
    data = pickle.dumps(content, protocol=2).replace(b"numpy._core.multiarray", b"numpy.core.multiarray")
    path.write_bytes(data)


def make10(root: Path, layout: str) -> dict[str, tuple[NDArray[np.uint8], list[int]]]:
    batches = {name: batch(4, 10, seed) for seed, name in enumerate([*TRAIN10, "test_batch"])}
    folder = root / ("cifar-10-batches-py" if layout == "python" else "cifar-10-batches-bin")
    folder.mkdir()
    for name, (pixels, labels) in batches.items():
        if layout == "python":
            python2_dump(folder / name, {b"data": pixels, b"labels": labels})
        else:
            (folder / f"{name}.bin").write_bytes(
                np.hstack([np.array(labels, "u1")[:, None], pixels]).tobytes()
            )
    return batches


@pytest.mark.parametrize("layout", ["python", "binary"])
def test_cifar10_layouts_hold_the_same(tmp_path: Path, layout: str) -> None:
    batches = make10(tmp_path, layout)
    data = open_dataset("cifar10", tmp_path)
    assert [len(part) for part in (data.train_a, data.train_b, data.map, data.test)] == [24] * 4
    pixels, labels = batches["data_batch_3"]
    assert np.array_equal(data.train_b.image(9), pixels[1].reshape(3, 32, 32))
    assert data.test.label(9) == labels[1]
    apart = open_dataset("cifar10", tmp_path, overcluster=True)
    assert [len(part) for part in (apart.train_b, apart.map, apart.test)] == [20, 20, 4]


@pytest.mark.parametrize("layout", ["python", "binary"])
def test_cifar100_uses_the_coarse_labels(tmp_path: Path, layout: str) -> None:
    folder = tmp_path / ("cifar-100-python" if layout == "python" else "cifar-100-binary")
    folder.mkdir()
    coarse = {}
    for seed, name in enumerate(["train", "test"]):
        pixels, coarse[name] = batch(5, 20, seed)
        fine = [99] * 5
        if layout == "python":
            content = {b"data": pixels, b"coarse_labels": coarse[name], b"fine_labels": fine}
            python2_dump(folder / name, content)
        else:
            labels = np.array([coarse[name], fine], "u1").T
            (folder / f"{name}.bin").write_bytes(np.hstack([labels, pixels]).tobytes())
    data = open_dataset("cifar100-20", tmp_path)
    assert [data.test.label(i) for i in range(10)] == coarse["train"] + coarse["test"]
    assert len(data.classes) == 20


def test_a_batch_cannot_run_code(tmp_path: Path) -> None:
    make10(tmp_path, "python")
    trace = tmp_path / "ran"

    class Exploit:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.mkdir, (str(trace),)

    python2_dump(tmp_path / "cifar-10-batches-py" / "data_batch_2", {b"data": Exploit(), b"labels": []})
    with pytest.raises(DataError, match="mkdir"):
        open_dataset("cifar10", tmp_path)
    assert not trace.exists()


def test_missing_and_damaged_files(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"data_batch_1 into .*cifar-10-batches-py"):
        open_dataset("cifar10", tmp_path)
    make10(tmp_path, "binary")
    path = tmp_path / "cifar-10-batches-bin" / "test_batch.bin"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DataError, match="whole records"):
        open_dataset("cifar10", tmp_path)
    path.write_bytes(bytes([11]) * 3073)
    with pytest.raises(DataError, match="10 labels"):
        open_dataset("cifar10", tmp_path)
