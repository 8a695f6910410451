"""Odd models: cards with anything in them, files that were cut or changed, and what must hold for each of them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st

from iic_geotools.errors import IICError
from iic_runtime import Segmenter
from iic_runtime.model.file import read_metadata, with_metadata
from support.hostile import MODEL
from support.scenes import landscape

CARD = read_metadata(MODEL)["iic_card"]


def wrong_cards() -> st.SearchStrategy[bytes]:
    """The model with changes of its card to values of any kind."""
    keys = st.sampled_from([*json.loads(CARD), "surprise"])
    scalars = st.none() | st.booleans() | st.integers(-(10**12), 10**12) | st.floats() | st.text(max_size=20)
    values = st.recursive(
        scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=3)
    )
    return st.dictionaries(keys, values, min_size=1, max_size=3).map(_with_card)


def _with_card(changes: dict[str, Any]) -> bytes:
    return with_metadata(MODEL, {"iic_card": json.dumps(json.loads(CARD) | changes)})


@st.composite
def damaged_models(draw: st.DrawFn) -> bytes:
    """The model cut somewhere, with something else behind, or with a few bytes changed."""
    content = bytearray(MODEL)
    if draw(st.booleans()):
        return bytes(content[: draw(st.integers(0, len(content)))]) + draw(st.binary(max_size=20))
    for _ in range(draw(st.integers(1, 8))):
        content[draw(st.integers(0, len(content) - 1))] = draw(st.integers(0, 255))
    return bytes(content)


def check_model(content: bytes, path: Path) -> bool:
    """A model is refused with a sentence, or its labels are classes of its card; return whether it is taken.

    Raises:
        AssertionError: Neither holds.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    refusal = ""
    try:
        segmenter = Segmenter(path, device="cpu", threads=1, tile=64)
        bands = len(segmenter.card.bands)
        result = segmenter(landscape(20, 30, bands=bands).astype(segmenter.card.dtype))
    except IICError as error:
        refusal = str(error)
    assert "\n" not in refusal
    if refusal:
        return False
    assert result.labels.shape == (20, 30)
    assert (result.labels < len(segmenter.card.classes)).all()
    assert np.isfinite(segmenter.card.offset).all()
    return True
