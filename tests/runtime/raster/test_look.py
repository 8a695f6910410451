"""What `iic-scenes look` reports of a scene before any map."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import rasterio
from PIL import Image
from rasterio.enums import ColorInterp
from support.scenes import write_raster
from typer.testing import CliRunner

from iic_geotools.errors import IICError
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
        assert sheet.width == 2 * (480 + 10) + 10
        assert sheet.height == pytest.approx(480 * 403 / 515 + 20 + 2 * 10, abs=1)


def test_both_readings_of_a_doubtful_order_are_asked_for_and_drawn(tmp_path: Path) -> None:
    with rasterio.open(EXAMPLES / "sentinel2.tif") as dataset:
        values = np.maximum(dataset.read(window=((0, 200), (0, 200))), 1).astype(np.float64)
    grey = values[:3].mean(0)
    noise = np.random.default_rng(0).normal(0, 5, (3, 200, 200))
    scene = tmp_path / "grey.tif"
    write_raster(scene, np.maximum(np.stack([*(grey + noise), values[3]]), 1).astype(np.uint16))
    with rasterio.open(scene, "r+") as dataset:
        dataset.descriptions = (None,) * 4
        dataset.colorinterp = [ColorInterp.gray] + [ColorInterp.undefined] * 3
    seen = look(scene, "satellite", tmp_path / "sheet.png")
    assert seen.question is not None
    assert "1,2,3,4" in seen.question
    assert "3,2,1,4" in seen.question
    with Image.open(tmp_path / "sheet.png") as sheet:
        side = 240  # of a scene of 200 px, drawn in its own pixels
        assert sheet.size == (2 * (side + 10) + 10, 2 * (200 + 20 + 10) + 10)
    result = CliRunner().invoke(app, ["look", str(scene), "--model", "satellite"])
    assert "suit --bands " in result.stdout


def test_what_must_be_asked_is_a_question_not_an_error(tmp_path: Path) -> None:
    values = np.random.default_rng(0).integers(0, 255, (2, 20, 20), dtype=np.uint8)
    write_raster(tmp_path / "two.tif", values)
    seen = look(tmp_path / "two.tif", "aerial")
    assert seen.question is not None
    assert "bands" in seen.question


def test_sentences_begin_with_capitals_and_name_what_a_palette_is_taken_for(tmp_path: Path) -> None:
    scene = write_raster(tmp_path / "map.tif", np.arange(400, dtype=np.uint8).reshape(1, 20, 20) % 3)
    with rasterio.open(scene, "r+") as dataset:
        dataset.colorinterp = [ColorInterp.palette]
        dataset.write_colormap(1, {value: (value, 90, 9, 255) for value in range(3)})
    seen = look(scene, "satellite")
    assert any("They are only" in note for note in seen.notes)
    assert all(note[0].isupper() for note in look(EXAMPLES / "scene.tif").notes)


def test_one_band_is_singular_and_bands_without_names_are_said_to_have_none(tmp_path: Path) -> None:
    lines = look(write_raster(tmp_path / "one.tif", np.ones((1, 20, 20), np.uint8)), "aerial").lines()
    assert "1 band of uint8" in lines[0]
    nameless = write_raster(tmp_path / "three.tif", np.ones((3, 20, 20), np.uint16), photometric="MINISBLACK")
    assert "Bands have no names. Model: aerial." in look(nameless, "aerial").lines()


def test_the_command_prints_json(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["look", str(EXAMPLES / "sentinel2.tif"), "--json"])
    assert result.exit_code == 0, result.output
    content = json.loads(result.stdout)
    assert content["model"] == "satellite"
    assert content["bands"][3]["model_band"] == "nir"


@pytest.mark.parametrize(
    ("name", "refusal"),
    [("scene.tif", "must end in .png"), ("x", "must end in .png"), ("no/x.png", "no folder")],
)
def test_a_contact_sheet_is_a_png_and_replaces_no_scene(tmp_path: Path, name: str, refusal: str) -> None:
    scene = Path(shutil.copy(EXAMPLES / "scene.tif", tmp_path))
    with pytest.raises(IICError, match=refusal):
        look(scene, sheet=tmp_path / name)
    assert scene.read_bytes() == (EXAMPLES / "scene.tif").read_bytes()
    assert [path.name for path in tmp_path.iterdir()] == ["scene.tif"]


def test_a_contact_sheet_does_not_replace_a_scene_that_is_a_png(tmp_path: Path) -> None:
    scene = tmp_path / "scene.png"
    Image.new("RGB", (40, 40), "#557744").save(scene)
    before = scene.read_bytes()
    with pytest.raises(IICError, match="is an input"):
        look(scene, sheet=scene)
    assert scene.read_bytes() == before
