"""What an engine is, how a model is run on it, and which engine opens a model."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any, Literal, Protocol, TypedDict, get_args

import numpy as np
from numpy.typing import NDArray

from iic_geotools.errors import DeviceError, MissingPackageError, ModelError, UsageError
from iic_geotools.threads import cores
from iic_runtime.model.card import Card
from iic_runtime.model.file import ModelFile

Device = Literal["auto", "cpu", "openvino", "cuda", "tensorrt"]
CPU_DEVICES: tuple[Device, ...] = ("cpu", "openvino")
LabelArray = NDArray[np.uint8]
OUTPUTS = ("labels", "confidence")
"""What a map needs of a graph; other outputs may be there."""

# More threads than any machine has cores only fight each other.
MAX_THREADS = 256
_LOG = logging.getLogger(__name__)


class EngineArguments(TypedDict, total=False):
    """The arguments of `open_engine`, as functions that open models later hand them on."""

    device: Device
    threads: int | None
    tile: int | None
    batch: int | None
    max_memory: int | None


@dataclass(frozen=True)
class EngineSpec:
    """How a model is run. Plain data, so that another process can run it in the same way.

    Attributes:
        device: Kind of device: "cpu", "openvino", "cuda" or "tensorrt".
        tile: Side of a tile's core in pixels.
        batch: Number of tiles that are run at once.
        threads: Number of threads of the engine; None for all cores.
        lanes: Number of batches that are run side by side, each on its share of the threads, where there are many.
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
        return replace(self, threads=threads, lanes=min(self.lanes, threads or cores()))

    @property
    def on_cpu(self) -> bool:
        """Whether it is the CPU that computes."""
        return self.device in CPU_DEVICES


class Engine(Protocol):
    """Runs batches of one model; safe to call from several threads."""

    @property
    def spec(self) -> EngineSpec:
        """How the model is run."""

    @property
    def provider(self) -> str:
        """What really computes, in the engine's own words."""

    def run(self, batch: NDArray[Any], confidence: bool) -> tuple[LabelArray, LabelArray | None]:
        """Return labels and, if asked for, confidence [N, H, W] of raw pixels [N, bands, H, W]."""


def check_outputs(card: Card, batch: tuple[int, ...], outputs: Mapping[str, NDArray[Any]]) -> None:
    """Refuse what a graph returned unless it is what the card promises: a map must not show anything else.

    Args:
        card: The card of the model.
        batch: Shape of the pixels [N, bands, H, W] that the graph was given.
        outputs: What it returned: labels, and confidence if that was asked for.

    Raises:
        ModelError: An output has another shape or type, or a label is not a class of the card.
    """
    count, _, height, width = batch
    shape = (count, height, width) if card.task == "segmentation" else (count,)
    problem = next(filter(None, (_wrong_output(*output, shape) for output in outputs.items())), None)
    if problem is None:
        largest = int(outputs["labels"].max(initial=0))
        if largest >= len(card.classes):
            problem = f"the label {largest}, and its card has {len(card.classes)} classes"
    if problem:
        raise ModelError(
            f"The graph of the model {card.name} returned {problem}; check it with iic-model validate, and export it "
            "again."
        )


def _wrong_output(name: str, values: Any, shape: tuple[int, ...]) -> str | None:
    if not isinstance(values, np.ndarray) or values.dtype != np.uint8:
        return f"{name} of type {getattr(values, 'dtype', type(values).__name__)} instead of uint8"
    return f"{name} of shape {values.shape} instead of {shape}" if values.shape != shape else None


def open_engine(
    model: ModelFile,
    device: Device = "auto",
    threads: int | None = None,
    tile: int | None = None,
    batch: int | None = None,
    max_memory: int | None = None,
    outputs: Sequence[str] = OUTPUTS,
) -> Engine:
    """Open a model on a device.

    Args:
        model: The model file.
        device: "cpu", "openvino", "cuda" or "tensorrt"; "auto" takes the GPU if it can be used, else OpenVINO if it was
            used with this model before and gave equal labels faster, else ONNX Runtime on the CPU.
        threads: Number of threads of the engine; by default all cores.
        tile: Side of a tile's core in pixels; by default as large as `max_memory` allows.
        batch: Number of tiles that are run at once; by default 1 on a CPU and 4 on a GPU.
        max_memory: Bytes that a run may take; by default 1 GiB.
        outputs: The outputs of an ONNX graph that are wanted, labels and confidence among them.

    Raises:
        UsageError: An argument makes no sense, or does not fit the model.
        MissingPackageError: No engine is installed.
        DeviceError: The device is not there.
        ModelError: The graph does not keep what the card promises.
    """
    from iic_runtime.engine.sizing import choose_spec

    if device not in get_args(Device):
        raise UsageError(f"`device` must be one of {', '.join(get_args(Device))}, not {device}.")
    most = max(MAX_THREADS, cores())
    if threads is not None and not 1 <= threads <= most:
        raise UsageError(
            f"`threads` must be 1 to {most}, not {threads}; this process may use {cores()} cores."
        )
    if model.engine is not None:
        if device not in ("auto", "tensorrt"):
            raise UsageError(
                f"{model.path} is a TensorRT engine and cannot run on {device}; use `device` tensorrt, or the "
                ".onnx file."
            )
        tile, batch = model.engine.fit(tile, batch)
        return open_spec(model, choose_spec(model.card, "tensorrt", threads, tile, batch, max_memory))

    def open_on(device: Device) -> Engine:
        return open_spec(model, choose_spec(model.card, device, threads, tile, batch, max_memory), outputs)

    *candidates, last = _preferred_devices(model) if device == "auto" else (device,)
    for candidate in candidates:
        try:
            return open_on(candidate)
        except (DeviceError, MissingPackageError) as error:
            _LOG.warning("%s Using the CPU.", error)
    return open_on(last)


def open_spec(model: ModelFile, spec: EngineSpec, outputs: Sequence[str] = OUTPUTS) -> Engine:
    """Open a model as a spec says; the exceptions are those of `open_engine`."""
    if model.engine is not None:
        from iic_runtime.engine.tensorrt import TensorRTEngine

        return TensorRTEngine(model, spec)
    if spec.device == "openvino":
        from iic_runtime.engine.openvino import open_openvino

        return open_openvino(model, spec)
    from iic_runtime.engine.onnx import OnnxEngine

    return OnnxEngine(model, spec, outputs)


def open_lanes(model: ModelFile, spec: EngineSpec) -> Engine:
    """Open a model once more, for `spec.lanes` threads that each run batches of their own.

    On a CPU, tiles side by side are faster than one after the other on all threads: some operations of a graph have
    one thread whatever there is, and at the end of the others the fastest thread waits for the slowest.
    """
    if spec.device == "openvino":
        from iic_runtime.engine.openvino import OpenVinoEngine

        return OpenVinoEngine(model, spec, streams=spec.lanes)
    return open_spec(model, replace(spec, threads=spec.threads_per_lane))


def _preferred_devices(model: ModelFile) -> tuple[Device, ...]:
    """Return the devices that may be there for a model, the one to try first at the front, the CPU at the end."""
    from iic_runtime.engine.onnx import usable_devices

    *others, cpu = usable_devices()
    if find_spec("openvino") is None:
        return (*others, cpu)
    from iic_runtime.engine.openvino import prefers_openvino

    return (*others, "openvino", cpu) if prefers_openvino(model) else (*others, cpu)
