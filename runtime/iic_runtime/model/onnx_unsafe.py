"""Refuse graphs that refer to other files, or that may run without end.

An ONNX graph may say that its weights are in another file, by a path that ONNX Runtime takes relative to the working
directory. Such a file is not covered by the digest of the model, and may be any file that the user can read. A node
may also hold the name of a compiled engine. A loop may have any number of steps,
so that no tile would ever end. The messages of the graph are walked without the `onnx` package.
"""

from collections.abc import Mapping

from iic_geotools.errors import ModelError
from iic_runtime.model.protobuf import fields

DEEPEST = 100
"""Messages that are nested more deeply, as graphs in graphs are, are refused, as by protocol buffers themselves."""
_FILE_NODES = (b"EPContext",)
_LOOP_NODES = (b"Loop", b"Scan", b"SequenceMap")
_DATA_FIELDS = {13: "external_data", 14: "data_location"}

# Which fields of which messages lead to tensors and nodes, by their numbers in onnx.proto.
_FIELDS: Mapping[str, Mapping[int, str]] = {
    "model": {7: "graph", 20: "training", 25: "function"},
    "training": {1: "graph", 2: "graph"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "function": {7: "node", 11: "attribute"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
}


def refuse_unsafe_graph(model: bytes) -> None:
    """Refuse a serialised model that refers to other files or has loops.

    Raises:
        ModelError: It does, or it is not an ONNX model.
    """
    pending = [("model", memoryview(model), 0)]
    while pending:
        kind, message, depth = pending.pop()
        if depth > DEEPEST:
            raise ModelError("Its graphs are nested too deeply.")
        try:
            content = [(number, payload) for number, _, payload in fields(message)]
        except (IndexError, ValueError) as error:
            raise ModelError("It is not an ONNX model, or a truncated one.") from error
        if kind == "tensor":
            _check_tensor(content)
            continue
        if kind == "node":
            _check_node(content)
        steps = _FIELDS[kind]
        pending += [(steps[number], payload, depth + 1) for number, payload in content if number in steps]


def _check_node(content: list[tuple[int, memoryview]]) -> None:
    operators = [bytes(payload) for number, payload in content if number == 4]
    if any(operator in _FILE_NODES for operator in operators):
        raise ModelError("It refers to a compiled engine in another file; export it again with iic-export.")
    if any(operator in _LOOP_NODES for operator in operators):
        raise ModelError(
            "Its graph has a loop, which may run without end; export a network without loops, e.g. with iic-export."
        )


def _check_tensor(content: list[tuple[int, memoryview]]) -> None:
    for number, payload in content:
        if number in _DATA_FIELDS and any(byte & 0x7F for byte in bytes(payload[:10])):
            raise ModelError(
                "Its weights are in another file, which is not covered by its digest; store them in the model itself."
            )
