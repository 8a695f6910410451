"""TensorRT engines: built and proven on a GPU, without torch and the `onnx` package.

Only calls that TensorRT 10 and 11 share are used. Names annotated with `trt.` are TensorRT's own objects: a test
looks up every attribute used on them, and how it is called, in the real bindings.
"""

import logging
import tempfile
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iic_geotools.errors import DeviceError, ModelError
from iic_geotools.files import cache_folder, write_atomically
from iic_geotools.tiling import largest_read
from iic_runtime.engine.base import OUTPUTS, Engine
from iic_runtime.engine.gpu import Gpu, find_gpu
from iic_runtime.engine.open_engine import open_engine
from iic_runtime.engine.tensorrt import import_tensorrt
from iic_runtime.model.card import Card
from iic_runtime.model.engine_card import ENGINE_SUFFIX, EngineFacts, write_engine_card
from iic_runtime.model.file import ModelFile
from iic_runtime.model.onnx_graph import only_outputs, takes_floats
from iic_runtime.model.validate import check_matches_card
from iic_runtime.options import EngineOptions, EngineSettings

if TYPE_CHECKING:
    import tensorrt as trt

_LOG = logging.getLogger(__name__)


def find_tensorrt() -> tuple[Any, Gpu]:
    """Import TensorRT and find the GPU to build on.

    Raises:
        DeviceError: There is no GPU, or the version of TensorRT is not supported.
        MissingPackageError: TensorRT or CUDA's bindings are not installed.
    """
    gpu = find_gpu()  # first: TensorRT without a GPU crashes the process
    return import_tensorrt(), gpu


def build_engine(model: bytes, card: Card, options: EngineOptions) -> tuple[bytes, EngineFacts]:
    """Build an engine on the GPU of this machine.

    Args:
        model: A serialised graph.

    Raises:
        DeviceError: There is no GPU, or the build failed.
        MissingPackageError: TensorRT is not installed.
        ModelError: TensorRT does not accept the graph.
    """
    tensorrt, gpu = find_tensorrt()
    content = for_tensorrt(model, card)
    _LOG.info("Building for %s with TensorRT %s; this takes minutes.", gpu.name, tensorrt.__version__)
    plan = _build(tensorrt, content, card, options, _timing_cache_path(tensorrt.__version__, gpu))
    facts = EngineFacts(
        tensorrt=tensorrt.__version__,
        gpu=gpu.name,
        capability=gpu.capability,
        portable=options.portable,
        tile=options.tile,
        batch=options.batch,
        sha256=sha256(plan).hexdigest(),
    )
    return plan, facts


def _build(tensorrt: Any, content: bytes, card: Card, options: EngineOptions, timing_cache: Path) -> bytes:
    logger: trt.Logger = tensorrt.Logger(tensorrt.Logger.WARNING)
    builder: trt.Builder = tensorrt.Builder(logger)
    # Strongly typed: each layer computes in the types of the graph, as in the proof on the CPU.
    network: trt.INetworkDefinition = builder.create_network(
        1 << int(tensorrt.NetworkDefinitionCreationFlag.STRONGLY_TYPED)
    )
    parser: trt.OnnxParser = tensorrt.OnnxParser(network, logger)
    if not parser.parse(content):
        reasons = "; ".join(str(parser.get_error(index)) for index in range(parser.num_errors))
        raise ModelError(f"TensorRT cannot read the graph ({reasons}); export it as .onnx.")
    config: trt.IBuilderConfig = builder.create_builder_config()
    config.set_memory_pool_limit(tensorrt.MemoryPoolType.WORKSPACE, options.workspace)
    # TensorFloat-32 keeps ten bits of a float32: the labels would not be those that were proven.
    config.clear_flag(tensorrt.BuilderFlag.TF32)
    if options.portable:
        config.set_flag(tensorrt.BuilderFlag.VERSION_COMPATIBLE)
        config.hardware_compatibility_level = tensorrt.HardwareCompatibilityLevel.AMPERE_PLUS
    _add_profile(builder, config, card, options)
    # How long layers took in earlier builds makes the next one fast.
    timings = timing_cache.read_bytes() if timing_cache.exists() else b""
    config.set_timing_cache(config.create_timing_cache(timings), False)
    plan = builder.build_serialized_network(network, config)
    if plan is None:
        raise DeviceError(
            "TensorRT could not build the engine; see its messages above, or try a smaller `tile`."
        )
    _save_timings(config, timing_cache)
    return bytes(plan)


def _add_profile(
    builder: "trt.Builder", config: "trt.IBuilderConfig", card: Card, options: EngineOptions
) -> None:
    """Add one profile from a single pixel, for the edges of scenes, to the full batch, which it is optimised for."""
    side = largest_read(options.tile, card.halo, card.stride)
    bands = len(card.bands)
    largest = (options.batch, bands, side, side)
    profile: trt.IOptimizationProfile = builder.create_optimization_profile()
    profile.set_shape("image", (1, bands, 1, 1), largest, largest)
    config.add_optimization_profile(profile)


def _save_timings(config: "trt.IBuilderConfig", path: Path) -> None:
    cache: trt.ITimingCache = config.get_timing_cache()
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, bytes(cache.serialize()))


def for_tensorrt(model: bytes, card: Card) -> bytes:
    """Return a graph with the outputs that maps need and an input that TensorRT has.

    16-bit pixels come as float32, which holds them exactly.
    """
    graph = only_outputs(model, OUTPUTS)
    floats = takes_floats(graph, len(card.bands)) if card.dtype in ("uint16", "int16") else graph
    if floats is None:
        raise ModelError(
            f"The graph of {card.name} does more with its {card.dtype} pixels than TensorRT can."
        )
    return floats


def write_engine(
    model: bytes, card: Card, out: Path, options: EngineOptions, prove: Callable[[Engine], Card]
) -> Card:
    """Build an engine, prove it on the GPU, and write it with its card next to it.

    Args:
        model: A serialised graph that was proven on the CPU.
        prove: A function that compares the engine with the trained network, and returns the card with the figures.

    Raises:
        ModelError: The engine does not match its card, or fails the comparison.
    """
    plan, facts = build_engine(model, card, options)
    with tempfile.TemporaryDirectory(prefix="iic-export-") as folder:
        path = Path(folder) / f"model{ENGINE_SUFFIX}"
        path.write_bytes(plan)
        write_engine_card(path, card, facts)
        check_matches_card(path)
        card = prove(open_engine(ModelFile.read(path), EngineSettings(device="tensorrt")))
    write_engine_card(out, card, facts)
    write_atomically(out, plan)
    return card


def _timing_cache_path(version: str, gpu: Gpu) -> Path:
    key = sha256(f"{version} {gpu.name} {gpu.capability}".encode()).hexdigest()[:16]
    return cache_folder() / "timings" / f"{key}.cache"
