"""What `iic-scenes look` reports of a scene before any map."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from support.scenes import write_raster
from typer.testing import CliRunner

from iic_runtime.cli.scenes import app
from iic_runtime.raster.look import look

EXAMPLES = Path(__file__).parents[3] / "examples"


def test_a_scene_that_says_what_it_is() -> None:
    seen = look(EXAMPLES / "sentinel2.tif")
    assert seen.model == "satellite"
    assert seen.metres == pytest.approx(10, rel=0.01)
    assert [band.model_band for band in seen.bands[:4]] == ["red", "green", "blue", "nir"]
    assert seen.question is None
    assert seen.novelty is not None
    assert seen.novelty < 0.25
    assert any("reflectance" in note for note in seen.notes)


def test_no_sentence_is_said_twice() -> None:
    seen = look(EXAMPLES / "scene.tif")
    stretched = [note for note in seen.notes if "2nd to its 98th percentile" in note]
    assert len(stretched) == 1


def test_the_contact_sheet_shows_true_colour_and_infrared(tmp_path: Path) -> None:
    look(EXAMPLES / "scene.tif", sheet=tmp_path / "sheet.png")
    with Image.open(tmp_path / "sheet.png") as sheet:
        assert sheet.width == 2 * 480
        assert sheet.height == pytest.approx(480 * 403 / 515, abs=1)


def test_what_must_be_asked_is_a_question_not_an_error(tmp_path: Path) -> None:
    values = np.random.default_rng(0).integers(0, 255, (2, 20, 20), dtype=np.uint8)
    write_raster(tmp_path / "two.tif", values)
    seen = look(tmp_path / "two.tif", "aerial")
    assert seen.question is not None
    assert "bands" in seen.question


def test_the_command_prints_json(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["look", str(EXAMPLES / "sentinel2.tif"), "--json"])
    assert result.exit_code == 0, result.output
    content = json.loads(result.stdout)
    assert content["model"] == "satellite"
    assert content["bands"][3]["model_band"] == "nir"
