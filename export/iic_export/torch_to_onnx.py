"""From a torch module to a clean ONNX graph."""

import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import onnx
import torch
from onnx import TensorProto

from iic_export.served_head import SegmentationHead, ServedHead
from iic_geotools.errors import ModelError
from iic_runtime.model.card import PixelType
from iic_runtime.model.onnx_head import CELLS, FEATURES, LOGITS, PROBABILITIES

OPSET = 20
"""The version that ONNX Runtime 1.19 and TensorRT 10 read; nothing of later versions is used."""


def to_onnx(module: ServedHead, bands: int, dtype: PixelType, size: tuple[int, int]) -> onnx.ModelProto:
    """Trace a module.

    Args:
        module: The module to trace.
        bands: Number of bands of its input.
        dtype: Data type of its pixels.
        size: Height and width of its input; for segmentation only an example, as the graph takes any size.

    Returns:
        A graph with the input `image` and the outputs `labels`, `confidence` and `probabilities`, for segmentation
        `features` too.
    """
    dense = isinstance(module, SegmentationHead)
    dynamic = {0: torch.export.Dim("n")}
    if dense:
        dynamic |= {2: torch.export.Dim("h"), 3: torch.export.Dim("w")}
    example = torch.from_numpy(np.zeros((2, bands, *size), dtype))
    with _without_tracer_messages(), torch.no_grad():
        program = torch.onnx.export(
            module,
            (example,),
            dynamo=True,
            optimize=True,
            opset_version=OPSET,
            input_names=["image"],
            output_names=list(module.outputs),
            dynamic_shapes=(dynamic,),
            verbose=False,
        )
    if program is None:
        raise ModelError("PyTorch returned no graph for this network; install a newer torch.")
    return _tidy(program.model_proto, ["n", "h", "w"] if dense else ["n"])


def with_outputs(model: onnx.ModelProto, names: Sequence[str]) -> onnx.ModelProto:
    """Copy a model with only these outputs, without the nodes and weights that only the others need."""
    kept = onnx.ModelProto()
    kept.CopyFrom(model)
    graph = kept.graph
    outputs = [output for output in graph.output if output.name in names]
    needed = {output.name for output in outputs}
    nodes: list[onnx.NodeProto] = []
    for node in reversed(graph.node):
        if needed & set(node.output):
            nodes.append(node)
            needed |= set(node.input)
    weights = [weight for weight in graph.initializer if weight.name in needed]
    for field, content in (
        (graph.output, outputs),
        (graph.node, nodes[::-1]),
        (graph.initializer, weights),
    ):
        copies = [type(item).FromString(item.SerializeToString()) for item in content]
        del field[:]
        field.extend(copies)
    return kept


def _tidy(model: onnx.ModelProto, dynamic: Sequence[str]) -> onnx.ModelProto:
    """Remove the tracer's notes and name the dynamic sizes of the outputs after those of the input."""
    graph = model.graph
    graph.name = "iic"
    model.producer_name, model.producer_version = "iic-edge", ""
    model.doc_string = graph.doc_string = ""
    del graph.value_info[:]
    del model.metadata_props[:]
    for item in (graph, *graph.node, *graph.input, *graph.output, *graph.initializer):
        item.doc_string = ""
        del item.metadata_props[:]
    # Traced as outputs only to name the tensors.
    outputs = [output for output in graph.output if output.name not in (CELLS, LOGITS)]
    del graph.output[:]
    graph.output.extend(outputs)
    for output in graph.output:
        dims = output.type.tensor_type.shape.dim
        channels = output.name in (PROBABILITIES, FEATURES)
        names = [dynamic[0], None, *dynamic[1:]] if channels else list(dynamic)
        for dim, name in zip(dims, names, strict=True):
            if name is not None:
                dim.dim_param = name
    for output in graph.output[:2]:
        if output.type.tensor_type.elem_type != TensorProto.UINT8:
            raise ModelError(
                f"The output {output.name} of the traced graph is not uint8; install a newer torch."
            )
    _take_sizes_from_floats(graph)
    onnx.checker.check_model(model, full_check=True)
    return model


def _take_sizes_from_floats(graph: onnx.GraphProto) -> None:
    """Take sizes from the pixels as floats, not from the raw ones: all TensorRT can do with uint8 is cast it."""
    casts = [node for node in graph.node if node.op_type == "Cast" and node.input[0] == "image"]
    if not casts:
        return
    others = [node for node in graph.node if node not in casts]
    for node in others:
        if node.op_type == "Shape" and node.input[0] == "image":
            node.input[0] = casts[0].output[0]
    nodes = [onnx.NodeProto.FromString(node.SerializeToString()) for node in (*casts, *others)]
    del graph.node[:]
    graph.node.extend(nodes)


@contextmanager
def _without_tracer_messages() -> Iterator[None]:
    """Silence the tracer, whose messages are meant for developers of torch."""
    noisy = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "torch.export", "onnx_ir")]
    levels = [logger.level for logger in noisy]
    for logger in noisy:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(noisy, levels, strict=True):
            logger.setLevel(level)
