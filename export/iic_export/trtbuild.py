"""Building a TensorRT engine from an ONNX graph, with the calls that TensorRT 10 and 11 share.

Names with an annotation of `trt.` are TensorRT's own objects: a test looks up every attribute used on them, and
how it is called, in the real bindings.
"""

import logging
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx

from iic_export.trtcheck import for_tensorrt, problems
from iic_geotools.errors import DeviceError, ModelError, UsageError
from iic_geotools.files import write_atomically
from iic_geotools.grid import Grid
from iic_runtime.card import Card
from iic_runtime.enginefile import SUFFIX, EngineFacts, write_side
from iic_runtime.engines import Engine, open_engine
from iic_runtime.gpu import Gpu, find_gpu
from iic_runtime.modelfile import ModelFile
from iic_runtime.tensorrt_engine import import_tensorrt
from iic_runtime.trtcache import cache_folder
from iic_runtime.validate import validate_model

if TYPE_CHECKING:
    import tensorrt as trt

_LOG = logging.getLogger(__name__)
LEAST_TILE = 64


@dataclass(frozen=True)
class EngineOptions:
    """What an engine is built for.

    Attributes:
        tile: Largest tile, halo not counted; the engine is fastest at it.
        batch: Most tiles at once.
        workspace: Bytes of the GPU's memory that building may try tactics with.
        portable: Let later versions of TensorRT and other GPUs since Ampere run it; slower.
    """

    tile: int = 1024
    batch: int = 4
    workspace: int = 2 << 30
    portable: bool = False

    def __post_init__(self) -> None:
        if self.tile < LEAST_TILE or self.batch < 1 or self.workspace < 1:
            raise UsageError(
                f"An engine needs --tile {LEAST_TILE} or more, --batch 1 or more and some --workspace, not {self}."
            )


def probe() -> tuple[Any, Gpu]:
    """TensorRT and the GPU to build on.

    Raises:
        DeviceError: There is no GPU, or a version of TensorRT that is not known.
        MissingPackageError: TensorRT or CUDA's bindings are not installed.
    """
    gpu = find_gpu()  # first: TensorRT without a GPU crashes the process
    return import_tensorrt(), gpu


def check_graph(model: onnx.ModelProto) -> onnx.ModelProto:
    """The graph that TensorRT is given.

    Raises:
        ModelError: It holds what TensorRT does not take.
    """
    made = for_tensorrt(model)
    found = problems(made)
    if found:
        raise ModelError(f"TensorRT would not take this graph: {'; '.join(found)}.")
    return made


def build_engine(model: onnx.ModelProto, card: Card, options: EngineOptions) -> tuple[bytes, EngineFacts]:
    """Build an engine on the GPU of this machine.

    Raises:
        DeviceError: There is no GPU or no TensorRT to build with, or it failed.
        ModelError: TensorRT does not take the graph.
    """
    tensorrt, gpu = probe()
    content = check_graph(model).SerializeToString()
    _LOG.info("Building for %s with TensorRT %s; this takes minutes.", gpu.name, tensorrt.__version__)
    plan = _build(tensorrt, content, card, options, _timing_cache(tensorrt.__version__, gpu))
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


def _build(tensorrt: Any, content: bytes, card: Card, options: EngineOptions, timings: Path) -> bytes:
    logger: trt.Logger = tensorrt.Logger(tensorrt.Logger.WARNING)
    builder: trt.Builder = tensorrt.Builder(logger)
    # Strongly typed: each layer computes in the types of the graph, as the proof on the CPU did.
    network: trt.INetworkDefinition = builder.create_network(
        1 << int(tensorrt.NetworkDefinitionCreationFlag.STRONGLY_TYPED)
    )
    parser: trt.OnnxParser = tensorrt.OnnxParser(network, logger)
    if not parser.parse(content):
        reasons = "; ".join(str(parser.get_error(index)) for index in range(parser.num_errors))
        raise ModelError(f"TensorRT cannot read the graph: {reasons}")
    config: trt.IBuilderConfig = builder.create_builder_config()
    config.set_memory_pool_limit(tensorrt.MemoryPoolType.WORKSPACE, options.workspace)
    # TensorFloat-32 keeps ten bits of a float32: labels would not be those that were proven.
    config.clear_flag(tensorrt.BuilderFlag.TF32)
    if options.portable:
        config.set_flag(tensorrt.BuilderFlag.VERSION_COMPATIBLE)
        config.hardware_compatibility_level = tensorrt.HardwareCompatibilityLevel.AMPERE_PLUS
    _add_profile(builder, config, card, options)
    config.set_timing_cache(config.create_timing_cache(_kept(timings)), False)
    plan = builder.build_serialized_network(network, config)
    if plan is None:
        raise DeviceError(
            "TensorRT could not build the engine; see its messages above, or try a smaller --tile."
        )
    _keep(config, timings)
    return bytes(plan)


def _add_profile(
    builder: "trt.Builder", config: "trt.IBuilderConfig", card: Card, options: EngineOptions
) -> None:
    """One profile from a single pixel, as scenes have edges, to the full batch, which it is made fast for."""
    side = Grid(1 << 30, 1 << 30, options.tile, card.halo, card.stride).read_side
    bands = len(card.bands)
    most = (options.batch, bands, side, side)
    profile: trt.IOptimizationProfile = builder.create_optimization_profile()
    profile.set_shape("image", (1, bands, 1, 1), most, most)
    config.add_optimization_profile(profile)


def _keep(config: "trt.IBuilderConfig", timings: Path) -> None:
    cache: trt.ITimingCache = config.get_timing_cache()
    timings.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(timings, bytes(cache.serialize()))


def _kept(timings: Path) -> bytes:
    """How long layers took when engines were built before: what makes the next build fast."""
    return timings.read_bytes() if timings.exists() else b""


def write_engine(
    model: onnx.ModelProto, card: Card, out: Path, options: EngineOptions, prove: Callable[[Engine], Card]
) -> Card:
    """Build an engine, try it on the GPU, and write it with its card beside it.

    Args:
        model: A graph that was proven on the CPU.
        card: Its card.
        out: The engine file.
        options: What it is built for.
        prove: Compares the engine with the trained network and gives the card with the figures, or raises.

    Raises:
        ModelError: Tiled, the engine does not say what it says of the whole, or it fails the proof.
    """
    plan, facts = build_engine(model, card, options)
    with tempfile.TemporaryDirectory(prefix="iic-export-") as folder:
        path = Path(folder) / f"model{SUFFIX}"
        path.write_bytes(plan)
        write_side(path, card, facts)
        broken = [check.promise for check in validate_model(path) if not check.kept]
        if broken:
            raise ModelError(f"On this GPU it does not hold, so nothing was written: {'; '.join(broken)}.")
        card = prove(open_engine(ModelFile.read(path), "tensorrt"))
    write_side(out, card, facts)
    write_atomically(out, plan)
    return card


def _timing_cache(version: str, gpu: Gpu) -> Path:
    key = sha256(f"{version} {gpu.name} {gpu.capability}".encode()).hexdigest()[:16]
    return cache_folder() / "timings" / f"{key}.cache"
