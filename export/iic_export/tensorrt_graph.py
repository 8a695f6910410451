"""What TensorRT accepts, checked on any machine.

The rules are those of the operator table of TensorRT's ONNX parser (onnx-tensorrt, docs/operators.md, of TensorRT
10.15), without what versions before 10 did not know: operators, the types they take, and their restrictions.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from iic_geotools.errors import ModelError

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
