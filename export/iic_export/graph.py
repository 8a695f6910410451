"""From a torch module to a clean ONNX graph."""

import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import onnx
import torch
from onnx import TensorProto

from iic_export.deploy import Answer, DensePixels, Deployable
from iic_geotools.errors import ModelError
from iic_runtime.card import PixelType

OPSET = 20
"""What ONNX Runtime 1.19 and TensorRT 10 read; nothing that later ones bring is used here."""
OUTPUTS = Answer._fields


def to_onnx(module: Deployable, bands: int, dtype: PixelType, size: tuple[int, int]) -> onnx.ModelProto:
    """Trace a module.

    Args:
        module: What to trace.
        bands: Bands of its input.
        dtype: Type of its pixels.
        size: Height and width of its input; for segmentation only an example, any size goes.

    Returns:
        A graph with the input `image` and the outputs `labels`, `confidence` and `probabilities`.
    """
    dense = isinstance(module, DensePixels)
    free = {0: torch.export.Dim("n")}
    if dense:
        free |= {2: torch.export.Dim("h"), 3: torch.export.Dim("w")}
    example = torch.from_numpy(np.zeros((2, bands, *size), dtype))
    with _quietly(), torch.no_grad():
        program = torch.onnx.export(
            module,
            (example,),
            dynamo=True,
            optimize=True,
            opset_version=OPSET,
            input_names=["image"],
            output_names=list(OUTPUTS),
            dynamic_shapes=(free,),
            verbose=False,
        )
    if program is None:
        raise ModelError("PyTorch gave no graph for this network; install a newer torch.")
    return _tidied(program.model_proto, ["n", "h", "w"] if dense else ["n"])


def with_outputs(model: onnx.ModelProto, names: Sequence[str]) -> onnx.ModelProto:
    """The model with only these outputs and without what led to others alone."""
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


def _tidied(model: onnx.ModelProto, free: Sequence[str]) -> onnx.ModelProto:
    """Without the tracer's notes, and with sizes by the names of what they equal."""
    graph = model.graph
    graph.name = "iic"
    model.producer_name, model.producer_version = "iic-edge", ""
    model.doc_string = graph.doc_string = ""
    del graph.value_info[:]
    del model.metadata_props[:]
    for item in (graph, *graph.node, *graph.input, *graph.output, *graph.initializer):
        item.doc_string = ""
        del item.metadata_props[:]
    for output in graph.output:
        dims = output.type.tensor_type.shape.dim
        names = [free[0], None, *free[1:]] if output.name == "probabilities" else list(free)
        for dim, name in zip(dims, names, strict=True):
            if name is not None:
                dim.dim_param = name
    for output in graph.output[:2]:
        if output.type.tensor_type.elem_type != TensorProto.UINT8:
            raise ModelError(f"The traced graph's {output.name} are not uint8; install a newer torch.")
    _measure_floats(graph)
    onnx.checker.check_model(model, full_check=True)
    return model


def _measure_floats(graph: onnx.GraphProto) -> None:
    """Take sizes from the pixels as floats, not from the raw ones: TensorRT does nothing with uint8 but cast it."""
    casts = [node for node in graph.node if node.op_type == "Cast" and node.input[0] == "image"]
    if not casts:
        return
    rest = [node for node in graph.node if node not in casts]
    for node in rest:
        if node.op_type == "Shape" and node.input[0] == "image":
            node.input[0] = casts[0].output[0]
    nodes = [onnx.NodeProto.FromString(node.SerializeToString()) for node in (*casts, *rest)]
    del graph.node[:]
    graph.node.extend(nodes)


@contextmanager
def _quietly() -> Iterator[None]:
    """The tracer tells developers of torch much that is no news to users."""
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
