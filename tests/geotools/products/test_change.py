"""Two maps compared: every pair of pixels counted again, on one grid, on shifted ones and in different CRS."""

import csv
import json
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio
from affine import Affine
from PIL import Image
from rasterio.crs import CRS
from rasterio.warp import transform as reproject
from support.maps import LAMBERT, TRANSFORM, named, random_labels, write_map

from iic_geotools.classmap.class_map import open_map
from iic_geotools.classmap.classes import NODATA, rgb
from iic_geotools.errors import IICError, OutputError, SceneError, UsageError
from iic_geotools.products import change as module
from iic_geotools.products.change import change_map

CLASSES = named("water", "forest", "town")
NAMES = [entry.name for entry in CLASSES]
PIXEL_HA = 0.25 / 10_000


def counted(before: np.ndarray, after: np.ndarray, classes: int = 3) -> np.ndarray:
    """How often each pair of classes occurs."""
    counts = np.zeros((classes, classes), int)
    for one, other in zip(before.ravel().tolist(), after.ravel().tolist(), strict=True):
        if one < classes and other < classes:
            counts[one, other] += 1
    return counts


def read_names(path: Path) -> np.ndarray:
    """The name of each pixel's class, nothing where there is no data."""
    with open_map(path) as class_map:
        names = np.array([*class_map.names, ""])
        values = class_map.dataset.read(1)
    return names[np.minimum(values, len(names) - 1)]


def from_to(before: int, after: int) -> str:
    if NODATA in (before, after):
        return ""
    return f"{NAMES[before]} stays" if before == after else f"{NAMES[before]} to {NAMES[after]}"


