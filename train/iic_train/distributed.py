"""Training by several processes under torchrun.

The objective sums its counts over all ranks, so the gradient of each rank is its share of the gradient of one
large batch: `sum_gradients` adds the shares up.
"""

import ctypes
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from iic_geotools.errors import DeviceError, UsageError
from iic_geotools.work import cores
from iic_train.config import Amp
from iic_train.data.loader import share_of

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_MAX = -1, -2, -4
"""Parameters of glibc's `mallopt`."""
LARGEST = 2**31 - 1
GROWTH = 64 * 2**20
"""Number of bytes by which the heap grows."""


def keep_freed_memory() -> bool:
    """Let tensors reuse the memory that others have left, and return whether the C library can.

    glibc gives every large block back to the system as soon as it is freed, so each tensor of a training step is made
    of new pages, which the system clears first: a quarter of the time of a narrow network at full resolution
    (`benchmarks/train_step.py --memory`). Kept on the heap, blocks are reused; the process keeps its peak memory.
    """
    if not sys.platform.startswith("linux"):
        return False
    change = getattr(ctypes.CDLL(None), "mallopt", None)
    if change is None:  # another C library, such as musl
        return False
    settings = ((M_MMAP_MAX, 0), (M_TRIM_THRESHOLD, LARGEST), (M_TOP_PAD, GROWTH))
    return all(change(parameter, value) == 1 for parameter, value in settings)


@dataclass(frozen=True)
class Ranks:
    """Number of this process, number of processes, and both on this machine alone."""

    rank: int = 0
    count: int = 1
    local: int = 0
    local_count: int = 1

    @property
    def first(self) -> bool:
        """Whether this process writes files and speaks to the user."""
        return self.rank == 0

    def share(self, images: int) -> int:
        """Return how many of the images of each step this process reads."""
        if images < self.count:
            raise UsageError(
                f"{images} images per step cannot be shared by {self.count} processes: start fewer of them, or use a "
                "larger `batch`."
            )
        return len(range(images)[share_of(images, self.rank, self.count)])


@contextmanager
def join_ranks(device: str) -> Iterator[tuple[Ranks, torch.device]]:
    """Join the other processes of torchrun, if there are any, and choose the device of this process."""
    ranks = Ranks(*(int(os.environ.get(name, default)) for name, default in _TORCHRUN))
    chosen = choose_device(device, ranks.local)
    if ranks.count == 1:
        yield ranks, chosen
        return
    dist.init_process_group("nccl" if chosen.type == "cuda" else "gloo")
    try:
        yield ranks, chosen
    finally:
        dist.destroy_process_group()


@contextmanager
def first_on_machine(ranks: Ranks) -> Iterator[None]:
    """Let the first process of each machine leave the block before the others enter it, as long as that takes."""
    if ranks.count == 1:
        yield
        return
    group = cast(dist.ProcessGroup, dist.new_group(backend="gloo", timeout=timedelta(days=1)))
    if ranks.local:
        dist.barrier(group)
    yield
    if not ranks.local:
        dist.barrier(group)
    dist.destroy_process_group(group)


_TORCHRUN = (("RANK", "0"), ("WORLD_SIZE", "1"), ("LOCAL_RANK", "0"), ("LOCAL_WORLD_SIZE", "1"))
MAX_WORKERS = 16
"""Most processes that read ahead for one GPU unless more are asked for."""


def choose_device(device: str, local: int = 0) -> torch.device:
    """Return the device that was asked for; `auto` is a GPU if there is one.

    On a CPU, memory that tensors leave is kept for the next ones (`iic_train.distributed`).
    On a GPU, float32 then means float32: TensorFloat-32, which PyTorch would use in convolutions, keeps ten bits.
    """
    available = torch.cuda.is_available()
    if device == "cuda" and not available:
        raise DeviceError("PyTorch finds no GPU: use another `device` than cuda, or check the driver.")
    if device == "cpu" or not available:
        keep_freed_memory()
        return torch.device("cpu")
    torch.cuda.set_device(local)
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    return torch.device("cuda", local)


def choose_precision(amp: Amp, device: torch.device) -> Amp:
    """Return the precision of the network on a device: `auto` is bf16 on a GPU that has it, and float32 elsewhere."""
    if amp != "auto":
        return amp
    has_bf16 = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    return "bf16" if has_bf16 else "off"


def choose_workers(workers: int | None, device: torch.device, ranks: Ranks) -> int:
    """Return the number of processes that read ahead, by default all cores but one for a GPU, and none on a CPU.

    On a CPU the cores are needed for training itself.
    """
    if workers is not None:
        return workers
    if device.type == "cpu":
        return 0
    return max(1, min(MAX_WORKERS, cores() // ranks.local_count - 1))


@contextmanager
def explain_full_memory(advice: str) -> Iterator[None]:
    """Turn PyTorch's error about a GPU whose memory is full into a sentence."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise DeviceError(f"The memory of the GPU is full: {advice}.") from error


def sum_gradients(parameters: Iterable[Tensor]) -> None:
    """Add up the gradients of all ranks in one message; parameters without one, those of an idle head, are left out."""
    if dist.is_initialized():
        _in_one_message([p.grad for p in parameters if p.grad is not None])


def average_statistics(network: nn.Module, weight: float = 1.0) -> None:
    """Give all ranks the mean of their running batch-norm statistics.

    Args:
        weight: Share of this rank in relation to a share of equal size.
    """
    if dist.is_initialized():
        buffers = [b for b in network.buffers() if b.is_floating_point()]
        _in_one_message(buffers, weight, 1.0 / dist.get_world_size())


def agree(decision: bool, device: torch.device) -> bool:
    """Return the decision of the first rank, so that all ranks stop together."""
    if not dist.is_initialized():
        return decision
    answer = torch.tensor([decision], dtype=torch.int32, device=device)
    dist.broadcast(answer, 0)
    return bool(answer.item())


def _in_one_message(tensors: list[Tensor], before: float = 1.0, after: float = 1.0) -> None:
    flat = torch.cat([tensor.flatten() for tensor in tensors]) * before
    dist.all_reduce(flat)
    for tensor, part in zip(tensors, torch.split(flat, [tensor.numel() for tensor in tensors]), strict=True):
        tensor.copy_(part.view_as(tensor) * after)
