"""Model files: ONNX with the card in the metadata, TensorRT engines with the card in a JSON file next to them.

**Metadata** are read and replaced without the `onnx` package. An ONNX file is one protocol-buffers message, whose wire
format is read and written here as far as ONNX files need it. Only its outermost fields are parsed: `metadata_props`
(number 14) is a repeated message of a key (1) and a value (2); everything else is kept byte for byte.

**Unsafe graphs**, which refer to other files or may run without end, are refused. An ONNX graph may say that its
weights are in another file, by a path that ONNX Runtime takes relative to the working directory. Such a file is not
covered by the digest of the model, and may be any file that the user can read. A node may also hold the name of a
compiled engine. A loop may have any number of steps, so that no tile would ever end. The messages of the graph are
walked without the `onnx` package.
"""

import os
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple, TypeVar

from iic_geotools.errors import ModelError
from iic_geotools.files import write_atomically
from iic_runtime.model.card import CARD_KEY, Card
from iic_runtime.model.engine_card import ENGINE_SUFFIX, EngineFacts, read_engine_card, write_engine_card

_IR_VERSION, _GRAPH, _METADATA = 1, 7, 14

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

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
Message = TypeVar("Message", bytes, memoryview)


class Field(NamedTuple):
    """A field of a message.

    Attributes:
        number: Number of the field in its message.
        raw: The field as it is encoded, tag included.
        value: Its payload; the bytes of the number itself if it is one.
    """

    number: int
    raw: bytes
    value: bytes


@dataclass(frozen=True)
class ModelFile:
    """A model file that was read and whose card is valid.

    Attributes:
        path: Where it was read from.
        content: The bytes of the file.
        card: The model card.
        engine: What a TensorRT engine was built with and for; None for an ONNX file.
    """

    path: Path
    content: bytes
    card: Card
    engine: EngineFacts | None = None

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the file, which ties a map to the model that made it."""
        return sha256(self.content).hexdigest()

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> "ModelFile":
        """Read a model file.

        Raises:
            ModelError: The file is missing, is not a model, or has no valid card.
        """
        path = Path(path)
        try:
            content = path.read_bytes()
        except OSError as error:
            raise ModelError(f"Cannot read the model {path} ({error.strerror}); check the path.") from error
        return cls.parse(path, content)

    @classmethod
    def parse(cls, path: Path, content: bytes, *, trusted: bool = False) -> "ModelFile":
        """Parse the content of a model file; the card of an engine is read from the file next to it.

        Args:
            trusted: Whether it comes with this package, so that its graph need not be checked.
        """
        try:
            if path.suffix.lower() == ENGINE_SUFFIX:
                return cls(path, content, *read_engine_card(path, content))
            metadata = read_metadata(content)
            if CARD_KEY not in metadata:
                raise ModelError("it has no card; export it with iic-export")
            if not trusted:
                refuse_unsafe_graph(content)
            return cls(path, content, Card.from_json(metadata[CARD_KEY]))
        except ModelError as error:
            reason = str(error)[:1].lower() + str(error)[1:].rstrip(".")
            raise ModelError(f"{path} cannot be used as a model: {reason}.") from error


def put_card(model: bytes, card: Card) -> bytes:
    """Return an ONNX model with `card` in its metadata; other metadata is kept."""
    return with_metadata(model, {**read_metadata(model), CARD_KEY: card.to_json()})


def write_model(path: Path, model: ModelFile) -> None:
    """Write a model with its present card; for an engine that stays where it is, only the card is written."""
    if model.engine is None:
        write_atomically(path, put_card(model.content, model.card))
        return
    if path != model.path:
        write_atomically(path, model.content)
    write_engine_card(path, model.card, model.engine)


def read_metadata(model: bytes) -> dict[str, str]:
    """Return the metadata of a serialised model."""
    metadata: dict[str, str] = {}
    fields = _parse(model)
    if not {_IR_VERSION, _GRAPH} <= {field.number for field in fields}:
        raise ModelError("It is not an ONNX model: it has no graph.")
    for field in fields:
        if field.number == _METADATA:
            entry = {part.number: part.value for part in _parse(field.value)}
            metadata[_text(entry.get(1, b""))] = _text(entry.get(2, b""))
    return metadata


def with_metadata(model: bytes, metadata: Mapping[str, str]) -> bytes:
    """Return the same model with all its metadata replaced."""
    fields = [field.raw for field in _parse(model) if field.number != _METADATA]
    fields += [
        encode(_METADATA, encode_text(1, key) + encode_text(2, text)) for key, text in metadata.items()
    ]
    return b"".join(fields)


def _parse(message: bytes) -> list[Field]:
    try:
        return parse(message)
    except ValueError as error:
        raise ModelError("It is not an ONNX model, or a truncated one.") from error


def _text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise ModelError("It is not an ONNX model: its metadata is not text.") from error


def refuse_unsafe_graph(model: bytes) -> None:
    """Refuse a serialised model that refers to other files or has loops."""
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


def parse(message: bytes) -> list[Field]:
    """Split a message into its fields."""
    try:
        return [Field(*field) for field in fields(message)]
    except IndexError as error:
        raise ValueError("truncated") from error


def varint(data: bytes | memoryview, position: int = 0) -> tuple[int, int]:
    """Return the number that is encoded at a position, and the position after it."""
    value = 0
    for shift in range(0, 70, 7):
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise ValueError("varint")


def varints(data: bytes) -> list[int]:
    """Return the numbers of a packed field."""
    numbers, position = [], 0
    while position < len(data):
        number, position = varint(data, position)
        numbers.append(number)
    return numbers


def encode(number: int, payload: bytes) -> bytes:
    """Encode a field of bytes, text or another message."""
    return _encode_varint(number << 3 | BYTES) + _encode_varint(len(payload)) + payload


def encode_text(number: int, text: str) -> bytes:
    """Encode a field of text."""
    return encode(number, text.encode())


def encode_int(number: int, value: int) -> bytes:
    """Encode a field of a whole number that is not negative."""
    return _encode_varint(number << 3 | VARINT) + _encode_varint(value)


def encode_float(number: int, value: float) -> bytes:
    """Encode a field of a float32."""
    return _encode_varint(number << 3 | FIXED32) + struct.pack("<f", value)


def encode_packed(number: int, values: Iterable[int]) -> bytes:
    """Encode a packed field of whole numbers that are not negative."""
    return encode(number, b"".join(map(_encode_varint, values)))


def fields(message: Message) -> Iterator[tuple[int, Message, Message]]:
    """Yield number, whole encoding and payload of every field; a memory view is never copied."""
    position = 0
    while position < len(message):
        start = position
        tag, position = varint(message, position)
        number, wire = tag >> 3, tag & 7
        payload = position
        if wire == VARINT:
            _, position = varint(message, position)
        elif wire == BYTES:
            length, payload = varint(message, position)
            position = payload + length
        elif wire in (FIXED64, FIXED32):
            position += 8 if wire == FIXED64 else 4
        else:
            raise ValueError(f"wire type {wire}")
        if position > len(message) or number == 0:
            raise ValueError("truncated")
        yield number, message[start:position], message[payload:position]


def _encode_varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
