import json
from dataclasses import replace
from pathlib import Path

import pytest
from support.tiny_onnx import make_card, make_model, write_card

from iic_geotools.classmap.classes import MapClass
from iic_geotools.errors import ModelError
from iic_runtime.model.card import CARD_VERSION, Card, Origin
from iic_runtime.model.file import ModelFile, put_card, with_metadata
from iic_runtime.model.select import MODEL_VARIABLE, find_model


def test_a_card_survives_the_file() -> None:
    card = make_card(
        dtype="uint16",
        offset=(1.0, 2.0, 3.0, 4.0),
        scale=(0.1, 0.2, 0.4, 0.5),
        rescale="auto",
        gsd=0.2,
        gsd_range=(0.1, 1.0),
        parity={"labels_equal": 1.0},
        accuracy={"places left out": {"accuracy": 0.82, "mean_iou": 0.55}},
        reliability={"ece": 0.03, "measured_on": "places left out"},
        packages={"torch": "2.15"},
    )
    card = replace(card, origin=Origin("run-1", 3, "lowest IIC loss", -1.5, "IGN", "Open Licence 2.0"))
    assert Card.from_json(card.to_json()) == card
    assert card.value_range[0] == (1.0, 11.0)


def test_uint8_is_scaled_by_255_unless_said_otherwise() -> None:
    assert make_card().value_range == ((0.0, 255.0),) * 4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": CARD_VERSION + 1}, "install a newer iic-edge"),
        ({"version": None}, "export it again"),
        ({"bands": []}, "bands must be"),
        ({"bands": ["red", "red", "blue", "nir"]}, "distinct names"),
        ({"scale": [1, 1]}, "one number per band"),
        ({"scale": [0, 1, 1, 1]}, "other than 0"),
        ({"classes": []}, "1 to 254"),
        ({"classes": [{"name": "a", "colour": "red"}]}, "colour"),
        ({"classes": [{"label": "a"}]}, "unknown fields"),
        ({"halo": -1}, "halo must be"),
        ({"halo": "wide"}, "not a whole number"),
        ({"stride": 0}, "stride must be"),
        ({"dtype": "int64"}, "dtype must be"),
        ({"task": "magic"}, "task must be"),
        ({"rescale": "0,255"}, "rescale must be"),
        ({"values": "radiance"}, "values must be"),
        ({"values": "reflectance", "rescale": "auto"}, "rescale must be null"),
        ({"accuracy": {"here": 0.9}}, "accuracy must be"),
        ({"reliability": [0.1]}, "reliability must be"),
        ({"surprise": 1}, "unknown fields"),
        ({"gsd_range": [1, 2, 3]}, "too many values"),
        ({"gsd": float("inf")}, "gsd must be"),
        ({"scale": [10**400, 1, 1, 1]}, "export it again"),
        ({"packages": ["torch"]}, "packages must be"),
        ({"halo": True}, "not a whole number"),
        ({"halo": 10**9}, "halo must be 0 to 8192"),
        ({"stride": 10**9}, "stride must be 1 to 1024"),
        ({"memory_per_pixel": 10**12}, "memory_per_pixel must be"),
        ({"name": "tiny\x1b[2J"}, "name must be text of printable characters"),
        ({"name": "tiny\ud800"}, "name must be text of printable characters"),
        ({"name": 5}, "name must be text"),
        ({"name": "n" * 1000}, "name must be 1 to 200 characters"),
        ({"bands": ["red", "green", "blue", "n\nir"]}, "bands must be text of printable"),
        ({"origin": {"places": [[1.0, 2.0]] * 1001}}, "places must be at most 1000"),
        ({"origin": {"places": [[1.0, float("nan")]]}}, "places must be pairs of longitude"),
        ({"origin": {"places": [[1.0]]}}, "places must be pairs of longitude"),
        ({"origin": {"places": 3}}, "incomplete or has unknown fields"),
        ({"origin": {"data": "\u202e"}}, "origin must be text of printable"),
        ({"origin": {"licence": "x" * 100_000}}, "origin must be at most 10000 characters"),
        ({"packages": {"torch": "\x07"}}, "packages must be text of printable"),
        ({"parity": {"labels_equal": "all"}}, "parity must be a table of names and numbers"),
        ({"classes": [{"name": "x" * 100_000, "colour": "#000000"}]}, "may have 200 characters"),
        ({"classes": [{"name": "\ud800", "colour": "#000000"}]}, "printable characters"),
        ({"accuracy": {"here": {"iou\x1b[2J": 0.9}}}, "accuracy must be text of printable"),
        ({"accuracy": {"here": {"iou": "\x1b[2J"}}}, "accuracy must be text of printable"),
        ({"accuracy": {"here": {"iou": [0.9]}}}, "accuracy must be text"),
        ({"reliability": {"measured_on": "\x1b[2J"}}, "reliability must be text of printable"),
        ({"bands": "rgbn"}, "bands is not a list"),
        ({"offset": [1e300] * 4}, "range of values must be within"),
        ({"scale": [1e-300] * 4}, "range of values must be within"),
        ({"features": [{"size": 10**12, "side": 1, "learnt": True}]}, "features must be"),
        ({"features": [{"size": 4, "side": "1", "learnt": True}]}, "features must be"),
    ],
)
def test_a_wrong_card_says_what_is_wrong(change: dict[str, object], message: str) -> None:
    content = json.loads(make_card().to_json()) | change
    with pytest.raises(ModelError, match=message):
        Card.from_json(json.dumps(content))


def test_a_card_that_is_not_json() -> None:
    with pytest.raises(ModelError, match="not JSON"):
        Card.from_json("{")
    with pytest.raises(ModelError, match="version None"):
        Card.from_json("[]")


def test_a_card_that_is_nested_without_end_or_endless() -> None:
    with pytest.raises(ModelError, match="nested too deeply"):
        Card.from_json("[" * 100_000)
    with pytest.raises(ModelError, match="the most"):
        Card.from_json(" " * 5_000_000)


def test_reading_a_model_file(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(make_model())
    assert ModelFile.read(path).card.name == "tiny"
    assert len(ModelFile.read(path).digest) == 64
    write_card(path, replace(ModelFile.read(path).card, classes=(MapClass("water", "#0000ff"),) * 1))
    assert ModelFile.read(path).card.classes[0].name == "water"


def test_files_that_are_not_models(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    with pytest.raises(ModelError, match=r"Cannot read the model .*No such file"):
        ModelFile.read(path)
    path.write_bytes(b"II*\0 not a model")
    with pytest.raises(ModelError, match="cannot be used as a model: it is not an ONNX model"):
        ModelFile.read(path)
    path.write_bytes(with_metadata(make_model(), {}))
    with pytest.raises(ModelError, match="it has no card"):
        ModelFile.read(path)
    path.write_bytes(with_metadata(make_model(), {"iic_card": '{"version": 99}'}))
    with pytest.raises(ModelError, match="version 99"):
        ModelFile.read(path)


def test_other_metadata_is_kept() -> None:
    model = with_metadata(make_model(), {"author": "me"})
    from iic_runtime.model.file import read_metadata

    assert read_metadata(put_card(model, make_card()))["author"] == "me"


def test_the_environment_names_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(make_model())
    monkeypatch.setenv(MODEL_VARIABLE, str(path))
    assert find_model(None).path == path
    monkeypatch.delenv(MODEL_VARIABLE)
    with pytest.raises(ValueError, match="No model is named"):
        find_model(None)
