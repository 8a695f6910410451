"""Pixels with low confidence become nodata, or a class of their own."""

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio
from click.testing import CliRunner as RioRunner
from pyogrio.raw import read as read_vector
from rasterio.rio.main import main_group
from support.maps import read_band
from support.scenes import landscape
from support.tiny_onnx import make_model
from typer.testing import CliRunner

from iic_geotools.errors import UsageError
from iic_runtime import Segmenter, segment_raster, segment_rasters
from iic_runtime.cli import model as model_commands
from iic_runtime.cli import segment_raster as command
from iic_runtime.raster import stages

MakeScene = Callable[..., Path]
VALUES = landscape(90, 120)
P = 0.6


@pytest.fixture
def scene(make_scene: MakeScene) -> Path:
    values = VALUES.copy()
    values[:, :10, :10] = 0
    return make_scene(values, nodata=0)


@pytest.fixture
def expected(scene: Path, model: Path) -> tuple[np.ndarray, np.ndarray]:
    """The labels of all pixels, and which of those with data are unsure."""
    with rasterio.open(scene) as dataset:
        values = dataset.read()
    result = Segmenter(model, device="cpu")(values, (values != 0).any(0))
    unsure = (result.confidence < 255 * P) & (result.labels != 255)
    assert 0.02 < unsure.mean() < 0.98
    return result.labels, unsure


def mapped(scene: Path, model: Path, **options: Any) -> np.ndarray:
    out = scene.with_name("map.tif")
    segment_raster(scene, out, model, device="cpu", overwrite=True, **options)
    return read_band(out)


@pytest.mark.parametrize("tile", [None, 32])
def test_unsure_pixels_become_nodata(
    scene: Path, model: Path, expected: tuple[np.ndarray, np.ndarray], tile: int | None
) -> None:
    labels, unsure = expected
    confidence = scene.with_name("confidence.tif")
    marked = mapped(scene, model, min_confidence=P, tile=tile, confidence=confidence)
    assert np.array_equal(marked, np.where(unsure, 255, labels))
    # The confidence of unsure pixels stays: it says how unsure they are.
    assert np.array_equal(read_band(confidence) == 255, labels == 255)


def test_unsure_pixels_become_a_class_in_every_output(
    scene: Path, model: Path, expected: tuple[np.ndarray, np.ndarray], tmp_path: Path
) -> None:
    labels, unsure = expected
    files = {"stats": tmp_path / "areas.csv", "polygons": tmp_path / "p.gpkg", "preview": tmp_path / "v.png"}
    marked = mapped(scene, model, min_confidence=P, unsure_class=True, **files)
    assert np.array_equal(marked, np.where(unsure, 4, labels))
    with rasterio.open(tmp_path / "map.tif") as dataset:
        assert dataset.colormap(1)[4] == (128, 128, 128, 255)
    assert "unsure" in (tmp_path / "map.tif.aux.xml").read_text()
    assert "unsure" in (tmp_path / "map.qml").read_text()
    with files["stats"].open() as file:
        rows = {row["class"]: row for row in csv.DictReader(file)}
    assert int(rows["unsure"]["pixels"]) == unsure.sum()
    meta, _, _, columns = read_vector(files["polygons"])
    assert "unsure" in columns[list(meta["fields"]).index("class")]


def test_without_a_limit_nothing_changes(
    scene: Path, model: Path, expected: tuple[np.ndarray, np.ndarray]
) -> None:
    assert np.array_equal(mapped(scene, model, min_confidence=0.0), expected[0])


