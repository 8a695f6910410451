"""TensorRT as an engine: runs engine files, without torch.

Names annotated with `trt.` are TensorRT's own objects: a test looks up every attribute that is used on them, and
how it is called, in the real bindings.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from iic_geotools.errors import DeviceError, MissingPackageError, ModelError
from iic_runtime.engine.base import (
    EngineSpec,
    Images,
    LabelArray,
    output_shape,
    run_checked,
)
from iic_runtime.engine.gpu import Buffers, Gpu, Slots, cuda_runtime, find_gpu, succeed
from iic_runtime.model.engine_card import EngineFacts
from iic_runtime.model.file import ModelFile

if TYPE_CHECKING:
    import tensorrt as trt

OLDEST, NEWEST = 10, 11


def import_tensorrt() -> Any:
    """Import the package `tensorrt`."""
    try:
        import tensorrt
    except ImportError as error:
        raise MissingPackageError.for_extra("tensorrt", "tensorrt") from error
    major = int(tensorrt.__version__.split(".")[0])
    if not OLDEST <= major <= NEWEST:
        raise DeviceError(
            f"TensorRT {tensorrt.__version__} is installed; versions {OLDEST} and {NEWEST} are supported."
        )
    return tensorrt


# While one batch is computed, the next one is copied in and the last one out. Each context has memory of its own.
CONTEXTS = 2


@dataclass(frozen=True)
class _Buffer:
    """Memory on the GPU for one input or output of the largest shape."""

    address: int
    dtype: np.dtype[Any]


class TensorRTEngine:
    """Runs batches on the first GPU, two at a time if several threads ask."""

    def __init__(self, model: ModelFile, spec: EngineSpec) -> None:
        facts = model.engine
        if facts is None:
            raise ModelError(f"{model.path} is not a TensorRT engine.")
        gpu = find_gpu()
        tensorrt = import_tensorrt()
        _check_fit(model, facts, gpu, tensorrt.__version__)
        self.spec = spec
        self._model = model
        self.provider = f"TensorRT {tensorrt.__version__} on {gpu.name}"
        engine = _load(tensorrt, model, facts.portable)
        self._slots = Slots(_Slot(tensorrt, engine, model) for _ in range(min(CONTEXTS, spec.lanes)))

    def run(self, images: Images, confidence: bool) -> tuple[LabelArray, LabelArray | None]:
        """Return labels and, if asked for, confidence [N, H, W] of raw pixels [N, bands, H, W]."""
        return run_checked(self._slots.run, self._model.card, images, confidence)


class _Slot:
    """A context with a stream, and memory on both sides for one batch of the largest shape."""

    def __init__(self, tensorrt: Any, engine: Any, model: ModelFile) -> None:
        cuda_engine: trt.ICudaEngine = engine
        self._model, self._engine, self._cuda = model, cuda_engine, cuda_runtime()
        self._context = cuda_engine.create_execution_context()
        if self._context is None:
            raise DeviceError(
                f"The GPU has too little memory for {model.path}; build it for a smaller tile or batch."
            )
        self._buffers: dict[str, _Buffer] = {}
        self._host = Buffers()
        self._outputs: list[NDArray[Any]] = []
        self._stream = succeed(self._cuda.cudaStreamCreate())
        self._allocate(tensorrt)

    def submit(self, images: Images, names: Sequence[str]) -> None:
        """Queue the copies and the computation of a batch on the stream."""
        context: trt.IExecutionContext = self._context
        image = self._buffers["image"]
        pixels = self._host.fill(images, image.dtype)
        if not context.set_input_shape("image", pixels.shape):
            raise ModelError(f"{self._model.path} was not built for pixels of shape {pixels.shape}.")
        self._copy(image.address, pixels.ctypes.data, pixels.nbytes, to_gpu=True)
        if not context.execute_async_v3(int(self._stream)):
            raise DeviceError(f"TensorRT could not run {self._model.path}; see its messages above.")
        shape = output_shape(self._model.card, pixels.shape)
        self._outputs = [self._host.take(name, shape, np.uint8) for name in names]
        for name, values in zip(names, self._outputs, strict=True):
            self._copy(values.ctypes.data, self._buffers[name].address, values.nbytes, to_gpu=False)

    def collect(self) -> list[NDArray[Any]]:
        """Wait for the stream, and return the outputs."""
        succeed(self._cuda.cudaStreamSynchronize(self._stream))
        return [values.copy() for values in self._outputs]

    def close(self) -> None:
        """Free the GPU's memory."""
        buffers, self._buffers = self._buffers, {}
        for buffer in buffers.values():
            self._cuda.cudaFree(buffer.address)
        if buffers:
            self._cuda.cudaStreamDestroy(self._stream)

    def __del__(self) -> None:
        if getattr(self, "_buffers", None):
            self.close()

    def _allocate(self, tensorrt: Any) -> None:
        """Allocate all tensors at the largest shape that the engine was built for."""
        engine: trt.ICudaEngine = self._engine
        context: trt.IExecutionContext = self._context
        _, _, largest = engine.get_tensor_profile_shape("image", 0)
        context.set_input_shape("image", tuple(largest))
        for index in range(engine.num_io_tensors):
            name = engine.get_tensor_name(index)
            dtype = np.dtype(tensorrt.nptype(engine.get_tensor_dtype(name)))
            size = int(np.prod(tuple(context.get_tensor_shape(name)))) * dtype.itemsize
            self._buffers[name] = _Buffer(int(succeed(self._cuda.cudaMalloc(size))), dtype)
            context.set_tensor_address(name, self._buffers[name].address)
        if not {"image", "labels", "confidence"} <= set(self._buffers):
            raise ModelError(
                f"{self._model.path} has the tensors {sorted(self._buffers)}; image, labels and confidence are needed."
            )

    def _copy(self, target: int, source: int, size: int, *, to_gpu: bool) -> None:
        kinds = self._cuda.cudaMemcpyKind
        kind = kinds.cudaMemcpyHostToDevice if to_gpu else kinds.cudaMemcpyDeviceToHost
        succeed(self._cuda.cudaMemcpyAsync(target, source, size, kind, self._stream))


def _check_fit(model: ModelFile, facts: EngineFacts, gpu: Gpu, version: str) -> None:
    """Refuse an engine that was built for another GPU or version of TensorRT, unless it was built to be portable."""
    there, here = (tuple(map(int, text.split(".")[:2])) for text in (facts.tensorrt, version))
    if facts.portable:
        fits = here >= there and float(gpu.capability) >= 8.0
    else:
        fits = here == there and gpu.capability == facts.capability
    if not fits:
        raise DeviceError(
            f"{model.path} was built with TensorRT {facts.tensorrt} for {facts.gpu} (compute capability "
            f"{facts.capability}), but this machine has TensorRT {version} on {gpu.name} ({gpu.capability}); export it "
            "again on this machine, or run the .onnx file."
        )


def _load(tensorrt: Any, model: ModelFile, portable: bool) -> Any:
    runtime: trt.Runtime = tensorrt.Runtime(tensorrt.Logger(tensorrt.Logger.WARNING))
    # A portable engine contains code of its own; the file is trusted because its hash is in the card.
    runtime.engine_host_code_allowed = portable
    engine: trt.ICudaEngine = runtime.deserialize_cuda_engine(model.content)
    if engine is None:
        raise ModelError(f"TensorRT cannot load {model.path}; export it again.")
    return engine
