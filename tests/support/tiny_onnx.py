"""Small random networks of the real geometry, as ONNX bytes, without torch: for tests and benchmarks."""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from iic_geotools.classmap.classes import MapClass, distinct_colours
from iic_runtime.model.card import Card
from iic_runtime.model.file import ModelFile, put_card, write_model

BANDS = ("red", "green", "blue", "nir")
_TYPES = {
    "uint8": TensorProto.UINT8,
    "uint16": TensorProto.UINT16,
    "int16": TensorProto.INT16,
    "float32": TensorProto.FLOAT,
}


def write_card(path: str | os.PathLike[str], card: Card) -> None:
    """Replace the card of a model file; graph and weights stay as they are."""
    write_model(Path(path), replace(ModelFile.read(path), card=card))


def make_card(classes: int = 4, bands: Sequence[str] = BANDS, **changes: object) -> Card:
    names = tuple(MapClass(f"cluster {i}", colour) for i, colour in enumerate(distinct_colours(classes)))
    fields = {"name": "tiny", "halo": 16, "stride": 2, "memory_per_pixel": 400, **changes}
    return Card(bands=tuple(bands), classes=names, **fields)  # type: ignore[arg-type]


def make_model(
    seed: int = 0,
    *,
    classes: int = 4,
    bands: Sequence[str] = BANDS,
    full: Sequence[int] = (8, 8),
    half: Sequence[tuple[int, int]] = ((8, 1), (8, 2)),
    dtype: str = "uint8",
    scale: float | None = None,
    features: bool = False,
    **card: object,
) -> bytes:
    """A network of 3x3 convolutions, pooling, dilated convolutions, exact upsampling, argmax.

    Args:
        full: widths of the convolutions before the pooling.
        half: widths and dilations of those after it; without any there is no pooling.
        features: Whether the graph outputs the features of its head, as exported ones do.
    """
    rng = np.random.default_rng(seed)
    nodes: list[onnx.NodeProto] = []
    weights: list[onnx.TensorProto] = []

    def constant(name: str, value: np.ndarray) -> str:
        weights.append(numpy_helper.from_array(value, name))
        return name

    def node(kind: str, inputs: list[str], output: str, **attributes: object) -> str:
        nodes.append(helper.make_node(kind, inputs, [output], **attributes))
        return output

    def conv(x: str, name: str, fan_in: int, width: int, side: int = 3, dilation: int = 1) -> str:
        w = rng.normal(0, (2 / (fan_in * side * side)) ** 0.5, (width, fan_in, side, side))
        pad = dilation * (side // 2)
        inputs = [x, constant(f"{name}_w", w.astype(np.float32))]
        inputs.append(constant(f"{name}_b", rng.normal(0, 0.2, width).astype(np.float32)))
        return node("Conv", inputs, name, pads=[pad] * 4, dilations=[dilation] * 2)

    if scale is None:
        scale = {"uint8": 1 / 255, "uint16": 1 / 10000, "int16": 1 / 10000, "float32": 1.0}[dtype]
    x = node("Cast", ["image"], "float", to=TensorProto.FLOAT)
    x = node("Mul", [x, constant("scale", np.array(scale, np.float32))], "scaled")
    x = node("Sub", [x, constant("middle", np.array(0.5, np.float32))], "centred")
    width = len(bands)
    for i, wide in enumerate(full):
        x = node("Relu", [conv(x, f"full{i}", width, wide)], f"full{i}_relu")
        width = wide
    if half:
        x = node("MaxPool", [x], "pooled", kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1)
    for i, (wide, dilation) in enumerate(half):
        x = node("Relu", [conv(x, f"half{i}", width, wide, dilation=dilation)], f"half{i}_relu")
        width = wide
    x = seen = node("Identity", [x], "cells" if half else "features") if features else x
    x = node(
        "Mul", [conv(x, "head", width, classes, side=1), constant("sharp", np.array(4, np.float32))], "logits"
    )
    x = node("Softmax", [x], "softmax" if half else "probabilities", axis=1)
    if half:
        scales = constant("scales", np.array([1, 1, 2, 2], np.float32))
        node("Shape", ["image"], "shape", start=2, end=4)
        zeros, axes = constant("zeros", np.array([0, 0])), constant("axes", np.array([2, 3]))

    def double(x: str, name: str) -> str:
        modes = {"mode": "linear", "coordinate_transformation_mode": "half_pixel"}
        x = node("Resize", [x, "", scales], f"{name}_doubled", **modes)
        return node("Slice", [x, zeros, "shape", axes], name)

    if half:
        x = double(x, "probabilities")
        if features:
            double(seen, "features")
    node("Cast", [node("ArgMax", [x], "argmax", axis=1, keepdims=0)], "labels", to=TensorProto.UINT8)
    top = node("ReduceMax", [x, constant("channel", np.array([1]))], "top", keepdims=0)
    top = node("Mul", [top, constant("full_scale", np.array(255, np.float32))], "top255")
    node("Cast", [node("Round", [top], "rounded")], "confidence", to=TensorProto.UINT8)
    graph = helper.make_graph(
        nodes,
        "tiny",
        [helper.make_tensor_value_info("image", _TYPES[dtype], ["n", len(bands), "h", "w"])],
        [
            helper.make_tensor_value_info(name, TensorProto.UINT8, ["n", "h", "w"])
            for name in ("labels", "confidence")
        ]
        + [helper.make_tensor_value_info("features", TensorProto.FLOAT, ["n", width, "h", "w"])] * features,
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    onnx.checker.check_model(model, full_check=True)
    made = make_card(
        classes,
        bands,
        halo=len(full) + 2 * sum(d for _, d in half) + 2,
        stride=2 if half else 1,
        dtype=dtype,
        scale=(scale,) * len(bands),
        # input and output of the widest layer, the im2col buffer aside
        memory_per_pixel=4 * 2 * max(*full, *(w for w, _ in half)),
        **card,
    )
    return put_card(model.SerializeToString(), made)


def make_classifier(
    seed: int = 0, *, classes: int = 3, bands: Sequence[str] = ("grey",), size: int = 8, **card: object
) -> bytes:
    """A linear model of whole images of one size: labels, confidence and probabilities."""
    rng = np.random.default_rng(seed)
    weights = rng.normal(0, 0.3, (len(bands) * size * size, classes)).astype(np.float32)
    nodes = [
        helper.make_node("Cast", ["image"], ["pixels"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["pixels", "unit"], ["scaled"]),
        helper.make_node("Flatten", ["scaled"], ["flat"]),
        helper.make_node("MatMul", ["flat", "weights"], ["logits"]),
        helper.make_node("Softmax", ["logits"], ["probabilities"], axis=1),
        helper.make_node("ArgMax", ["probabilities"], ["winner"], axis=1, keepdims=0),
        helper.make_node("Cast", ["winner"], ["labels"], to=TensorProto.UINT8),
        helper.make_node("ReduceMax", ["probabilities", "axis"], ["highest"], keepdims=0),
        helper.make_node("Mul", ["highest", "full"], ["stretched"]),
        helper.make_node("Round", ["stretched"], ["rounded"]),
        helper.make_node("Cast", ["rounded"], ["confidence"], to=TensorProto.UINT8),
    ]
    constants = [
        numpy_helper.from_array(np.float32(1 / 255), "unit"),
        numpy_helper.from_array(weights, "weights"),
        numpy_helper.from_array(np.array([1], np.int64), "axis"),
        numpy_helper.from_array(np.float32(255), "full"),
    ]
    image = helper.make_tensor_value_info("image", TensorProto.UINT8, ["n", len(bands), size, size])
    outputs = [
        helper.make_tensor_value_info("labels", TensorProto.UINT8, ["n"]),
        helper.make_tensor_value_info("confidence", TensorProto.UINT8, ["n"]),
        helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, ["n", classes]),
    ]
    graph = helper.make_graph(nodes, "tiny", [image], outputs, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    fields = {"task": "clustering", "halo": 0, "stride": 1, **card}
    return put_card(model.SerializeToString(), make_card(classes, bands, **fields))