def test_a_run_that_was_interrupted_resumes_only_with_the_same_limit(
    make_scene: MakeScene, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene, out = make_scene(VALUES), tmp_path / "out.tif"
    monkeypatch.setattr("iic_runtime.raster.plan.PART_PIXELS", 32 * 32)
    whole = mapped(scene, model, tile=32, min_confidence=P)
    paint, calls = stages._paint, 0

    def fail_later(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 6:
            raise KeyboardInterrupt
        return paint(*arguments)

    def run(min_confidence: float) -> int:
        return segment_raster(
            scene, out, model, device="cpu", tile=32, min_confidence=min_confidence
        ).parts_reused

    with monkeypatch.context() as patch:
        patch.setattr(stages, "_paint", fail_later)
        with pytest.raises(KeyboardInterrupt):
            run(P)
    kept = len(list((tmp_path / "out.tif.parts").glob("labels-*.tif")))
    assert kept > 0
    assert run(P) == kept
    assert np.array_equal(read_band(out), whole)
    out.unlink()
    (tmp_path / "out.qml").unlink()
    calls = 0
    with monkeypatch.context() as patch:
        patch.setattr(stages, "_paint", fail_later)
        with pytest.raises(KeyboardInterrupt):
            run(P)
    assert run(0.3) == 0


def test_maps_of_another_limit_are_not_kept(scene: Path, model: Path, tmp_path: Path) -> None:
    out = tmp_path / "maps"
    options: dict[str, Any] = {"device": "cpu", "min_confidence": P}
    assert not segment_rasters([scene], out, model, **options)[0].summary.made_before
    assert segment_rasters([scene], out, model, **options)[0].summary.made_before
    assert segment_rasters([scene], out, model, unsure_class=True, **options)[0].error is not None


def test_a_mosaic_has_the_class_too(scene: Path, model: Path, tmp_path: Path) -> None:
    mosaic = tmp_path / "all.vrt"
    options: dict[str, Any] = {"device": "cpu", "min_confidence": P, "unsure_class": True}
    segment_rasters([scene], tmp_path / "maps", model, mosaic=mosaic, **options)
    assert "unsure" in mosaic.read_text()


def test_at_the_models_resolution(make_scene: MakeScene, tmp_path: Path) -> None:
    model = tmp_path / "coarse.onnx"
    model.write_bytes(make_model(gsd=1.0))
    labels = mapped(make_scene(VALUES), model, match_gsd=True, min_confidence=P, unsure_class=True, tile=32)
    plain = mapped(make_scene(VALUES), model, match_gsd=True)
    unsure = labels == 4
    assert 0 < unsure.mean() < 1
    assert np.array_equal(labels[~unsure], plain[~unsure])


@pytest.mark.parametrize("limit", [-0.1, 1.5, float("nan")])
def test_a_limit_that_is_not_a_probability(scene: Path, model: Path, limit: float) -> None:
    with pytest.raises(UsageError, match="`min_confidence` must be between 0 and 1"):
        mapped(scene, model, min_confidence=limit)


def test_a_class_without_a_limit_or_room(scene: Path, model: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="give both or neither"):
        mapped(scene, model, unsure_class=True)
    full = tmp_path / "full.onnx"
    full.write_bytes(make_model(classes=254))
    with pytest.raises(UsageError, match="no room for another"):
        mapped(scene, full, min_confidence=P, unsure_class=True)
    assert not (tmp_path / "map.tif").exists()


def test_the_commands(
    scene: Path, model: Path, expected: tuple[np.ndarray, np.ndarray], tmp_path: Path
) -> None:
    out = tmp_path / "out.tif"
    options = ["--model", str(model), "--device", "cpu", "--min-confidence", str(P), "--unsure-class"]
    assert CliRunner().invoke(command.app, [str(scene), str(out), *options]).exit_code == 0
    assert np.array_equal(read_band(out) == 4, expected[1])
    result = RioRunner().invoke(main_group, ["iic-segment", str(scene), str(out), *options, "--overwrite"])
    assert result.exit_code == 0
    assert np.array_equal(read_band(out) == 4, expected[1])


def test_the_figures_on_the_card_are_shown(tmp_path: Path) -> None:
    model = tmp_path / "measured.onnx"
    figures = {"accuracy": {"places left out": {"mean_iou": 0.55}}, "reliability": {"ece": 0.031}}
    model.write_bytes(make_model(**figures))
    output = CliRunner().invoke(model_commands.app, ["show", str(model)]).output
    assert "accuracy, places left out" in output
    assert "mean iou 0.55" in output
    assert "ece 0.031" in output
