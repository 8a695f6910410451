"""OpenVINO as an engine on the CPU.

OpenVINO computes in bfloat16 on x86 processors that can, and in float16 on Arm: twice as fast, and another label on
up to one pixel in a hundred. Here it always computes in float32. Labels are then those of ONNX Runtime, and tiles
equal the whole image; both are checked on first use of a model (`iic_runtime.engine.parity`).
"""

import threading
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from queue import SimpleQueue
from typing import Any

import numpy as np
from numpy.typing import NDArray

from iic_geotools.errors import MissingPackageError, ModelError, last_line
from iic_geotools.work import cores
from iic_runtime.engine.base import OUTPUTS, EngineSpec, Images, LabelArray, as_batch, run_checked, shape_of
from iic_runtime.engine.onnx import OnnxEngine
from iic_runtime.engine.parity import prove
from iic_runtime.model.file import ModelFile

PACKAGE = "openvino"


def open_openvino(model: ModelFile, spec: EngineSpec) -> "OpenVinoEngine":
    """Open a model on OpenVINO after a comparison with ONNX Runtime, on this machine or recorded.

    Raises:
        MissingPackageError: OpenVINO is not installed, or nothing is recorded and ONNX Runtime is not installed.
        DeviceError: OpenVINO gives other labels than ONNX Runtime, or other labels in tiles.
        ModelError: OpenVINO cannot run the model.
    """
    engine = OpenVinoEngine(model, spec)
    if model.card.task == "segmentation":
        cpu = replace(spec, device="cpu")
        parity = prove(engine, lambda: OnnxEngine(model, cpu), model, PACKAGE)
        parity.check(engine.provider, model.card.name)
    return engine


class OpenVinoEngine:
    """OpenVINO on the CPU in float32, not more than `streams` batches at a time however many threads ask.

    Args:
        streams: Number of batches that are run side by side, each on its share of the threads.
    """

    def __init__(self, model: ModelFile, spec: EngineSpec, streams: int = 1) -> None:
        self.spec = spec
        self.provider = f"OpenVINO {_openvino().__version__.partition('-')[0]}"
        self._model = model
        self._core = _core()
        self._streams = streams
        self._lock = threading.Lock()
        self._idle: dict[tuple[str, ...], SimpleQueue[Any]] = {}
        self._requests(OUTPUTS[:1])

    def run(self, images: Images, confidence: bool) -> tuple[LabelArray, LabelArray | None]:
        """Return labels and, if asked for, confidence [N, H, W] of raw pixels [N, bands, H, W]."""
        return run_checked(self.fetch, self._model.card, images, confidence)

    def fetch(self, images: Images, names: Sequence[str]) -> list[NDArray[Any]]:
        """Return those of the outputs that are named."""
        idle = self._requests(tuple(names))
        request = idle.get()
        try:
            results = request.infer({"image": np.ascontiguousarray(as_batch(images))}, share_inputs=True)
            return [results[name] for name in names]
        except RuntimeError as error:
            raise ModelError(
                f"The model failed on {' x '.join(map(str, shape_of(images)))} pixels ({last_line(error)}); "
                "try a smaller `tile` or `batch`, or `device` cpu."
            ) from error
        finally:
            idle.put(request)

    def _requests(self, names: tuple[str, ...]) -> "SimpleQueue[Any]":
        """Return requests for some of the outputs, compiled on first use: OpenVINO computes all that a graph has."""
        with self._lock:
            if names not in self._idle:
                compiled = self._compile(names)
                self._idle[names] = SimpleQueue()
                for _ in range(self._streams):
                    self._idle[names].put(compiled.create_infer_request())
            return self._idle[names]

    def _compile(self, names: tuple[str, ...]) -> Any:
        properties = {
            "INFERENCE_PRECISION_HINT": "f32",
            "INFERENCE_NUM_THREADS": self.spec.threads or cores(),
            "NUM_STREAMS": self._streams,
            # The threads that read and write need a place on the cores, too.
            "ENABLE_CPU_PINNING": False,
        }
        try:
            graph = self._core.read_model(self._model.content)
            fewer = _openvino().Model([graph.output(name) for name in names], graph.get_parameters())
            return self._core.compile_model(fewer, "CPU", properties)
        except RuntimeError as error:
            raise ModelError(
                f"{self._model.path} cannot be opened by OpenVINO ({last_line(error)}); use `device` cpu."
            ) from error


def _openvino() -> Any:
    try:
        import openvino
    except ImportError as error:
        raise MissingPackageError.for_extra("openvino", "cpu,openvino") from error
    return openvino


@cache
def _core() -> Any:
    """Return the core of this process, which stays to its end.

    With its last core OpenVINO frees the stack on which the thread that opened the first one handles signals. If
    another thread lets go of it, the next Ctrl-C is a segmentation fault.
    """
    return _openvino().Core()
