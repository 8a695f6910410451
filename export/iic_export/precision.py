"""The graph of a head in fp32, fp16 or int8, which is quantised with the run's own images."""

import logging
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import onnx
from numpy.typing import NDArray
from torch import Tensor

from iic_export.served_head import served_head
from iic_export.torch_to_onnx import to_onnx
from iic_export.trained_head import TrainedHead
from iic_geotools.errors import ModelError
from iic_runtime.engine.onnx import import_onnxruntime

TRACED_SIDE = 38
"""Side of the image that a segmentation network is traced with; any would do."""
TRUNK_WEIGHTS = "trunk."
"""Prefix of the weights to quantise. The trunk's first convolution, the head and the rest stay in float32: they cost
little time and decide much."""
FOLLOWING_OPERATORS = ("Relu", "MaxPool")
"""Quantised too, so that integers pass from one convolution to the next."""


def float_graph(
    head: TrainedHead, size: tuple[int, int], merge: Tensor | None = None, *, half: bool = False
) -> onnx.ModelProto:
    """Trace a head in float32, or with trunk and head in float16.

    Args:
        head: The head to trace.
        size: Height and width of the images that a clustering network takes.
        merge: `[classes, clusters]` of 0 and 1, if clusters are merged into classes.
        half: Compute trunk and head in float16.
    """
    module = served_head(head.network, head.config.pairs, merge, half=half)
    example = (TRACED_SIDE, TRACED_SIDE) if head.config.dense else size
    return to_onnx(module, len(head.network.config.channels), head.dtype, example)


def quantise(
    model: onnx.ModelProto, images: Sequence[NDArray[Any]], *, symmetric: bool = False
) -> onnx.ModelProto:
    """Quantise the trunk to int8, weights per channel, with QuantizeLinear and DequantizeLinear around each layer.

    Args:
        model: A float32 model.
        images: Images `[bands, H, W]` to calibrate on.
        symmetric: Use signed activations around zero, all 8 bits of a weight and biases in float32, as TensorRT
            requires. Otherwise activations are unsigned, weights use 7 bits, because without VNNI a CPU's 16-bit sums
            would saturate and one file must serve every machine, and biases are integers.
    """
    import_onnxruntime()
    from onnxruntime.quantization import (
        CalibrationDataReader,
        CalibrationMethod,
        QuantFormat,
        QuantType,
        quantize_static,
    )

    class ImageReader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self._images: Iterator[NDArray[Any]] = iter(images)

        def get_next(self) -> dict[str, NDArray[Any]] | None:
            image = next(self._images, None)
            return None if image is None else {"image": image[None]}

    named = _with_node_names(model)
    with tempfile.TemporaryDirectory(prefix="iic-export-") as folder, _without_advice():
        source, target = Path(folder) / "float.onnx", Path(folder) / "int8.onnx"
        onnx.save(onnx.shape_inference.infer_shapes(named), source)
        quantize_static(
            source,
            target,
            ImageReader(),
            quant_format=QuantFormat.QDQ,
            op_types_to_quantize=["Conv", *FOLLOWING_OPERATORS],
            nodes_to_quantize=_nodes_to_quantise(named),
            per_channel=True,
            reduce_range=not symmetric,
            activation_type=QuantType.QInt8 if symmetric else QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            calibrate_method=CalibrationMethod.MinMax,
            # TensorRT dequantises 8 bits, not 32: its biases stay in float32.
            extra_options={
                "ActivationSymmetric": symmetric,
                "WeightSymmetric": True,
                "QuantizeBias": not symmetric,
            },
        )
        quantised = onnx.load(target)
    del quantised.graph.value_info[:]
    quantised.producer_name, quantised.producer_version = model.producer_name, model.producer_version
    return quantised


@contextmanager
def _without_advice() -> Iterator[None]:
    """Silence the quantiser, which logs advice to the root logger that has been followed already."""
    root, level = logging.getLogger(), logging.getLogger().level
    root.setLevel(logging.ERROR)
    try:
        yield
    finally:
        root.setLevel(level)


def _with_node_names(model: onnx.ModelProto) -> onnx.ModelProto:
    """Copy a model and name its nodes, so that some can be excluded from quantisation."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for index, node in enumerate(copy.graph.node):
        node.name = f"{node.op_type}_{index}"
    return copy


def _nodes_to_quantise(model: onnx.ModelProto) -> list[str]:
    chosen, quantised_tensors, first_seen = [], set(), False
    for node in model.graph.node:
        weight = node.input[1] if node.op_type == "Conv" else ""
        in_trunk = weight.startswith(TRUNK_WEIGHTS)
        follows = node.op_type in FOLLOWING_OPERATORS and node.input[0] in quantised_tensors
        if (in_trunk and first_seen) or follows:
            chosen.append(node.name)
            quantised_tensors |= set(node.output)
        first_seen |= in_trunk
    if not chosen:
        raise ModelError("The graph has no convolutions to quantise; export it in fp32 or fp16.")
    return chosen