@pytest.mark.parametrize("tile", [16, 1024])
def test_maps_of_one_grid(tmp_path: Path, tile: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_TILE", tile)
    before, after = random_labels(50, 61, 3, seed=1), random_labels(50, 61, 3, seed=2)
    first = write_map(tmp_path / "before.tif", before, classes=CLASSES)
    second = write_map(tmp_path / "after.tif", after, classes=CLASSES)
    result = change_map(first, second, tmp_path / "change.tif")
    expected = counted(before, after)
    assert (result.transitions.pixels == expected).all()
    assert result.transitions.hectares == pytest.approx(expected * PIXEL_HA)
    assert result.transitions.left_out_ha == pytest.approx((50 * 61 - expected.sum()) * PIXEL_HA)
    assert result.transitions.gains == pytest.approx((expected.sum(0) - expected.diagonal()) * PIXEL_HA)
    assert result.transitions.losses == pytest.approx((expected.sum(1) - expected.diagonal()) * PIXEL_HA)
    names = read_names(tmp_path / "change.tif")
    for row, column in np.ndindex(50, 61):
        assert names[row, column] == from_to(int(before[row, column]), int(after[row, column]))
    with rasterio.open(tmp_path / "change.tif") as dataset:
        assert dataset.crs == LAMBERT
        assert dataset.transform == TRANSFORM
        assert dataset.colormap(1)[3][:3] == tuple(
            int(result.classes[3].colour[i : i + 2], 16) for i in (1, 3, 5)
        )
    assert (tmp_path / "change.qml").exists()
    assert len({entry.colour for entry in result.classes}) == 9


def test_only_pairs_that_occur_are_classes(tmp_path: Path) -> None:
    before, after = np.zeros((20, 20), np.uint8), np.zeros((20, 20), np.uint8)
    after[:3], after[3:5] = 2, 1
    result = change_map(
        write_map(tmp_path / "a.tif", before, classes=CLASSES),
        write_map(tmp_path / "b.tif", after, classes=CLASSES),
        tmp_path / "c.tif",
    )
    assert [entry.name for entry in result.classes] == ["water stays", "water to town", "water to forest"]
    assert result.transitions.changed_share == pytest.approx(0.25)


def test_legends_in_another_order(tmp_path: Path) -> None:
    before, after = random_labels(30, 30, 3, seed=1), random_labels(30, 30, 3, seed=2)
    order = [2, 0, 1]  # the value of each class in the second map
    table = np.full(256, NODATA, np.uint8)
    table[:3] = order
    turned = [CLASSES[order.index(value)] for value in range(3)]
    result = change_map(
        write_map(tmp_path / "a.tif", before, classes=CLASSES),
        write_map(tmp_path / "b.tif", table[after], classes=turned),
        tmp_path / "c.tif",
    )
    assert (result.transitions.pixels == counted(before, after)).all()


def test_different_extents_and_resolutions(tmp_path: Path) -> None:
    """The later map is thrice as fine, begins 4 pixels further east and 6 further south, and ends elsewhere."""
    coarse, fine = random_labels(40, 50, 3, seed=1), random_labels(120, 180, 3, seed=2)
    shifted = TRANSFORM @ Affine.translation(4, 6) @ Affine.scale(1 / 3)
    paths = (
        write_map(tmp_path / "a.tif", coarse, classes=CLASSES),
        write_map(tmp_path / "b.tif", fine, transform=shifted, classes=CLASSES),
    )
    result = change_map(*paths, tmp_path / "c.tif")
    height, width = 3 * (40 - 6), 3 * (50 - 4)
    repeated = coarse.repeat(3, 0).repeat(3, 1)[18:, 12:]
    expected = counted(repeated, fine[:height, :width])
    assert (result.transitions.pixels == expected).all()
    assert result.transitions.hectares == pytest.approx(expected * PIXEL_HA / 9)
    with rasterio.open(tmp_path / "c.tif") as dataset:
        assert dataset.shape == (height, width)
        assert dataset.transform.almost_equals(shifted)
    # On the grid of the coarse map each pixel takes what lies under its centre.
    result = change_map(*paths, tmp_path / "d.tif", like=paths[0])
    assert (result.transitions.pixels == counted(coarse[6:, 4:], fine[1:height:3, 1:width:3])).all()
    with rasterio.open(tmp_path / "d.tif") as dataset:
        assert dataset.shape == (34, 46)
        assert dataset.transform == TRANSFORM @ Affine.translation(4, 6)


def test_maps_in_different_reference_systems(tmp_path: Path) -> None:
    before, after = random_labels(60, 60, 3, seed=1, patch=6), random_labels(90, 90, 3, seed=2, patch=9)
    left, top = reproject(LAMBERT, CRS.from_epsg(4326), [TRANSFORM.c - 2], [TRANSFORM.f + 2])
    degrees = Affine(5e-6, 0, left[0], 0, -4e-6, top[0])
    result = change_map(
        write_map(tmp_path / "a.tif", before, classes=CLASSES),
        write_map(tmp_path / "b.tif", after, CRS.from_epsg(4326), degrees, classes=CLASSES),
        tmp_path / "c.tif",
        like=tmp_path / "a.tif",
    )
    rows, columns = np.mgrid[:60, :60]
    x, y = TRANSFORM.c + (columns + 0.5) * 0.5, TRANSFORM.f - (rows + 0.5) * 0.5
    lon, lat = reproject(LAMBERT, CRS.from_epsg(4326), x.ravel(), y.ravel())
    col = np.floor((np.array(lon) - degrees.c) / degrees.a).astype(int).reshape(60, 60)
    row = np.floor((np.array(lat) - degrees.f) / degrees.e).astype(int).reshape(60, 60)
    inside = (col >= 0) & (col < 90) & (row >= 0) & (row < 90)
    there = np.where(inside, after[np.clip(row, 0, 89), np.clip(col, 0, 89)], NODATA)
    assert (result.transitions.pixels == counted(before, there)).all()


def test_unsure_pixels_are_left_out_on_request(tmp_path: Path) -> None:
    classes = named(*NAMES, "unsure")
    before, after = random_labels(40, 40, 4, seed=1), random_labels(40, 40, 3, seed=2)
    confidence = np.random.default_rng(0).integers(0, 255, (40, 40), dtype=np.uint8)
    paths = (
        write_map(tmp_path / "a.tif", before, classes=classes),
        write_map(tmp_path / "b.tif", after, classes=CLASSES),
    )
    write_map(tmp_path / "conf.tif", confidence)
    with_unsure = change_map(*paths, tmp_path / "c.tif").transitions
    assert with_unsure.names == (*NAMES, "unsure")
    assert (with_unsure.pixels == counted(before, after, 4)).all()
    without = change_map(*paths, tmp_path / "d.tif", skip_unsure=True).transitions
    assert without.names == tuple(NAMES)
    assert (without.pixels == counted(before, after)).all()
    sure = change_map(
        *paths,
        tmp_path / "e.tif",
        skip_unsure=True,
        after_confidence=tmp_path / "conf.tif",
        min_confidence=0.6,
    ).transitions
    kept = np.where(confidence < 153, NODATA, after)
    assert (sure.pixels == counted(before, kept)).all()


def test_tables(tmp_path: Path) -> None:
    before, after = random_labels(30, 30, 3, seed=1), random_labels(30, 30, 3, seed=2)
    tables = [tmp_path / "t.csv", tmp_path / "t.json"]
    paths = (
        write_map(tmp_path / "a.tif", before, classes=CLASSES),
        write_map(tmp_path / "b.tif", after, classes=CLASSES),
    )
    result = change_map(*paths, tmp_path / "c.tif", tables=tables).transitions
    with tables[0].open() as file:
        rows = list(csv.reader(file))
    assert rows[0][1:] == [*NAMES, "total before", "loss"]
    assert [row[0] for row in rows[1:]] == [*NAMES, "total after", "gain", "net"]
    assert [float(cell) for cell in rows[1][1:4]] == pytest.approx(result.hectares[0])
    assert float(rows[2][5]) == pytest.approx(result.losses[1])
    assert float(rows[5][3]) == pytest.approx(result.gains[2])
    content = json.loads(tables[1].read_text())
    assert content["matrix_ha"][1] == pytest.approx(result.hectares[1])
    assert content["matrix_pixels"] == result.pixels.tolist()
    assert content["classes"][0]["net_ha"] == pytest.approx(result.after[0] - result.before[0])
    assert sorted(file.name for file in tmp_path.iterdir() if file.name[0] in ".ct") == [
        "c.qml",
        "c.tif",
        "c.tif.aux.xml",
        "t.csv",
        "t.json",
    ]
    with pytest.raises(OutputError, match="exists"):
        change_map(*paths, tmp_path / "c.tif")
    change_map(*paths, tmp_path / "c.tif", tables=tables, overwrite=True)


def test_maps_in_degrees_are_measured_on_the_ellipsoid(tmp_path: Path) -> None:
    transform = Affine(0.5, 0, 0, 0, -0.5, 60)
    labels = np.zeros((60, 4), np.uint8)
    later = labels.copy()
    later[:30] = 1
    result = change_map(
        write_map(tmp_path / "a.tif", labels, CRS.from_epsg(4326), transform, classes=CLASSES),
        write_map(tmp_path / "b.tif", later, CRS.from_epsg(4326), transform, classes=CLASSES),
        tmp_path / "c.tif",
    ).transitions
    assert result.method == "ellipsoidal"
    assert result.pixels.sum() == 240
    # North of 45 degrees half of the pixels hold less than half of the ground.
    assert result.gains[1] / result.hectares.sum() == pytest.approx(
        (np.sin(np.radians(60)) - np.sin(np.radians(45))) / (np.sin(np.radians(60)) - 0.5), rel=2e-3
    )


def test_more_pairs_than_a_map_holds(tmp_path: Path) -> None:
    classes = named(*(f"c{number}" for number in range(17)))
    pairs = np.arange(17 * 17, dtype=np.uint16).reshape(17, 17)
    paths = (
        write_map(tmp_path / "a.tif", (pairs // 17).astype(np.uint8), classes=classes),
        write_map(tmp_path / "b.tif", (pairs % 17).astype(np.uint8), classes=classes),
    )
    with pytest.raises(SceneError, match="289 pairs of classes occur in the maps, and a map holds 254"):
        change_map(*paths, tmp_path / "c.tif")
    assert len(list(tmp_path.iterdir())) == 4
    # Of the same legends a few pairs are no problem.
    write_map(tmp_path / "b.tif", (pairs // 17).astype(np.uint8), classes=classes)
    assert len(change_map(*paths, tmp_path / "c.tif").classes) == 17


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"after": "other.tif"}, SceneError, "The maps have different classes: moor is in one of"),
        ({"after": "far.tif"}, SceneError, "do not overlap"),
        ({"after": "away.tif"}, SceneError, "do not overlap|no pixel with data in common"),
        ({"after": "empty.tif"}, SceneError, "no pixel with data in common"),
        ({"after": "nocrs.tif"}, SceneError, "has no CRS"),
        ({"before": "missing.tif"}, SceneError, "There is no file"),
        ({"like": "nocrs.tif"}, SceneError, "has no CRS"),
        ({"skip_unsure": True}, UsageError, "Neither map has a class unsure"),
        ({"min_confidence": 0.5}, UsageError, "`min_confidence` needs `before_confidence`"),
        ({"before_confidence": "before.tif"}, UsageError, "`min_confidence` needs `before_confidence`"),
        ({"min_confidence": 1.5}, UsageError, "must be between 0 and 1"),
        ({"before_confidence": "small.tif", "min_confidence": 0.5}, SceneError, "is not the confidence of"),
        ({"out": "c.png"}, UsageError, r"`out` must end in \.tif"),
        ({"out": "before.tif"}, UsageError, "is an input"),
        ({"tables": ["t.xls"]}, UsageError, r"`tables` must end in \.csv or \.json"),
        ({"tables": ["t.csv", "t.csv"]}, UsageError, "same name"),
        ({"tables": ["none/t.csv"]}, OutputError, "There is no folder"),
    ],
)
def test_what_cannot_be_compared(
    tmp_path: Path, change: dict[str, Any], error: type[IICError], message: str
) -> None:
    values = random_labels(20, 20, 3)
    for name in ("before.tif", "after.tif"):
        write_map(tmp_path / name, values, classes=CLASSES)
    write_map(tmp_path / "other.tif", values, classes=named("water", "forest", "moor"))
    write_map(tmp_path / "far.tif", values, transform=TRANSFORM @ Affine.translation(900, 0), classes=CLASSES)
    write_map(
        tmp_path / "away.tif", values, CRS.from_epsg(32610), Affine(1, 0, 5e5, 0, -1, 4e6), classes=CLASSES
    )
    write_map(tmp_path / "empty.tif", np.full((20, 20), NODATA, np.uint8), classes=CLASSES)
    write_map(tmp_path / "nocrs.tif", values, None, classes=CLASSES)
    write_map(tmp_path / "small.tif", values[:9], classes=CLASSES)
    contents = {file: file.read_bytes() for file in tmp_path.iterdir()}
    arguments: dict[str, Any] = {"before": "before.tif", "after": "after.tif", "out": "c.tif", **change}
    for key in ("before", "after", "out", "like", "before_confidence"):
        if key in arguments:
            arguments[key] = tmp_path / arguments[key]
    arguments["tables"] = [tmp_path / name for name in arguments.get("tables", ())]
    with pytest.raises(error, match=message):
        change_map(**arguments)
    assert {file: file.read_bytes() for file in tmp_path.iterdir()} == contents


def test_pictures_show_the_later_map_next_to_the_changes(tmp_path: Path) -> None:
    labels = random_labels(60, 90, 3, patch=15)
    before, after = (
        write_map(tmp_path / "a.tif", labels),
        write_map(tmp_path / "b.tif", np.roll(labels, 15, 1)),
    )
    preview, web = tmp_path / "change.png", tmp_path / "change.html"
    change = change_map(before, after, tmp_path / "change.tif", preview=preview, web=web)
    with Image.open(preview) as picture:
        drawn = set(map(tuple, np.asarray(picture.convert("RGB")).reshape(-1, 3).tolist()))
    with open_map(after) as later:
        assert {rgb(entry.colour) for entry in later.classes[:3]} <= drawn
    assert {rgb(entry.colour) for entry in change.classes} <= drawn
    page = web.read_text()
    assert all(escape(entry.name) in page for entry in change.classes)
    assert sorted(entry.name for entry in tmp_path.iterdir() if entry.is_dir()) == []
    with pytest.raises(UsageError, match=r"`preview`.*\.png"):
        change_map(before, after, tmp_path / "c.tif", preview=tmp_path / "c.jpg")
    with pytest.raises(OutputError, match="exists"):
        change_map(before, after, tmp_path / "c.tif", web=web)
