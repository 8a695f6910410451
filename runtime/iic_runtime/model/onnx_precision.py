"""The graph of an ONNX file in half precision or in 8-bit integers, made without PyTorch and the `onnx` package."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from iic_geotools.errors import ModelError
from iic_runtime.model.onnx_graph import FLOAT, FLOAT16, UINT8, Node, OnnxGraph

FOLLOWING = ("Relu", "Clip", "MaxPool", "Concat", "Add")
"""Operators that stay in half precision after a convolution."""
ACTIVATIONS = ("Relu", "Clip")
"""Operators that are computed together with the convolution before them."""
HIGHEST_WEIGHT = 64
"""8-bit weights use 7 bits: without VNNI a CPU's 16-bit sums would saturate, and one file must serve every machine."""
Range = tuple[float, float]
Measure = Callable[[OnnxGraph, Sequence[str]], dict[str, Range]]
"""Returns the range of the values of each of some tensors of a graph."""


def to_half(content: bytes) -> bytes:
    """Return a serialised model whose convolutions compute in float16; inputs and outputs stay as they are.

    Raises:
        ModelError: A weight is too large for float16.
    """
    graph = OnnxGraph.parse(content)
    half = _HalfGraph(graph)
    for node in graph.nodes:
        half.add(node)
    half.need_float(tuple(graph.outputs))
    changed = replace(graph, nodes=tuple(half.nodes)).with_weights(half.weights)
    return changed.with_outputs(graph.outputs).serialise()


@dataclass
class _HalfGraph:
    """The nodes of a graph in half precision as they are made; a tensor in float16 is named after that in float32."""

    graph: OnnxGraph
    nodes: list[Node] = field(default_factory=list)
    weights: dict[str, NDArray[np.float16]] = field(default_factory=dict)
    _halves: set[str] = field(default_factory=set)
    _only_half: set[str] = field(default_factory=set)

    def add(self, node: Node) -> None:
        """Add a node, in half precision if that is where it belongs."""
        inputs = [name for name in node.inputs if name]
        constants = set(self.graph.weights)
        convolves = node.operator == "Conv" and set(inputs[1:]) <= constants
        known = self._halves | (constants if node.operator == "Clip" else set())
        follows = node.operator in FOLLOWING and inputs[0] in self._halves and set(inputs) <= known
        if not (convolves or (follows and len(node.outputs) == 1)):
            self.need_float(inputs)
            self.nodes.append(node)
            return
        (output,) = node.outputs
        taken = tuple(name and self._half(name) for name in node.inputs)
        self.nodes.append(replace(node, inputs=taken, outputs=(_half_name(output),)))
        self._halves.add(output)
        self._only_half.add(output)

    def need_float(self, names: Sequence[str]) -> None:
        """Cast tensors back to float32 that are there in float16 only."""
        for name in dict.fromkeys(names):
            if name in self._only_half:
                self.nodes.append(Node.make("Cast", [_half_name(name)], name, to=FLOAT))
                self._only_half.remove(name)

    def _half(self, name: str) -> str:
        if name in self.graph.weights:
            with np.errstate(over="ignore"):
                values = self.graph.weight(name).astype(np.float16)
            if not np.isfinite(values).all():
                raise ModelError(f"Its weights {name} are too large for fp16; keep the model in fp32.")
            self.weights[_half_name(name)] = values
        elif name not in self._halves:
            self.nodes.append(Node.make("Cast", [name], _half_name(name), to=FLOAT16))
            self._halves.add(name)
        return _half_name(name)


def _half_name(name: str) -> str:
    return f"{name}/half"


def to_int8(content: bytes, measure: Measure, *, symmetric: bool = False) -> bytes:
    """Return a serialised model whose inner convolutions compute in 8-bit integers, weights per channel.

    The first convolutions, which see the pixels, and the last, which decides, stay in float32: they cost little time
    and decide much.

    Args:
        measure: Measures the ranges that the integers are to cover.
        symmetric: Use signed activations around zero and biases in float32, as TensorRT requires.

    Raises:
        ModelError: There is no convolution between the first and the last.
    """
    graph = OnnxGraph.parse(content)
    convolutions = inner_convolutions(graph)
    if not convolutions:
        raise ModelError("It has no convolutions to quantise; keep it in fp32 or fp16.")
    inputs = [node.inputs[0] for node in convolutions]
    tensors = list(dict.fromkeys([*inputs, *(_activated(graph, node) for node in convolutions)]))
    ranges = measure(graph, tensors)
    quantised = _IntegerGraph(symmetric, {name: Step.of(ranges[name], symmetric) for name in tensors})
    nodes: list[Node] = []
    for node in graph.nodes:
        taken = quantised.rename(node)
        nodes += quantised.convolve(graph, taken) if node in convolutions else [taken]
        for output in node.outputs:
            nodes += quantised.round(output)
    return (
        replace(graph, nodes=tuple(nodes))
        .with_weights(quantised.weights)
        .with_outputs(graph.outputs)
        .serialise()
    )


