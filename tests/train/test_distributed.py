import os
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from iic_geotools.errors import DeviceError
from iic_train.distributed import (
    MAX_WORKERS,
    Ranks,
    choose_precision,
    choose_workers,
    explain_full_memory,
    first_on_machine,
)

CUDA = torch.device("cuda", 0)


def open_in_order(rank: int, folder: Path) -> None:
    dist.init_process_group("gloo", f"file://{folder / 'meeting'}", rank=rank, world_size=3)
    machine, local = divmod(rank, 2)  # the third process is alone on a second machine
    data = folder / f"data of machine {machine}"
    with first_on_machine(Ranks(rank, 3, local, 2)):
        if local == 0:
            time.sleep(1)
            data.write_text("whole")
        (folder / f"{rank}").write_text(data.read_text() if data.exists() else "missing")
    dist.destroy_process_group()


def test_the_first_process_of_a_machine_opens_data_before_the_others(tmp_path: Path) -> None:
    mp.spawn(open_in_order, args=(tmp_path,), nprocs=3)  # type: ignore[no-untyped-call]
    assert [(tmp_path / str(rank)).read_text() for rank in range(3)] == ["whole"] * 3


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


@pytest.mark.parametrize("supported", [True, False])
def test_the_default_precision_is_bf16_where_torch_says_that_the_gpu_has_it(
    monkeypatch: pytest.MonkeyPatch, supported: bool
) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: supported)
    assert choose_precision("auto", torch.device("cuda")) == ("bf16" if supported else "off")
    assert choose_precision("auto", torch.device("cpu")) == "off"
    assert choose_precision("fp16", torch.device("cuda")) == "fp16"
