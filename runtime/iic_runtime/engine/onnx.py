"""ONNX Runtime as an engine, on the CPU or a GPU."""

from collections.abc import Sequence
from contextlib import redirect_stdout, suppress
from dataclasses import replace
from hashlib import sha256
from io import StringIO
from typing import Any

import numpy as np
from numpy.typing import NDArray

from iic_geotools.errors import DeviceError, ModelError, last_line
from iic_geotools.files import cache_folder
from iic_geotools.tiling import largest_read
from iic_geotools.work import cores
from iic_runtime.engine.base import (
    OUTPUTS,
    PROVIDERS,
    EngineSpec,
    Images,
    LabelArray,
    as_batch,
    import_onnxruntime,
    output_shape,
    run_checked,
    shape_of,
)
from iic_runtime.engine.gpu import Buffers, Slots, describe_gpus
from iic_runtime.model.card import Card, Precision
from iic_runtime.model.file import ModelFile
from iic_runtime.model.onnx_graph import only_outputs
from iic_runtime.model.onnx_precision import is_asymmetric
from iic_runtime.options import Device

_TYPES = {
    "tensor(uint8)": "uint8",
    "tensor(uint16)": "uint16",
    "tensor(int16)": "int16",
    "tensor(float)": "float32",
}
_FATAL_ONLY = 4
# What TensorRT may compute in besides float32: it refuses graphs in a lower precision without these.
_PRECISION_OPTIONS: dict[Precision, dict[str, str]] = {
    "fp32": {},
    "fp16": {"trt_fp16_enable": "True"},
    "int8": {"trt_int8_enable": "True"},
}


class OnnxEngine:
    """ONNX Runtime on one execution provider, never silently on another.

    Args:
        outputs: The outputs of the graph that are wanted.
    """

    def __init__(self, model: ModelFile, spec: EngineSpec, outputs: Sequence[str] = OUTPUTS) -> None:
        runtime = import_onnxruntime()
        provider = PROVIDERS[spec.device]
        if provider not in runtime.get_available_providers():
            raise DeviceError(
                f"`device` {spec.device} needs onnxruntime-gpu, and the CPU build of onnxruntime is installed here; "
                "uninstall it and install the extra gpu, or use `device` cpu."
            )
        if spec.device != "cpu":
            _load_libraries(runtime, spec.device, model.card)
        self.spec = spec
        self._card = model.card
        content = only_outputs(model.content, outputs)
        self._session = _open_session(
            runtime, replace(model, content=content), _providers(model, spec), spec.threads
        )
        self.provider = str(self._session.get_providers()[0])
        if self.provider != provider:
            raise DeviceError(
                f"ONNX Runtime cannot use `device` {spec.device} here (it fell back to {self.provider}); check the "
                "driver and CUDA libraries, or use `device` cpu."
            )
        _check_graph(self._session, model)
        self._options = runtime.RunOptions()
        # Without this, the part of the graph that leads to an output is computed even if the output is not fetched.
        self._options.only_execute_path_to_fetches = True
        slots = (BoundSlot(self._session, self._options, model.card, Buffers()) for _ in range(spec.lanes))
        self._slots = None if spec.on_cpu else Slots(slots)

    @property
    def image_size(self) -> tuple[int | None, int | None]:
        """Height and width of the images that the graph takes; None where it takes any."""
        height, width = self._session.get_inputs()[0].shape[2:]
        return height if isinstance(height, int) else None, width if isinstance(width, int) else None

    @property
    def output_names(self) -> tuple[str, ...]:
        """Names of the outputs of the graph that can be fetched."""
        return tuple(node.name for node in self._session.get_outputs())

    def run(self, images: Images, confidence: bool) -> tuple[LabelArray, LabelArray | None]:
        """Return labels and, if asked for, confidence [N, H, W] of raw pixels [N, bands, H, W]."""
        return run_checked(self.fetch, self._card, images, confidence)

    def fetch(self, images: Images, names: Sequence[str]) -> list[NDArray[Any]]:
        """Return those of the outputs that are named."""
        try:
            if self._slots is not None and set(names) <= set(OUTPUTS):
                return self._slots.run(images, names)
            feed = {"image": as_batch(images)}
            outputs: list[NDArray[Any]] = self._session.run(list(names), feed, self._options)
        except Exception as error:  # as in _open_session
            raise ModelError(
                f"The model failed on {' x '.join(map(str, shape_of(images)))} pixels ({last_line(error)}); "
                "try a smaller `tile` or `batch`, and check the model with iic-model validate."
            ) from error
        return outputs


class BoundSlot:
    """A batch in memory that ONNX Runtime and the GPU use as it is; it is copied and run while its caller waits.

    Args:
        buffers: Where pixels and labels are.
    """

    def __init__(self, session: Any, options: Any, card: Card, buffers: Buffers) -> None:
        self._session, self._options, self._card, self._buffers = session, options, card, buffers
        self._binding: Any = None
        self._outputs: list[NDArray[Any]] = []

    def submit(self, images: Images, names: Sequence[str]) -> None:
        """Bind a batch and its outputs, labels or confidence."""
        image = self._buffers.fill(images, images[0].dtype)
        self._binding = self._session.io_binding()
        self._binding.bind_cpu_input("image", image)
        shape = output_shape(self._card, image.shape)
        self._outputs = [self._buffers.take(name, shape, np.uint8) for name in names]
        for name, values in zip(names, self._outputs, strict=True):
            self._binding.bind_output(name, "cpu", 0, np.uint8, shape, values.ctypes.data)

    def collect(self) -> list[NDArray[Any]]:
        """Run the batch, and return its outputs."""
        self._session.run_with_iobinding(self._binding, self._options)
        return [values.copy() for values in self._outputs]


