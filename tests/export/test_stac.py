import json
from pathlib import Path
from typing import Any

import pytest
from support.runs import TrainedScene

pystac = pytest.importorskip("pystac")

from iic_export import Exported, export, stac  # noqa: E402
from iic_export.trained_head import TrainedHead  # noqa: E402
from iic_geotools.errors import OutputError  # noqa: E402


@pytest.fixture
def item(exported: Exported, head: TrainedHead, tmp_path: Path) -> Path:
    path = tmp_path / "item.json"
    stac.write_stac(path, exported.path, exported.card, head)
    return path


def test_the_item_is_valid_and_says_what_the_card_says(item: Path, exported: Exported) -> None:
    from pystac.extensions.mlm import MLMExtension

    item_read = pystac.Item.from_file(str(item))
    assert stac.validation_error(item_read.to_dict()) is None
    model = MLMExtension.ext(item_read)
    card = exported.card
    assert model.mlm_name == card.name
    assert model.input[0].bands == list(card.bands)
    assert model.input[0].input.shape == [-1, 4, -1, -1]
    assert model.input[0].input.data_type == "uint8"
    classes = model.output[0].classes or []
    assert [entry.description for entry in classes] == [map_class.name for map_class in card.classes]
    assert [f"#{entry.color_hint}".lower() for entry in classes] == [
        map_class.colour for map_class in card.classes
    ]
    assert item_read.properties["mlm:hyperparameters"]["halo"] == card.halo
    assert item_read.properties["license"] == "CC0-1.0"
    assert item_read.properties["gsd"] == pytest.approx(0.5)
    west, south, east, north = item_read.bbox
    assert 2.9 < west < east < 3.1
    assert 48 < south < north < 49.5


def test_the_item_points_to_the_model_file(item: Path, exported: Exported) -> None:
    item_read = pystac.Item.from_file(str(item))
    asset = item_read.assets["model"]
    assert (item.parent / asset.href).resolve() == exported.path.resolve()
    assert asset.roles[0] == "mlm:model"
    assert asset.extra_fields["mlm:artifact_type"] == "onnx"


def test_the_item_satisfies_the_model_of_the_extension_s_authors(item: Path) -> None:
    schema = pytest.importorskip("stac_model.schema")
    properties = json.loads(item.read_text())["properties"]
    schema.MLModelProperties.model_validate(properties)


def test_an_item_that_is_not_valid_is_not_written(
    exported: Exported, head: TrainedHead, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_item = stac.make_item

    def make_item_without_place(*arguments: Any) -> dict[str, Any]:
        return {**make_item(*arguments), "geometry": "everywhere"}

    monkeypatch.setattr(stac, "make_item", make_item_without_place)
    with pytest.raises(OutputError, match="would not be valid"):
        stac.write_stac(tmp_path / "item.json", exported.path, exported.card, head)
    assert list(tmp_path.iterdir()) == []


def test_export_writes_the_item_next_to_the_model(trained: TrainedScene, tmp_path: Path) -> None:
    export(trained.run, tmp_path / "m.onnx", stac=tmp_path / "item.json")
    assert json.loads((tmp_path / "item.json").read_text())["assets"]["model"]["href"] == "m.onnx"
