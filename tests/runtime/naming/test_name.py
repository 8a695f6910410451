"""Clicks name the classes of a model: the head is replaced if the model outputs features, else clusters merge."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyogrio
import pytest
import rasterio
from rasterio.shutil import copy
from support.scenes import landscape, write_points, write_raster
from support.tiny_onnx import make_model

from iic_geotools.errors import IICError, OutputError, SceneError, UsageError
from iic_geotools.products.assessment.assess import assess_map
from iic_runtime import name_model, segment_raster, suggest_places
from iic_runtime.model.card import Card
from iic_runtime.model.file import ModelFile
from iic_runtime.model.onnx_head import has_features
from iic_runtime.model.validate import validate_model
from iic_runtime.naming import default_smoothing

SIDE = 220


@pytest.fixture
def scene(tmp_path: Path) -> Path:
    """Dark left, bright right, reddish below: three classes with noise."""
    rng = np.random.default_rng(0)
    truth = classes()
    values = np.where(truth == 1, 170, 80) + rng.normal(0, 12, (4, SIDE, SIDE))
    values[0] += 70 * (truth == 2)
    return write_raster(tmp_path / "scene.tif", np.clip(values, 1, 254).astype(np.uint8))


def classes() -> np.ndarray:
    truth = np.zeros((SIDE, SIDE), int)
    truth[:, SIDE // 2 :] = 1
    truth[2 * SIDE // 3 :] = 2
    return truth


NAMES = ("dark", "bright", "red")


def draw(path: Path, count: int, **options: object) -> Path:
    rng = np.random.default_rng(1)
    truth = classes()
    rows, columns = (
        np.concatenate(parts)
        for parts in zip(*(_some(truth == c, count, rng) for c in range(3)), strict=True)
    )
    names = [NAMES[truth[row, column]] for row, column in zip(rows, columns, strict=True)]
    return write_points(path, rows, columns, names, **options)  # type: ignore[arg-type]


def _some(mask: np.ndarray, count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    rows, columns = np.nonzero(mask)
    chosen = rng.choice(len(rows), count, replace=False)
    return rows[chosen], columns[chosen]


@pytest.fixture(params=["fine", "coarse"])
def telling(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A model with features, on the grid of the pixels and on a coarser one."""
    path = tmp_path / "model.onnx"
    path.write_bytes(
        make_model(
            2, classes=6, full=(16, 16), half=((8, 1),) if request.param == "coarse" else (), features=True
        )
    )
    assert has_features(path.read_bytes())
    return path


def accuracy(model: Path, scene: Path, folder: Path) -> float:
    segment_raster(scene, folder / "map.tif", model, overwrite=True)
    with rasterio.open(folder / "map.tif") as dataset:
        labels = dataset.read(1)
    names = np.array([entry.name for entry in ModelFile.read(model).card.classes])
    return float(np.mean(names[labels] == np.array(NAMES)[classes()]))


@pytest.mark.parametrize("count", [8, 60])
def test_a_few_points_make_a_map(telling: Path, scene: Path, tmp_path: Path, count: int) -> None:
    clicks = draw(tmp_path / "clicks.gpkg", count)
    out = tmp_path / "named.onnx"
    named = name_model(telling, clicks, scene, out, suggestions=tmp_path / "places.gpkg")
    card = ModelFile.read(out).card
    assert [entry.name for entry in card.classes] == ["bright", "dark", "red"]
    assert named.counts == (count,) * 3
    assert named.accuracy is not None
    assert named.accuracy > 0.8
    assert f"{3 * count} labelled pixels" in card.origin.labels
    assert "clicks.gpkg on scene.tif" in card.origin.labels
    assert accuracy(out, scene, tmp_path) > 0.85
    assert all(check.kept for check in validate_model(out))
    assert out.stat().st_size < telling.stat().st_size + 60_000


