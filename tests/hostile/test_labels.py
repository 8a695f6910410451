"""Labels of every wrong kind: one sentence, nothing written, and no unexpected error."""

from pathlib import Path

import numpy as np
import pytest
from support.hostile_labels import COLUMNS, ROWS, WRONG
from support.scenes import landscape, write_points, write_raster
from support.tiny_onnx import make_model
from typer.testing import CliRunner, Result

from iic_geotools.classmap.classes import MAX_CLASSES
from iic_runtime.cli.model import app

NAMES = ["a", "b"] * 3


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "m.onnx").write_bytes(make_model(features=True))
    write_raster(tmp_path / "scene.tif", landscape(60, 70))
    return tmp_path


def run(folder: Path, labels: Path, *options: str) -> Result:
    scene, out = str(folder / "scene.tif"), str(folder / "named.onnx")
    arguments = ["name", str(folder / "m.onnx"), "--labels", str(labels), "--scene", scene, "--out", out]
    return CliRunner().invoke(app, [*arguments, "--threads", "1", "-q", *options])


@pytest.mark.parametrize("kind", WRONG)
def test_wrong_labels_are_a_sentence(folder: Path, kind: str) -> None:
    make, message = WRONG[kind]
    labels = make(folder)
    before = {entry.name for entry in folder.iterdir()}
    result = run(folder, labels)
    assert result.exit_code in (1, 2), result.output
    assert [line.startswith("Error: ") for line in result.output.splitlines()] == [True], result.output
    assert any(part in result.output for part in message.split("|")), result.output
    assert "Unexpected error" not in result.output
    assert {entry.name for entry in folder.iterdir()} == before


def test_an_unknown_field_and_names_that_no_file_can_have(folder: Path) -> None:
    labels = write_points(folder / "a.gpkg", ROWS, COLUMNS, NAMES)
    assert "no field nope" in run(folder, labels, "--label-field", "nope").output
    for out in (folder / ("n" * 250 + ".onnx"), folder / "n\udcff.onnx"):
        result = run(folder, labels, "--out", str(out))
        assert result.exit_code == 2, result.output
    places = str(folder / "n\udcff.gpkg")
    result = CliRunner().invoke(
        app, ["suggest", str(folder / "m.onnx"), "--scene", str(folder / "scene.tif"), "--out", places]
    )
    assert result.exit_code == 2, result.output


def test_labels_in_another_crs_and_as_many_classes_as_a_map_has(folder: Path) -> None:
    labels = write_points(folder / "a.gpkg", ROWS, COLUMNS, NAMES, crs="EPSG:4326")
    assert run(folder, labels).exit_code == 0
    numbers = np.arange(MAX_CLASSES)
    many = write_points(folder / "b.gpkg", numbers // 60, numbers % 60, [f"c{n}" for n in numbers])
    result = run(folder, many, "--overwrite")
    assert result.exit_code == 0, result.output
    assert f"{MAX_CLASSES} classes" in result.output
