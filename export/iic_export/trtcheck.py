"""Would TensorRT take a graph? Told from its operators and types alone, on any machine."""

from collections.abc import Iterator

import onnx
from onnx import TensorProto

OPERATORS = frozenset(
    {
        *("Add", "ArgMax", "AveragePool", "Cast", "Concat", "Constant", "ConstantOfShape", "Conv"),
        *(
            "DequantizeLinear",
            "Div",
            "Equal",
            "Exp",
            "Expand",
            "Flatten",
            "Gather",
            "Gemm",
            "GlobalAveragePool",
        ),
        *("Identity", "MatMul", "Max", "MaxPool", "Min", "Mul", "Pad", "QuantizeLinear", "ReduceMax"),
        *("ReduceMean", "ReduceSum", "Relu", "Reshape", "Resize", "Round", "Shape", "Slice", "Softmax"),
        *("Split", "Squeeze", "Sub", "Transpose", "Unsqueeze", "Where"),
    }
)
"""Of the parser's list, those without conditions that matter here."""
TYPES = frozenset(
    {
        TensorProto.FLOAT,
        TensorProto.FLOAT16,
        TensorProto.BFLOAT16,
        TensorProto.INT8,
        TensorProto.INT32,
        TensorProto.INT64,
        TensorProto.BOOL,
    }
)
"""What tensors inside a network may be; UINT8 is for inputs and outputs, and is cast from and to floats only."""
_FLOATS = {TensorProto.FLOAT, TensorProto.FLOAT16}


def problems(model: onnx.ModelProto) -> list[str]:
    """What TensorRT would refuse, each in a few words; empty if nothing."""
    return list(_problems(onnx.shape_inference.infer_shapes(model, strict_mode=True)))


def _problems(model: onnx.ModelProto) -> Iterator[str]:
    graph = model.graph
    for domain in sorted({imported.domain for imported in model.opset_import} - {"", "ai.onnx"}):
        yield f"operators of {domain}"
    for kind in sorted({node.op_type for node in graph.node} - OPERATORS):
        yield f"the operator {kind}"
    types = _types(graph)
    outside = {value.name for value in (*graph.input, *graph.output)}
    for name, kind in types.items():
        if kind not in TYPES and not (kind == TensorProto.UINT8 and name in outside):
            yield f"{name} is {TensorProto.DataType.Name(kind).lower()}"
    for node in graph.node:
        used = [types.get(name) for name in (*node.input, *node.output)]
        if TensorProto.UINT8 in used and not (node.op_type == "Cast" and set(used) & _FLOATS):
            yield f"{node.op_type} {node.output[0]} takes or gives uint8 other than as float"


def _types(graph: onnx.GraphProto) -> dict[str, int]:
    values = (*graph.input, *graph.output, *graph.value_info)
    found = {value.name: value.type.tensor_type.elem_type for value in values}
    return {**found, **{weight.name: weight.data_type for weight in graph.initializer}}


def for_tensorrt(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with an input that TensorRT has: 16-bit pixels come as float32, which holds them exactly."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    pixels = copy.graph.input[0].type.tensor_type
    if pixels.elem_type in (TensorProto.UINT16, TensorProto.INT16):
        pixels.elem_type = TensorProto.FLOAT
    return copy
