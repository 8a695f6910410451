"""The wire format of protocol buffers, as far as ONNX files need it: no package of Google's, no generated classes."""

import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple, TypeVar

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


def parse(message: bytes) -> list[Field]:
    """Split a message into its fields.

    Raises:
        ValueError: The bytes are not a message, or a truncated one.
    """
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
