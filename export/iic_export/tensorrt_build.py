"""TensorRT engines: built and proven on a GPU.

Only calls that TensorRT 10 and 11 share are used. Names annotated with `trt.` are TensorRT's own objects: a test
looks up every attribute used on them, and how it is called, in the real bindings.

**What TensorRT accepts** is checked on any machine. The rules are those of the operator table of TensorRT's ONNX
parser (onnx-tensorrt, docs/operators.md, of TensorRT 10.15), without what versions before 10 did not know:
operators, the types they take, and their restrictions.
"""

import logging
import tempfile
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from iic_export.proof import check_promises
from iic_export.settings import EngineOptions
from iic_geotools.errors import DeviceError, ModelError
from iic_geotools.files import cache_folder, write_atomically
from iic_geotools.tiling import largest_read
from iic_runtime.engine.base import Engine
from iic_runtime.engine.gpu import Gpu, find_gpu
from iic_runtime.engine.open_engine import open_engine
from iic_runtime.engine.tensorrt import import_tensorrt
from iic_runtime.model.card import Card
from iic_runtime.model.engine_card import ENGINE_SUFFIX, EngineFacts, write_engine_card
from iic_runtime.model.file import ModelFile
from iic_runtime.options import EngineSettings

if TYPE_CHECKING:
    import tensorrt as trt

_LOG = logging.getLogger(__name__)

OLDEST_OPSET, NEWEST_OPSET = 9, 20
"""Versions of the operators that every TensorRT since 10.0 reads."""
FLOATS = frozenset({TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16})
NUMBERS = FLOATS | {TensorProto.INT32, TensorProto.INT64}
PLAIN = NUMBERS | {TensorProto.BOOL}
QUANTISED = frozenset({TensorProto.INT8})
"""Types that only QuantizeLinear makes and only DequantizeLinear takes."""
# fmt: off
TYPES: dict[str, frozenset[int]] = {
    **dict.fromkeys(
        ("AveragePool", "BatchNormalization", "Ceil", "Clip", "Conv", "ConvTranspose", "Cos", "Einsum", "Elu", "Erf",
         "Exp", "Floor", "Gemm", "GlobalAveragePool", "GlobalMaxPool", "InstanceNormalization", "LeakyRelu", "Log",
         "LogSoftmax", "MatMul", "MaxPool", "PRelu", "QuantizeLinear", "Reciprocal", "Resize", "Round", "Sigmoid",
         "Sin", "Softmax", "Softplus", "Sqrt", "Tanh"), FLOATS),
    **dict.fromkeys(
        ("Abs", "Add", "ArgMax", "ArgMin", "DepthToSpace", "Div", "Equal", "Greater", "GreaterOrEqual", "Less",
         "LessOrEqual", "Max", "Mean", "Min", "Mod", "Mul", "Neg", "Pad", "Pow", "Range", "ReduceL1", "ReduceL2",
         "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum",
         "ReduceSumSquare", "Relu", "Sign", "SpaceToDepth", "Sub", "Sum"), NUMBERS),
    **dict.fromkeys(
        ("Cast", "Concat", "ConstantOfShape", "Expand", "Flatten", "Gather", "GatherElements", "GatherND", "Identity",
         "Reshape", "Shape", "Size", "Slice", "Split", "Squeeze", "Tile", "Transpose", "Unsqueeze", "Where"), PLAIN),
    **dict.fromkeys(("And", "Not", "Or", "Xor"), frozenset({TensorProto.BOOL})),
    "Constant": PLAIN,
    "DequantizeLinear": QUANTISED,
}
# fmt: on
"""For each operator the types that it takes. UINT8 is for inputs and outputs of the network, cast to and from float."""
RESIZE = {
    "mode": ({"nearest", "linear"}, "nearest"),
    "coordinate_transformation_mode": (
        {"half_pixel", "pytorch_half_pixel", "tf_half_pixel_for_nn", "asymmetric", "align_corners"},
        "half_pixel",
    ),
    "nearest_mode": ({"floor", "ceil", "round_prefer_floor", "round_prefer_ceil"}, "round_prefer_floor"),
    "keep_aspect_ratio_policy": ({"stretch"}, "stretch"),
}
"""Attributes of Resize: what TensorRT knows, and the default."""


