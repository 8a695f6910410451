"""Metadata of an ONNX file, read and replaced without the `onnx` package.

An ONNX file is one protocol-buffers message. Only its outermost fields are parsed: `metadata_props`
(number 14) is a repeated message of a key (1) and a value (2); everything else is kept byte for byte.
"""

from collections.abc import Mapping

from iic_geotools.errors import ModelError
from iic_runtime.model.protobuf import Field, encode, encode_text, parse

_IR_VERSION, _GRAPH, _METADATA = 1, 7, 14


def read_metadata(model: bytes) -> dict[str, str]:
    """Return the metadata of a serialised model.

    Raises:
        ModelError: The bytes are not an ONNX model.
    """
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
