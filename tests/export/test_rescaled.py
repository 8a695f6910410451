"""From scenes of different stretches, by way of a run and its model, to maps that do not tell them apart."""

import numpy as np
import pytest
import rasterio

from iic_export import export
from iic_export.naming import Naming, name_clusters
from iic_export.subject import chips, take
from iic_geotools.grid import Rect
from iic_geotools.scene import describe
from iic_runtime import segment_raster
from iic_runtime.bundled import find_model
from iic_runtime.planning import plan_target
from iic_train.evaluate import evaluate, run_dataset
from iic_train.loop import resume
from iic_train.rasters import train_rasters
from iic_train.runs import load_run


@pytest.fixture(scope="module")
def run(trained, tmp_path_factory):
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
        labels=[str(labels)] * 2,
        size=24,
        epochs=2,
        steps=6,
        batch=8,
        sub_heads=2,
        radius=1,
        runs=folder / "runs",
        name="stretch",
        device="cpu",
        quiet=True,
    )


def read(path):
    with rasterio.open(path) as dataset:
        return dataset.read(1)


def test_maps_of_two_stretches_are_equal(run, tmp_path):
    assert run.config.data.rescale == "auto"
    assert (run.config.network.offset, run.config.network.scale) == ((0.0,) * 4, (1 / 255,) * 4)
    made = export(run.path, tmp_path / "model.onnx")
    assert made.parity.own_data
    assert made.card.rescale == find_model(made.path).card.rescale == "auto"
    assert made.card.dtype == "uint8"
    for name, scene in zip("ab", run.config.data.scenes, strict=True):
        segment_raster(scene, tmp_path / f"{name}.tif", made.path, device="cpu")
    first, second = read(tmp_path / "a.tif"), read(tmp_path / "b.tif")
    assert len(np.unique(first)) > 1
    assert np.array_equal(first, second)
    with pytest.raises(ValueError, match="uint16, but the model was made for uint8"):
        segment_raster(run.config.data.scenes[1], tmp_path / "c.tif", made.path, device="cpu", rescale="off")


def test_the_map_is_what_the_trained_network_says(run, tmp_path):
    """Training and serving read a scene the same to the bit, whoever reads it."""
    made = export(run.path, tmp_path / "model.onnx")
    subject = take(run)
    own, _ = chips(subject)
    assert np.array_equal(own[0], own[-1])
    dataset = run_dataset(run)
    assert np.array_equal(dataset.test.image(0), dataset.test.image(1))
    for index, scene in enumerate(run.config.data.scenes):
        with plan_target(describe(scene), made.card).source.open() as opened:
            assert np.array_equal(opened.read(Rect(0, 0, 173, 151)).values, dataset.test.image(index))
    per_scene = [
        name_clusters(subject, Naming(labels=run.config.data.labels[:1], scenes=[scene])).agreement
        for scene in run.config.data.scenes
    ]
    assert per_scene[0] == per_scene[1]
    assert np.isfinite(evaluate(run).accuracy)


def test_a_run_goes_on_with_its_rescaled_scenes(run):
    before = load_run(run.path).data["fingerprint"]
    resumed = resume(run.path, epochs=3, device="cpu", quiet=True)
    assert resumed.data["fingerprint"] == before
    assert resumed.config.data.rescale == "auto"