def find_tensorrt() -> tuple[Any, Gpu]:
    """Import TensorRT and find the GPU to build on.

    Raises:
        DeviceError: There is no GPU, or the version of TensorRT is not supported.
        MissingPackageError: TensorRT or CUDA's bindings are not installed.
    """
    gpu = find_gpu()  # first: TensorRT without a GPU crashes the process
    return import_tensorrt(), gpu


def build_engine(model: onnx.ModelProto, card: Card, options: EngineOptions) -> tuple[bytes, EngineFacts]:
    """Build an engine on the GPU of this machine.

    Raises:
        DeviceError: There is no GPU, or the build failed.
        MissingPackageError: TensorRT is not installed.
        ModelError: TensorRT does not accept the graph.
    """
    tensorrt, gpu = find_tensorrt()
    content = check_graph(model).SerializeToString()
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


def write_engine(
    model: onnx.ModelProto, card: Card, out: Path, options: EngineOptions, prove: Callable[[Engine], Card]
) -> Card:
    """Build an engine, prove it on the GPU, and write it with its card next to it.

    Args:
        model: A graph that was proven on the CPU.
        prove: A function that compares the engine with the trained network, and returns the card with the figures.

    Raises:
        ModelError: The engine does not match its card, or fails the comparison.
    """
    plan, facts = build_engine(model, card, options)
    with tempfile.TemporaryDirectory(prefix="iic-export-") as folder:
        path = Path(folder) / f"model{ENGINE_SUFFIX}"
        path.write_bytes(plan)
        write_engine_card(path, card, facts)
        check_promises(path)
        card = prove(open_engine(ModelFile.read(path), EngineSettings(device="tensorrt")))
    write_engine_card(out, card, facts)
    write_atomically(out, plan)
    return card


def _timing_cache_path(version: str, gpu: Gpu) -> Path:
    key = sha256(f"{version} {gpu.name} {gpu.capability}".encode()).hexdigest()[:16]
    return cache_folder() / "timings" / f"{key}.cache"


def check_graph(model: onnx.ModelProto) -> onnx.ModelProto:
    """Give the graph an input type that TensorRT has, and check that TensorRT would accept it."""
    accepted = with_tensorrt_input(model)
    reasons = list_problems(accepted)
    if reasons:
        raise ModelError(f"TensorRT would not accept this graph: {'; '.join(reasons)}; export it as .onnx.")
    return accepted


