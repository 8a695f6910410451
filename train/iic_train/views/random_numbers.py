"""Random numbers for views, all of them from one seed, and their way to the device."""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

Drawn = TypeVar("Drawn")


class Draw:
    """Random numbers for batches on any device.

    Numbers per image are drawn on the CPU, so that all devices make the same views. A GPU does not wait for them:
    they are copied from page-locked memory while it works on what came before.
    """

    def __init__(self, seed: int, device: torch.device | str = "cpu") -> None:
        self.device = torch.device(device)
        self._generator = torch.Generator().manual_seed(seed)

    def on_host(self) -> "Draw":
        """Return the same sequence of numbers, left on the CPU: many of them can then be sent in one copy."""
        host = Draw(0)
        host._generator = self._generator
        return host

    def send(self, drawn: Drawn) -> Drawn:
        """Copy all tensors in nested tuples from the CPU to the device, in one copy."""
        if self.device.type == "cpu":
            return drawn
        tensors = list(_tensors(drawn))
        flat = [tensor.contiguous().view(-1).view(torch.uint8) for tensor in tensors]
        padded = [torch.nn.functional.pad(part, (0, -len(part) % _ALIGNMENT)) for part in flat]
        packed = to_device(torch.cat(padded), self.device)
        ends = torch.split(packed, [len(part) for part in padded])
        sent = iter(
            part[: source.numel() * source.element_size()].view(source.dtype).view(source.shape)
            for part, source in zip(ends, tensors, strict=True)
        )
        return cast(Drawn, _replaced(drawn, sent))

    def uniform(self, shape: Sequence[int], low: float, high: float) -> Tensor:
        """Return uniform numbers in [low, high)."""
        return self._sent(low + (high - low) * torch.rand(tuple(shape), generator=self._generator))

    def integers(self, count: int, low: int, high: int) -> Tensor:
        """Return `count` integers in [low, high)."""
        return self._sent(torch.randint(low, high, (count,), generator=self._generator))

    def chance(self, count: int, probability: float) -> Tensor:
        """Return for each of `count` images whether an event of this probability happens."""
        return self._sent(torch.rand(count, generator=self._generator) < probability)

    def orders(self, count: int, length: int) -> Tensor:
        """Return a permutation of `length` numbers for each of `count` images, `[count, length]`."""
        return self._sent(torch.rand(count, length, generator=self._generator).argsort(1))

    def seed(self) -> int:
        """Return a seed for `normal`."""
        return int(torch.randint(2**62, (), generator=self._generator))

    def normal(self, like: Tensor) -> Tensor:
        """Return normal numbers in the shape of `like`, drawn on its device."""
        return normal(like, self.seed())

    def _sent(self, tensor: Tensor) -> Tensor:
        return to_device(tensor, self.device)


_ALIGNMENT = 16
"""Bytes to whose multiples the tensors of a copy are padded, so that each can be viewed as its own type."""


def normal(like: Tensor, seed: int) -> Tensor:
    """Return normal numbers in the shape of `like`, drawn on its device from a seed."""
    generator = torch.Generator(like.device).manual_seed(seed)
    return torch.randn(like.shape, generator=generator, device=like.device, dtype=like.dtype)


@lru_cache(maxsize=64)
def constant(values: tuple[float, ...], device: torch.device, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return a small tensor that is copied to the device once."""
    with torch.inference_mode(False):  # it may be needed first in an evaluation, and then in training
        return torch.tensor(values, device=device, dtype=dtype)


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy from the CPU without making the host wait."""
    return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)


def _tensors(drawn: Any) -> Iterator[Tensor]:
    if isinstance(drawn, Tensor):
        yield drawn
    elif isinstance(drawn, tuple):
        for value in drawn:
            yield from _tensors(value)


def _replaced(drawn: Any, tensors: Iterator[Tensor]) -> Any:
    """Return the same nested tuples with other tensors."""
    if isinstance(drawn, Tensor):
        return next(tensors)
    if not isinstance(drawn, tuple):
        return drawn
    values = [_replaced(value, tensors) for value in drawn]
    return type(drawn)(*values) if hasattr(drawn, "_fields") else tuple(values)
