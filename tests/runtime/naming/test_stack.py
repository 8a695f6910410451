"""Scenes of every kind are taught without a trained model of their own: the bank, and a bundled model if one suits."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio
from scipy import ndimage
from support.scenes import write_points, write_raster
from threadpoolctl import threadpool_info, threadpool_limits

from iic_geotools.errors import SceneError
from iic_geotools.scene.info import describe
from iic_geotools.tiling import Rect
from iic_runtime import name_model, segment_raster
from iic_runtime.model.file import ModelFile
from iic_runtime.model.select import bundled_models
from iic_runtime.model.validate import validate_model
from iic_runtime.naming.kmeans import kmeans
from iic_runtime.naming.stack import make_stack
from iic_runtime.naming.teacher import Teacher

SIDE = 150
NAMES = ("smooth", "rough")


def truth() -> np.ndarray:
    """Two halves that differ in texture and a little in brightness."""
    return np.broadcast_to(np.arange(SIDE) >= SIDE // 2, (SIDE, SIDE)).astype(int)


def unit_values(bands: int) -> np.ndarray:
    rng = np.random.default_rng(0)
    fine, coarse = (
        rng.random((bands, SIDE, SIDE)),
        ndimage.gaussian_filter(rng.random((bands, SIDE, SIDE)), 4),
    )
    return np.asarray(0.1 + 0.6 * np.where(truth() == 1, fine, 0.4 * coarse + 0.2))


def write_scene(path: Path, kind: str) -> Path:
    """A scene of some kind."""
    made: dict[str, tuple[np.ndarray, dict[str, Any]]] = {
        "rgb": ((255 * unit_values(3)).astype(np.uint8), {"photometric": "RGB"}),
        "rgbn": ((255 * unit_values(4)).astype(np.uint8), {}),
        "16 bits": ((9000 * unit_values(4)).astype(np.uint16), {}),
        "decibels": ((-28 + 25 * unit_values(2)).astype(np.float32), {"nodata": np.nan}),
        "8 bands": ((4000 * unit_values(8)).astype(np.int16), {"nodata": -9999}),
        "32-bit counts": ((1e6 * unit_values(1)).astype(np.int32), {}),
        "doubles": (unit_values(5), {}),
    }
    values, profile = made[kind]
    if "nodata" in profile:
        values[:, :20, :30] = profile["nodata"]
    return write_raster(path, values, **profile)


def draw(count: int = 12) -> tuple[np.ndarray, np.ndarray]:
    """Classes and places of clicks."""
    rng = np.random.default_rng(3)
    places = np.concatenate(
        [np.argwhere(truth() == label)[rng.permutation(SIDE**2 // 2)[:count]] for label in (0, 1)]
    )
    return np.repeat([0, 1], count), places


def write_clicks(path: Path) -> Path:
    labels, places = draw()
    return write_points(path, places[:, 0], places[:, 1], [NAMES[label] for label in labels])


def accuracy(path: Path, model: Path) -> float:
    with rasterio.open(path) as dataset:
        labels = dataset.read(1)
    names = [entry.name for entry in ModelFile.read(model).card.classes]
    known = labels != 255
    return float(np.mean(labels[known] == np.array([names.index(name) for name in NAMES])[truth()[known]]))


@pytest.mark.parametrize(
    "kind", ["rgb", "rgbn", "16 bits", "decibels", "8 bands", "32-bit counts", "doubles"]
)
def test_any_scene_can_be_taught_without_a_model(tmp_path: Path, kind: str) -> None:
    scene = write_scene(tmp_path / "scene.tif", kind)
    named = name_model(None, write_clicks(tmp_path / "clicks.gpkg"), scene, tmp_path / "named.onnx")
    assert [entry.name for entry in named.card.classes] == sorted(NAMES)
    segment_raster(scene, tmp_path / "map.tif", named.path)
    assert accuracy(tmp_path / "map.tif", named.path) > 0.85
    segment_raster(scene, tmp_path / "tiled.tif", named.path, tile=40)
    assert (tmp_path / "map.tif").read_bytes() == (tmp_path / "tiled.tif").read_bytes()
    assert all(check.kept for check in validate_model(named.path))


def test_two_dates_with_the_same_names(tmp_path: Path) -> None:
    scene = write_raster(tmp_path / "scene.tif", (4000 * unit_values(8)).astype(np.uint16))
    with rasterio.open(scene, "r+") as dataset:
        dataset.descriptions = ("red", "green", "blue", "nir") * 2
    named = name_model(None, write_clicks(tmp_path / "clicks.gpkg"), scene, tmp_path / "named.onnx")
    assert named.card.bands == tuple(f"band{number}" for number in range(1, 9))
    segment_raster(scene, tmp_path / "map.tif", named.path)
    assert accuracy(tmp_path / "map.tif", named.path) > 0.85


def test_the_bundled_model_that_suits_is_joined(tmp_path: Path) -> None:
    stack, _ = make_stack(describe(str(write_scene(tmp_path / "scene.tif", "rgbn"))))
    aerial = bundled_models()[0]
    assert stack.card.bands == aerial.card.bands
    assert stack.card.halo >= aerial.card.halo
    assert stack.card.stride == aerial.card.stride
    assert sum(group.size for group in stack.card.features) > 33
    bank, _ = make_stack(describe(str(write_scene(tmp_path / "bands.tif", "8 bands"))))
    assert len(bank.card.bands) == 8
    assert bank.card.stride == 1


@pytest.mark.parametrize("kind", ["rgbn", "8 bands"])
def test_a_stack_does_not_depend_on_the_number_of_threads(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other threads may hold numpy to one at any moment, so a stack must always be computed on one."""
    threads: list[int] = []

    def seen(*arguments: Any, **options: Any) -> Any:
        threads.extend(
            library["num_threads"] for library in threadpool_info() if "numpy" in library["filepath"]
        )
        return kmeans(*arguments, **options)

    monkeypatch.setattr("iic_runtime.naming.stack.kmeans", seen)
    info = describe(str(write_scene(tmp_path / "scene.tif", kind)))
    with threadpool_limits(2, "blas"):
        make_stack(info)
    assert threads
    assert set(threads) == {1}