def with_tensorrt_input(model: onnx.ModelProto) -> onnx.ModelProto:
    """Copy a model with an input type that TensorRT has: 16-bit pixels come as float32, which holds them exactly."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    pixels = copy.graph.input[0].type.tensor_type
    if pixels.elem_type in (TensorProto.UINT16, TensorProto.INT16):
        pixels.elem_type = TensorProto.FLOAT
    return copy


def list_problems(model: onnx.ModelProto) -> list[str]:
    """List what TensorRT would refuse in a graph, each in a few words."""
    return list(dict.fromkeys(_problems(onnx.shape_inference.infer_shapes(model, strict_mode=True))))


def _problems(model: onnx.ModelProto) -> Iterator[str]:
    for imported in model.opset_import:
        if imported.domain not in ("", "ai.onnx"):
            yield f"operators of {imported.domain}"
        elif not OLDEST_OPSET <= imported.version <= NEWEST_OPSET:
            yield f"operators of version {imported.version}"
    graph = _Graph(model.graph)
    outer_names = {value.name for value in (*model.graph.input, *model.graph.output)}
    for name, tensor_type in graph.types.items():
        allowed = PLAIN | QUANTISED | ({TensorProto.UINT8} if name in outer_names else set())
        if tensor_type not in allowed:
            yield f"{name} is {_type_name(tensor_type)}"
    for node in model.graph.node:
        if node.op_type not in TYPES:
            yield f"the operator {node.op_type}"
            continue
        yield from _type_problems(node, graph)
        if node.op_type in RESTRICTIONS:
            yield from RESTRICTIONS[node.op_type](node, graph)


class _Graph:
    """The types and constants of a graph by name."""

    def __init__(self, graph: onnx.GraphProto) -> None:
        values = (*graph.input, *graph.output, *graph.value_info)
        self.types: dict[str, int] = {value.name: value.type.tensor_type.elem_type for value in values}
        self.types |= {weight.name: weight.data_type for weight in graph.initializer}
        self.constants: dict[str, Any] = {weight.name: weight for weight in graph.initializer}
        for node in graph.node:
            if node.op_type == "Constant":
                self.constants[node.output[0]] = _attributes(node).get("value")

    def is_zero(self, name: str) -> bool:
        tensor = self.constants.get(name)
        return tensor is not None and not np.any(numpy_helper.to_array(tensor))


def _type_problems(node: onnx.NodeProto, graph: _Graph) -> Iterator[str]:
    inputs = [graph.types.get(name) for name in node.input]
    outputs = [graph.types.get(name) for name in node.output]
    types = {*inputs, *outputs}
    if TensorProto.UINT8 in types:
        if node.op_type != "Cast" or not types & FLOATS:
            yield f"{node.op_type} {node.output[0]} takes or gives uint8 other than as float"
        return
    position = 1 if node.op_type == "Where" else 0
    data = inputs[position] if inputs else outputs[0]
    if data is not None and data in (PLAIN | QUANTISED) - TYPES[node.op_type]:
        yield f"{node.op_type} {node.output[0]} takes {_type_name(data)}"


def _pooling(node: onnx.NodeProto, graph: _Graph) -> Iterator[str]:
    if any(dilation != 1 for dilation in _attributes(node).get("dilations", ())):
        yield f"{node.op_type} {node.output[0]} is dilated"
    if len(_attributes(node)["kernel_shape"]) not in (2, 3):
        yield f"{node.op_type} {node.output[0]} is not over two or three axes"
    if len(node.output) > 1:
        yield f"{node.op_type} {node.output[0]} returns indices"


def _zero_point(node: onnx.NodeProto, graph: _Graph) -> Iterator[str]:
    if len(node.input) > 2 and node.input[2] and not graph.is_zero(node.input[2]):
        yield f"{node.op_type} {node.output[0]} has a zero point other than 0"


def _resizing(node: onnx.NodeProto, graph: _Graph) -> Iterator[str]:
    attributes = _attributes(node)
    for name, (known, default) in RESIZE.items():
        value = attributes.get(name, default)
        value = value.decode() if isinstance(value, bytes) else value
        if value not in known:
            yield f"Resize {node.output[0]} has the {name} {value}"
    if attributes.get("antialias"):
        yield f"Resize {node.output[0]} is antialiased"


def _constant_axes(node: onnx.NodeProto, graph: _Graph) -> Iterator[str]:
    if len(node.input) > 1 and node.input[1] and node.input[1] not in graph.constants:
        yield f"{node.op_type} {node.output[0]} has axes that are not constant"


def _constant_value(node: onnx.NodeProto, graph: _Graph) -> Iterator[str]:
    for name in {"sparse_value", "value_string", "value_strings"} & set(_attributes(node)):
        yield f"Constant {node.output[0]} has a {name}"


_Restriction = Callable[[onnx.NodeProto, _Graph], Iterator[str]]
RESTRICTIONS: dict[str, _Restriction] = {
    "AveragePool": _pooling,
    "MaxPool": _pooling,
    "QuantizeLinear": _zero_point,
    "DequantizeLinear": _zero_point,
    "Resize": _resizing,
    "Constant": _constant_value,
    **dict.fromkeys(("Squeeze", "Unsqueeze", *(n for n in TYPES if n.startswith("Reduce"))), _constant_axes),
}
"""Restrictions of the table other than types, by operator."""


def _attributes(node: onnx.NodeProto) -> dict[str, Any]:
    return {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute}


def _type_name(tensor_type: int) -> str:
    return str(TensorProto.DataType.Name(tensor_type)).lower()
