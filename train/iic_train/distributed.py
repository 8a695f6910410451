"""Training by several processes under torchrun, in a few lines.

The objective sums its counts over all ranks, so each rank's gradient is its share of one large batch's:
`sum_gradients` adds the shares up.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

from iic_geotools.errors import DeviceError


@dataclass(frozen=True)
class Ranks:
    """This process's number and how many there are."""

    rank: int = 0
    count: int = 1
    local: int = 0

    @property
    def first(self) -> bool:
        """Whether this process writes files and speaks to the user."""
        return self.rank == 0


@contextmanager
def joined(device: str) -> Iterator[tuple[Ranks, torch.device]]:
    """Join torchrun's other processes, if there are any, and choose this process's device.

    Args:
        device: `auto`, `cpu` or `cuda`.
    """
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


_TORCHRUN = (("RANK", "0"), ("WORLD_SIZE", "1"), ("LOCAL_RANK", "0"))


def choose_device(device: str, local: int = 0) -> torch.device:
    """The device asked for; `auto` is a GPU if there is one.

    Raises:
        DeviceError: A GPU was asked for and is not there.
    """
    available = torch.cuda.is_available()
    if device == "cuda" and not available:
        raise DeviceError("--device cuda: PyTorch finds no GPU here; use --device cpu, or check the driver.")
    if device == "cpu" or not available:
        return torch.device("cpu")
    torch.cuda.set_device(local)
    return torch.device("cuda", local)


def sum_gradients(network: nn.Module) -> None:
    """Add up the gradients of all ranks in one message; parameters without one (an idle head) are left out."""
    if dist.is_initialized():
        _in_one_message([p.grad for p in network.parameters() if p.grad is not None])


def average_statistics(network: nn.Module) -> None:
    """Give all ranks the mean of their running batch-norm statistics."""
    if dist.is_initialized():
        buffers = [b for b in network.buffers() if b.is_floating_point()]
        _in_one_message(buffers, 1.0 / dist.get_world_size())


def _in_one_message(tensors: list[Tensor], factor: float = 1.0) -> None:
    flat = torch.cat([tensor.flatten() for tensor in tensors])
    dist.all_reduce(flat)
    for tensor, part in zip(tensors, torch.split(flat, [tensor.numel() for tensor in tensors]), strict=True):
        tensor.copy_(part.view_as(tensor) * factor)
