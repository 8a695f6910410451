"""Clusters get the classes that people have labelled."""

import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import rasterio
import shapely
import torch
from numpy.typing import NDArray
from pyogrio.raw import write
from rasterio.transform import from_origin
from support.runs import TrainedScene
from support.scenes import write_points, write_raster

from iic_export import export
from iic_export.name_clusters import NamedClusters, Naming, name_clusters
from iic_export.proof import trained_model
from iic_export.trained_head import TrainedHead
from iic_geotools.errors import SceneError, UsageError

Labels = NDArray[np.integer[Any]]
MakeLabels = Callable[..., Path]


@pytest.fixture(scope="module")
def clusters(trained: TrainedScene, head: TrainedHead) -> Labels:
    """The trained network's cluster of each pixel of the scene."""
    with rasterio.open(trained.scene) as scene:
        return np.asarray(trained_model(head)(scene.read()).argmax(0))


@pytest.fixture
def make_labels(tmp_path: Path) -> MakeLabels:
    def make(values: NDArray[Any], **profile: Any) -> Path:
        return write_raster(tmp_path / "labels.tif", values[None].astype(np.uint8), **profile)

    return make


def majority_values(clusters: Labels, values: Labels, labelled: NDArray[np.bool_]) -> dict[int, int]:
    """The commonest value of each cluster among its labelled pixels."""
    majority = {}
    for cluster in np.unique(clusters[labelled]):
        inside = values[labelled & (clusters == cluster)]
        majority[int(cluster)] = int(np.bincount(inside).argmax())
    return majority


def class_names(named: NamedClusters) -> dict[int, str]:
    """The name that each cluster took."""
    owner = named.merge.argmax(0)
    return {cluster: named.classes[int(owner[cluster])].name for cluster in range(named.merge.shape[1])}


def test_a_label_raster_names_by_majority(
    trained: TrainedScene, head: TrainedHead, clusters: Labels, make_labels: MakeLabels
) -> None:
    values = trained.bright.astype(np.int64) + 4
    named = name_clusters(head, Naming([make_labels(values)]))
    expected = majority_values(clusters, values, np.ones_like(trained.bright))
    names = class_names(named)
    assert {cluster: names[cluster] for cluster in expected} == {c: f"class {v}" for c, v in expected.items()}
    assert (named.merge.sum(0) == 1).all()
    right = sum((values[clusters == c] == v).sum() for c, v in expected.items())
    assert named.agreement == pytest.approx(right / values.size)


def test_values_are_grouped_and_the_rest_left_out(
    trained: TrainedScene, head: TrainedHead, clusters: Labels, make_labels: MakeLabels
) -> None:
    values = np.where(trained.bright, 7, 0)
    values[:30] = 9
    naming = Naming([make_labels(values)], label_class=("built=7,8", "open=0"))
    labelled = values != 9
    expected = majority_values(clusters, values, labelled)
    named = class_names(name_clusters(head, naming))
    names = {7: "built", 0: "open"}
    assert {c: named[c] for c in expected} == {c: names[v] for c, v in expected.items()}


def test_nodata_is_no_label(trained: TrainedScene, head: TrainedHead, make_labels: MakeLabels) -> None:
    values = np.where(trained.bright, 7, 255)
    values[:3] = 4
    named = name_clusters(head, Naming([make_labels(values, nodata=255)]))
    assert {map_class.name for map_class in named.classes} <= {"class 4", "class 7"}


