"""Stratified samples: how many of each class, from which pixels, and what the file does not contain."""

from pathlib import Path

import numpy as np
import pytest
import shapely
from affine import Affine
from hypothesis import given, settings
from hypothesis import strategies as st
from pyogrio import read_info
from pyogrio.raw import read
from rasterio.crs import CRS
from support.maps import TRANSFORM, named, random_labels, write_map

from iic_geotools.classmap.classes import NODATA
from iic_geotools.errors import IICError, OutputError, SceneError, UsageError
from iic_geotools.products.assessment.draw import RARE, allocate, draw_samples

CLASSES = named("water", "forest", "town")


def rare_town(height: int = 300, width: int = 200) -> np.ndarray:
    labels = np.zeros((height, width), np.uint8)
    labels[:, width // 2 :] = 1
    labels[:10, :10] = 2
    labels[-20:] = NODATA
    return labels


def drawn_pixels(path: Path, transform: Affine = TRANSFORM) -> np.ndarray:
    _, _, wkb, _ = read(path)
    points = shapely.from_wkb(wkb)
    to_pixels = ~transform
    return np.array([to_pixels @ (point.x, point.y) for point in points])


def test_the_advice_of_olofsson_and_others() -> None:
    """Their example: 641 samples; rare classes get a fixed number, the others share the rest by area."""
    weights = np.array([0.02, 0.015, 0.32, 0.645])
    counts = allocate(641, weights, np.full(4, 10**6))
    assert counts.sum() == 641
    assert counts[:2].tolist() == [RARE, RARE]
    assert counts[2] / counts[3] == pytest.approx(0.32 / 0.645, abs=0.01)


@settings(max_examples=200, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 10**6), min_size=1, max_size=20).filter(any),
    count=st.integers(2, 3000),
)
def test_an_allocation_gives_what_was_asked_for(sizes: list[int], count: int) -> None:
    pixels = np.array(sizes)
    count = max(count, 2 * int((pixels > 0).sum()))
    counts = allocate(count, pixels / pixels.sum(), pixels)
    assert counts.sum() == min(count, pixels.sum())
    assert (counts <= pixels).all()
    assert (counts >= np.minimum(pixels, 2)).all()


def test_points_are_pixels_of_the_classes_they_were_drawn_from(tmp_path: Path) -> None:
    labels = rare_town()
    path = write_map(tmp_path / "map.tif", labels, classes=CLASSES)
    result = draw_samples(path, tmp_path / "samples.gpkg", 300)
    pixels = drawn_pixels(tmp_path / "samples.gpkg")
    assert np.allclose(pixels % 1, 0.5)
    columns, rows = pixels.astype(int).T
    assert len({*zip(columns.tolist(), rows.tolist(), strict=True)}) == 300
    values = labels[rows, columns]
    assert NODATA not in values
    assert np.bincount(values).tolist() == [stratum.samples for stratum in result.strata]
    assert result.strata[2].samples == RARE
    assert sum(stratum.share for stratum in result.strata) == pytest.approx(1)


def test_the_file_does_not_tell_the_class_of_the_map(tmp_path: Path) -> None:
    labels = rare_town()
    write_map(tmp_path / "map.tif", labels, classes=CLASSES)
    draw_samples(tmp_path / "map.tif", tmp_path / "samples.gpkg", 200)
    meta, _, _, columns = read(tmp_path / "samples.gpkg")
    assert meta["fields"].tolist() == ["class", "number"]
    assert all(value is None for value in columns[0])
    content = (tmp_path / "samples.gpkg").read_bytes()
    assert not any(entry.name.encode() in content for entry in CLASSES)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["map.tif", "map.tif.aux.xml", "samples.gpkg"]
    # Nor does the order: classes are mixed.
    columns_, rows = drawn_pixels(tmp_path / "samples.gpkg").astype(int).T
    values = labels[rows, columns_]
    assert 0.2 < np.mean(values[1:] == values[:-1]) < 0.6
    assert list(read_info(tmp_path / "samples.gpkg")["layer_metadata"]) == ["IIC_SAMPLE_OF"]


def test_a_seed_decides(tmp_path: Path) -> None:
    path = write_map(tmp_path / "map.tif", random_labels(1100, 90, 3), classes=CLASSES)
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        draw_samples(path, tmp_path / f"{name}.gpkg", 60, seed=seed)
    first, same, other = (drawn_pixels(tmp_path / f"{name}.gpkg") for name in "abc")
    assert (first == same).all()
    assert not (first == other).all()


