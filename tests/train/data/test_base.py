from pathlib import Path

import numpy as np
import pytest

from iic_geotools.errors import DataError, UsageError
from iic_train.data.base import Arrays, Dataset, Images, Joined, Subset
from iic_train.data.training_data import data_root, open_dataset


def arrays(count: int, start: int = 0, *, labelled: bool = True) -> Arrays:
    images = np.arange(start, start + count, dtype=np.uint8)[:, None, None, None] * np.ones(
        (1, 1, 2, 2), "u1"
    )
    return Arrays(images, np.arange(start, start + count) if labelled else None, ("grey",))


def test_joined_and_subset_reach_every_image_once() -> None:
    joined = Joined(arrays(3), arrays(1, 3), arrays(4, 4, labelled=False))
    assert isinstance(joined, Images)
    assert [int(joined.image(i)[0, 0, 0]) for i in range(len(joined))] == list(range(8))
    assert [joined.label(i) for i in range(8)] == [0, 1, 2, 3, None, None, None, None]
    chosen = Subset(joined, [7, 3, 0])
    assert [int(chosen.image(i)[0, 0, 0]) for i in range(len(chosen))] == [7, 3, 0]
    assert chosen.label(1) == 3
    with pytest.raises(IndexError):
        joined.image(8)


def test_partitions_that_do_not_fit_are_refused() -> None:
    with pytest.raises(DataError, match="channels"):
        Arrays(np.zeros((2, 3, 4, 4), np.uint8), None, ("grey",))
    with pytest.raises(DataError, match="incomplete"):
        Arrays(np.zeros((2, 1, 4, 4), np.uint8), np.zeros(3, np.int64), ("grey",))


def test_fingerprint_follows_the_pixels() -> None:
    def fingerprint(part: Images) -> str:
        return Dataset("x", False, part, part, map=part, test=part, classes=("a",)).fingerprint()

    assert fingerprint(arrays(4)) == fingerprint(arrays(4))
    assert fingerprint(arrays(4)) != fingerprint(arrays(4, 1))
    assert fingerprint(arrays(4)) != fingerprint(arrays(5))


def test_data_root_prefers_the_argument_then_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("IIC_DATA", raising=False)
    assert data_root() == Path("data")
    monkeypatch.setenv("IIC_DATA", "/somewhere")
    assert data_root() == Path("/somewhere")
    assert data_root(Path("here")) == Path("here")


def test_unknown_name() -> None:
    with pytest.raises(UsageError, match="cifar100-20"):
        open_dataset("imagenet")
