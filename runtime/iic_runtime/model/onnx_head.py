"""The head of a model: the last layer of its graph, which can be replaced or whose classes can be merged in the file.

An exported graph names the tensors that this needs; a graph without them, made by an older version or by hand, can
still have its classes merged.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from iic_geotools.errors import ModelError
from iic_runtime.model.onnx_graph import FLOAT, Node, OnnxGraph

FEATURES = "features"
"""The output `[N, F, H, W]`: what the head sees at every pixel."""
CELLS = "cells"
"""The same on the grid where it is computed, if that is coarser than the pixels' or larger than the image."""
LOGITS = "logits"
"""What the head says: one number per class, before they become probabilities."""
MERGE = "merge"
"""Weights `[classes, clusters, 1, 1]` that sum the probabilities of each class's clusters."""
PROBABILITIES = "probabilities"
Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Head:
    """A head that can be written into a graph: linear, and a hidden layer of rectified units beside it if there is one.

    Attributes:
        weight: `[classes, features]`.
        bias: `[classes]`.
        hidden_weight: `[units, features]`; None without a hidden layer.
        hidden_bias: `[units]`.
        hidden_out: `[classes, units]`.
    """

    weight: Floats
    bias: Floats
    hidden_weight: Floats | None = None
    hidden_bias: Floats | None = None
    hidden_out: Floats | None = None

    @property
    def classes(self) -> int:
        """Number of classes."""
        return len(self.bias)

    def take(self, order: NDArray[np.int64]) -> "Head":
        """Return the head with its classes in another order."""
        out = None if self.hidden_out is None else self.hidden_out[order]
        return replace(self, weight=self.weight[order], bias=self.bias[order], hidden_out=out)

    def logits(self, features: Floats) -> Floats:
        """Return what the head says of features `[N, F]`: `[N, classes]`."""
        logits = features @ self.weight.T + self.bias
        if self.hidden_weight is not None and self.hidden_bias is not None and self.hidden_out is not None:
            logits += np.maximum(features @ self.hidden_weight.T + self.hidden_bias, 0) @ self.hidden_out.T
        return logits

    def maps(self, features: Floats) -> Floats:
        """Return what the head says of features `[F, N]`: `[classes, N]`."""
        logits = self.weight @ features + self.bias[:, None]
        if self.hidden_weight is not None and self.hidden_bias is not None and self.hidden_out is not None:
            units = self.hidden_weight @ features + self.hidden_bias[:, None]
            logits += self.hidden_out @ np.maximum(units, 0, out=units)
        return logits


def has_features(content: bytes) -> bool:
    """Return whether the head of a model can be replaced."""
    graph = OnnxGraph.parse(content)
    return FEATURES in graph.outputs and graph.makes(LOGITS)


def replace_head(content: bytes, head: Head) -> bytes:
    """Return a model with another head.

    Args:
        content: A model for which `has_features` holds.
        head: The new head.
    """
    graph = OnnxGraph.parse(content)
    source = _quantised(graph, CELLS) if graph.makes(CELLS) else FEATURES
    nodes = [Node.make("Cast", [source], "head.in", to=FLOAT)]  # a model in fp16 has its cells in float16
    weights = {"head.weight": head.weight[:, :, None, None], "head.bias": head.bias}
    linear = LOGITS if head.hidden_weight is None else "head.linear"
    nodes.append(Node.make("Conv", ["head.in", "head.weight", "head.bias"], linear))
    if head.hidden_weight is not None and head.hidden_bias is not None and head.hidden_out is not None:
        weights |= {
            "head.hidden.weight": head.hidden_weight[:, :, None, None],
            "head.hidden.bias": head.hidden_bias,
            "head.hidden.out": head.hidden_out[:, :, None, None],
        }
        nodes += [
            Node.make("Conv", ["head.in", "head.hidden.weight", "head.hidden.bias"], "head.hidden"),
            Node.make("Relu", ["head.hidden"], "head.units"),
            Node.make("Conv", ["head.units", "head.hidden.out"], "head.branch"),
            Node.make("Add", [linear, "head.branch"], LOGITS),
        ]
    if MERGE in graph.weights:
        weights[MERGE] = np.eye(head.classes, dtype=np.float32)[:, :, None, None]
    graph = graph.with_weights(weights).remake(LOGITS, nodes)
    return _declare_probabilities(graph, head.classes).serialise()


