"""The interface of engines, how a model is run on one, and the resources of the machine."""

import ctypes
import os
import platform
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from iic_geotools.errors import MissingPackageError, ModelError
from iic_geotools.work import cores
from iic_runtime.model.card import Card
from iic_runtime.options import Device

CPU_DEVICES: tuple[Device, ...] = ("cpu", "openvino")
LabelArray = NDArray[np.uint8]
Images = NDArray[Any] | Sequence[NDArray[Any]]
"""Raw pixels [N, bands, H, W], in one array or one for each image; engines for a GPU copy them only once."""
OUTPUTS = ("labels", "confidence")
"""What a map needs of a graph; other outputs may be there."""

PROVIDERS = {
    "cpu": "CPUExecutionProvider",
    "cuda": "CUDAExecutionProvider",
    "tensorrt": "TensorrtExecutionProvider",
}
"""The execution provider of ONNX Runtime for each device."""
# The limit of a container, as its processes see it: a number, or "max".


@dataclass(frozen=True)
class EngineSpec:
    """How a model is run. Plain data, so that another process can run it in the same way.

    Attributes:
        device: Kind of device: "cpu", "openvino", "cuda" or "tensorrt".
        tile: Side of a tile's core in pixels.
        batch: Number of tiles that are run at once.
        threads: Number of threads of the engine; None for all cores.
        lanes: Number of batches that are run side by side: on a CPU each on its share of the threads, where there are
            many; on a GPU one is computed while others are copied.
    """

    device: Device
    tile: int
    batch: int
    threads: int | None = None
    lanes: int = 1

    @property
    def threads_per_lane(self) -> int:
        """Number of threads that each lane has."""
        return max(1, (self.threads or cores()) // self.lanes)

    def with_threads(self, threads: int | None) -> "EngineSpec":
        """Return the same with another number of threads, and not more lanes than these."""
        lanes = min(self.lanes, threads or cores()) if self.on_cpu else self.lanes
        return replace(self, threads=threads, lanes=lanes)

    @property
    def on_cpu(self) -> bool:
        """True if the engine runs on the CPU."""
        return self.device in CPU_DEVICES


class Engine(Protocol):
    """Runs batches of one model; safe to call from several threads."""

    @property
    def spec(self) -> EngineSpec:
        """How the model is run."""

    @property
    def provider(self) -> str:
        """The execution provider in use."""

    def run(self, images: Images, confidence: bool) -> tuple[LabelArray, LabelArray | None]:
        """Return labels and, if asked for, confidence [N, H, W] of raw pixels [N, bands, H, W]."""


def shape_of(images: Images) -> tuple[int, ...]:
    """Return the shape of images as one array."""
    return (len(images), *images[0].shape)


def as_batch(images: Images) -> NDArray[Any]:
    """Return images as one array, without copying a single one."""
    if isinstance(images, np.ndarray):
        return images
    return images[0][None] if len(images) == 1 else np.stack(images)


def check_outputs(card: Card, batch: tuple[int, ...], outputs: Mapping[str, NDArray[Any]]) -> None:
    """Refuse outputs of a graph that do not match its card.

    Args:
        batch: Shape of the pixels [N, bands, H, W] that the graph was given.
        outputs: What it returned: labels, and confidence if that was asked for.
    """
    shape = output_shape(card, batch)
    problem = None
    for name, values in outputs.items():
        if not isinstance(values, np.ndarray) or values.dtype != np.uint8:
            problem = f"{name} of type {getattr(values, 'dtype', type(values).__name__)} instead of uint8"
        elif values.shape != shape:
            problem = f"{name} of shape {values.shape} instead of {shape}"
        if problem:
            break
    if problem is None and (largest := int(outputs["labels"].max(initial=0))) >= len(card.classes):
        problem = f"the label {largest}, and its card has {len(card.classes)} classes"
    if problem:
        raise ModelError(
            f"The graph of the model {card.name} returned {problem}; check it with iic-model validate, and export it "
            "again."
        )


def run_checked(
    fetch: Callable[[Images, Sequence[str]], list[NDArray[Any]]], card: Card, images: Images, confidence: bool
) -> tuple[LabelArray, LabelArray | None]:
    """Fetch labels and, if asked for, confidence of a batch, and check them against the card."""
    names = OUTPUTS if confidence else OUTPUTS[:1]
    outputs = fetch(images, names)
    check_outputs(card, shape_of(images), dict(zip(names, outputs, strict=True)))
    return outputs[0], outputs[1] if confidence else None


def output_shape(card: Card, batch: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of labels and confidence of a batch [N, bands, H, W]."""
    count, _, height, width = batch
    return (count, height, width) if card.task == "segmentation" else (count,)


def usable_devices() -> tuple[Device, ...]:
    """Return the devices that the installed ONNX Runtime was built for, the fastest first, the CPU last.

    Raises:
        MissingPackageError: ONNX Runtime is not installed.
    """
    has_cuda = PROVIDERS["cuda"] in import_onnxruntime().get_available_providers()
    return ("cuda", "cpu") if has_cuda else ("cpu",)


def import_onnxruntime() -> Any:
    """Import ONNX Runtime, with its telemetry off."""
    # Since 1.31 it would keep an id of the machine and a database of events in the cache of the user.
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    try:
        import onnxruntime
    except ImportError as error:
        raise MissingPackageError.for_extra("onnxruntime", "cpu") from error
    return onnxruntime


def cpu_name() -> str:
    """Return the name of the processor; empty if unknown."""
    facts = _cpu_facts()
    return facts.get("model name") or facts.get("Model", "")


def describe_cpu() -> str:
    """Describe the processor and its instruction sets, on which the rounding of an engine may depend."""
    facts = _cpu_facts()
    # The first two on x86, the others on Arm.
    names = ("model name", "flags", "CPU implementer", "CPU part", "Features")
    return "; ".join([platform.machine(), *(facts[name] for name in names if name in facts)])


def _cpu_facts() -> dict[str, str]:
    """Return what the kernel reports about the last processor, which stands for all of them."""
    information = Path("/proc/cpuinfo")
    lines = information.read_text(errors="replace").splitlines() if information.exists() else []
    return {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}


class _MemoryCounters(ctypes.Structure):
    """PROCESS_MEMORY_COUNTERS of the Windows API."""

    _fields_ = (
        ("size", ctypes.c_uint32),
        ("page_faults", ctypes.c_uint32),
        ("peak_working_set", ctypes.c_size_t),
        ("others", ctypes.c_size_t * 7),
    )


def _peak_memory_on_windows() -> int:
    counters = _MemoryCounters(size=ctypes.sizeof(_MemoryCounters))
    kernel = getattr(ctypes, "windll").kernel32  # noqa: B009  (mypy knows it on Windows only)
    this_process = ctypes.c_void_p(-1)
    if not kernel.K32GetProcessMemoryInfo(this_process, ctypes.byref(counters), counters.size):
        return 0
    return int(counters.peak_working_set)


def peak_memory() -> int:
    """Return the most memory in bytes that this process has held so far."""
    status = Path("/proc/self/status")
    if status.exists():
        # Not `getrusage`, which counts what the parent process held before `exec`.
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    if os.name == "nt":
        return _peak_memory_on_windows()
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