def test_a_map_knows_the_clicks_that_named_its_model(telling: Path, scene: Path, tmp_path: Path) -> None:
    """Clicks are no samples: who assesses a map with the clicks that made it is told so."""
    clicks = draw(tmp_path / "clicks.gpkg", 10)
    named = name_model(telling, clicks, scene, tmp_path / "named.onnx")
    assert len(named.card.origin.places) == 30
    assert Card.from_json(named.card.to_json()) == named.card
    segment_raster(scene, tmp_path / "map.tif", named.path)
    remark, *_ = assess_map(tmp_path / "map.tif", clicks).remarks
    assert remark.startswith("30 of 30 samples are places that the model of this map was named with")
    draw(tmp_path / "degrees.gpkg", 10, crs="EPSG:4326")
    remark, *_ = assess_map(tmp_path / "map.tif", tmp_path / "degrees.gpkg").remarks
    assert remark.startswith("30 of 30 samples")
    again = name_model(named.path, draw(tmp_path / "few.gpkg", 4), scene, tmp_path / "again.onnx")
    assert len(again.card.origin.places) == 12


@pytest.mark.parametrize(("pixel", "reach"), [(None, 2), (0.05, 4), (0.2, 4), (0.3, 3), (0.6, 2), (10, 2)])
def test_small_pixels_are_averaged_over_more_of_them(pixel: float | None, reach: int) -> None:
    assert default_smoothing(pixel) == reach


def test_certain_pixels_are_not_averaged_where_they_are_coarse() -> None:
    assert default_smoothing(10, 0.96) == 0
    assert default_smoothing(10, 0.9) == default_smoothing(1, 0.96) == default_smoothing(None, 1.0) == 2


def test_a_named_model_can_be_named_again(telling: Path, scene: Path, tmp_path: Path) -> None:
    clicks = draw(tmp_path / "clicks.gpkg", 8)
    halo = ModelFile.read(telling).card.halo
    first = name_model(telling, clicks, scene, tmp_path / "a.onnx")
    again = name_model(first.path, clicks, scene, tmp_path / "b.onnx", smoothing=3)
    plain = name_model(again.path, clicks, scene, tmp_path / "c.onnx", smoothing=0)
    assert [named.card.halo - halo for named in (first, again, plain)] == [2, 3, 0]
    assert all(check.kept for named in (again, plain) for check in validate_model(named.path))
    assert first.accuracy == again.accuracy == plain.accuracy
    with pytest.raises(UsageError, match="`smoothing` must be"):
        name_model(telling, clicks, scene, tmp_path / "d.onnx", smoothing=-1)


def test_points_in_another_crs_give_the_same_model(telling: Path, scene: Path, tmp_path: Path) -> None:
    first = name_model(telling, draw(tmp_path / "a.gpkg", 10), scene, tmp_path / "a.onnx")
    draw(tmp_path / "b.gpkg", 10, crs="EPSG:4326")
    second = name_model(telling, tmp_path / "b.gpkg", scene, tmp_path / "b.onnx")
    assert first.accuracy == second.accuracy
    assert accuracy(tmp_path / "a.onnx", scene, tmp_path) == accuracy(tmp_path / "b.onnx", scene, tmp_path)


def test_rasters_of_classes(telling: Path, scene: Path, tmp_path: Path) -> None:
    labels = write_raster(tmp_path / "labels.tif", classes()[None].astype(np.uint8))
    with rasterio.open(labels, "r+") as dataset:
        dataset.write_colormap(1, {0: (0, 0, 255), 1: (255, 0, 0), 2: (0, 255, 0)})
    named = name_model(telling, labels, scene, tmp_path / "named.onnx")
    assert named.counts == (1000,) * 3
    assert named.card.origin.places == ()
    assert [entry.colour for entry in named.card.classes] == ["#0000ff", "#ff0000", "#00ff00"]


