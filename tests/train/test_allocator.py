"""Freed memory that is kept: a process of its own, because the setting holds for the whole process."""

import subprocess
import sys

import pytest

TENSORS, MEGABYTES = 20, 40
CODE = f"""
import resource, torch
from iic_train.distributed import choose_device
if {{keep}}:
    choose_device("cpu")
def faults():
    for _ in range({TENSORS}):
        torch.zeros({MEGABYTES} * 2**18)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
before = faults()
print(faults() - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="a setting of glibc")
def test_tensors_on_a_cpu_reuse_the_memory_of_those_before() -> None:
    faults = {}
    for keep in (False, True):
        process = subprocess.run(
            [sys.executable, "-c", CODE.format(keep=keep)], capture_output=True, text=True, check=True
        )
        faults[keep] = int(process.stdout)
    assert faults[False] > TENSORS  # each is new memory, in pages of whatever size the system has
    assert faults[True] < TENSORS
