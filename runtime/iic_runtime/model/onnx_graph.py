"""The graph of an ONNX file, changed without the `onnx` package: other weights, other nodes, fewer outputs.

Nodes and weights that are not touched are kept byte for byte. Field numbers are those of onnx.proto.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from iic_geotools.errors import ModelError
from iic_runtime.model.file import (
    encode,
    encode_float,
    encode_int,
    encode_packed,
    encode_text,
    parse,
    varint,
    varints,
)

FLOAT, UINT8, INT8, INT32, INT64, FLOAT16 = 1, 2, 3, 6, 7, 10
"""Data types of tensors."""
PIXEL_TYPES = {"uint8": UINT8, "uint16": 4, "int16": 5, "float32": FLOAT}
IR_VERSION, OPSET = 10, 20
"""Versions of graphs that are written here: those that exported graphs have."""
_MODEL_GRAPH, _MODEL_OPSET = 7, 8
_NODE, _INITIALISER, _INPUT, _OUTPUT, _VALUE_INFO = 1, 5, 11, 12, 13
_NODE_INPUT, _NODE_OUTPUT, _NODE_OPERATOR, _NODE_ATTRIBUTE = 1, 2, 4, 5
_DIMS, _DATA_TYPE, _FLOAT_DATA, _TENSOR_NAME, _RAW_DATA = 1, 2, 4, 8, 9
_NUMPY = {FLOAT: "<f4", FLOAT16: "<f2", UINT8: "u1", INT8: "i1", INT32: "<i4", INT64: "<i8"}
_KINDS = {np.dtype(kind): number for number, kind in _NUMPY.items()}
Array = NDArray[np.float32]
Attribute = int | float | str | Sequence[int]


@dataclass(frozen=True)
class Node:
    """An operation of a graph.

    Attributes:
        operator: What it does, e.g. "Conv".
        inputs: Names of the tensors that it takes; empty for one that is left out.
        outputs: Names of the tensors that it makes.
        others: Its other fields as they are encoded: name, attributes, domain.
    """

    operator: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    others: bytes = b""

    @classmethod
    def make(cls, operator: str, inputs: Sequence[str], output: str, **attributes: Attribute) -> "Node":
        """Make a node with one output; attributes are whole numbers, floats, texts, or several whole numbers."""
        others = b"".join(encode(_NODE_ATTRIBUTE, _attribute(*item)) for item in attributes.items())
        return cls(operator, tuple(inputs), (output,), others)

    @classmethod
    def parse(cls, message: bytes) -> "Node":
        """Read an encoded node."""
        fields = parse(message)
        names = {
            number: tuple(field.value.decode() for field in fields if field.number == number)
            for number in (_NODE_INPUT, _NODE_OUTPUT, _NODE_OPERATOR)
        }
        others = b"".join(field.raw for field in fields if field.number not in names)
        return cls(names[_NODE_OPERATOR][0], names[_NODE_INPUT], names[_NODE_OUTPUT], others)

    def numbers(self, attribute: str) -> list[int]:
        """Return the whole numbers of an attribute; none if it is not there."""
        for field in parse(self.others):
            if field.number == _NODE_ATTRIBUTE and _text(field.value, 1) == attribute:
                return [
                    number
                    for part in parse(field.value)
                    if part.number in (3, 8)
                    for number in varints(part.value)
                ]
        return []

    def renamed(self, rename: Callable[[str], str]) -> "Node":
        """Return the node with other names of its tensors."""
        return replace(self, inputs=tuple(map(rename, self.inputs)), outputs=tuple(map(rename, self.outputs)))

    def encode(self) -> bytes:
        """Return the node as it is encoded."""
        names = [encode_text(_NODE_INPUT, name) for name in self.inputs]
        names += [encode_text(_NODE_OUTPUT, name) for name in self.outputs]
        return b"".join(names) + encode_text(_NODE_OPERATOR, self.operator) + self.others


@dataclass(frozen=True)
class OnnxGraph:
    """A model with its graph taken apart; changes return a new one.

    Attributes:
        nodes: The nodes, each after those whose tensors it takes.
        weights: The encoded initialisers by name.
        outputs: The encoded outputs by name.
        others: The other encoded fields of the graph.
        model: The encoded fields of the model other than the graph.
    """

    nodes: tuple[Node, ...]
    weights: dict[str, bytes]
    outputs: dict[str, bytes]
    others: bytes
    model: bytes

    @classmethod
    def parse(cls, content: bytes) -> "OnnxGraph":
        """Read a serialised model."""
        try:
            fields = parse(content)
            (graph,) = (parse(field.value) for field in fields if field.number == _MODEL_GRAPH)
            return cls(
                nodes=tuple(Node.parse(field.value) for field in graph if field.number == _NODE),
                weights={
                    _text(field.value, _TENSOR_NAME): field.value
                    for field in graph
                    if field.number == _INITIALISER
                },
                outputs={_text(field.value, 1): field.value for field in graph if field.number == _OUTPUT},
                # Shapes between nodes are notes that a change would make wrong.
                others=b"".join(
                    field.raw
                    for field in graph
                    if field.number not in (_NODE, _INITIALISER, _OUTPUT, _VALUE_INFO)
                ),
                model=b"".join(field.raw for field in fields if field.number != _MODEL_GRAPH),
            )
        except (ValueError, IndexError) as error:
            raise ModelError("It is not an ONNX model, or a truncated one.") from error

    @classmethod
    def empty(cls, bands: int, dtype: str) -> "OnnxGraph":
        """Return a graph without nodes that takes `image`, raw pixels `[n, bands, h, w]`."""
        opset = encode_text(1, "") + encode_int(2, OPSET)
        return cls(
            nodes=(),
            weights={},
            outputs={},
            others=encode_text(2, "iic")
            + encode(_INPUT, _value_info("image", ("n", bands, "h", "w"), PIXEL_TYPES[dtype])),
            model=encode_int(1, IR_VERSION) + encode_text(2, "iic-edge") + encode(_MODEL_OPSET, opset),
        )

    @property
    def opset(self) -> int:
        """Version of the operators; 0 if the model does not say."""
        for field in parse(self.model):
            if field.number == _MODEL_OPSET and not _text(field.value, 1):
                return next((varint(part.value)[0] for part in parse(field.value) if part.number == 2), 0)
        return 0

    def prefixed(self, prefix: str) -> "OnnxGraph":
        """Return the graph with a prefix to all names but that of the input, so that it can be joined with another."""

        def rename(name: str) -> str:
            return name if name in ("", "image") else prefix + name

        return replace(
            self,
            nodes=tuple(node.renamed(rename) for node in self.nodes),
            weights={
                rename(name): _renamed_tensor(tensor, rename(name)) for name, tensor in self.weights.items()
            },
            outputs={},
        )

    def join(self, nodes: Iterable[Node], weights: dict[str, NDArray[Any]]) -> "OnnxGraph":
        """Add nodes at the end, and the weights that they take."""
        return replace(self, nodes=(*self.nodes, *nodes)).with_weights(weights)

    def serialise(self) -> bytes:
        """Return the model as the bytes of a file."""
        parts = [encode(_NODE, node.encode()) for node in self.nodes]
        parts += [encode(_INITIALISER, tensor) for tensor in self.weights.values()]
        parts += [encode(_OUTPUT, output) for output in self.outputs.values()]
        return self.model + encode(_MODEL_GRAPH, b"".join(parts) + self.others)

    def weight(self, name: str) -> Array:
        """Return an initialiser of floats as an array of float32."""
        if name not in self.weights:
            raise ModelError(f"Its graph has no weights named {name}.")
        return _read_tensor(self.weights[name])

    def type_of(self, name: str) -> int:
        """Return the data type of an initialiser; 0 if there is none of this name."""
        fields = parse(self.weights.get(name, b""))
        return next((varint(field.value)[0] for field in fields if field.number == _DATA_TYPE), 0)

    def with_weights(self, arrays: dict[str, NDArray[Any]]) -> "OnnxGraph":
        """Replace or add initialisers, float64 as float32."""
        return replace(
            self, weights=self.weights | {name: _tensor(name, array) for name, array in arrays.items()}
        )

    def channels_of(self, output: str) -> int:
        """Return the number of channels of an output `[n, channels, h, w]`."""
        message = self.outputs.get(output, b"")
        for number in (2, 1, 2):  # type, tensor type, shape
            message = next((field.value for field in parse(message) if field.number == number), b"")
        sizes = [parse(field.value) for field in parse(message) if field.number == 1]
        if len(sizes) != 4 or not sizes[1] or sizes[1][0].number != 1:
            raise ModelError(f"Its graph does not say how many channels {output} has; export it again.")
        return varint(sizes[1][0].value)[0]

    def producer(self, tensor: str) -> Node:
        """Return the node that makes a tensor."""
        for node in self.nodes:
            if tensor in node.outputs:
                return node
        raise ModelError(f"No node of its graph makes {tensor}.")

    def makes(self, tensor: str) -> bool:
        """Return whether a node makes a tensor."""
        return any(tensor in node.outputs for node in self.nodes)

    def remake(self, tensor: str, nodes: Iterable[Node]) -> "OnnxGraph":
        """Replace the nodes that make a tensor; nodes that become unused or equal are removed."""
        place = self.nodes.index(self.producer(tensor))
        new = tuple(nodes)
        made = {name for node in new for name in node.outputs}
        before, after = (
            tuple(node for node in part if not made & set(node.outputs))
            for part in (self.nodes[:place], self.nodes[place:])
        )
        return replace(self, nodes=(*before, *new, *after)).with_outputs(self.outputs)

    def rework(self, tensor: str, raw: str, nodes: Iterable[Node]) -> "OnnxGraph":
        """Insert nodes after a tensor, which they take as `raw`; consumers see their output."""
        old = self.producer(tensor)
        place = self.nodes.index(old)
        renamed = replace(old, outputs=tuple(raw if name == tensor else name for name in old.outputs))
        return replace(self, nodes=(*self.nodes[:place], renamed, *nodes, *self.nodes[place + 1 :]))

    def append(self, node: Node) -> "OnnxGraph":
        """Add a node at the end."""
        return replace(self, nodes=(*self.nodes, node))

    def with_outputs(self, names: Iterable[str]) -> "OnnxGraph":
        """Keep only these outputs, and the nodes and weights that they need."""
        outputs = {name: self.outputs[name] for name in names}
        needed = set(outputs)
        nodes: list[Node] = []
        for node in reversed(self.nodes):
            if needed & set(node.outputs):
                nodes.append(node)
                needed |= set(node.inputs)
        weights = {name: tensor for name, tensor in self.weights.items() if name in needed}
        return replace(self, nodes=tuple(nodes[::-1]), weights=weights, outputs=outputs)

    def declare_output(self, name: str, *dims: str | int, kind: int = FLOAT) -> "OnnxGraph":
        """Add a tensor to the outputs, float32 unless said otherwise, or change the shape of one that is there."""
        return replace(self, outputs=self.outputs | {name: _value_info(name, dims, kind)})


def only_outputs(content: bytes, names: Sequence[str]) -> bytes:
    """Remove all other outputs: TensorRT would compute them, and they slow down the rest."""
    graph = OnnxGraph.parse(content)
    kept = [name for name in graph.outputs if name in names]
    return content if len(kept) == len(graph.outputs) else graph.with_outputs(kept).serialise()


def takes_floats(content: bytes, bands: int) -> bytes | None:
    """Return a model that takes the same pixels as float32, for engines without integers; None if it needs others."""
    graph = OnnxGraph.parse(content)
    users = [node for node in graph.nodes if "image" in node.inputs]
    if not all(node.operator == "Shape" or _casts_to_float(node) for node in users):
        return None
    others = b"".join(field.raw for field in parse(graph.others) if field.number != _INPUT)
    taken = encode(_INPUT, _value_info("image", ("n", bands, "h", "w")))
    return replace(graph, others=others + taken).serialise()


def _casts_to_float(node: Node) -> bool:
    return node.operator == "Cast" and node.numbers("to") == [FLOAT]


def _text(message: bytes, number: int) -> str:
    return next((field.value.decode() for field in parse(message) if field.number == number), "")


def _attribute(name: str, value: Attribute) -> bytes:
    encoded = encode_text(1, name)
    if isinstance(value, str):
        return encoded + encode_text(4, value) + encode_int(20, 3)
    if isinstance(value, int):
        return encoded + encode_int(3, value) + encode_int(20, 2)
    if isinstance(value, float):
        return encoded + encode_float(2, value) + encode_int(20, 1)
    return encoded + b"".join(encode_int(8, item) for item in value) + encode_int(20, 7)


def _tensor(name: str, array: NDArray[Any]) -> bytes:
    kind = _KINDS.get(array.dtype, FLOAT)
    content = np.asarray(array, _NUMPY[kind], order="C")
    dims = encode_packed(_DIMS, content.shape) if content.ndim else b""
    return (
        dims
        + encode_int(_DATA_TYPE, kind)
        + encode_text(_TENSOR_NAME, name)
        + encode(_RAW_DATA, content.tobytes())
    )


def _renamed_tensor(message: bytes, name: str) -> bytes:
    others = b"".join(field.raw for field in parse(message) if field.number != _TENSOR_NAME)
    return others + encode_text(_TENSOR_NAME, name)


def _read_tensor(message: bytes) -> Array:
    dims: list[int] = []
    kind, content = 0, b""
    for field in parse(message):
        if field.number == _DIMS:
            dims += varints(field.value)  # one number per field, or all of them packed into one
        elif field.number == _DATA_TYPE:
            kind, _ = varint(field.value)
        elif field.number in (_RAW_DATA, _FLOAT_DATA):
            content += field.value
    size = int(np.prod(dims, dtype=np.int64))
    if kind not in _NUMPY or len(content) != size * np.dtype(_NUMPY[kind]).itemsize:
        raise ModelError(f"Its weights {_text(message, _TENSOR_NAME)} are stored in a way that is not known.")
    return np.frombuffer(content, np.dtype(_NUMPY[kind])).reshape(dims).astype(np.float32)


def _value_info(name: str, dims: Sequence[str | int], kind: int = FLOAT) -> bytes:
    sizes = b"".join(
        encode(1, encode_int(1, size) if isinstance(size, int) else encode_text(2, size)) for size in dims
    )
    return encode_text(1, name) + encode(2, encode(1, encode_int(1, kind) + encode(2, sizes)))
