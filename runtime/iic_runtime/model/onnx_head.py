"""The head of a model: the last layer of its graph, which can be replaced or whose classes can be merged in the file.

An exported graph names the tensors that this needs; a graph without them, made by an older version or by hand, can
still have its classes merged.

**The bank of multi-scale features** is written as nodes of a graph, alone or next to a model's own features, without
torch. What the bank computes is defined in `iic_geotools.scene.multiscale`. A graph made here has the head that is
replaced here: features, logits, probabilities, labels.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from iic_geotools.errors import ModelError
from iic_geotools.scene.multiscale import (
    INDEX_OFFSET,
    LEAST_SPREAD,
    LIMIT,
    OFFSET,
    REACH,
    ROOTS,
    SIDES,
    SMOOTH,
    TEXTURE,
)
from iic_runtime.model.card import Card, FeatureGroup
from iic_runtime.model.onnx_graph import FLOAT, UINT8, Attribute, Node, OnnxGraph

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

NEAREST = 0.01
"""Added to squared distances: the root of next to nothing would amplify rounding."""
FEWEST_OPSET = 18
"""Version of the operators from which axes are inputs, as in the nodes written here."""
BYTES_PER_FEATURE = 12
"""Memory that a pixel takes at once, by the number of its features: measured at 10.5 to 12 bytes."""


@dataclass(frozen=True)
class Head:
    """A head that can be written into a graph: linear, and perhaps a hidden layer of rectified units next to it.

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
        """Return the logits of features `[N, F]`: `[N, classes]`."""
        logits = features @ self.weight.T + self.bias
        if self.hidden_weight is not None and self.hidden_bias is not None and self.hidden_out is not None:
            logits += np.maximum(features @ self.hidden_weight.T + self.hidden_bias, 0) @ self.hidden_out.T
        return logits

    def maps(self, features: Floats) -> Floats:
        """Return the logits of features `[F, N]`: `[classes, N]`."""
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
    """Return the tensor of which a graph's labels are the largest channel."""
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