def test_confidence_is_a_probability(telling: Path, scene: Path, tmp_path: Path) -> None:
    name_model(telling, draw(tmp_path / "clicks.gpkg", 40), scene, tmp_path / "named.onnx")
    segment_raster(scene, tmp_path / "m.tif", tmp_path / "named.onnx", confidence=tmp_path / "c.tif")
    with rasterio.open(tmp_path / "m.tif") as labels, rasterio.open(tmp_path / "c.tif") as confidence:
        names = np.array(["bright", "dark", "red"])[labels.read(1)]
        stated = float(confidence.read(1).mean() / 255)
    assert abs(stated - float(np.mean(names == np.array(NAMES)[classes()]))) < 0.12


def test_places_to_click_next(telling: Path, scene: Path, tmp_path: Path) -> None:
    named = name_model(
        telling,
        draw(tmp_path / "clicks.gpkg", 10),
        scene,
        tmp_path / "n.onnx",
        suggestions=tmp_path / "p.gpkg",
    )
    assert named.suggestions == tmp_path / "p.gpkg"
    meta, _, points, columns = pyogrio.raw.read(tmp_path / "p.gpkg")
    fields = dict(zip(meta["fields"], columns, strict=True))
    assert set(fields) == {"class", "guess", "confidence", "rank"}
    assert 1 <= len(points) <= 10
    assert all(value is None for value in fields["class"])
    places = suggest_places(tmp_path / "n.onnx", scene, tmp_path / "q.gpkg", count=3)
    assert len(places) == 3
    assert [place.guess for place in places] == fields["guess"][:3].tolist()
    # Points without a class are not labels, points with one are.
    pyogrio.raw.write(
        tmp_path / "filled.gpkg", points, [np.array(["red"] + [None] * (len(points) - 1), object)], ["class"],
        geometry_type="Point", crs=meta["crs"],
    )  # fmt: skip
    with pytest.raises(SceneError, match="are all red"):
        name_model(telling, tmp_path / "filled.gpkg", scene, tmp_path / "o.onnx")


def test_a_model_that_tells_nothing_has_its_clusters_named(model: Path, scene: Path, tmp_path: Path) -> None:
    assert not has_features(model.read_bytes())
    out = tmp_path / "named.onnx"
    named = name_model(model, draw(tmp_path / "clicks.gpkg", 15), scene, out)
    names = [entry.name for entry in named.card.classes]
    assert set(names) <= set(NAMES)
    assert not any(name.startswith("cluster") for name in names)
    segment_raster(scene, tmp_path / "m.tif", out)
    assert all(check.kept for check in validate_model(out))


def broken(kind: str, folder: Path) -> tuple[Path, dict[str, object]]:
    path = folder / "clicks.gpkg"
    rows, columns = [5, 100, 200], [5, 150, 60]
    options: dict[str, object] = {}
    if kind == "outside":
        write_points(path, [5000, 5100], [5000, 5100], ["a", "b"])
    elif kind == "one class":
        write_points(path, rows, columns, ["water"] * 3)
    elif kind == "contradiction":
        write_points(path, [5, 5, 100], [5, 5, 150], ["a", "b", "a"])
    elif kind == "300 classes":
        write_points(
            path, [i // 20 for i in range(300)], [i % 20 for i in range(300)], [f"c{i}" for i in range(300)]
        )
    elif kind == "empty":
        write_points(path, [], [], [])
    elif kind == "field":
        write_points(path, rows, columns, ["a", "b", "a"])
        options["label_field"] = "kind"
    elif kind == "missing":
        path = folder / "nothing.gpkg"
    return path, options


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("outside", "lie outside the scene"),
        ("one class", "are all water"),
        ("contradiction", "call one pixel both a and b"),
        ("300 classes", "have 300 classes"),
        ("empty", "have no point or polygon with a class"),
        ("field", "have no field kind"),
        ("missing", "There is no file of labels"),
    ],
)
def test_labels_that_cannot_be_right(
    kind: str, message: str, scene: Path, model: Path, tmp_path: Path
) -> None:
    labels, options = broken(kind, tmp_path)
    with pytest.raises(IICError, match=message) as caught:
        name_model(model, labels, scene, tmp_path / "n.onnx", suggestions=tmp_path / "p.gpkg", **options)  # type: ignore[arg-type]
    assert str(caught.value).count(". ") == 0
    assert not (tmp_path / "n.onnx").exists()
    assert not (tmp_path / "p.gpkg").exists()