def test_every_pixel_has_the_same_chance(tmp_path: Path) -> None:
    labels = np.zeros((6, 8), np.uint8)
    path = write_map(tmp_path / "map.tif", labels, classes=CLASSES[:1], block=16)
    chosen = np.zeros(labels.shape)
    for seed in range(50):
        draw_samples(path, tmp_path / "s.gpkg", 12, seed=seed, overwrite=True)
        columns, rows = drawn_pixels(tmp_path / "s.gpkg").astype(int).T
        chosen[rows, columns] += 1
    expected = 50 * 12 / labels.size
    statistic = float(((chosen - expected) ** 2 / (expected * (1 - 12 / labels.size))).sum())
    assert statistic < 80  # 47 degrees of freedom: beyond that one time in 500


def test_in_degrees_chances_go_by_ground(tmp_path: Path) -> None:
    """A map from the equator to 80 degrees: half of its ground is south of about 29.5 degrees."""
    transform = Affine(0.1, 0, 10, 0, -0.1, 80)
    labels = np.zeros((800, 20), np.uint8)
    path = write_map(tmp_path / "map.tif", labels, CRS.from_epsg(4326), transform, classes=CLASSES[:1])
    draw_samples(path, tmp_path / "s.gpkg", 2000)
    _, rows = drawn_pixels(tmp_path / "s.gpkg", transform).T
    assert np.mean(80 - rows / 10 < 29.5) == pytest.approx(0.5, abs=0.04)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"draw": 0}, UsageError, "`draw` must be 1 to"),
        ({"draw": 3}, UsageError, "at least 6, 2 for each of the 3 classes"),
        ({"draw": 30, "samples": "s.shp"}, UsageError, r"must end in \.gpkg"),
        ({"draw": 30, "samples": "none/s.gpkg"}, OutputError, "There is no folder"),
        ({"draw": 30, "seed": -1}, UsageError, "`seed` must be 0 or more"),
        ({"draw": 30, "map": "empty.tif"}, SceneError, "no pixel with data"),
        ({"draw": 30, "map": "nowhere.tif"}, SceneError, "no CRS"),
        ({"draw": 30, "map": "missing.tif"}, SceneError, "There is no file"),
        ({"draw": 30, "map": "twice.tif"}, SceneError, "two classes called water"),
    ],
)
def test_what_cannot_be_drawn(tmp_path: Path, arguments: dict, error: type[IICError], message: str) -> None:
    write_map(tmp_path / "map.tif", rare_town(), classes=CLASSES)
    write_map(tmp_path / "empty.tif", np.full((20, 20), NODATA, np.uint8), classes=CLASSES)
    write_map(tmp_path / "nowhere.tif", rare_town(), None, classes=CLASSES)
    write_map(tmp_path / "twice.tif", rare_town(), classes=named("water", "water", "town"))
    before = sorted(tmp_path.iterdir())
    given = {"map": "map.tif", "samples": "s.gpkg", **arguments}
    paths = {key: tmp_path / value for key, value in given.items() if key in ("map", "samples")}
    with pytest.raises(error, match=message):
        draw_samples(**{**given, **paths})
    assert sorted(tmp_path.iterdir()) == before


def test_labels_are_not_overwritten_by_chance(tmp_path: Path) -> None:
    path = write_map(tmp_path / "map.tif", rare_town(), classes=CLASSES)
    draw_samples(path, tmp_path / "s.gpkg", 30)
    with pytest.raises(OutputError, match="exists, perhaps with labels"):
        draw_samples(path, tmp_path / "s.gpkg", 30)


def test_the_advice_says_how_sure_one_may_be(tmp_path: Path) -> None:
    path = write_map(tmp_path / "map.tif", np.zeros((200, 200), np.uint8), classes=CLASSES[:1])
    result = draw_samples(path, tmp_path / "s.gpkg", 401)
    assert result.margin == pytest.approx(1.96 * (0.8 * 0.2 / 400) ** 0.5, rel=1e-4)
    assert result.advised == 1537  # (0.4 x 1.96 / 0.02)^2
    assert "± 3.9 points (95 %)" in result.advice[1]
