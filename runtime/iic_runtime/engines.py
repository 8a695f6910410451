"""Engines: raw pixels in, labels and confidence out, and the name of what really computes them."""

import logging
import os
from dataclasses import dataclass
from typing import Any, Literal, Protocol, get_args

import numpy as np
from numpy.typing import NDArray

from iic_geotools.errors import DeviceError, MissingPackageError, ModelError, UsageError
from iic_runtime.card import Card
from iic_runtime.modelfile import ModelFile

Device = Literal["auto", "cpu", "cuda", "tensorrt"]
Labels = NDArray[np.uint8]

_LOG = logging.getLogger(__name__)
_PROVIDERS = {
    "cpu": "CPUExecutionProvider",
    "cuda": "CUDAExecutionProvider",
    "tensorrt": "TensorrtExecutionProvider",
}
_TYPES = {
    "tensor(uint8)": "uint8",
    "tensor(uint16)": "uint16",
    "tensor(int16)": "int16",
    "tensor(float)": "float32",
}
_FATAL_ONLY = 4


@dataclass(frozen=True)
class Largest:
    """How many tiles of which side, halo included, are run at once at most."""

    batch: int = 4
    side: int = 1100


USUAL = Largest()


class Engine(Protocol):
    """Runs batches of one model; safe to call from several threads."""

    @property
    def provider(self) -> str:
        """What really computes, in the engine's own words."""

    @property
    def device(self) -> str:
        """The kind of device it runs on: cpu, cuda or tensorrt."""

    def run(self, batch: NDArray[Any], confidence: bool) -> tuple[Labels, Labels | None]:
        """Labels and, if asked for, confidence [N, H, W] of raw pixels [N, bands, H, W]."""


