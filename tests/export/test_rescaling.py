"""Scenes of different stretches train one network, and its maps of them are equal."""

from pathlib import Path

import numpy as np
import pytest
import rasterio
from support.maps import read_band
from support.runs import TrainedScene

from iic_export import export
from iic_export.name_clusters import Naming, name_clusters
from iic_export.proof import sample_images
from iic_export.trained_head import load_head
from iic_geotools.scene.info import describe
from iic_geotools.tiling import Rect
from iic_runtime import segment_raster
from iic_runtime.model.select import find_model
from iic_runtime.raster.model_input import choose_reading
from iic_train.evaluation.evaluate import evaluate
from iic_train.recipes.rasters import train_rasters
from iic_train.runs import Run, load_run
from iic_train.trainer import resume


@pytest.fixture(scope="module")
def run(trained: TrainedScene, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run on one landscape twice: 8 bit, and 16 bit with another gain and offset."""
    folder = tmp_path_factory.mktemp("stretch")
    with rasterio.open(trained.scene) as scene:
        values, names, profile = scene.read(), scene.descriptions, scene.profile
    other, labels = folder / "other.tif", folder / "labels.tif"
    with rasterio.open(other, "w", **profile | {"dtype": "uint16"}) as written:
        written.write(values.astype(np.uint16) * 40 + 300)
        written.descriptions = names
    with rasterio.open(labels, "w", **profile | {"count": 1}) as written:
        written.write(trained.bright.astype(np.uint8) + 1, 1)
    return train_rasters(
        [str(trained.scene), str(other)],
        3,
        rescale="auto",
        reduce=1,
        size=24,
        epochs=2,
        steps=6,
        batch=8,
        sub_heads=2,
        radius=1,
        labels=[str(labels)] * 2,
        runs=folder / "runs",
        name="stretch",
        device="cpu",
    )


def test_maps_of_two_stretches_are_equal(run: Run, tmp_path: Path) -> None:
    assert run.config.data.rescale == "auto"
    assert (run.config.network.offset, run.config.network.scale) == ((0.0,) * 4, (1 / 255,) * 4)
    exported = export(run.path, tmp_path / "model.onnx")
    assert exported.parity.own_data
    assert exported.card.rescale == find_model(exported.path).card.rescale == "auto"
    assert exported.card.dtype == "uint8"
    for name, scene in zip("ab", run.config.data.scenes, strict=True):
        segment_raster(scene, tmp_path / f"{name}.tif", exported.path, device="cpu")
    first, second = read_band(tmp_path / "a.tif"), read_band(tmp_path / "b.tif")
    assert len(np.unique(first)) > 1
    assert np.array_equal(first, second)
    with pytest.raises(ValueError, match="uint16, but the model was made for uint8"):
        segment_raster(
            run.config.data.scenes[1], tmp_path / "c.tif", exported.path, device="cpu", rescale="off"
        )


def test_training_and_serving_read_a_scene_alike(run: Run, tmp_path: Path) -> None:
    exported = export(run.path, tmp_path / "model.onnx")
    head = load_head(run)
    images, own_data = sample_images(head)
    assert own_data
    assert np.array_equal(images[0], images[-1])
    dataset = run.dataset()
    assert np.array_equal(dataset.test.image(0), dataset.test.image(1))
    for index, scene in enumerate(run.config.data.scenes):
        with choose_reading(describe(scene), exported.card).open() as opened:
            assert np.array_equal(opened.read(Rect(0, 0, 173, 151)).values, dataset.test.image(index))
    per_scene = [
        name_clusters(head, Naming(labels=run.config.data.labels[:1], scenes=[scene])).agreement
        for scene in run.config.data.scenes
    ]
    assert per_scene[0] == per_scene[1]
    assert np.isfinite(evaluate(run).accuracy)


def test_a_run_on_rescaled_scenes_resumes(run: Run) -> None:
    before = load_run(run.path).data["fingerprint"]
    resumed = resume(run.path, epochs=3, device="cpu")
    assert resumed.data["fingerprint"] == before
    assert resumed.config.data.rescale == "auto"
