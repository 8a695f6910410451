"""Clusters without labels and without torch."""

from pathlib import Path

import numpy as np
import pytest
import rasterio
from scipy import ndimage
from scipy.optimize import approx_fprime, linear_sum_assignment
from support.scenes import write_raster

from iic_geotools.classmap.classes import rgb
from iic_geotools.errors import OutputError, SceneError, UsageError
from iic_geotools.tiling import Rect
from iic_runtime import segment_raster
from iic_runtime.model.file import ModelFile
from iic_runtime.model.validate import validate_model
from iic_runtime.naming.cluster import cluster_scene, iic_at_masses
from iic_runtime.naming.kmeans import kmeans
from iic_runtime.naming.teacher import Teacher

SIDE = 200


def patches() -> tuple[np.ndarray, np.ndarray]:
    """A scene of four materials in large patches, one of them rare, and which is where."""
    rng = np.random.default_rng(0)
    truth = ndimage.zoom(rng.choice(4, (5, 5), p=(0.4, 0.3, 0.2, 0.1)), SIDE // 5, order=0)
    colours = np.array([[40, 60, 50, 20], [60, 90, 60, 180], [180, 160, 140, 150], [220, 220, 225, 90]])
    values = np.moveaxis(colours[truth], -1, 0) + 6 * rng.normal(size=(4, SIDE, SIDE))
    return np.clip(values, 1, 254).astype(np.uint8), truth


def agreement(labels: np.ndarray, truth: np.ndarray) -> float:
    counts = np.zeros((4, 4))
    np.add.at(counts, (labels.ravel(), truth.ravel()), 1)
    return float(counts[linear_sum_assignment(-counts)].sum() / counts.sum())


def test_materials_are_found(tmp_path: Path) -> None:
    values, truth = patches()
    scene = write_raster(tmp_path / "scene.tif", values)
    clustered = cluster_scene(scene, tmp_path / "clusters.onnx", 4)
    assert [entry.name for entry in clustered.card.classes] == [f"cluster {index}" for index in range(4)]
    assert sum(clustered.shares) == pytest.approx(1, abs=1e-6)
    assert list(clustered.shares) == sorted(clustered.shares, reverse=True)
    segment_raster(scene, tmp_path / "map.tif", clustered.path)
    with rasterio.open(tmp_path / "map.tif") as dataset:
        labels = dataset.read(1)
    assert agreement(labels, truth) > 0.95
    assert all(check.kept for check in validate_model(clustered.path))
    again = cluster_scene(scene, tmp_path / "again.onnx", 4)
    assert ModelFile.read(again.path).content[:1000] == ModelFile.read(clustered.path).content[:1000]


def test_clusters_have_their_mean_colour_in_the_picture(tmp_path: Path) -> None:
    scene = write_raster(tmp_path / "scene.tif", patches()[0])
    classes = cluster_scene(scene, tmp_path / "clusters.onnx", 4).card.classes
    colours = sorted(rgb(entry.colour) for entry in classes)
    assert len(set(colours)) == 4
    assert colours[0] < (20, 60, 40)  # dark water
    assert min(colours[-1]) > 200  # the white material
    greenest = max(colours, key=lambda colour: colour[1] - colour[0] - colour[2])
    assert greenest[1] > max(greenest[0], greenest[2])  # the meadow


def test_the_teacher_finds_the_same_materials(tmp_path: Path) -> None:
    values, truth = patches()
    teacher = Teacher.open(write_raster(tmp_path / "scene.tif", values))
    labels, _ = teacher.clusters(4).label(teacher.look(Rect(0, 0, SIDE, SIDE)))
    assert agreement(labels, truth) > 0.95


def test_the_gradient_is_that_of_the_loss() -> None:
    rng = np.random.default_rng(0)
    first = rng.normal(size=(40, 3))
    second = first + 0.1 * rng.normal(size=(40, 3))
    matrix, masses = rng.normal(size=(4, 3)), np.array([0.5, 0.3, 0.2])
    _, gradient = iic_at_masses(matrix, first, second, masses)
    expected = approx_fprime(
        matrix.ravel(), lambda flat: iic_at_masses(flat.reshape(4, 3), first, second, masses)[0], 1e-6
    )
    assert np.allclose(gradient.ravel(), expected, atol=1e-4)


def test_kmeans_finds_weighted_centres() -> None:
    rng = np.random.default_rng(0)
    points = np.array([[0.0, 0], [10, 0], [0, 10]])[np.arange(90) % 3] + 0.1 * rng.normal(size=(90, 2))
    centres = kmeans(points, 3, np.ones(90), rng)
    assert sorted(centres.round().tolist()) == [[0, 0], [0, 10], [10, 0]]


def test_what_cannot_be_clustered_is_refused(tmp_path: Path) -> None:
    scene = write_raster(tmp_path / "scene.tif", patches()[0])
    with pytest.raises(UsageError, match="2 to 254"):
        cluster_scene(scene, tmp_path / "m.onnx", 1)
    with pytest.raises(UsageError, match=r"end in \.onnx"):
        cluster_scene(scene, tmp_path / "m.tif", 4)
    with pytest.raises(OutputError, match="no folder"):
        cluster_scene(scene, tmp_path / "none" / "m.onnx", 4)
    small = write_raster(tmp_path / "small.tif", patches()[0][:, :2, :3])
    assert len(cluster_scene(small, tmp_path / "small.onnx", 5).shares) == 5
    flat = write_raster(tmp_path / "flat.tif", np.full((4, 50, 50), 7, np.uint8))
    assert len(cluster_scene(flat, tmp_path / "flat.onnx", 3).shares) == 3
    empty = write_raster(tmp_path / "empty.tif", np.zeros((2, 50, 50), np.uint8), nodata=0)
    with pytest.raises(SceneError, match="holds no data"):
        cluster_scene(empty, tmp_path / "m.onnx", 4)
    assert not (tmp_path / "m.onnx").exists()
