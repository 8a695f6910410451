"""The models that come with the package: they keep what their cards promise, and map a scene."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import rasterio
from rasterio.transform import from_origin
from support.scenes import landscape

from iic_runtime import Segmenter, segment_raster, validate_model
from iic_runtime.model.file import ModelFile
from iic_runtime.model.select import MODEL_VARIABLE, bundled_models, choose_bundled, find_model

MakeScene = Callable[..., Path]
MOST_BYTES = 2_000_000
pytestmark = pytest.mark.parametrize("model", bundled_models(), ids=lambda model: model.card.name)


def test_it_keeps_its_promises(model: ModelFile) -> None:
    assert all(check.kept for check in validate_model(model)), validate_model(model)


def test_it_is_small_and_says_where_it_comes_from(model: ModelFile) -> None:
    card = model.card
    assert len(model.content) <= MOST_BYTES
    assert card.name == model.path.stem
    assert find_model(card.name).digest == model.digest
    assert card.origin.data.strip()
    assert card.origin.licence.strip()
    assert card.task == "segmentation"
    assert not any(map_class.name.startswith("cluster ") for map_class in card.classes), "classes have names"


def test_it_is_taken_for_the_pixels_it_is_made_for(model: ModelFile) -> None:
    assert model.card.gsd is not None
    assert model.card.gsd_range is not None
    low, high = model.card.gsd_range
    assert low <= model.card.gsd <= high
    for size in (low, model.card.gsd, high):
        assert choose_bundled(size).card.name == model.card.name


def test_it_maps_a_scene(
    model: ModelFile, make_scene: MakeScene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(MODEL_VARIABLE, raising=False)
    card = model.card
    noise = landscape(150, 210, len(card.bands)) / 255
    bands = [low + (high - low) * band for band, (low, high) in zip(noise, card.value_range, strict=True)]
    values = np.stack(bands).astype(card.dtype)
    where = from_origin(500000, 5400000, card.gsd, card.gsd)
    scene = make_scene(values[::-1], descriptions=card.bands[::-1], transform=where)
    summary = segment_raster(scene, tmp_path / "map.tif", rescale="off", device="cpu", threads=1, tile=64)
    assert summary.card == card
    with rasterio.open(tmp_path / "map.tif") as dataset:
        labels = dataset.read(1)
    assert np.array_equal(labels, Segmenter(card.name, device="cpu", threads=1)(values, rescale="off").labels)
    assert labels.max() < len(card.classes)


def test_arrays_are_brought_into_its_range_as_scenes_are(
    model: ModelFile, make_scene: MakeScene, tmp_path: Path
) -> None:
    card = model.card
    values = (landscape(90, 120, len(card.bands)).astype(np.uint16) * 37 + 400).astype(np.uint16)
    scene = make_scene(values, descriptions=card.bands)
    options = {"rescale": "auto", "match_gsd": False, "device": "cpu", "threads": 1}
    segment_raster(scene, tmp_path / "map.tif", card.name, **options)
    with rasterio.open(tmp_path / "map.tif") as dataset:
        labels = dataset.read(1)
    segment = Segmenter(card.name, device="cpu", threads=1)
    assert np.array_equal(labels, segment(values, rescale="auto").labels)
    if card.rescale == "auto":
        assert np.array_equal(labels, segment(values).labels)