def cores() -> int:
    """The cores this process may use, which in a container are fewer than the machine's."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def open_engine(
    model: ModelFile, device: Device = "auto", threads: int | None = None, largest: Largest = USUAL
) -> Engine:
    """Open the model on a device; "auto" takes the best that is there and says so.

    Args:
        model: A model file.
        device: "auto", "cpu", "cuda" or "tensorrt".
        threads: Of the engine; by default all cores.
        largest: The most that will be run at once: what ONNX Runtime has TensorRT build an engine for.

    Raises:
        MissingPackageError: no engine is installed.
        DeviceError: the device asked for is not there.
        ModelError: the graph does not keep what the card promises.
    """
    if device not in get_args(Device):
        raise UsageError(f"--device must be one of {', '.join(get_args(Device))}, not {device}.")
    if threads is not None and threads < 1:
        raise UsageError(f"--threads must be at least 1, not {threads}.")
    if model.engine is not None:
        if device not in ("auto", "tensorrt"):
            raise UsageError(
                f"{model.path} is a TensorRT engine: use --device tensorrt, or the .onnx file for {device}."
            )
        from iic_runtime.tensorrt_engine import TensorRTEngine

        return TensorRTEngine(model)
    available = _onnxruntime().get_available_providers()
    if device != "auto":
        return OnnxEngine(model, device, threads, largest)
    if _PROVIDERS["cuda"] in available:
        try:
            return OnnxEngine(model, "cuda", threads)
        except DeviceError as error:
            _LOG.warning("%s Using the CPU.", error)
    return OnnxEngine(model, "cpu", threads)


class OnnxEngine:
    """ONNX Runtime on one execution provider, never silently on another."""

    def __init__(
        self, model: ModelFile, device: str, threads: int | None = None, largest: Largest = USUAL
    ) -> None:
        runtime = _onnxruntime()
        wanted = _PROVIDERS[device]
        if wanted not in runtime.get_available_providers():
            raise DeviceError(
                f"--device {device} needs onnxruntime-gpu, and the onnxruntime installed here is the CPU build; "
                "uninstall it and install 'iic-edge[gpu]', or use --device cpu."
            )
        self.device = device
        self._session = _open_session(runtime, model, _providers(model, device, largest), threads)
        self.provider = str(self._session.get_providers()[0])
        if self.provider != wanted:
            raise DeviceError(
                f"--device {device} was asked for, but ONNX Runtime cannot use a GPU here "
                f"(it fell back to {self.provider}); check the driver and CUDA libraries, or use --device cpu."
            )
        _check_graph(self._session, model)
        self._options = runtime.RunOptions()
        # Without this the part of the graph that leads to an output nobody asked for is computed all the same.
        self._options.only_execute_path_to_fetches = True

    def run(self, batch: NDArray[Any], confidence: bool) -> tuple[Labels, Labels | None]:
        """Labels and, if asked for, confidence [N, H, W] of raw pixels [N, bands, H, W]."""
        names = ["labels", "confidence"] if confidence else ["labels"]
        try:
            outputs = self._session.run(names, {"image": batch}, self._options)
        except Exception as error:  # as when opening
            raise ModelError(
                f"The model failed on {' x '.join(map(str, batch.shape))} pixels ({_reason(error)}); "
                "try a smaller --tile or --batch, and iic-model validate."
            ) from error
        return outputs[0], outputs[1] if confidence else None


def _onnxruntime() -> Any:
    try:
        import onnxruntime
    except ImportError as error:
        raise MissingPackageError(
            "No engine is installed to run the model: pip install 'iic-edge[cpu]', or 'iic-edge[gpu]' for NVIDIA GPUs."
        ) from error
    return onnxruntime


def _providers(model: ModelFile, device: str, largest: Largest) -> list[Any]:
    """The provider asked for, and those that take what it cannot do."""
    if device != "tensorrt":
        return list(dict.fromkeys([_PROVIDERS[device], _PROVIDERS["cpu"]]))
    from iic_runtime.trtcache import provider_options

    options = provider_options(model.card, model.digest, largest.batch, largest.side)
    return [(_PROVIDERS["tensorrt"], options), _PROVIDERS["cuda"], _PROVIDERS["cpu"]]


def _open_session(runtime: Any, model: ModelFile, providers: list[Any], threads: int | None) -> Any:
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads or cores()
    options.inter_op_num_threads = 1
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_ENABLE_ALL
    # A plan of memory for every shape of edge tile would be kept for ever.
    options.enable_mem_pattern = False
    # Threads that spin while they wait take the cores from the threads that read and write.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.log_severity_level = _FATAL_ONLY
    try:
        return runtime.InferenceSession(model.content, options, providers=providers)
    except Exception as error:  # onnxruntime raises its own types, all bare subclasses of Exception
        raise ModelError(f"{model.path} cannot be opened by ONNX Runtime: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[-1] if lines else type(error).__name__


def _check_graph(session: Any, model: ModelFile) -> None:
    """The graph must take and give what the card says."""
    card: Card = model.card
    inputs = {node.name: node for node in session.get_inputs()}
    outputs = {node.name: node for node in session.get_outputs()}
    problem = None
    if set(inputs) != {"image"}:
        problem = f"its inputs are {sorted(inputs)}, not just 'image'"
    elif _TYPES.get(inputs["image"].type) != card.dtype:
        problem = f"its graph takes {inputs['image'].type}, its card says {card.dtype}"
    elif len(inputs["image"].shape) != 4 or inputs["image"].shape[1] not in (len(card.bands), None):
        problem = f"its graph takes {inputs['image'].shape}, its card says {len(card.bands)} bands"
    elif not {"labels", "confidence"} <= set(outputs):
        problem = f"its outputs are {sorted(outputs)}; 'labels' and 'confidence' are needed"
    elif {outputs["labels"].type, outputs["confidence"].type} != {"tensor(uint8)"}:
        problem = "its labels and confidence are not uint8"
    if problem:
        raise ModelError(
            f"{model.path} cannot be used as a model: {problem}; export it again with iic-export."
        )
