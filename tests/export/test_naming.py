import json
import warnings
from dataclasses import replace

import numpy as np
import onnxruntime
import pytest
import rasterio
import shapely
import torch
from pyogrio.raw import write
from rasterio.transform import from_origin
from rasterio.warp import transform as reproject

from iic_export.exporting import export
from iic_export.naming import Naming, name_clusters
from iic_export.parity import trained as predictor
from iic_export.subject import find_run, take
from iic_geotools.errors import SceneError, UsageError


@pytest.fixture(scope="module")
def subject(trained):
    return take(find_run(trained.run))


@pytest.fixture(scope="module")
def clusters(trained, subject):
    """The trained network's cluster of each pixel of the scene."""
    with rasterio.open(trained.scene) as scene:
        return predictor(subject.network, subject.config.pairs)(scene.read()).argmax(0)


@pytest.fixture
def label_raster(tmp_path):
    def make(values, **profile):
        path = tmp_path / "labels.tif"
        settings = {
            "driver": "GTiff",
            "count": 1,
            "height": values.shape[0],
            "width": values.shape[1],
            "dtype": "uint8",
            "crs": "EPSG:32631",
            "transform": from_origin(500000, 5400000, 0.5, 0.5),
        } | profile
        with rasterio.open(path, "w", **settings) as out:
            out.write(values.astype(np.uint8), 1)
        return path

    return make


def points(path, rows, columns, names, crs="EPSG:32631", field="class", extra=None):
    xs, ys = 500000 + (np.asarray(columns) + 0.5) * 0.5, 5400000 - (np.asarray(rows) + 0.5) * 0.5
    xs, ys = reproject("EPSG:32631", crs, xs, ys)
    fields, data = [field], [np.array(names, object)]
    for key, values in (extra or {}).items():
        fields.append(key)
        data.append(np.array(values, object))
    write(path, shapely.to_wkb(shapely.points(xs, ys)), data, fields, geometry_type="Point", crs=crs)
    return path


def by_hand(clusters, values, labelled):
    """The majority value of each cluster among labelled pixels."""
    found = {}
    for cluster in np.unique(clusters[labelled]):
        inside = values[labelled & (clusters == cluster)]
        found[int(cluster)] = int(np.bincount(inside).argmax())
    return found


def assigned(named):
    owner = named.merge.argmax(0)
    return {cluster: named.classes[int(owner[cluster])].name for cluster in range(named.merge.shape[1])}


def test_a_label_raster_names_by_majority(trained, subject, clusters, label_raster):
    values = trained.bright.astype(np.int64) + 4
    named = name_clusters(subject, Naming([label_raster(values)]))
    expected = by_hand(clusters, values, np.ones_like(trained.bright))
    got = assigned(named)
    assert {cluster: got[cluster] for cluster in expected} == {c: f"class {v}" for c, v in expected.items()}
    assert (named.merge.sum(0) == 1).all()
    right = sum((values[clusters == c] == v).sum() for c, v in expected.items())
    assert named.agreement == pytest.approx(right / values.size)


def test_values_are_grouped_and_the_rest_left_out(trained, subject, clusters, label_raster):
    values = np.where(trained.bright, 7, 0)
    values[:30] = 9
    naming = Naming([label_raster(values)], classes=("built=7,8", "open=0"))
    labelled = values != 9
    expected = by_hand(clusters, values, labelled)
    got = assigned(name_clusters(subject, naming))
    names = {7: "built", 0: "open"}
    assert {c: got[c] for c in expected} == {c: names[v] for c, v in expected.items()}


def test_nodata_is_no_label(trained, subject, label_raster):
    values = np.where(trained.bright, 7, 255)
    named = name_clusters(subject, Naming([label_raster(values, nodata=255)]))
    assert {each.name for each in named.classes} <= {"class 7", "cluster 0", "cluster 1", "cluster 2"}


