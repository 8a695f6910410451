"""Samples on maps: from files to figures, reports, and sentences about what is wrong."""

import csv
import json
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio
import shapely
from pyogrio.raw import read
from rasterio.warp import transform as reproject
from support.maps import LAMBERT, TRANSFORM, named, write_map, write_shapes

from iic_geotools.classmap.class_map import LABELS_TAG, PLACES_TAG, format_places
from iic_geotools.classmap.classes import NODATA
from iic_geotools.errors import IICError, OutputError, SceneError, UsageError
from iic_geotools.products.assessment.assess import assess_map
from iic_geotools.products.assessment.draw import draw_samples

CLASSES = named("water", "forest", "town & <road>")
NAMES = [entry.name for entry in CLASSES]
SIDE = 120


def labels() -> np.ndarray:
    values = np.zeros((SIDE, SIDE), np.uint8)
    values[:, 40:] = 1
    values[80:, 60:] = 2
    values[:5] = NODATA
    return values


@pytest.fixture
def map_file(tmp_path: Path) -> Path:
    return write_map(tmp_path / "map.tif", labels(), classes=CLASSES)


def points(rows: Any, columns: Any) -> list[Any]:
    return [
        shapely.Point(TRANSFORM @ (column + 0.5, row + 0.5))
        for row, column in zip(rows, columns, strict=True)
    ]


