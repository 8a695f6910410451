"""A model's card as a Hugging Face model card."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from support.tiny_onnx import make_model, write_card
from typer.testing import CliRunner

from iic_geotools.classmap.classes import MapClass
from iic_runtime.cli.model import app
from iic_runtime.model.card import Origin
from iic_runtime.model.file import ModelFile
from iic_runtime.model.huggingface import huggingface_card

HOSTILE = 'a" #: [b](javascript:x) <script>|`*_ & \\ é'


def parts(path: Path) -> tuple[dict[str, Any], str]:
    text = huggingface_card(ModelFile.read(path))
    _, metadata, body = text.split("---\n", 2)
    return yaml.safe_load(metadata), body


@pytest.fixture
def write(tmp_path: Path) -> Any:
    def make(**card: object) -> Path:
        path = tmp_path / "model.onnx"
        path.write_bytes(make_model(**card))
        return path

    return make


def test_metadata_and_measured_accuracy(write: Any) -> None:
    accuracy = {"places: left out": {"accuracy": 0.82, "mean_iou": 0.55}, "nowhere": {}}
    metadata, body = parts(
        write(name="forest", gsd=0.5, accuracy=accuracy, origin=Origin(licence="CC BY 4.0"))
    )
    assert metadata["license"] == "cc-by-4.0"
    assert metadata["pipeline_tag"] == "image-segmentation"
    assert "onnx" in metadata["tags"]
    (entry,) = metadata["model-index"]
    assert entry["name"] == "forest"
    (result,) = entry["results"]
    assert result["dataset"]["name"] == "places: left out"
    assert result["metrics"] == [{"type": "accuracy", "value": 0.82}, {"type": "mean_iou", "value": 0.55}]
    assert "- places: left out: accuracy 0.82, mean\\_iou 0.55\n" in body
    assert "| 3 | cluster 3 |" in body


@pytest.mark.parametrize(
    ("licence", "expected"),
    [
        ("MIT", {"license": "mit"}),
        ("CC0", {"license": "cc0-1.0"}),
        ("our own: ask", {"license": "other", "license_name": "our own: ask"}),
        ("", {}),
    ],
)
def test_licences(write: Any, licence: str, expected: dict[str, str]) -> None:
    metadata, body = parts(write(origin=Origin(licence=licence)))
    assert {key: value for key, value in metadata.items() if key.startswith("license")} == expected
    assert "no accuracy" in body


def test_texts_of_a_card_stay_text(write: Any) -> None:
    path = write(name=HOSTILE, accuracy={HOSTILE: {"x": 1.0}}, origin=Origin(data=HOSTILE, licence=HOSTILE))
    card = ModelFile.read(path).card
    changed = type(card)(**{**card.__dict__, "classes": (MapClass(HOSTILE, "#ff0000"), *card.classes[1:])})
    write_card(path, changed)
    metadata, body = parts(path)
    assert metadata["license_name"] == HOSTILE
    assert metadata["model-index"][0]["name"] == HOSTILE
    assert "<script>" not in body.replace("\\<", "")
    assert "[b](" not in body
    rows = [line for line in body.splitlines() if line.startswith("| 0 |")]
    assert rows[0].replace("\\|", "").count("|") == 4


def test_the_command_prints_it(write: Any) -> None:
    path = write(name="forest")
    result = CliRunner().invoke(app, ["show", str(path), "--format", "huggingface"])
    assert result.exit_code == 0, result.output
    assert result.stdout == huggingface_card(ModelFile.read(path))
    as_json = CliRunner().invoke(app, ["show", str(path), "--json"]).stdout
    assert CliRunner().invoke(app, ["show", str(path), "--format", "json"]).stdout == as_json
