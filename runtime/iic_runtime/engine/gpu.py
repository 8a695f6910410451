"""GPU detection that is safe without a GPU, and staging buffers for batches.

A batch is copied in, computed and copied out. To have a GPU do all three at once, several threads call `Slots.run`,
each of which has a slot of its own while it does.
"""

import ctypes
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Protocol

import numpy as np
from numpy.typing import DTypeLike, NDArray

from iic_geotools.errors import DeviceError, MissingPackageError
from iic_runtime.engine.base import Images, shape_of


@dataclass(frozen=True)
class Gpu:
    """The GPU that is used, which is the first one."""

    name: str
    capability: str


def cuda_runtime() -> Any:
    """Return NVIDIA's bindings of the CUDA runtime."""
    try:
        from cuda.bindings import runtime
    except ImportError as error:
        raise MissingPackageError.for_extra("cuda-python", "tensorrt") from error
    return runtime


def succeed(result: tuple[Any, ...]) -> Any:
    """Return the value of a call to the CUDA runtime."""
    error, *values = result
    if int(error) != 0:
        raise DeviceError(
            f"The GPU failed ({error.name}); if its memory is full, use a smaller `tile` or `batch`."
        )
    return values[0] if values else None


def find_gpu() -> Gpu:
    """Return the first GPU."""
    cuda = cuda_runtime()
    error, count = cuda.cudaGetDeviceCount()
    if int(error) != 0 or not count:
        reason = error.name if int(error) else "none is installed"
        raise DeviceError(
            f"TensorRT needs an NVIDIA GPU, and none can be used here ({reason}); check the driver, or use "
            "`device` cpu with an .onnx file."
        )
    properties = succeed(cuda.cudaGetDeviceProperties(0))
    name = properties.name
    text = name.decode(errors="replace") if isinstance(name, bytes) else str(name)
    return Gpu(text.strip("\0 "), f"{properties.major}.{properties.minor}")


def gpu_memory() -> int | None:
    """Return the bytes of memory that the first GPU has; None if unknown."""
    try:
        cuda = cuda_runtime()
    except MissingPackageError:
        return None
    error, count = cuda.cudaGetDeviceCount()
    if int(error) != 0 or not count:
        return None
    return int(succeed(cuda.cudaGetDeviceProperties(0)).totalGlobalMem)


def pinned(size: int) -> NDArray[np.uint8]:
    """Return memory that the GPU itself copies from and to; ordinary memory where NVIDIA's bindings are missing."""
    try:
        cuda = cuda_runtime()
    except MissingPackageError:
        return np.empty(size, np.uint8)
    address = int(succeed(cuda.cudaHostAlloc(size, 0)))
    memory: NDArray[np.uint8] = np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address))
    weakref.finalize(memory, cuda.cudaFreeHost, address)
    return memory


class Buffers:
    """Arrays by name, whose memory is allocated once for all batches of a size.

    Args:
        allocate: Returns memory of a size in bytes.
    """

    def __init__(self, allocate: Callable[[int], NDArray[np.uint8]] = pinned) -> None:
        self._allocate = allocate
        self._memory: dict[str, NDArray[np.uint8]] = {}

    def take(self, name: str, shape: Sequence[int], dtype: DTypeLike) -> NDArray[Any]:
        """Return the array of a name, with any content."""
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        if name not in self._memory or self._memory[name].size < size:
            self._memory[name] = self._allocate(size)
        return self._memory[name][:size].view(dtype).reshape(shape)

    def fill(self, images: Images, dtype: DTypeLike) -> NDArray[Any]:
        """Return the array "image" with a batch of images of any dtype that fits."""
        batch = self.take("image", shape_of(images), dtype)
        for target, image in zip(batch, images, strict=True):
            np.copyto(target, image, casting="unsafe")
        return batch


class Slot(Protocol):
    """Room on a device for one batch in flight: buffers, and where it can, a stream."""

    def submit(self, images: Images, names: Sequence[str]) -> None:
        """Start to copy a batch in, to compute the outputs of these names, and to copy these out."""

    def collect(self) -> list[NDArray[Any]]:
        """Wait for the outputs of the batch that was submitted."""


class Slots:
    """The slots of a device, one for each thread that asks at a time; others wait."""

    def __init__(self, slots: Iterable[Slot]) -> None:
        self._idle: SimpleQueue[Slot] = SimpleQueue()
        for slot in slots:
            self._idle.put(slot)

    def run(self, images: Images, names: Sequence[str]) -> list[NDArray[Any]]:
        """Return those outputs of a batch that are named."""
        slot = self._idle.get()
        try:
            slot.submit(images, names)
            return slot.collect()
        finally:
            self._idle.put(slot)


def describe_gpus() -> str:
    """Describe the GPUs and the driver, on which cached engines depend, without any package."""
    facts = [
        *sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")),
        Path("/proc/driver/nvidia/version"),
    ]
    lines = (line for file in facts if file.exists() for line in file.read_text().splitlines())
    return "; ".join(line.strip() for line in lines if line.startswith(("Model", "NVRM")))