def test_a_raster_on_another_grid(
    trained: TrainedScene, head: TrainedHead, clusters: Labels, make_labels: MakeLabels
) -> None:
    """Labels of 12 m pixels, shifted: half a kilometre of them, of which the scene is a corner."""
    values = np.zeros((40, 40), np.int64)
    rows, columns = np.mgrid[:40, :40]
    values[:] = (rows + columns) % 2
    path = make_labels(values, transform=from_origin(499988, 5400012, 12, 12))
    y, x = np.mgrid[: clusters.shape[0], : clusters.shape[1]]
    fine = values[(y * 0.5 + 0.25 + 12).astype(int) // 12, (x * 0.5 + 0.25 + 12).astype(int) // 12]
    expected = majority_values(clusters, fine, np.ones_like(trained.bright))
    names = class_names(name_clusters(head, Naming([path])))
    assert {c: names[c] for c in expected} == {c: f"class {v}" for c, v in expected.items()}


@pytest.mark.parametrize("crs", ["EPSG:32631", "EPSG:4326"])
def test_a_few_clicked_points(head: TrainedHead, clusters: Labels, tmp_path: Path, crs: str) -> None:
    rng = np.random.default_rng(1)
    rows, columns = rng.integers(0, 151, 20), rng.integers(0, 173, 20)
    kinds = clusters[rows, columns]
    path = write_points(tmp_path / "clicks.gpkg", rows, columns, [f"kind {kind}" for kind in kinds], crs)
    named = name_clusters(head, Naming([path]))
    names = class_names(named)
    for kind in np.unique(kinds):
        assert names[int(kind)] == f"kind {kind}"
    assert named.agreement == 1


def test_a_cluster_without_labels_takes_the_class_of_the_nearest(
    trained: TrainedScene,
    head: TrainedHead,
    clusters: Labels,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    present = np.unique(clusters)
    first, second = present[:2]
    (row, column), (other_row, other_column) = (np.argwhere(clusters == c)[0] for c in (first, second))
    path = write_points(
        tmp_path / "two.geojson", [row, other_row], [column, other_column], ["meadow", "wood"], "EPSG:4326"
    )
    with caplog.at_level("INFO", logger="iic_export"):
        named = name_clusters(head, Naming([path]))
    assert {entry.name for entry in named.classes} == {"meadow", "wood"}
    assert (named.merge.sum(0) == 1).all()
    assert "no label lies on it" in caplog.text
    if len(present) == 3:
        with rasterio.open(trained.scene) as scene:
            probabilities = trained_model(head)(scene.read())
        overlap = np.array([probabilities[:, clusters == c].mean(1) for c in range(3)])
        third = present[2]
        likeness = {c: overlap[third, c] + overlap[c, third] for c in (first, second)}
        nearest = max(likeness, key=lambda c: likeness[c])
        assert class_names(named)[int(third)] == ("meadow" if nearest == first else "wood")


def test_labels_of_one_class_only(head: TrainedHead, tmp_path: Path) -> None:
    path = write_points(tmp_path / "one.gpkg", [5, 70], [5, 90], ["meadow", "meadow"])
    with pytest.raises(SceneError, match="are all meadow"):
        name_clusters(head, Naming([path]))


def test_polygons_with_a_field_of_numbers(head: TrainedHead, clusters: Labels, tmp_path: Path) -> None:
    left, right = (
        shapely.box(500000 + a * 0.5, 5400000 - 75.5, 500000 + b * 0.5, 5400000)
        for a, b in ((0, 80), (80, 173))
    )
    path = tmp_path / "areas.gpkg"
    write(
        path,
        shapely.to_wkb([left, right]),
        [np.array([1, 2]), np.array(["x", "y"], object)],
        ["code", "note"],
        geometry_type="Polygon",
        crs="EPSG:32631",
    )
    values = np.where(np.arange(173)[None] < 80, 1, 2) * np.ones((151, 1), int)
    expected = majority_values(clusters, values, np.ones_like(values, bool))
    names = class_names(name_clusters(head, Naming([path], label_field="code")))
    assert {c: names[c] for c in expected} == {c: f"class {v}" for c, v in expected.items()}


def test_the_graph_merges(trained: TrainedScene, head: TrainedHead, clusters: Labels, tmp_path: Path) -> None:
    """Two clusters in one class: the model's probabilities are the sums, its labels the classes."""
    where = [np.argwhere(clusters == c) for c in range(3)]
    rows, columns, names = [], [], []
    for cluster, name in zip(range(3), ("water", "land", "water"), strict=True):
        if len(where[cluster]):
            rows.append(where[cluster][0][0])
            columns.append(where[cluster][0][1])
            names.append(name)
    labels = write_points(tmp_path / "p.gpkg", rows, columns, names)
    exported = export(trained.run, tmp_path / "m.onnx", naming=Naming([labels]), probabilities=True)
    classes = [map_class.name for map_class in exported.card.classes]
    assert set(names) <= set(classes)
    assert exported.card.origin.labels.startswith("named by p.gpkg; 100.0% of them")
    merge = name_clusters(head, Naming([labels])).merge
    image = np.random.default_rng(0).integers(0, 256, (1, 4, 33, 30)).astype(np.uint8)
    session = onnxruntime.InferenceSession(str(exported.path), providers=["CPUExecutionProvider"])
    predicted, confidence, probabilities, _ = session.run(None, {"image": image})
    with torch.inference_mode():
        expected = torch.tensordot(merge, head.network(torch.from_numpy(image))[0, 0], 1).numpy()
    assert np.abs(probabilities[0] - expected).max() < 1e-4
    assert (predicted[0] == expected.argmax(0)).mean() > 0.999
    assert confidence.min() >= 1
    assert exported.card.parity["label_agreement"] >= 0.9999


def test_names_and_colours_of_the_file_are_kept(
    trained: TrainedScene, head: TrainedHead, tmp_path: Path, make_labels: MakeLabels
) -> None:
    from iic_geotools.classmap.classes import MapClass
    from iic_geotools.classmap.sidecars import sidecar, sidecar_path

    path = make_labels(trained.bright.astype(np.uint8))
    with rasterio.open(path, "r+") as out:
        out.write_colormap(1, {0: (1, 2, 3), 1: (250, 240, 230)})
    sidecar_path(path).write_bytes(sidecar([MapClass("field", "#010203"), MapClass("roof", "#faf0e6")]))
    named = name_clusters(head, Naming([path]))
    known = {map_class.name: map_class.colour for map_class in named.classes}
    assert {"field": "#010203", "roof": "#faf0e6"}.items() >= {
        key: value for key, value in known.items() if not key.startswith("cluster")
    }.items()
    assert {"field", "roof"} & set(known)


def test_labels_of_another_place(head: TrainedHead, tmp_path: Path) -> None:
    path = write_points(tmp_path / "far.gpkg", [99999], [5], ["x"])
    with pytest.raises(SceneError, match="No pixel"):
        name_clusters(head, Naming([path]))


@pytest.fixture(scope="module")
def two_scenes(
    trained: TrainedScene, head: TrainedHead, tmp_path_factory: pytest.TempPathFactory
) -> TrainedHead:
    """The run as if trained on two scenes without a CRS, the second upside down, and their labels."""
    folder = tmp_path_factory.mktemp("two")
    with rasterio.open(trained.scene) as scene:
        pixels = scene.read()
    values = np.zeros(trained.bright.shape, np.uint8)
    values[: 151 // 2] = np.where(trained.bright, 7, 3)[: 151 // 2]
    scenes: list[str] = []
    labels: list[str] = []
    for number, turn in enumerate((slice(None), slice(None, None, -1))):
        for kind, bands, paths in (("scene", pixels, scenes), ("label", values[None], labels)):
            paths.append(str(folder / f"{kind}{number}.tif"))
            size = {"count": len(bands), "height": bands.shape[1], "width": bands.shape[2]}
            with (
                warnings.catch_warnings(action="ignore"),
                rasterio.open(paths[-1], "w", driver="GTiff", dtype="uint8", **size) as out,
            ):
                out.write(bands[:, turn])
                if len(bands) == 4:
                    out.descriptions = ("red", "green", "blue", "nir")
    data = replace(
        head.config.data,
        scenes=tuple(scenes),
        labels=tuple(labels),
        label_classes=("smooth=3", "rough=7"),
    )
    return replace(head, run=replace(head.run, config=replace(head.config, data=data)))


def test_labels_of_the_run_itself(two_scenes: TrainedHead) -> None:
    """Each lies over the scene at its place: over the other one, half of them would be over nothing."""
    data = two_scenes.config.data
    predict = trained_model(two_scenes)
    votes = np.zeros((2, 3), int)
    for scene, label in zip(data.scenes, data.labels, strict=True):
        with rasterio.open(scene) as pixels, rasterio.open(label) as values:
            predicted, truth = predict(pixels.read()).argmax(0), values.read(1)
        votes += [np.bincount(predicted[truth == value], minlength=3) for value in (3, 7)]
    named = name_clusters(two_scenes, Naming(own_labels=True))
    names = class_names(named)
    for cluster in np.flatnonzero(votes.sum(0)):
        assert names[int(cluster)] == ("smooth", "rough")[votes[:, cluster].argmax()]
    assert named.agreement == pytest.approx(votes.max(0).sum() / votes.sum())
    given = name_clusters(two_scenes, Naming(data.labels, label_class=data.label_classes))
    assert (given.classes, given.agreement) == (named.classes, named.agreement)
    assert torch.equal(given.merge, named.merge)


def test_classes_may_bring_their_colours(two_scenes: TrainedHead) -> None:
    named = name_clusters(two_scenes, Naming(own_labels=True, label_class=("land=3:#123456", "rock=7")))
    assert [map_class.colour for map_class in named.classes if map_class.name == "land"] == ["#123456"]
    with pytest.raises(UsageError, match="not a colour"):
        name_clusters(two_scenes, Naming(own_labels=True, label_class=("land=3:#12",)))


def test_shapes_add_classes_to_the_runs_labels(two_scenes: TrainedHead, tmp_path: Path) -> None:
    """A clicked place of a scene without a CRS is in pixels; values of rasters do not touch its name."""
    scene = two_scenes.config.data.scenes[1]
    with rasterio.open(scene) as pixels:
        predicted = trained_model(two_scenes)(pixels.read()).argmax(0)
    path = tmp_path / "p.geojson"
    cluster = int(predicted[70, 40])
    rows, columns = np.nonzero(predicted == cluster)
    write(
        path,
        shapely.to_wkb(shapely.points(columns + 0.5, rows + 0.5)),
        [np.array(["sand"] * len(rows), object)],
        ["class"],
        geometry_type="Point",
        crs="EPSG:4326",
    )
    named = class_names(name_clusters(two_scenes, Naming([path], own_labels=True, scenes=[scene], balance=1)))
    assert named[cluster] == "sand"
    assert {"smooth", "rough"} & set(named.values())


def test_rare_classes_count_the_same_if_balanced(
    head: TrainedHead, clusters: Labels, make_labels: MakeLabels
) -> None:
    """One pixel in ten of a cluster is all there is of the rare class."""
    most = np.bincount(clusters.ravel()).argmax()
    values = np.ones(clusters.shape, np.int64)
    rows, columns = np.nonzero(clusters == most)
    values[rows[::10], columns[::10]] = 2
    naming = Naming([make_labels(values)])
    assert class_names(name_clusters(head, naming))[int(most)] == "class 1"
    balanced = name_clusters(head, replace(naming, balance=1))
    assert class_names(balanced)[int(most)] == "class 2"
    right = (values == np.where(clusters == most, 2, 1)).mean()
    assert balanced.agreement == pytest.approx(right)


def test_labels_that_fit_no_scene(head: TrainedHead, two_scenes: TrainedHead) -> None:
    with pytest.raises(UsageError, match="`balance` must be between 0 and 1"):
        name_clusters(two_scenes, Naming(own_labels=True, balance=2))
    with pytest.raises(UsageError, match="no labels of its own"):
        name_clusters(head, Naming(own_labels=True))
    with pytest.raises(UsageError, match="2 scenes but 3 files of `labels`"):
        name_clusters(two_scenes, Naming(["a.tif", "b.tif", "c.tif"]))