def test_a_scene_without_data_is_refused(tmp_path: Path) -> None:
    scene = write_raster(tmp_path / "scene.tif", np.zeros((2, 90, 90), np.float32), nodata=0)
    with pytest.raises(SceneError, match="holds no data"):
        make_stack(describe(str(scene)))


@pytest.mark.parametrize("kind", ["rgbn", "decibels"])
def test_what_the_teacher_shows_is_what_the_map_says(tmp_path: Path, kind: str) -> None:
    scene = write_scene(tmp_path / "scene.tif", kind)
    teacher = Teacher.open(scene)
    labels, places = draw()
    quick = teacher.fit(NAMES, labels, places)
    assert quick.classes == tuple(sorted(NAMES))
    lesson = teacher.fit(NAMES, labels, places, full=True)
    view = teacher.look(Rect(0, 0, SIDE, SIDE))
    shown, confidence = lesson.label(view)
    named = name_model(None, write_clicks(tmp_path / "clicks.gpkg"), scene, tmp_path / "named.onnx")
    segment_raster(scene, tmp_path / "map.tif", named.path)
    with rasterio.open(tmp_path / "map.tif") as dataset:
        mapped = dataset.read(1)
    assert (mapped != shown).mean() < 1e-3
    assert (confidence > 0)[mapped != 255].all()
    part = teacher.look(Rect(31, 17, 40, 23))
    assert np.array_equal(part.features, view.features[:, 17:40, 31:71])


def test_clicks_in_any_order_fit_the_same_head(tmp_path: Path) -> None:
    scene = write_scene(tmp_path / "scene.tif", "rgb")
    labels, places = draw()
    order = np.random.default_rng(0).permutation(len(labels))
    first = Teacher.open(scene).fit(NAMES, labels, places)
    later = Teacher.open(scene)
    later.fit(NAMES, labels[order][:14], places[order][:14])
    again = later.fit(NAMES, labels[order], places[order])
    assert np.array_equal(first.head.weight, again.head.weight)


@pytest.mark.parametrize(
    ("labels", "places", "message"),
    [
        ([0, 1], [[0, 0]], "one for each click"),
        ([0, 2], [[0, 0], [5, 5]], "must be 0 to 1"),
        ([0, 1], [[0, 0], [5, SIDE]], "outside the scene"),
        ([0, 0], [[0, 0], [5, 5]], "Fewer than two classes"),
        ([], np.empty((0, 2)), "Fewer than two classes"),
    ],
)
def test_clicks_that_cannot_be_used(tmp_path: Path, labels: Any, places: Any, message: str) -> None:
    teacher = Teacher.open(write_scene(tmp_path / "scene.tif", "rgb"))
    with pytest.raises((ValueError, SceneError), match=message):
        teacher.fit(NAMES, labels, places)
