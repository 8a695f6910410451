import os

import pytest
import torch

from iic_geotools.errors import DeviceError
from iic_train.distributed import MAX_WORKERS, Ranks, choose_workers, explain_full_memory

CUDA = torch.device("cuda", 0)


@pytest.mark.parametrize(
    ("cores", "ranks", "expected"), [(1, 1, 1), (8, 1, 7), (8, 4, 1), (64, 2, MAX_WORKERS)]
)
def test_the_processes_on_a_machine_share_its_cores(
    cores: int, ranks: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    assert choose_workers(None, CUDA, Ranks(0, ranks, 0, ranks)) == expected


def test_given_numbers_of_processes_count_and_a_cpu_needs_none() -> None:
    assert choose_workers(3, CUDA, Ranks()) == 3
    assert choose_workers(0, CUDA, Ranks()) == 0
    assert choose_workers(None, torch.device("cpu"), Ranks()) == 0


def test_a_full_gpu_is_a_sentence() -> None:
    with (
        pytest.raises(DeviceError, match=r"^The memory of the GPU is full: buy less\.$"),
        explain_full_memory("buy less"),
    ):
        raise torch.OutOfMemoryError("CUDA out of memory.")