def is_asymmetric(content: bytes) -> bool:
    """Return whether integers of a serialised model are unsigned or have a zero point, which TensorRT does not take."""
    graph = OnnxGraph.parse(content)
    quantising = [node for node in graph.nodes if node.operator == "QuantizeLinear"]
    # Without a zero point they are unsigned too.
    return any(
        len(node.inputs) < 3 or graph.type_of(node.inputs[2]) == UINT8 or graph.weight(node.inputs[2]).any()
        for node in quantising
    )


def inner_convolutions(graph: OnnxGraph) -> list[Node]:
    """Return the convolutions with constant weights that have another one before them, but for the last one."""
    seen: set[str] = set()
    inner: list[Node] = []
    for node in graph.nodes:
        follows = bool(seen & set(node.inputs))
        if node.operator == "Conv" and node.inputs[1] in graph.weights:
            inner += [node] * (follows and node.inputs[0] in seen)
            follows = True
        if follows:
            seen |= set(node.outputs)
    return inner[:-1]


def _activated(graph: OnnxGraph, node: Node) -> str:
    """Return the tensor that leaves a convolution, after the activation if that alone takes it."""
    users = [user for user in graph.nodes if node.outputs[0] in user.inputs]
    return users[0].outputs[0] if len(users) == 1 and users[0].operator in ACTIVATIONS else node.outputs[0]


@dataclass(frozen=True)
class Step:
    """How values become 8-bit integers: value = (integer - zero) * size."""

    size: float
    zero: NDArray[np.int8] | NDArray[np.uint8]

    @classmethod
    def of(cls, values: Range, symmetric: bool) -> "Step":
        """Return the finest step whose integers cover a range and 0."""
        low, high = min(0.0, values[0]), max(0.0, values[1])
        if symmetric:
            return cls(max(-low, high) / 127 or 1.0, np.zeros((), np.int8))
        size = (high - low) / 255 or 1.0
        return cls(size, np.asarray(round(-low / size), np.uint8))


@dataclass
class _IntegerGraph:
    """The new nodes and weights of a graph with 8-bit integers as they are made."""

    symmetric: bool
    steps: dict[str, Step]
    weights: dict[str, NDArray[np.generic]] = field(default_factory=dict)
    _rounded: set[str] = field(default_factory=set)

    def rename(self, node: Node) -> Node:
        """Let a node take tensors as the integers have them."""
        return replace(
            node, inputs=tuple(f"{name}/rounded" if name in self._rounded else name for name in node.inputs)
        )

    def round(self, tensor: str) -> Iterable[Node]:
        """Yield the nodes that quantise a tensor, if that is to be done, and turn it back into floats."""
        step = self.steps.get(tensor)
        if step is None:
            return
        self._rounded.add(tensor)
        size, zero = f"{tensor}/step", f"{tensor}/zero"
        self.weights |= {size: np.asarray(step.size, np.float32), zero: step.zero}
        yield Node.make("QuantizeLinear", [tensor, size, zero], f"{tensor}/int8")
        yield Node.make("DequantizeLinear", [f"{tensor}/int8", size, zero], f"{tensor}/rounded")

    def convolve(self, graph: OnnxGraph, node: Node) -> Iterable[Node]:
        """Yield a convolution that takes tensors as the integers have them, with integer weights."""
        image, weight, *bias = node.inputs
        values = graph.weight(weight)
        sizes = np.abs(values).reshape(len(values), -1).max(1) / HIGHEST_WEIGHT
        sizes = np.where(sizes > 0, sizes, 1.0).astype(np.float32)
        steps = sizes.reshape(-1, *[1] * (values.ndim - 1))
        (output,) = node.outputs
        yield self._integers(f"{output}/weight", np.rint(values / steps).astype(np.int8), sizes)
        inputs = [image, f"{output}/weight/rounded"]
        if bias and bias[0] and not self.symmetric:
            products = (sizes * np.float32(self.steps[image.removesuffix("/rounded")].size)).astype(
                np.float32
            )
            limits = np.iinfo(np.int32)
            whole = np.rint(graph.weight(bias[0]) / products.astype(np.float64)).clip(limits.min, limits.max)
            yield self._integers(f"{output}/bias", whole.astype(np.int32), products)
            inputs.append(f"{output}/bias/rounded")
        else:
            inputs += bias
        yield replace(node, inputs=tuple(inputs))

    def _integers(self, name: str, values: NDArray[np.generic], sizes: NDArray[np.float32]) -> Node:
        self.weights |= {f"{name}/int8": values, f"{name}/steps": sizes}
        return Node.make("DequantizeLinear", [f"{name}/int8", f"{name}/steps"], f"{name}/rounded", axis=0)
