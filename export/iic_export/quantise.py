"""8-bit arithmetic: static quantisation of the convolutions, calibrated on the run's own pictures."""

import logging
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import onnx
from numpy.typing import NDArray

from iic_geotools.errors import ModelError

QUANTISED_WEIGHTS = "trunk."
"""All but the trunk's first convolution; that, the head and what is around them cost little and decide much."""
FOLLOWING = ("Relu", "MaxPool")
"""Quantised too, so that whole numbers go from one convolution to the next."""


def quantise(
    model: onnx.ModelProto, pictures: Sequence[NDArray[Any]], *, symmetric: bool = False
) -> onnx.ModelProto:
    """Quantise the trunk, weights by channel, with QuantizeLinear and DequantizeLinear around each layer.

    Args:
        model: A float32 model.
        pictures: What to calibrate on, [bands, H, W] each.
        symmetric: Signed activations around zero and 8 full bits of weight, as TensorRT wants it. Otherwise
            activations are unsigned, and weights use 7 bits: without VNNI a CPU's 16-bit sums would saturate, and
            one file must serve every machine.
    """
    from onnxruntime.quantization import (
        CalibrationDataReader,
        CalibrationMethod,
        QuantFormat,
        QuantType,
        quantize_static,
    )

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self._next: Iterator[NDArray[Any]] = iter(pictures)

        def get_next(self) -> dict[str, NDArray[Any]] | None:
            picture = next(self._next, None)
            return None if picture is None else {"image": picture[None]}

    named = _with_names(model)
    with tempfile.TemporaryDirectory(prefix="iic-export-") as folder, _no_advice():
        source, target = Path(folder) / "float.onnx", Path(folder) / "int8.onnx"
        onnx.save(onnx.shape_inference.infer_shapes(named), source)
        quantize_static(
            source,
            target,
            Reader(),
            quant_format=QuantFormat.QDQ,
            op_types_to_quantize=["Conv", *FOLLOWING],
            nodes_to_quantize=_quantised_nodes(named),
            per_channel=True,
            reduce_range=not symmetric,
            activation_type=QuantType.QInt8 if symmetric else QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            calibrate_method=CalibrationMethod.MinMax,
            extra_options={"ActivationSymmetric": symmetric, "WeightSymmetric": True},
        )
        made = onnx.load(target)
    del made.graph.value_info[:]
    made.producer_name, made.producer_version = model.producer_name, model.producer_version
    return made


@contextmanager
def _no_advice() -> Iterator[None]:
    """The quantiser gives its users advice on the root logger that was followed already."""
    root, level = logging.getLogger(), logging.getLogger().level
    root.setLevel(logging.ERROR)
    try:
        yield
    finally:
        root.setLevel(level)


def _with_names(model: onnx.ModelProto) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for index, node in enumerate(copy.graph.node):
        node.name = f"{node.op_type}_{index}"
    return copy


def _quantised_nodes(model: onnx.ModelProto) -> list[str]:
    chosen, reached, seen_first = [], set(), False
    for node in model.graph.node:
        weight = node.input[1] if node.op_type == "Conv" else ""
        quantised = weight.startswith(QUANTISED_WEIGHTS) and seen_first
        seen_first |= weight.startswith(QUANTISED_WEIGHTS)
        if quantised or (node.op_type in FOLLOWING and node.input[0] in reached):
            chosen.append(node.name)
            reached |= set(node.output)
    if not chosen:
        raise ModelError("The graph has no convolutions to quantise; export it in fp32 or fp16.")
    return chosen
