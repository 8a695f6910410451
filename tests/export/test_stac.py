import json

import pytest

pystac = pytest.importorskip("pystac")

from iic_export.exporting import export  # noqa: E402
from iic_export.stac import invalid, make_item, write_stac  # noqa: E402
from iic_export.subject import find_run, take  # noqa: E402
from iic_geotools.errors import OutputError, UsageError  # noqa: E402


@pytest.fixture(scope="module")
def subject(trained):
    return take(find_run(trained.run))


@pytest.fixture
def item(exported, subject, tmp_path):
    path = tmp_path / "item.json"
    write_stac(path, exported.path, exported.card, subject)
    return path


def test_the_item_is_valid_and_says_what_the_card_says(item, exported):
    from pystac.extensions.mlm import MLMExtension

    found = pystac.Item.from_file(str(item))
    assert invalid(found.to_dict()) is None
    model = MLMExtension.ext(found)
    card = exported.card
    assert model.mlm_name == card.name
    assert model.input[0].bands == list(card.bands)
    assert model.input[0].input.shape == [-1, 4, -1, -1]
    assert model.input[0].input.data_type == "uint8"
    labels = model.output[0]
    assert [each.description for each in labels.classes] == [each.name for each in card.classes]
    assert ["#" + each.color_hint.lower() for each in labels.classes] == [
        each.colour for each in card.classes
    ]
    assert found.properties["mlm:hyperparameters"]["halo"] == card.halo
    assert found.properties["license"] == "CC0-1.0"
    assert found.properties["gsd"] == pytest.approx(0.5)
    west, south, east, north = found.bbox
    assert 2.9 < west < east < 3.1
    assert 48 < south < north < 49.5


def test_the_item_points_to_the_model_file(item, exported):
    found = pystac.Item.from_file(str(item))
    asset = found.assets["model"]
    assert (item.parent / asset.href).resolve() == exported.path.resolve()
    assert asset.roles[0] == "mlm:model"
    assert asset.extra_fields["mlm:artifact_type"] == "onnx"


def test_the_extension_s_authors_own_model_takes_it(item):
    schema = pytest.importorskip("stac_model.schema")
    properties = json.loads(item.read_text())["properties"]
    schema.MLModelProperties.model_validate(properties)


def test_an_item_that_is_not_valid_is_not_written(exported, subject, tmp_path, monkeypatch):
    from iic_export import stac

    right = make_item
    monkeypatch.setattr(stac, "make_item", lambda *arguments: {**right(*arguments), "geometry": "everywhere"})
    with pytest.raises(OutputError, match="would not be valid"):
        write_stac(tmp_path / "item.json", exported.path, exported.card, subject)
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_name_is_refused_before_any_work(trained, tmp_path):
    with pytest.raises(UsageError, match=r"must end in \.json"):
        export(trained.run, tmp_path / "m.onnx", stac=tmp_path / "item.xml")
    assert list(tmp_path.iterdir()) == []