def merge_classes(content: bytes, merge: Floats, dense: bool = True) -> bytes:
    """Return a model whose probabilities are summed over merged classes.

    Args:
        content: The model.
        merge: `[new classes, old classes]` of 0 and 1.
        dense: Whether the model labels pixels, not whole images.

    Raises:
        ModelError: The graph is not of a kind whose classes can be merged.
    """
    graph = OnnxGraph.parse(content)
    if dense and MERGE in graph.weights:
        graph = graph.with_weights({MERGE: (merge @ graph.weight(MERGE)[:, :, 0, 0])[:, :, None, None]})
    else:
        tensor = probabilities_tensor(graph)
        raw = f"{tensor}.clusters"
        operator, weight = ("Conv", merge[:, :, None, None]) if dense else ("MatMul", merge.T)
        graph = graph.with_weights({MERGE: np.asarray(weight)}).rework(
            tensor, raw, [Node.make(operator, [raw, MERGE], tensor)]
        )
    return _declare_probabilities(graph, len(merge), dense).serialise()


def with_probabilities(content: bytes, classes: int) -> bytes:
    """Return a model for pixels with `probabilities` among its outputs, which may be a little larger than the image."""
    graph = OnnxGraph.parse(content)
    if PROBABILITIES in graph.outputs:
        return content
    tensor = probabilities_tensor(graph)
    if tensor != PROBABILITIES:
        graph = graph.append(Node.make("Identity", [tensor], PROBABILITIES))
    return graph.declare_output(PROBABILITIES, "n", classes, "rows", "columns").serialise()


def smooth_probabilities(content: bytes, reach: int) -> bytes:
    """Return a model whose class probabilities are averaged over squares, in place of any earlier averaging.

    The card's halo must change with the reach.

    Args:
        content: A model that labels pixels.
        reach: Pixels in each direction; 0 for no averaging.
    """
    graph = OnnxGraph.parse(content)
    tensor = probabilities_tensor(graph)
    while smoothing_reach(content):
        (rough,) = graph.producer(tensor).inputs
        source = graph.producer(rough)
        source = replace(source, outputs=tuple(tensor if name == rough else name for name in source.outputs))
        nodes = [node for node in graph.nodes if rough not in node.outputs + node.inputs]
        nodes.insert(graph.nodes.index(graph.producer(rough)), source)
        graph = replace(graph, nodes=tuple(nodes))
        content = graph.serialise()
    # Outside the image nothing is averaged, so that tiles agree with the whole at the edge of a scene. Means of rows of
    # means of columns are those of the squares, in fewer operations.
    for name, down, across in ((f"{tensor}.rough", reach, 0), (f"{tensor}.columns", 0, reach)):
        if reach:
            window = {"kernel_shape": [2 * down + 1, 2 * across + 1], "pads": [down, across] * 2}
            pool = Node.make("AveragePool", [name], tensor, count_include_pad=0, **window)
            graph = graph.rework(tensor, name, [pool])
    return graph.serialise()


def smoothing_reach(content: bytes) -> int:
    """Return the reach that `smooth_probabilities` gave a model; 0 if it did not."""
    graph = OnnxGraph.parse(content)
    node = graph.producer(probabilities_tensor(graph))
    return max(node.numbers("pads")) if node.operator == "AveragePool" else 0


def probabilities_tensor(graph: OnnxGraph) -> str:
    """Return the tensor of which a graph's labels are the largest channel.

    Raises:
        ModelError: Labels are not made in this way.
    """
    tensor = "labels"
    for _ in graph.nodes:
        node = graph.producer(tensor)
        tensor = node.inputs[0]
        if node.operator == "ArgMax":
            return tensor
    raise ModelError("Its labels are not the most probable classes, so its classes cannot be changed.")


def _quantised(graph: OnnxGraph, tensor: str) -> str:
    """Return the tensor that others see in place of one that is quantised, as in models in int8."""
    for operator in ("QuantizeLinear", "DequantizeLinear"):
        users = [node for node in graph.nodes if node.operator == operator and node.inputs[0] == tensor]
        tensor = users[0].outputs[0] if users else tensor
    return tensor


def _declare_probabilities(graph: OnnxGraph, classes: int, dense: bool = True) -> OnnxGraph:
    if PROBABILITIES not in graph.outputs:
        return graph
    return graph.declare_output(PROBABILITIES, "n", classes, *(("h", "w") if dense else ()))