def scattered(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Pixels with data, and a truth that differs from the map at one in five of them."""
    rng = np.random.default_rng(seed)
    places = rng.choice((SIDE - 5) * SIDE, count, replace=False)
    rows, columns = places // SIDE + 5, places % SIDE
    truth = labels()[rows, columns].astype(int)
    truth = np.where(rng.random(count) < 0.2, (truth + 1) % 3, truth)
    return rows, columns, [NAMES[value] for value in truth]


def write_samples(path: Path, count: int = 200, **fields: Any) -> Path:
    rows, columns, names = scattered(count)
    return write_shapes(path, points(rows, columns), "EPSG:2154", **{"class": names, **fields})


def test_figures_by_hand(map_file: Path, tmp_path: Path) -> None:
    result = assess_map(map_file, write_samples(tmp_path / "s.gpkg"))
    rows, columns, names = scattered(200)
    counts = np.zeros((3, 3), int)
    for row, column, name in zip(rows, columns, names, strict=True):
        counts[labels()[row, column], NAMES.index(name)] += 1
    assert (result.matrix == counts).all()
    pixels = np.bincount(labels().ravel(), minlength=256)[:3]
    weights = pixels / pixels.sum()
    assert result.overall.value == pytest.approx(
        sum(weights[i] * counts[i, i] / counts[i].sum() for i in range(3))
    )
    assert result.total_ha == pytest.approx(pixels.sum() * 0.25 / 10_000)
    for j, figures in enumerate(result.classes):
        share = sum(weights[i] * counts[i, j] / counts[i].sum() for i in range(3))
        assert figures.area_ha is not None
        assert figures.area_ha.value == pytest.approx(share * result.total_ha)
        assert figures.mapped_ha == pytest.approx(pixels[j] * 0.25 / 10_000)
        assert figures.samples == counts[j].sum()
    assert result.remarks == ()


def test_samples_in_another_crs_give_the_same_result(map_file: Path, tmp_path: Path) -> None:
    first = assess_map(map_file, write_samples(tmp_path / "s.gpkg"))
    rows, columns, names = scattered(200)
    x, y = np.array([point.coords[0] for point in points(rows, columns)]).T
    longitude, latitude = reproject(LAMBERT, "EPSG:4326", x, y)
    places = list(shapely.points(longitude, latitude))
    second = assess_map(
        map_file, write_shapes(tmp_path / "s.geojson", places, "EPSG:4326", **{"class": names})
    )
    assert (first.matrix == second.matrix).all()


def test_drawn_samples_that_are_labelled_like_the_map(map_file: Path, tmp_path: Path) -> None:
    """Labelling is what happens in QGIS: the field class of the drawn points is filled in."""
    drawn = draw_samples(map_file, tmp_path / "s.gpkg", 90)
    _, fids, wkb, _ = read(tmp_path / "s.gpkg", return_fids=True)
    to_pixels = ~TRANSFORM
    values = []
    for point in shapely.from_wkb(wkb):
        column, row = to_pixels @ (point.x, point.y)
        values.append(NAMES[labels()[int(row), int(column)]])
    label(tmp_path / "s.gpkg", fids, values)
    result = assess_map(map_file, tmp_path / "s.gpkg")
    assert result.overall.value == 1
    assert result.kappa == result.mean_iou == 1
    cases = [f"% of {stratum.name} ({stratum.samples} samples)" for stratum in drawn.strata]
    (remark,) = result.remarks
    assert remark.startswith("± 0 is too narrow where no sample is wrong: up to ")
    assert all(case in remark for case in cases)
    other = labels()
    other[:, :20] = 1
    write_map(tmp_path / "other.tif", other, classes=CLASSES)
    remarks = assess_map(tmp_path / "other.tif", tmp_path / "s.gpkg").remarks
    assert "drawn by the classes of another map" in remarks[0]
    remarks = assess_map(map_file, tmp_path / "s.gpkg", design="simple").remarks
    assert "drawn by class" in remarks[0]


def label(path: Path, fids: Any, values: list[str]) -> None:
    """Fill in a field of a GeoPackage in place; rows that are not named stay as they are."""
    with sqlite3.connect(path) as connection:
        # Triggers of the spatial index need functions that only GDAL has.
        for (name,) in connection.execute("select name from sqlite_master where type = 'trigger'").fetchall():
            connection.execute(f'drop trigger "{name}"')
        for fid, value in zip(fids.tolist(), values, strict=True):
            connection.execute(f'update "{path.stem}" set class = ? where fid = ?', (value, fid))
    connection.close()


def test_samples_left_out_are_reported(map_file: Path, tmp_path: Path) -> None:
    rows, columns, names = scattered(50)
    extra = points([1, 500, rows[0], 30], [1, 500, columns[0], 3])
    everything = [*points(rows, columns), *extra]
    write_shapes(
        tmp_path / "s.gpkg", everything, "EPSG:2154", **{"class": [*names, "water", "water", names[0], None]}
    )
    result = assess_map(map_file, tmp_path / "s.gpkg")
    assert result.matrix.sum() == 50
    assert result.remarks == (
        "1 of 54 samples have no class and are left out.",
        "1 of 54 samples lie outside the map and are left out.",
        "1 of 54 samples lie on a pixel that another one lies on and are left out.",
        "1 of 54 samples lie where the map has no data and are left out.",
    )


def test_a_class_without_samples_is_not_assessed(map_file: Path, tmp_path: Path) -> None:
    write_shapes(
        tmp_path / "s.gpkg", points([20, 30, 40, 50], [3, 5, 50, 70]), "EPSG:2154", **{"class": ["water"] * 4}
    )
    result = assess_map(map_file, tmp_path / "s.gpkg")
    assert (
        "Fewer than 2 samples lie on town & <road>, so that 17 % of the map are not assessed"
        in result.remarks[0]
    )
    assert result.classes[2].users is None
    assert result.total_ha == pytest.approx(sum(figures.mapped_ha or 0 for figures in result.classes[:2]))
    with pytest.raises(SceneError, match="No class of the map has 2 samples"):
        assess_map(
            map_file,
            write_shapes(tmp_path / "one.gpkg", points([20], [3]), "EPSG:2154", **{"class": ["water"]}),
        )


@pytest.mark.parametrize("shift", [0.0, 1e-8])
def test_clicks_that_named_the_model_are_recognised(tmp_path: Path, shift: float) -> None:
    rows, columns, names = scattered(30)
    x, y = np.array([point.coords[0] for point in points(rows, columns)]).T
    longitude, latitude = reproject(LAMBERT, "EPSG:4326", x[:12], y[:12])
    places = [(lon + shift, lat) for lon, lat in zip(longitude, latitude, strict=True)]
    tags = {LABELS_TAG: "named by 12 labelled pixels", PLACES_TAG: format_places(places)}
    path = write_map(tmp_path / "map.tif", labels(), classes=CLASSES, tags=tags)
    samples = write_shapes(tmp_path / "s.gpkg", points(rows, columns), "EPSG:2154", **{"class": names})
    remark, *_ = assess_map(path, samples).remarks
    assert remark.startswith("12 of 30 samples are places that the model of this map was named with")
    others = write_shapes(
        tmp_path / "t.gpkg", points(rows[12:], columns[12:]), "EPSG:2154", **{"class": names[12:]}
    )
    assert not any("model" in remark for remark in assess_map(path, others).remarks)


def test_labels_of_unknown_places_are_called_to_mind(tmp_path: Path) -> None:
    path = write_map(tmp_path / "map.tif", labels(), classes=CLASSES, tags={LABELS_TAG: "learnt from x.tif"})
    (remark,) = assess_map(path, write_samples(tmp_path / "s.gpkg")).remarks
    assert remark.startswith("The model of this map has seen labels (learnt from x.tif)")


def test_the_names_of_many_sources_are_left_out(tmp_path: Path) -> None:
    seen = f"a.tif and 262 more files ({', '.join(f'source {number}' for number in range(28))})"
    path = write_map(tmp_path / "map.tif", labels(), classes=CLASSES, tags={LABELS_TAG: seen})
    (remark,) = assess_map(path, write_samples(tmp_path / "s.gpkg")).remarks
    assert remark.startswith("The model of this map has seen labels (a.tif and 262 more files): make sure")


def test_reports(map_file: Path, tmp_path: Path) -> None:
    samples = write_samples(tmp_path / "s.gpkg")
    files = [tmp_path / f"report.{suffix}" for suffix in ("html", "json", "csv")]
    result = assess_map(map_file, samples, reports=files)
    content = json.loads(files[1].read_text())
    assert content["overall_accuracy"]["value"] == pytest.approx(result.overall.value, rel=1e-7)
    assert content["matrix"] == result.matrix.tolist()
    assert [entry["name"] for entry in content["classes"]] == NAMES
    with files[2].open() as file:
        rows = list(csv.DictReader(file))
    assert [row["class"] for row in rows] == [*NAMES, "all"]
    assert int(rows[0]["samples that are forest"]) == result.matrix[0, 1]
    assert float(rows[3]["users_accuracy"]) == pytest.approx(result.overall.value)
    assert float(rows[3]["kappa"]) == pytest.approx(result.kappa)
    page = files[0].read_text()
    assert page.startswith("<!doctype html>")
    assert page.count("<svg") == 2
    assert "town &amp; &lt;road&gt;" in page
    assert "<road>" not in page
    assert "http" not in page
    with pytest.raises(OutputError, match="exists"):
        assess_map(map_file, samples, reports=files[:1])
    assess_map(map_file, samples, reports=files, overwrite=True)


def test_maps_of_other_programs_have_numbered_classes(tmp_path: Path) -> None:
    values = np.where(labels() == NODATA, NODATA, labels() * 10 + 10).astype(np.uint8)
    path = write_map(tmp_path / "map.tif", values)
    rows, columns, _ = scattered(60)
    numbers = [10 * int(labels()[row, column]) + 10 for row, column in zip(rows, columns, strict=True)]
    result = assess_map(
        path, write_shapes(tmp_path / "s.gpkg", points(rows, columns), "EPSG:2154", **{"class": numbers})
    )
    assert [figures.name for figures in result.classes] == ["class 10", "class 20", "class 30"]
    assert result.overall.value == 1


WRONG: list[tuple[dict[str, Any], type[IICError], str]] = [
    ({"samples": "missing.gpkg"}, SceneError, "There is no file of labels"),
    ({"samples": "elsewhere.gpkg"}, SceneError, "lie outside the map"),
    (
        {"samples": "unknown.gpkg"},
        SceneError,
        "have the class forrest, which the map does not have; its classes",
    ),
    ({"samples": "unlabelled.gpkg"}, SceneError, "No sample of .* has a class"),
    ({"samples": "nodata.gpkg"}, SceneError, "where the map .* has no data"),
    ({"samples": "twice.gpkg"}, SceneError, "call one pixel both water and forest in column 3, row 20"),
    ({"samples": "polygons.gpkg"}, SceneError, "other shapes than points"),
    ({"samples": "nocrs.gpkg"}, SceneError, "samples .* have no CRS"),
    ({"map": "nocrs.tif"}, SceneError, "map .* has no CRS"),
    ({"map": "scene.tif"}, SceneError, "has one of uint8"),
    ({"map": "nodata0.tif"}, SceneError, "gdalwarp -dstnodata 255"),
    (
        {"map": "fewer.tif", "samples": "town.gpkg"},
        SceneError,
        "has the value 2, and its legend names 2 classes",
    ),
    ({"label_field": "kind"}, UsageError, "have no field kind"),
    ({"design": "wild"}, UsageError, "`design` must be stratified or simple"),
    ({"reports": ["r.pdf"]}, UsageError, r"`reports` must end in \.html or \.json or \.csv"),
    ({"reports": ["r.csv", "r.csv"]}, UsageError, "same name"),
    ({"reports": ["none/r.csv"]}, OutputError, "There is no folder"),
]


@pytest.mark.parametrize(("change", "error", "message"), WRONG)
def test_what_cannot_be_assessed(
    tmp_path: Path, change: dict[str, Any], error: type[IICError], message: str
) -> None:
    write_map(tmp_path / "map.tif", labels(), classes=CLASSES)
    write_map(tmp_path / "nocrs.tif", labels(), None, classes=CLASSES)
    write_map(tmp_path / "fewer.tif", labels(), classes=CLASSES[:2])
    profile = {
        "driver": "GTiff",
        "width": 5,
        "height": 5,
        "crs": LAMBERT,
        "transform": TRANSFORM,
        "dtype": "uint8",
    }
    with rasterio.open(tmp_path / "scene.tif", "w", count=3, **profile) as dataset:
        dataset.write(np.zeros((3, 5, 5), np.uint8))
    with rasterio.open(tmp_path / "nodata0.tif", "w", count=1, nodata=0, **profile) as dataset:
        dataset.write(np.zeros((1, 5, 5), np.uint8))
    write_samples(tmp_path / "s.gpkg")
    crs, here = "EPSG:2154", points([20, 20], [3, 3])
    write_shapes(tmp_path / "elsewhere.gpkg", points([9000], [3]), crs, **{"class": ["water"]})
    write_shapes(tmp_path / "unknown.gpkg", here, crs, **{"class": ["water", "forrest"]})
    write_shapes(tmp_path / "town.gpkg", points([90], [70]), crs, **{"class": ["water"]})
    write_shapes(tmp_path / "unlabelled.gpkg", here, crs, **{"class": [None, None]})
    write_shapes(tmp_path / "nodata.gpkg", points([2], [3]), crs, **{"class": ["water"]})
    write_shapes(tmp_path / "twice.gpkg", here, crs, **{"class": ["water", "forest"]})
    write_shapes(
        tmp_path / "polygons.gpkg",
        [shapely.box(770000, 6278990, 770005, 6278995)],
        crs,
        **{"class": ["water"]},
    )
    write_shapes(tmp_path / "nocrs.gpkg", here, None, **{"class": ["water", "water"]})
    before = sorted(tmp_path.iterdir())
    arguments: dict[str, Any] = {"map": "map.tif", "samples": "s.gpkg", "reports": ["r.html"], **change}
    for key in ("map", "samples"):
        arguments[key] = tmp_path / arguments[key]
    arguments["reports"] = [tmp_path / name for name in arguments["reports"]]
    with pytest.raises(error, match=message):
        assess_map(**arguments)
    assert sorted(tmp_path.iterdir()) == before
