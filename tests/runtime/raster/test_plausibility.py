"""What a run says of a map that does not look right."""

import json
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import rasterio

from iic_geotools.classmap.classes import MapClass
from iic_geotools.errors import DoubtWarning
from iic_geotools.scene.listing import find_scene, read_items
from iic_runtime import segment_raster
from iic_runtime.options import SegmentSettings
from iic_runtime.raster.look import look
from iic_runtime.raster.plan import Outputs, Plan, make_plan
from iic_runtime.raster.plausibility import Figures, check_map, describe_doubts, measure_map
from iic_runtime.raster.stages import LabelSample
from iic_runtime.segmenter import Segmenter

MakeScene = Callable[..., Path]
SENTINEL = Path(__file__).parents[3] / "examples" / "sentinel2.tif"
WATER, WHEAT = (0.03, 0.04, 0.05, 0.01), (0.04, 0.08, 0.04, 0.40)


def spectra(*rows: tuple[float, ...], noise: float = 0.002) -> np.ndarray:
    """A scene of Sentinel-2 of 120 x 120 pixels in stripes of one spectrum each."""
    stripes = np.repeat(np.array(rows), 120 // len(rows), axis=0).T[:, :, None]
    values = stripes + np.random.default_rng(0).normal(0, noise, (4, 120, 120))
    return np.asarray(values * 10_000, np.int16)


def make_map(scene: Path, tmp_path: Path) -> tuple[Plan, Segmenter]:
    """Map a scene, and return what the checks take."""
    segment_raster(scene, tmp_path / "map.tif", "satellite", reflectance=(1e-4, 0), overwrite=True)
    segmenter = Segmenter("satellite")
    settings = SegmentSettings(reflectance=(1e-4, 0), overwrite=True)
    return make_plan(find_scene(scene), segmenter, Outputs(tmp_path / "map.tif"), settings), segmenter


def test_a_good_map_raises_no_doubt_and_its_item_leads_to_it(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", DoubtWarning)
        segment_raster(SENTINEL, tmp_path / "map.tif", stac=tmp_path / "map.json", stats=tmp_path / "a.csv")
    (item,) = read_items(str(tmp_path / "map.json"))
    with rasterio.open(item.href("map")) as dataset, rasterio.open(SENTINEL) as scene:
        assert dataset.shape == scene.shape
    assert set(item.assets) == {"map", "stats"}
    assert json.loads((tmp_path / "map.json").read_text())["properties"]["title"].endswith("sentinel2.tif")


def test_one_class_everywhere_is_said_in_warnings_and_the_summary(
    make_scene: MakeScene, tmp_path: Path
) -> None:
    scene = make_scene(spectra(WATER))
    with pytest.warns(DoubtWarning, match=r"100 % of the map is water: .* iic-studio scene\.tif"):
        summary = segment_raster(scene, tmp_path / "map.tif", "satellite", reflectance=(1e-4, 0))
    assert any("100 % of the map is water" in note for note in summary.notes)


@pytest.mark.parametrize(
    ("name", "confidence", "doubted"),
    [("tree", 0.95, False), ("tree", 0.8, True), ("bare", None, True), ("water", 0.95, True)],
)
def test_one_class_everywhere_is_believed_if_the_model_is_sure_and_it_is_not_water(
    make_scene: MakeScene, tmp_path: Path, name: str, confidence: float | None, doubted: bool
) -> None:
    plan, _ = make_map(make_scene(spectra(WATER, WHEAT)), tmp_path)
    dominant = [entry.name for entry in plan.classes].index(name)
    doubts = describe_doubts(plan, Figures(dominant, 0.97, None, None, confidence))
    assert any(f"97 % of the map is {name}" in doubt for doubt in doubts) == doubted


def test_spectra_unlike_those_of_the_world_are_foreign(make_scene: MakeScene, tmp_path: Path) -> None:
    noise = np.random.default_rng(1).integers(0, 9000, (4, 120, 120)).astype(np.int16)
    figures = measure_map(*make_map(make_scene(noise), tmp_path))
    assert figures.novelty is not None
    assert figures.novelty > 0.5
    known = measure_map(*make_map(make_scene(spectra(WATER, WHEAT)), tmp_path))
    assert known.novelty is not None
    assert known.novelty < 0.1


@pytest.mark.parametrize(("scale", "text"), [(1e-5, "10 times too dark"), (1e-3, "10 times too bright")])
@pytest.mark.filterwarnings("ignore::iic_geotools.errors.DoubtWarning")
def test_reflectance_of_another_magnitude_is_doubted(tmp_path: Path, scale: float, text: str) -> None:
    summary = segment_raster(SENTINEL, tmp_path / "map.tif", reflectance=(scale, 0.0))
    assert any(text in note and "`reflectance`" in note for note in summary.notes)


def test_a_scale_in_the_file_that_is_wrong_is_doubted_before_any_map(tmp_path: Path) -> None:
    scene = tmp_path / "scene.tif"
    with rasterio.open(SENTINEL) as source:
        profile, values, names = source.profile | {"driver": "GTiff"}, source.read(), source.descriptions
    with rasterio.open(scene, "w", **profile) as dataset:
        dataset.write(values)
        dataset.descriptions, dataset.scales = names, (1e-5,) * len(names)
    assert any("10 times too dark" in note for note in look(scene).notes)
    assert not any("times too" in note for note in look(SENTINEL).notes)


def test_green_water_and_unsure_maps_are_doubtful(make_scene: MakeScene, tmp_path: Path) -> None:
    plan, segmenter = make_map(make_scene(spectra(WATER, WHEAT)), tmp_path)
    assert measure_map(plan, segmenter).green_water in (None, 0.0)
    # A legend whose water is everything makes half of the water green.
    flooded = tuple(MapClass(f"Wasser {index}", "#0000ff") for index in range(len(plan.classes)))
    wrong = replace(plan, card=replace(plan.card, classes=flooded))
    figures = measure_map(wrong, segmenter)
    assert figures.green_water == pytest.approx(0.5, abs=0.02)
    doubts = describe_doubts(wrong, replace(figures, share=0.5, novelty=0.4, confidence=0.3))
    assert [doubt.split()[0] for doubt in doubts] == ["50", "40", "The"]
    assert all("iic-studio scene.tif" in doubt for doubt in doubts)


@pytest.mark.filterwarnings("ignore::iic_geotools.errors.DoubtWarning")
def test_checks_see_what_the_run_has_labelled(
    make_scene: MakeScene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = spectra(WATER, WHEAT, noise=0.02)
    values[:, 30:50, 40:90] = -9999
    scene, seen = make_scene(values, nodata=-9999), []

    def spy(plan: Plan, segmenter: Segmenter, sample: LabelSample) -> tuple[str, ...]:
        seen.append(sample)
        return check_map(plan, segmenter, sample)

    monkeypatch.setattr("iic_runtime.raster.segment.check_map", spy)
    options = {"reflectance": (1e-4, 0), "match_gsd": False, "confidence": tmp_path / "sure.tif"}
    segment_raster(scene, tmp_path / "map.tif", "satellite", tile=32, **options)
    with rasterio.open(tmp_path / "map.tif") as labels, rasterio.open(tmp_path / "sure.tif") as confidence:
        valid = labels.read(1) != 255
        expected = np.array([*values[:, valid], labels.read(1)[valid], confidence.read(1)[valid]])
    (sample,) = seen
    found = np.array([*sample.values, sample.labels, np.minimum(sample.confidence, 254)])
    assert np.array_equal(found[:, np.lexsort(found)], expected[:, np.lexsort(expected)])


def test_a_map_without_data_raises_no_doubt(make_scene: MakeScene, tmp_path: Path) -> None:
    scene = make_scene(np.full((4, 120, 120), -9999, np.int16), nodata=-9999)
    with warnings.catch_warnings():
        warnings.simplefilter("error", DoubtWarning)
        segment_raster(scene, tmp_path / "map.tif", "satellite")
