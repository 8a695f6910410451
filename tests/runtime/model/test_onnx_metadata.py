from contextlib import suppress

import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.tiny_onnx import make_model

from iic_geotools.errors import ModelError
from iic_runtime.model.file import read_metadata, with_metadata

MODEL = make_model()
text = st.text(st.characters(exclude_categories=["Cs"]), max_size=300)


@given(st.dictionaries(text, text, max_size=5))
def test_metadata_agrees_with_the_onnx_package(metadata: dict[str, str]) -> None:
    written = with_metadata(MODEL, metadata)
    assert read_metadata(written) == metadata
    parsed = onnx.load_from_string(written)
    assert {entry.key: entry.value for entry in parsed.metadata_props} == metadata
    original = onnx.load_from_string(MODEL)
    assert parsed.graph == original.graph
    assert parsed.opset_import == original.opset_import


@settings(deadline=None)
@given(st.integers(0, len(MODEL) - 1))
def test_a_truncated_model_is_named_as_such_or_still_reads(length: int) -> None:
    with suppress(ModelError):  # and nothing else
        read_metadata(MODEL[:length])


@given(st.binary(max_size=200))
def test_other_bytes_are_not_a_model(data: bytes) -> None:
    with pytest.raises(ModelError, match="not an ONNX model"):
        read_metadata(data)
