"""A GPU that is not there: CUDA tensors without values, next to real tensors on the CPU.

Inside `FakeCuda` every operation that touches the device is checked as on a GPU (devices, types and shapes must go
together) and computes nothing; whatever would need a value from the device raises. What stays on the CPU is computed
as always. Backward passes cannot run, because autograd starts a thread for the device.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from iic_train.views.random_numbers import constant

CUDA = torch.device("cuda", 0)
WAITING = ("aten._local_scalar_dense", "aten.nonzero", "aten.masked_select", "aten.equal", "aten.linalg_inv.")
"""Operations after which the host waits for the device; `linalg_inv` does because it looks for errors."""


class FakeCuda(FakeTensorMode):
    """Dispatch mode in which device `cuda` exists.

    Attributes:
        copies: Number of copies from host to device that the host does not wait for, by operation.
        waits: Number of times that the host waits for the device, by operation: copies from memory that is not
            page-locked, copies to the host, and operations whose result has a size that depends on values.
    """

    def __init__(self) -> None:
        super().__init__(allow_non_fake_inputs=True)
        self.copies: Counter[str] = Counter()
        self.waits: Counter[str] = Counter()
        self._pinned: set[int] = set()

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        tensors = list(_tensors((*args, *kwargs.values())))
        target = torch.device(kwargs["device"]) if kwargs.get("device") is not None else None
        name = str(func)
        if name.startswith("aten.is_pinned"):
            return args[0].data_ptr() in self._pinned
        if name.startswith(("aten._pin_memory", "aten.pin_memory")):
            copy = args[0].clone()
            self._pinned.add(copy.data_ptr())
            return copy
        if not any(isinstance(tensor, FakeTensor) for tensor in tensors) and (
            target is None or target.type != "cuda"
        ):
            return func(*args, **kwargs)
        self._count(name, tensors, target, bool(kwargs.get("non_blocking")))
        return super().__torch_dispatch__(func, types, args, kwargs)

    def _count(
        self, name: str, tensors: Sequence[Tensor], target: torch.device | None, non_blocking: bool
    ) -> None:
        if name.startswith(WAITING):
            self.waits[name] += 1
        hosts = [tensor for tensor in tensors if tensor.device.type == "cpu" and tensor.dim()]
        devices = {tensor.device.type for tensor in tensors}
        if (
            name.startswith("aten._to_copy")
            and target is not None
            and {target.type, *devices} == {"cpu", "cuda"}
        ):
            self._count_copy(name, tensors[0], target.type == "cuda" and non_blocking)
        elif (
            name.startswith(("aten.copy_", "aten.index", "aten._index_put", "aten.lift"))
            and "cuda" in devices
        ):
            for host in hosts:
                self._count_copy(name, host, asynchronous=False)

    def _count_copy(self, name: str, source: Tensor, asynchronous: bool) -> None:
        if asynchronous and not isinstance(source, FakeTensor) and source.data_ptr() in self._pinned:
            self.copies[name] += 1
        else:
            self.waits[name] += 1


def _tensors(values: Any) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)


def _move(module: nn.Module, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> nn.Module:
    """Change a module by making new parameters: PyTorch changes them in place, and a real one cannot become fake."""
    for part in module.modules() if recurse else [module]:
        for name, parameter in part._parameters.items():
            if parameter is not None:
                part._parameters[name] = nn.Parameter(fn(parameter.detach()), parameter.requires_grad)
        for name, buffer in part._buffers.items():
            part._buffers[name] = None if buffer is None else fn(buffer)
    return module


@contextmanager
def fake_cuda() -> Iterator[FakeCuda]:
    """Enter `FakeCuda`."""
    constant.cache_clear()
    try:
        with (
            patch("torch.cuda.amp.common.amp_definitely_not_available", lambda: False),
            patch("torch.cuda.is_bf16_supported", lambda *_, **__: True),
            patch("torch.nn.Module._apply", _move),
            FakeCuda() as mode,
        ):
            yield mode
    finally:
        constant.cache_clear()
