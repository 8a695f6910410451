"""What a card promises is checked by running the model, unless that would never end."""

from dataclasses import replace
from pathlib import Path

import pytest
from support.tiny_onnx import make_model, write_card

from iic_geotools.errors import ModelError
from iic_runtime.model.file import ModelFile
from iic_runtime.model.validate import MOST_PIXELS, validate_model


def with_halo(path: Path, halo: int) -> Path:
    path.write_bytes(make_model())
    write_card(path, replace(ModelFile.read(path).card, halo=halo))
    return path


def test_a_halo_that_would_take_days_to_check_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=rf"a halo of 8192 px .* {MOST_PIXELS / 1e9:g} are the most"):
        validate_model(with_halo(tmp_path / "m.onnx", 8192))


@pytest.mark.parametrize(("halo", "kept"), [(10, True), (40, True), (0, False)])
def test_halos_are_checked_in_few_tiles(tmp_path: Path, halo: int, kept: bool) -> None:
    assert validate_model(with_halo(tmp_path / "m.onnx", halo))[-1].kept == kept