def test_a_raster_on_another_grid(trained, subject, clusters, label_raster):
    """Labels of 12 m pixels, shifted: half a kilometre of them, of which the scene is a corner."""
    values = np.zeros((40, 40), np.int64)
    rows, columns = np.mgrid[:40, :40]
    values[:] = (rows + columns) % 2
    path = label_raster(values, transform=from_origin(499988, 5400012, 12, 12))
    y, x = np.mgrid[: clusters.shape[0], : clusters.shape[1]]
    fine = values[(y * 0.5 + 0.25 + 12).astype(int) // 12, (x * 0.5 + 0.25 + 12).astype(int) // 12]
    expected = by_hand(clusters, fine, np.ones_like(trained.bright))
    got = assigned(name_clusters(subject, Naming([path])))
    assert {c: got[c] for c in expected} == {c: f"class {v}" for c, v in expected.items()}


@pytest.mark.parametrize("crs", ["EPSG:32631", "EPSG:4326"])
def test_a_few_clicked_points(subject, clusters, tmp_path, crs):
    rng = np.random.default_rng(1)
    rows, columns = rng.integers(0, 151, 20), rng.integers(0, 173, 20)
    kinds = clusters[rows, columns]
    path = points(tmp_path / "clicks.gpkg", rows, columns, [f"kind {kind}" for kind in kinds], crs)
    named = name_clusters(subject, Naming([path]))
    got = assigned(named)
    for kind in np.unique(kinds):
        assert got[int(kind)] == f"kind {kind}"
    assert named.agreement == 1


def test_a_cluster_without_labels_stays_by_itself(subject, clusters, tmp_path, caplog):
    most = np.bincount(clusters.ravel()).argmax()
    row, column = np.argwhere(clusters == most)[0]
    path = points(tmp_path / "one.geojson", [row], [column], ["meadow"], "EPSG:4326")
    named = name_clusters(subject, Naming([path]))
    assert named.classes[0].name == "meadow"
    assert len(named.classes) == 3
    assert "No label lies on" in caplog.text
    assert len({each.colour for each in named.classes}) == 3


def test_polygons_with_a_field_of_numbers(subject, clusters, tmp_path):
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
    expected = by_hand(clusters, values, np.ones_like(values, bool))
    got = assigned(name_clusters(subject, Naming([path], field="code")))
    assert {c: got[c] for c in expected} == {c: f"class {v}" for c, v in expected.items()}


def test_the_graph_merges(trained, subject, clusters, tmp_path):
    """Two clusters in one class: the model's probabilities are the sums, its labels the classes."""
    where = [np.argwhere(clusters == c) for c in range(3)]
    rows, columns, names = [], [], []
    for cluster, name in zip(range(3), ("water", "land", "water"), strict=True):
        if len(where[cluster]):
            rows.append(where[cluster][0][0])
            columns.append(where[cluster][0][1])
            names.append(name)
    labels = points(tmp_path / "p.gpkg", rows, columns, names)
    made = export(trained.run, tmp_path / "m.onnx", naming=Naming([labels]), probabilities=True)
    classes = [each.name for each in made.card.classes]
    assert set(names) <= set(classes)
    merge = name_clusters(subject, Naming([labels])).merge
    image = np.random.default_rng(0).integers(0, 256, (1, 4, 33, 30)).astype(np.uint8)
    session = onnxruntime.InferenceSession(str(made.path), providers=["CPUExecutionProvider"])
    found, confidence, probabilities = session.run(None, {"image": image})
    with torch.inference_mode():
        expected = torch.tensordot(merge, subject.network(torch.from_numpy(image))[0, 0], 1).numpy()
    assert np.abs(probabilities[0] - expected).max() < 1e-4
    assert (found[0] == expected.argmax(0)).mean() > 0.999
    assert confidence.min() >= 1
    assert made.card.parity["label_agreement"] >= 0.9999


def test_names_and_colours_of_the_file_are_kept(trained, subject, tmp_path, label_raster):
    from iic_geotools.colours import MapClass
    from iic_geotools.pam import sidecar, sidecar_path

    path = label_raster(trained.bright.astype(np.uint8))
    with rasterio.open(path, "r+") as out:
        out.write_colormap(1, {0: (1, 2, 3), 1: (250, 240, 230)})
    sidecar_path(path).write_bytes(sidecar([MapClass("field", "#010203"), MapClass("roof", "#faf0e6")]))
    named = name_clusters(subject, Naming([path]))
    known = {each.name: each.colour for each in named.classes}
    assert {"field": "#010203", "roof": "#faf0e6"}.items() >= {
        key: value for key, value in known.items() if not key.startswith("cluster")
    }.items()
    assert {"field", "roof"} & set(known)


def _not_labels(folder):
    path = folder / "labels.txt"
    path.write_text(json.dumps({"not": "geo"}))
    return path


@pytest.mark.parametrize(
    ("make", "kind", "message"),
    [
        (lambda folder: folder / "gone.gpkg", SceneError, "no labels"),
        (_not_labels, SceneError, "neither a raster nor a vector"),
        (lambda folder: points(folder / "far.gpkg", [99999], [5], ["x"]), SceneError, "No pixel"),
        (
            lambda folder: points(folder / "two.gpkg", [1], [1], ["x"], field="kind", extra={"note": ["n"]}),
            UsageError,
            "--label-field which field.*kind, note",
        ),
    ],
)
def test_labels_that_will_not_do(subject, tmp_path, make, kind, message):
    with pytest.raises(kind, match=message):
        name_clusters(subject, Naming([make(tmp_path)]))


def test_a_field_that_is_not_there(subject, tmp_path):
    path = points(tmp_path / "p.gpkg", [1], [1], ["x"])
    with pytest.raises(UsageError, match="no field kind; there are: class"):
        name_clusters(subject, Naming([path], field="kind"))


@pytest.fixture(scope="module")
def two_scenes(trained, subject, clusters, tmp_path_factory):
    """The run as if trained on two scenes without a reference system, the second upside down, and their labels."""
    folder = tmp_path_factory.mktemp("two")
    with rasterio.open(trained.scene) as scene:
        pixels = scene.read()
    values = np.zeros(trained.bright.shape, np.uint8)
    values[: 151 // 2] = np.where(trained.bright, 7, 3)[: 151 // 2]
    scenes, labels = [], []
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
        subject.config.data,
        scenes=tuple(scenes),
        labels=tuple(labels),
        label_classes=("smooth=3", "rough=7"),
    )
    return replace(subject, run=replace(subject.run, config=replace(subject.config, data=data)))


def test_labels_of_the_run_itself(two_scenes):
    """Each lies over the scene at its place: over the other one, half of them would be over nothing."""
    data = two_scenes.config.data
    predict = predictor(two_scenes.network, two_scenes.config.pairs)
    votes = np.zeros((2, 3), int)
    for scene, label in zip(data.scenes, data.labels, strict=True):
        with rasterio.open(scene) as pixels, rasterio.open(label) as values:
            found, truth = predict(pixels.read()).argmax(0), values.read(1)
        votes += [np.bincount(found[truth == value], minlength=3) for value in (3, 7)]
    named = name_clusters(two_scenes, Naming(own=True))
    got = assigned(named)
    for cluster in np.flatnonzero(votes.sum(0)):
        assert got[int(cluster)] == ("smooth", "rough")[votes[:, cluster].argmax()]
    assert named.agreement == pytest.approx(votes.max(0).sum() / votes.sum())
    given = name_clusters(two_scenes, Naming(data.labels, classes=data.label_classes))
    assert (given.classes, given.agreement) == (named.classes, named.agreement)
    assert torch.equal(given.merge, named.merge)


def test_classes_may_bring_their_colours(two_scenes):
    named = name_clusters(two_scenes, Naming(own=True, classes=("land=3,7:#123456",)))
    assert [each.colour for each in named.classes if each.name == "land"] == ["#123456"]
    with pytest.raises(UsageError, match="not a colour"):
        name_clusters(two_scenes, Naming(own=True, classes=("land=3:#12",)))


def test_shapes_add_classes_to_the_runs_labels(two_scenes, tmp_path):
    """A clicked place of a scene without reference system is in pixels; values of rasters do not touch its name."""
    scene = two_scenes.config.data.scenes[1]
    with rasterio.open(scene) as pixels:
        found = predictor(two_scenes.network, two_scenes.config.pairs)(pixels.read()).argmax(0)
    path = tmp_path / "p.geojson"
    cluster = int(found[70, 40])
    rows, columns = np.nonzero(found == cluster)
    write(
        path,
        shapely.to_wkb(shapely.points(columns + 0.5, rows + 0.5)),
        [np.array(["sand"] * len(rows), object)],
        ["class"],
        geometry_type="Point",
        crs="EPSG:4326",
    )
    named = assigned(name_clusters(two_scenes, Naming([path], own=True, scenes=[scene], balance=1)))
    assert named[cluster] == "sand"
    assert {"smooth", "rough"} & set(named.values())


def test_rare_classes_count_the_same_if_balanced(subject, clusters, label_raster):
    """One pixel in ten of a cluster is all there is of the rare class."""
    most = np.bincount(clusters.ravel()).argmax()
    values = np.ones(clusters.shape, np.int64)
    rows, columns = np.nonzero(clusters == most)
    values[rows[::10], columns[::10]] = 2
    naming = Naming([label_raster(values)])
    assert assigned(name_clusters(subject, naming))[int(most)] == "class 1"
    balanced = name_clusters(subject, replace(naming, balance=1))
    assert assigned(balanced)[int(most)] == "class 2"
    right = (values == np.where(clusters == most, 2, 1)).mean()
    assert balanced.agreement == pytest.approx(right)


def test_labels_that_fit_no_scene(subject, two_scenes):
    with pytest.raises(UsageError, match="--balance must be 0 to 1"):
        name_clusters(two_scenes, Naming(own=True, balance=2))
    with pytest.raises(UsageError, match="no labels of its own"):
        name_clusters(subject, Naming(own=True))
    with pytest.raises(UsageError, match="2 scenes but 3 --labels"):
        name_clusters(two_scenes, Naming(["a.tif", "b.tif", "c.tif"]))