@dataclass(frozen=True)
class Codebook:
    """Centres of a scene's own clusters: how near a pixel is to each of them makes nonlinear features.

    Features `[n]` are whitened by `rotation @ features + shift`. The output for each centre is by how much the pixel is
    nearer to it than to all of them in the mean, or 0 (the "triangle" code of Coates and Ng).

    Attributes:
        first: The first channel of the bank that it takes; as many follow as there are columns in `rotation`.
        side: Side in pixels of the squares that these channels describe.
        rotation: `[m, n]`.
        shift: `[m]`.
        centres: `[words, m]`.
        pooled: Sides, among those of the bank, of squares over which combinations of the outputs are averaged: what a
            place is made of, whatever its order.
        axes: The combinations `[p, words]`.
    """

    first: int
    side: int
    rotation: NDArray[np.float64]
    shift: NDArray[np.float64]
    centres: NDArray[np.float64]
    pooled: tuple[int, ...] = ()
    axes: NDArray[np.float64] = field(default_factory=lambda: np.zeros((0, 0)))

    @property
    def groups(self) -> tuple[FeatureGroup, ...]:
        """Kinds of its outputs, in order."""
        wider = (FeatureGroup(len(self.axes), side, False) for side in self.pooled)
        return (FeatureGroup(len(self.centres), self.side, False), *wider)

    def encode(self, points: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the outputs `[N, words]` for whitened features `[N, m]`."""
        squared = ((points[:, None] - self.centres) ** 2).sum(-1)
        distances = np.sqrt(squared + NEAREST)
        return np.asarray(np.maximum(distances.mean(1, keepdims=True) - distances, 0))

    def write(self, graph: "_Writer", bank: str, weights: Sequence[str]) -> list[str]:
        """Add its nodes and return the tensors of its outputs.

        Args:
            graph: Where the nodes are added.
            bank: The tensor of a bank's multi-scale features.
            weights: Tensors of the share of each of the bank's squares that is inside the image.
        """
        codes = self._codes(graph, bank)
        outputs = [codes]
        if not self.pooled:
            return outputs
        sums = graph.add("Conv", codes, graph.matrix(self.axes))
        for level, side in enumerate(SIDES[: SIDES.index(max(self.pooled)) + 1]):
            sums = graph.mean(sums, level, len(self.axes))
            if side in self.pooled:
                outputs.append(graph.add("Div", sums, weights[level]))
        return outputs

    def _codes(self, graph: "_Writer", bank: str) -> str:
        words, axes = self.centres.shape
        seen = graph.channels(bank, self.first, self.first + self.rotation.shape[1])
        x = graph.add("Conv", seen, graph.matrix(self.rotation), graph.constant(self.shift))
        squares = graph.add("Conv", graph.add("Mul", x, x), graph.matrix(np.ones((1, axes))))
        offsets = (self.centres**2).sum(1) + NEAREST
        crossed = graph.add("Conv", x, graph.matrix(-2 * self.centres), graph.constant(offsets))
        squared = graph.add("Max", graph.add("Add", crossed, squares), graph.constant(0.0))
        distances = graph.add("Sqrt", squared)
        mean = graph.add("Conv", distances, graph.matrix(np.full((1, words), 1 / words)))
        return graph.add("Relu", graph.add("Sub", mean, distances))


@dataclass(frozen=True)
class Bank:
    """The constants of a bank.

    Attributes:
        bands: Names of the bands.
        offset: Raw value of each band that becomes 0.
        scale: Factor that brings each band to about 0..1.
        mean: Mean square root of each band over the scene.
        deviation: Standard deviation of the square roots.
        codebooks: Codebooks whose outputs follow the multi-scale features.
    """

    bands: tuple[str, ...]
    offset: tuple[float, ...]
    scale: tuple[float, ...]
    mean: tuple[float, ...]
    deviation: tuple[float, ...]
    codebooks: tuple[Codebook, ...] = ()

    @classmethod
    def of(cls, card: Card, values: NDArray[Any]) -> "Bank":
        """Find the constants of a scene.

        Args:
            values: Raw values `[bands, N]` of pixels spread over the scene.
        """
        scaled = (values.astype(np.float64).T - card.offset) * card.scale
        roots = np.sqrt(np.maximum(scaled + OFFSET, 0.0))
        mean, deviation = roots.mean(0), roots.std(0)
        return cls(card.bands, card.offset, card.scale, tuple(mean.tolist()), tuple(deviation.tolist()))

    @property
    def index_bands(self) -> tuple[int, int] | None:
        """Positions of infrared and red, of which the vegetation index is made; None if there is none."""
        if not {"nir", "red"} <= set(self.bands):
            return None
        return self.bands.index("nir"), self.bands.index("red")

    @property
    def own(self) -> int:
        """Number of features of a single pixel: bands and index."""
        return len(self.bands) + self.textures - 1

    @property
    def textures(self) -> int:
        """Number of features per scale that describe texture."""
        return 1 if self.index_bands is None else 2

    @property
    def groups(self) -> tuple[FeatureGroup, ...]:
        """Kinds of the features, in order."""
        wider = [FeatureGroup(self.own + self.textures, side, False) for side in SIDES]
        coded = [group for book in self.codebooks for group in book.groups]
        return (FeatureGroup(self.own, 1, False), *wider, *coded)

    @property
    def size(self) -> int:
        """Number of features."""
        return sum(group.size for group in self.groups)

    def write(self, graph: "_Writer") -> list[str]:
        """Add the nodes of the bank, which take `image`, and return the tensors of its features."""
        x = graph.add("Cast", "image", to=FLOAT)
        x = graph.add("Mul", graph.add("Sub", x, graph.per_band(self.offset)), graph.per_band(self.scale))
        own = self._own(graph, x)
        maps = graph.add("Concat", *own, self._grey(graph, own[0]), axis=1)
        # Outside the scene nothing is averaged: the same means of ones say how much of a square is inside.
        weight = graph.add("Expand", graph.constant(np.ones((1, 1, 1, 1))), graph.size_of(x))
        features, means, energy, weights = list(own), maps, "", []
        for level in range(len(SIDES)):
            maps, wider = graph.mean(maps, level, self.own + 1), graph.mean(weight, level, 1)
            finer, means = means, graph.add("Div", maps, wider)
            if level < len(SIDES) - 1:
                change = graph.channels(graph.add("Sub", finer, means), self.own + 1 - self.textures)
                change = graph.add("Mul", graph.add("Mul", change, change), weight)
                energy = graph.add("Add", energy, change) if energy else change
            energy, weight = graph.mean(energy, level, self.textures), wider
            weights.append(wider)
            variance = graph.add("Add", graph.add("Div", energy, weight), graph.constant(SMOOTH**2))
            for _ in range(ROOTS):
                variance = graph.add("Sqrt", variance)
            texture = graph.add("Mul", variance, graph.constant(TEXTURE))
            features += [graph.channels(means, 0, self.own), texture]
        fixed = graph.add("Concat", *features, axis=1)
        return [fixed, *(part for book in self.codebooks for part in book.write(graph, fixed, weights))]

    def _own(self, graph: "_Writer", x: str) -> list[str]:
        """Return standardised values, and the vegetation index if there is one."""
        deviation = np.array(self.deviation)
        factor = np.where(deviation > LEAST_SPREAD, 1 / np.maximum(deviation, LEAST_SPREAD), 0.0)
        values = graph.add("Max", graph.add("Add", x, graph.constant(OFFSET)), graph.constant(0.0))
        values = graph.add("Sqrt", values)
        values = graph.add("Mul", graph.add("Sub", values, graph.per_band(self.mean)), graph.per_band(factor))
        values = graph.add("Clip", values, graph.constant(-LIMIT), graph.constant(LIMIT))
        if self.index_bands is None:
            return [values]
        nir, red = (graph.channels(x, band, band + 1) for band in self.index_bands)
        total = graph.add("Add", graph.add("Abs", nir), graph.add("Abs", red))
        total = graph.add("Add", total, graph.constant(INDEX_OFFSET))
        return [values, graph.add("Div", graph.add("Sub", nir, red), total)]

    def _grey(self, graph: "_Writer", values: str) -> str:
        bands = len(self.bands)
        return graph.add("Conv", values, graph.constant(np.full((1, bands, 1, 1), 1 / bands)))


def bank_graph(bank: Bank, dtype: str, base: bytes | None = None, base_classes: int = 0) -> tuple[bytes, int]:
    """Return a graph whose features are the bank's, and those and the probabilities of a model next to them.

    The head has a class for each feature, to be replaced by another one.

    Args:
        dtype: Data type of raw pixels.
        base: A model that takes the same raw pixels and whose head can be replaced; None for the bank alone.

    Returns:
        The graph, and the number of its features.
    """
    if base is None:
        empty = OnnxGraph.empty(len(bank.bands), dtype)
        writer = _Writer("bank.")
        writer.rename(writer.add("Concat", *bank.write(writer), axis=1), FEATURES)
        return _with_head(empty.join(writer.nodes, writer.weights), bank.size), bank.size
    graph = OnnxGraph.parse(base)
    if not has_features(base) or graph.opset < FEWEST_OPSET:
        raise ModelError("Its head cannot be replaced; export it again with iic-export.")
    size = bank.size + graph.channels_of(FEATURES) + base_classes
    seen, said = f"base.{FEATURES}", f"base.{probabilities_tensor(graph)}"
    writer = _Writer("bank.")
    parts = [*bank.write(writer), *(writer.add("Cast", name, to=FLOAT) for name in (seen, said))]
    # Some graphs label an area that is a little larger than the image.
    ends = writer.add("Shape", parts[0], start=2, end=4)
    zeros, axes = writer.constant(np.array([0, 0])), writer.constant(np.array([2, 3]))
    parts[-1] = writer.add("Slice", parts[-1], zeros, ends, axes)
    writer.rename(writer.add("Concat", *parts, axis=1), FEATURES)
    joined = graph.prefixed("base.").join(writer.nodes, writer.weights)
    return _with_head(joined, size), size


def bank_halo(card: Card | None) -> int:
    """Return the halo of a bank, alone or next to a model: neither sees further than the wider of the two."""
    return REACH if card is None else max(REACH, card.halo)


def bank_memory(size: int, card: Card | None) -> int:
    """Return bytes per pixel that a graph of `size` features takes at once, with those of the model that it joins."""
    return BYTES_PER_FEATURE * size + (0 if card is None else card.memory_per_pixel)


def _with_head(graph: OnnxGraph, size: int) -> bytes:
    """Add a head, and from its logits to labels and confidence."""
    writer = _Writer("")
    axis = writer.constant(np.array([1]))
    weights = {"head.weight": np.eye(2, size)[:, :, None, None], "head.bias": np.zeros(2)}
    writer.nodes.append(Node.make("Conv", [FEATURES, "head.weight", "head.bias"], LOGITS))
    masses = writer.add("Exp", writer.add("Sub", LOGITS, writer.add("ReduceMax", LOGITS, axis, keepdims=1)))
    total = writer.add("ReduceSum", masses, axis, keepdims=1)
    writer.nodes.append(Node.make("Div", [masses, total], PROBABILITIES))
    best = writer.add("ArgMax", PROBABILITIES, axis=1, keepdims=0)
    writer.nodes.append(Node.make("Cast", [best], "labels", to=UINT8))
    top = writer.add("Mul", writer.add("ReduceMax", PROBABILITIES, axis, keepdims=0), writer.constant(255.0))
    writer.nodes.append(Node.make("Cast", [writer.add("Round", top)], "confidence", to=UINT8))
    graph = graph.join(writer.nodes, {**writer.weights, **weights})
    for name in ("labels", "confidence"):
        graph = graph.declare_output(name, "n", "h", "w", kind=UINT8)
    graph = graph.declare_output(FEATURES, "n", size, "h", "w")
    return graph.with_outputs(("labels", "confidence", FEATURES)).serialise()


class _Writer:
    """Nodes and weights in the making; tensors are numbered after a prefix."""

    def __init__(self, prefix: str) -> None:
        self.nodes: list[Node] = []
        self.weights: dict[str, NDArray[Any]] = {}
        self._prefix = prefix

    def add(self, operator: str, *inputs: str, **attributes: Attribute) -> str:
        """Add a node and return its output."""
        output = f"{self._prefix}{operator.lower()}.{len(self.nodes)}"
        self.nodes.append(Node.make(operator, inputs, output, **attributes))
        return output

    def constant(self, value: float | NDArray[Any]) -> str:
        """Add a weight and return its name."""
        name = f"{self._prefix}constant.{len(self.weights)}"
        array = np.asarray(value)
        # Sizes and axes: Windows has 32 bits for whole numbers with NumPy 1.
        self.weights[name] = array.astype(np.int64) if array.dtype.kind == "i" else array
        return name

    def matrix(self, values: NDArray[Any]) -> str:
        """Add a weight `[out, in]` of a convolution of single pixels."""
        return self.constant(values[:, :, None, None])

    def per_band(self, values: Sequence[float] | Floats) -> str:
        """Add a weight with one number per band."""
        return self.constant(np.array(values, np.float64)[None, :, None, None])

    def size_of(self, tensor: str) -> str:
        """Return the tensor of the sizes `[1, 1, h, w]`."""
        sides = self.add("Shape", tensor, start=2, end=4)
        return self.add("Concat", self.constant(np.array([1, 1])), sides, axis=0)

    def channels(self, tensor: str, first: int, last: int = 1 << 30) -> str:
        """Return some channels of a tensor."""
        ends = (self.constant(np.array([number])) for number in (first, last, 1))
        return self.add("Slice", tensor, *ends)

    def mean(self, tensor: str, level: int, channels: int) -> str:
        """Return means of three pixels in each direction, 3 ** level apart, with zeros outside."""
        step = 3**level
        third = np.full((channels, 1, 3, 1), 1 / 3)
        down = {"dilations": [step, 1], "pads": [step, 0, step, 0]}
        across = {"dilations": [1, step], "pads": [0, step, 0, step]}
        tensor = self.add("Conv", tensor, self.constant(third), group=channels, **down)
        return self.add("Conv", tensor, self.constant(third.transpose(0, 1, 3, 2)), group=channels, **across)

    def rename(self, tensor: str, name: str) -> None:
        """Rename the output of the last node."""
        last = self.nodes[-1]
        assert last.outputs == (tensor,)
        self.nodes[-1] = replace(last, outputs=(name,))