def _load_libraries(runtime: Any, device: Device, card: Card) -> None:
    """Load the libraries of CUDA and TensorRT that were installed as packages, where the system does not look."""
    if device == "tensorrt":
        if card.dtype in ("int16", "uint16"):
            raise DeviceError(
                f"TensorRT has no {card.dtype}, which {card.name} takes: use `device` cuda, or an engine built by "
                "iic-export."
            )
        with suppress(ImportError):
            import tensorrt  # noqa: F401
    if hasattr(runtime, "preload_dlls"):
        # It prints what it does not find, which may come with the system.
        with redirect_stdout(StringIO()):
            runtime.preload_dlls()


def _providers(model: ModelFile, spec: EngineSpec) -> list[Any]:
    """Return the execution provider of the device, followed by those that it falls back on."""
    # TensorFloat-32 keeps ten bits of a float32: the labels would not be those that were proven on a CPU.
    cuda = (PROVIDERS["cuda"], {"use_tf32": "0"})
    if spec.device != "tensorrt":
        return [PROVIDERS["cpu"]] if spec.device == "cpu" else [cuda, PROVIDERS["cpu"]]
    check_integers(model)
    # TensorRT builds an engine for the largest shape, the one of an inner tile of a large scene.
    side = largest_read(spec.tile, model.card.halo, model.card.stride)
    options = provider_options(model.card, model.digest, spec.batch, side)
    return [(PROVIDERS["tensorrt"], options), cuda, PROVIDERS["cpu"]]


def check_integers(model: ModelFile) -> None:
    """Refuse a model in int8 for TensorRT that was made for CPUs."""
    if model.card.precision == "int8" and is_asymmetric(model.content):
        raise ModelError(
            f"The integers of {model.path} are unsigned or have zero points, for CPUs, and TensorRT takes signed ones "
            "around zero; build an engine of the model in fp32 with iic-model convert, or use `device` cuda."
        )


def _open_session(runtime: Any, model: ModelFile, providers: list[Any], threads: int | None) -> Any:
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads or cores()
    options.inter_op_num_threads = 1
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_ENABLE_ALL
    # ONNX Runtime would keep a memory plan for every shape of edge tile for ever.
    options.enable_mem_pattern = False
    # Threads that spin while they wait take the cores from the threads that read and write.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.log_severity_level = _FATAL_ONLY
    # ONNX Runtime would print about a damaged model on standard output, and try the same device again.
    fallback = int(len(providers) > 1)
    try:
        session = runtime.InferenceSession(
            model.content, options, providers=providers, enable_fallback=fallback
        )
        # Which provider it has is checked once; it must not go to another one in the middle of a map.
        session.disable_fallback()
        return session
    except Exception as error:  # onnxruntime raises its own types, all bare subclasses of Exception
        raise ModelError(f"{model.path} cannot be opened by ONNX Runtime: {last_line(error)}") from error


def _check_graph(session: Any, model: ModelFile) -> None:
    """Refuse a graph whose inputs and outputs do not match its card."""
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
    elif not set(OUTPUTS) <= set(outputs):
        problem = f"its outputs are {sorted(outputs)}; 'labels' and 'confidence' are needed"
    elif {outputs["labels"].type, outputs["confidence"].type} != {"tensor(uint8)"}:
        problem = "its labels and confidence are not uint8"
    if problem:
        raise ModelError(
            f"{model.path} cannot be used as a model: {problem}; export it again with iic-export."
        )


def provider_options(card: Card, digest: str, batch: int, side: int) -> dict[str, str]:
    """Return the options of the TensorRT provider: one profile from a single pixel to the largest batch, and a cache.

    An engine fits one model, one set of versions, one GPU and one range of shapes. The name of its folder depends on
    all of them, so that no stale engine is ever loaded.

    Args:
        batch: Largest number of tiles that are run at once.
    """
    bands = len(card.bands)
    shapes = {
        "min": (1, bands, 1, 1),
        "opt": (batch, bands, side, side),
        "max": (batch, bands, side, side),
    }
    key = "\n".join([digest, *_versions(), describe_gpus(), card.precision, str(sorted(shapes.items()))])
    folder = cache_folder() / "tensorrt" / sha256(key.encode()).hexdigest()[:24]
    folder.mkdir(parents=True, exist_ok=True)
    # Models of whole images have one size, and batches of one shape.
    profile = {
        f"trt_profile_{name}_shapes": f"image:{_format_shape(shape)}"
        for name, shape in shapes.items()
        if card.task == "segmentation"
    }
    return {
        **profile,
        **_PRECISION_OPTIONS[card.precision],
        "trt_engine_cache_enable": "True",
        "trt_engine_cache_path": str(folder),
        "trt_timing_cache_enable": "True",
        "trt_timing_cache_path": str(folder),
    }


def _format_shape(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape))


def _versions() -> list[str]:
    """Return the versions of the packages that build and load engines."""
    # Slow to import, and only TensorRT needs it.
    from importlib.metadata import distributions

    names = ("onnxruntime", "tensorrt")
    versions = {
        f"{package.metadata['Name']} {package.version}"
        for package in distributions()
        if (package.metadata["Name"] or "").lower().startswith(names)
    }
    return sorted(versions)
