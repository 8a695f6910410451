"""The model that was exported to the working directory is used there, and nowhere else."""

import json
import logging
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from support.scenes import landscape
from support.tiny_onnx import make_classifier, make_model
from typer.testing import CliRunner

from iic_geotools.errors import UsageError
from iic_runtime import Classifier, Segmenter
from iic_runtime.cli.segment_raster import app
from iic_runtime.model.file import ModelFile, put_card
from iic_runtime.model.select import MODEL_VARIABLE, RECORD, find_model, record_export

pytestmark = pytest.mark.usefixtures("bundle")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with a model that was exported to it."""
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    Path("model.onnx").write_bytes(make_model(7, name="town"))
    assert record_export(Path("model.onnx"), Path("runs/town-1"))
    return folder


def test_it_is_used_by_command_and_python(here: Path, make_scene: Callable[..., Path]) -> None:
    scene = make_scene(landscape(40, 50))
    result = CliRunner().invoke(app, [str(scene), "out.tif"])
    assert result.exit_code == 0, result.output
    line = "Model: model.onnx, exported here less than a minute ago from runs/town-1; --model aerial or satellite for"
    assert line in result.output
    assert Segmenter(device="cpu").card.name == "town"


def test_a_model_of_whole_images_is_used_for_these_alone(
    here: Path, make_scene: Callable[..., Path], caplog: pytest.LogCaptureFixture
) -> None:
    Path("images.onnx").write_bytes(make_classifier())
    assert record_export(Path("images.onnx"), Path("runs/digits-1"))
    with caplog.at_level(logging.INFO, "iic_runtime"):
        Classifier(device="cpu")
    assert (
        caplog.messages[-1] == "Model: images.onnx, exported here less than a minute ago from runs/digits-1"
    )
    result = CliRunner().invoke(app, [str(make_scene(landscape(40, 50))), "out.tif", "--model", "aerial"])
    assert "images.onnx" not in result.output
    result = CliRunner().invoke(app, [str(make_scene(landscape(40, 50))), "other.tif"])
    assert result.exit_code == 0, result.output
    assert (
        "images.onnx, exported here less than a minute ago, labels whole images: it is not used"
        in result.output
    )


def test_a_named_model_takes_precedence(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert Segmenter("satellite", device="cpu").card.name == "satellite"
    monkeypatch.setenv(MODEL_VARIABLE, "aerial")
    assert Segmenter(device="cpu").card.name == "aerial"


def test_commands_about_models_want_a_name(here: Path) -> None:
    with pytest.raises(UsageError):
        find_model(None)


def test_nothing_is_used_elsewhere(here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    assert not record_export(elsewhere / "model.onnx", Path("runs/town-1"))
    monkeypatch.chdir(elsewhere)
    Path("model.onnx").write_bytes(make_model(7, name="town"))  # a file of that name alone means nothing
    with pytest.raises(UsageError):
        Segmenter(device="cpu")


def test_a_file_that_has_changed_is_not_used(here: Path, caplog: pytest.LogCaptureFixture) -> None:
    Path("model.onnx").write_bytes(make_model(8, name="village"))
    with pytest.raises(UsageError):
        Segmenter(device="cpu")
    assert "has changed since iic-export wrote it" in caplog.text
    Path("model.onnx").unlink()
    with pytest.raises(UsageError):
        Segmenter(device="cpu")


def test_a_model_of_images_does_not_label_pixels(here: Path) -> None:
    from dataclasses import replace

    file = ModelFile.read("model.onnx")
    Path("model.onnx").write_bytes(put_card(file.content, replace(file.card, task="clustering")))
    record_export(Path("model.onnx"), Path("runs/digits"))
    with pytest.raises(UsageError):
        Segmenter(device="cpu")
    assert find_model(None, "clustering").card.task == "clustering"


@pytest.mark.parametrize(
    "record",
    [
        "",
        "[]",
        "{}",
        '{"model": 3}',
        {"model": "../model.onnx"},
        {"model": "/etc/passwd"},
        {"exported": "yesterday"},
        {"exported": "2026-01-01T00:00:00"},
        {"run": "\x1b[31m"},
    ],
)
def test_records_that_make_no_sense_are_left_alone(here: Path, record: str | dict[str, str]) -> None:
    written = json.loads(Path(RECORD).read_text())
    Path(RECORD).write_text(record if isinstance(record, str) else json.dumps({**written, **record}))
    with pytest.raises(UsageError):
        Segmenter(device="cpu")


@pytest.mark.parametrize(
    ("age", "words"),
    [
        (timedelta(minutes=2, seconds=5), "2 minutes ago"),
        (timedelta(hours=1, minutes=5), "1 hour ago"),
        (timedelta(days=30, minutes=5), "30 days ago"),
    ],
)
def test_its_age_is_said(here: Path, age: timedelta, words: str, caplog: pytest.LogCaptureFixture) -> None:
    written = json.loads(Path(RECORD).read_text())
    written["exported"] = (datetime.now(UTC) - age).isoformat()
    Path(RECORD).write_text(json.dumps(written))
    with caplog.at_level(logging.INFO, "iic_runtime"):
        Segmenter(device="cpu")
    assert f"exported here {words} from runs/town-1" in caplog.text
