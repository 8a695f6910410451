"""Metadata of an ONNX file, read and replaced without the `onnx` package.

An ONNX file is one protocol-buffers message. Only its outermost fields are looked at: `metadata_props`
(number 14) is a repeated message of a key (1) and a value (2); everything else is kept byte for byte.
"""

from collections.abc import Iterator, Mapping

from iic_geotools.errors import ModelError

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_Field = tuple[int, bytes, bytes]
_IR_VERSION, _GRAPH, _METADATA = 1, 7, 14


def read_metadata(model: bytes) -> dict[str, str]:
    """The metadata of a serialised model.

    Raises:
        ModelError: the bytes are not an ONNX model.
    """
    found: dict[str, str] = {}
    fields = _parsed(model)
    if not {_IR_VERSION, _GRAPH} <= {number for number, _, _ in fields}:
        raise ModelError("It is not an ONNX model: it has no graph.")
    for number, _, value in fields:
        if number == _METADATA:
            entry = {field: text for field, _, text in _parsed(value)}
            found[_text(entry.get(1, b""))] = _text(entry.get(2, b""))
    return found


def with_metadata(model: bytes, metadata: Mapping[str, str]) -> bytes:
    """The same model with all its metadata replaced."""
    kept = [raw for number, raw, _ in _parsed(model) if number != _METADATA]
    for key, text in metadata.items():
        entry = _encode(1, key.encode()) + _encode(2, text.encode())
        kept.append(_encode(_METADATA, entry))
    return b"".join(kept)


def _parsed(message: bytes) -> list[_Field]:
    try:
        return list(_fields(message))
    except (IndexError, ValueError) as error:
        raise ModelError("It is not an ONNX model, or a truncated one.") from error


def _text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise ModelError("It is not an ONNX model: its metadata is not text.") from error


def _fields(message: bytes) -> Iterator[_Field]:
    """Number, whole encoding and payload of each field."""
    position = 0
    while position < len(message):
        start = position
        tag, position = _varint(message, position)
        number, wire = tag >> 3, tag & 7
        payload = position
        if wire == _VARINT:
            _, position = _varint(message, position)
        elif wire == _BYTES:
            length, payload = _varint(message, position)
            position = payload + length
        elif wire in (_FIXED64, _FIXED32):
            position += 8 if wire == _FIXED64 else 4
        else:
            raise ValueError(f"wire type {wire}")
        if position > len(message) or number == 0:
            raise ValueError("truncated")
        yield number, message[start:position], message[payload:position]


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise ValueError("varint")


def _encode(number: int, payload: bytes) -> bytes:
    return _to_varint(number << 3 | _BYTES) + _to_varint(len(payload)) + payload


def _to_varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