def test_outputs_that_cannot_be_written(scene: Path, model: Path, tmp_path: Path) -> None:
    clicks = draw(tmp_path / "clicks.gpkg", 3)
    earlier = tmp_path / "earlier.onnx"
    earlier.write_bytes(b"a model")
    with pytest.raises(OutputError, match="exists"):
        name_model(model, clicks, scene, earlier)
    with pytest.raises(UsageError, match="must end in"):
        name_model(model, clicks, scene, tmp_path / "n.pt")
    with pytest.raises(OutputError, match="no folder"):
        name_model(model, clicks, scene, tmp_path / "no" / "n.onnx")
    with pytest.raises(UsageError, match="must end in"):
        name_model(model, clicks, scene, tmp_path / "n.onnx", suggestions=tmp_path / "p.shp")


def test_no_input_is_replaced(scene: Path, model: Path, tmp_path: Path) -> None:
    """Not even with `overwrite`, which the QGIS plugin always gives."""
    clicks, out = draw(tmp_path / "clicks.gpkg", 3), tmp_path / "n.onnx"
    image = tmp_path / "image.gpkg"
    with rasterio.open(scene) as dataset:
        values = dataset.read()
    write_raster(image, values, driver="GPKG")
    virtual = tmp_path / "image.vrt"
    copy(image, virtual, driver="VRT")
    inputs = {file: file.read_bytes() for file in (clicks, image, model)}
    bands = ["1", "2", "3", "4"]
    with pytest.raises(UsageError, match=r"clicks\.gpkg is an input; give the output another name"):
        name_model(model, clicks, scene, out, suggestions=tmp_path / "." / clicks.name, overwrite=True)
    with pytest.raises(UsageError, match=r"model\.onnx is an input"):
        name_model(model, clicks, scene, model, overwrite=True)
    for source in (image, virtual):
        with pytest.raises(UsageError, match=r"image\.gpkg is an input"):
            name_model(model, clicks, source, out, bands=bands, suggestions=image, overwrite=True)
        with pytest.raises(UsageError, match=r"image\.gpkg is an input"):
            suggest_places(model, source, image, bands=bands, overwrite=True)
    assert not out.exists()
    assert all(file.read_bytes() == content for file, content in inputs.items())


def test_labels_on_nodata_are_left_out(
    telling: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    values = landscape(100, 100)
    values[:, :50] = 0
    scene = write_raster(tmp_path / "scene.tif", values, nodata=0)
    rows, columns = [10, 60, 70, 80, 90], [10, 20, 70, 20, 70]
    clicks = write_points(tmp_path / "c.gpkg", rows, columns, ["x", "a", "b", "a", "b"])
    named = name_model(telling, clicks, scene, tmp_path / "n.onnx")
    assert [entry.name for entry in named.card.classes] == ["a", "b"]
    assert "1 of 5 labels lie on pixels without data" in caplog.text


def test_the_commands_need_no_torch(telling: Path, scene: Path, tmp_path: Path) -> None:
    clicks = draw(tmp_path / "clicks.gpkg", 6)
    out, places = tmp_path / "n.onnx", tmp_path / "p.gpkg"
    for arguments in (
        ["name", telling, "--labels", clicks, "--scene", scene, "-o", out, "--suggest", places],
        ["suggest", out, "--scene", scene, "-o", places, "--overwrite", "--progress-json"],
    ):
        script = (
            "import sys; sys.modules['torch'] = sys.modules['onnx'] = None;"
            f"from iic_runtime.cli.model import app; app({[str(argument) for argument in arguments]})"
        )
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[0])["stage"] == "suggest"
    assert out.exists()
    assert places.exists()
