import csv
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from affine import Affine
from hypothesis import given, settings
from hypothesis import strategies as st
from rasterio.crs import CRS
from rasterio.warp import transform as reproject
from support.maps import make_classes, random_labels, write_map

from iic_geotools.classmap.classes import NODATA
from iic_geotools.classmap.cog import assemble
from iic_geotools.errors import OutputError, SceneError, UsageError
from iic_geotools.geobox import GeoBox
from iic_geotools.products.areas import ClassArea, ClassAreas, PixelAreas, class_areas, write_stats
from iic_geotools.tiling import Rect

CLASSES = make_classes(4)
EQUAL_AREA = CRS.from_epsg(6933)


def equal_area_sum(pixels: np.ndarray, crs: CRS, transform: Affine, value: int) -> float:
    """The area of all pixels of a value, from their corners in a cylindrical equal-area projection."""
    rows, cols = np.nonzero(pixels == value)
    corners = [(cols + dx, rows + dy) for dx, dy in ((0, 0), (1, 0), (1, 1), (0, 1))]
    xs, ys = [], []
    for col, row in corners:
        x, y = (
            transform.a * col + transform.b * row + transform.c,
            transform.d * col + transform.e * row + transform.f,
        )
        easting, northing = reproject(crs, EQUAL_AREA, x, y)
        xs.append(np.array(easting))
        ys.append(np.array(northing))
    u, v = np.array(xs) - xs[0], np.array(ys) - ys[0]
    return float(np.abs((u * np.roll(v, -1, 0) - np.roll(u, -1, 0) * v).sum(0) / 2).sum())


@settings(max_examples=30, deadline=None)
@given(
    top=st.floats(-80, 80), left=st.floats(-179, 150), size=st.tuples(st.integers(1, 40), st.integers(1, 40))
)
def test_degrees_are_measured_on_the_ellipsoid(
    tmp_path_factory: pytest.TempPathFactory, top: float, left: float, size: tuple[int, int]
) -> None:
    pixels = random_labels(*size, 4)
    pixel = 0.001 + 0.2 * (abs(top) / 80)
    top = min(90.0, max(top, -90 + pixel * size[0]))
    transform = Affine(pixel, 0, left, 0, -pixel, top)
    path = write_map(tmp_path_factory.mktemp("m") / "map.tif", pixels, CRS.from_epsg(4326), transform, 16)
    areas = class_areas(path, CLASSES)
    assert areas.method == "ellipsoidal"
    for row in (*areas.classes, areas.nodata):
        assert row.pixels == np.count_nonzero(pixels == row.value)
        expected = equal_area_sum(pixels, CRS.from_epsg(4326), transform, row.value)
        assert row.m2 is not None
        assert row.m2 == pytest.approx(expected, rel=1e-6)
        assert row.ha == pytest.approx(row.m2 / 1e4)


@pytest.mark.parametrize(
    ("crs", "transform"),
    [
        (CRS.from_epsg(3857), Affine(10, 0, 1_000_000, 0, -10, 8_000_000)),
        (CRS.from_epsg(3857), Affine(5, 3, 1_000_000, 3, -5, 8_000_000)),
        (CRS.from_epsg(3413), Affine(30, 0, -2_400_000, 0, -30, -800_000)),
        (CRS.from_epsg(32631), Affine(20, 0, 3_000_000, 0, -20, 5_000_000)),
        (CRS.from_epsg(4326), Affine(0.001, 0.0005, 3, 0.0005, -0.001, 43)),
    ],
)
def test_projections_that_distort_areas_are_not_trusted(
    tmp_path: Path, crs: CRS | None, transform: Affine
) -> None:
    pixels = random_labels(150, 200, 4)
    areas = class_areas(write_map(tmp_path / "map.tif", pixels, crs, transform), CLASSES)
    assert areas.method == "ellipsoidal"
    for row in areas.classes:
        assert row.m2 == pytest.approx(equal_area_sum(pixels, crs, transform, row.value), rel=2e-5)


@pytest.mark.parametrize(("epsg", "unit"), [(2154, 1.0), (32631, 1.0), (2225, 1200 / 3937)])
def test_planar_areas_are_in_metres_whatever_the_unit(tmp_path: Path, epsg: int, unit: float) -> None:
    crs = CRS.from_epsg(epsg)
    x, y = {2154: (770000, 6279000), 32631: (600000, 4.8e6), 2225: (6.5e6, 2.1e6)}[epsg]
    pixels = random_labels(70, 80, 4)
    areas = class_areas(write_map(tmp_path / "map.tif", pixels, crs, Affine(0.5, 0, x, 0, -0.25, y)), CLASSES)
    assert areas.method == "planar"
    for row in areas.classes:
        assert row.m2 == pytest.approx(row.pixels * 0.125 * unit**2)
    assert sum(row.share for row in areas.classes) == pytest.approx(1)
    assert areas.nodata.share == pytest.approx(np.mean(pixels == NODATA))


@pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")
def test_without_a_reference_system_there_are_only_pixels(tmp_path: Path) -> None:
    pixels = random_labels(30, 40, 4)
    areas = class_areas(write_map(tmp_path / "map.tif", pixels, None, Affine.identity()), CLASSES)
    assert areas.method == "none"
    assert all(row.m2 is None and row.ha is None for row in (*areas.classes, areas.nodata))
    assert areas.classes[1].share == pytest.approx((pixels == 1).sum() / (pixels != NODATA).sum())


@pytest.mark.parametrize("epsg", [2154, 4326, 3857])
def test_tiles_the_file_leaves_out_count_as_nodata(tmp_path: Path, epsg: int) -> None:
    transform = {
        2154: Affine(0.2, 0, 770000, 0, -0.2, 6279000),
        4326: Affine(1e-5, 0, 3, 0, -1e-5, 43),
        3857: Affine(1, 0, 400000, 0, -1, 5400000),
    }[epsg]
    full = np.full((900, 800), NODATA, np.uint8)
    full[600:700, 130:200] = random_labels(100, 70, 4)
    dense = class_areas(write_map(tmp_path / "dense.tif", full, CRS.from_epsg(epsg), transform), CLASSES)
    write_map(tmp_path / "part.tif", full[512:768, 0:256], None, transform)
    part = [(tmp_path / "part.tif", Rect(0, 512, 256, 256))]
    grid = GeoBox(800, 900, transform, CRS.from_epsg(epsg))
    assemble(part, tmp_path / "sparse.tif", grid, classes=CLASSES, options={"BLOCKSIZE": "128"})
    sparse = class_areas(tmp_path / "sparse.tif", CLASSES)
    for one, other in zip((*dense.classes, dense.nodata), (*sparse.classes, sparse.nodata), strict=True):
        assert (one.value, one.name, one.pixels) == (other.value, other.name, other.pixels)
        assert one.m2 == pytest.approx(other.m2, rel=1e-5)


def test_values_without_a_class_are_an_error(tmp_path: Path) -> None:
    path = write_map(
        tmp_path / "map.tif", random_labels(30, 40, 4), CRS.from_epsg(2154), Affine(1, 0, 7e5, 0, -1, 6.6e6)
    )
    with pytest.raises(SceneError, match="value 2 but only 2 classes"):
        class_areas(path, CLASSES[:2])


def test_a_file_that_is_not_a_map(tmp_path: Path) -> None:
    (tmp_path / "map.tif").write_text("not a map")
    with pytest.raises(SceneError, match="cannot be read"):
        class_areas(tmp_path / "map.tif", CLASSES)


def test_stats_as_json_and_csv(tmp_path: Path) -> None:
    path = write_map(
        tmp_path / "map.tif", random_labels(30, 40, 4), CRS.from_epsg(2154), Affine(1, 0, 7e5, 0, -1, 6.6e6)
    )
    areas = class_areas(path, CLASSES)
    write_stats(tmp_path / "stats.json", areas)
    stats = json.loads((tmp_path / "stats.json").read_text())
    assert stats["method"] == "planar"
    assert stats["classes"][2]["class"] == "class 2 é"
    assert stats["classes"][2]["m2"] == areas.classes[2].m2
    assert stats["nodata"]["pixels"] == areas.nodata.pixels
    write_stats(tmp_path / "stats.csv", areas)
    with (tmp_path / "stats.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["class"] for row in rows] == ["class 0 é", "class 1 é", "class 2 é", "class 3 é", "nodata"]
    assert float(rows[1]["ha"]) == areas.classes[1].ha
    noisy = ClassArea(0, "class 0", 3, 277788.36000000016, 27.778836000000016, 1 / 3)
    write_stats(tmp_path / "round.csv", ClassAreas("planar", (noisy,), replace(noisy, m2=None, ha=None)))
    assert "277788.36,27.778836,0.3333333333," in (tmp_path / "round.csv").read_text()
    with pytest.raises(UsageError, match=r"\.json or \.csv"):
        write_stats(tmp_path / "stats.xls", areas)
    with pytest.raises(OutputError):
        write_stats(tmp_path / "nowhere" / "stats.csv", areas)


def test_pixels_off_the_earth_have_no_area(tmp_path: Path) -> None:
    """A full view of the globe from space: the corners see no ground."""
    crs = CRS.from_string("+proj=ortho +lat_0=40 +ellps=WGS84")
    pixels = np.ones((1300, 1300), np.uint8)
    transform = Affine(10_000, 0, -6_500_000, 0, -10_000, 6_500_000)
    areas = class_areas(write_map(tmp_path / "map.tif", pixels, crs, transform), CLASSES)
    assert areas.method == "ellipsoidal"
    half_the_earth, area = 2.55e14, areas.classes[1].m2
    assert area is not None
    assert half_the_earth * 0.5 < area < half_the_earth


@pytest.mark.parametrize("name", ["=1+1", "+1", "-1", "@SUM(A1)", " =1", "|x", "%x"])
def test_no_class_is_a_formula_in_a_spreadsheet(tmp_path: Path, name: str) -> None:
    rows = tuple(ClassArea(value, text, 1, None, None, 0.5) for value, text in enumerate((name, "a = b")))
    write_stats(tmp_path / "s.csv", ClassAreas("none", rows, rows[0]))
    with (tmp_path / "s.csv").open() as file:
        assert [row["class"] for row in csv.DictReader(file)] == [f"'{name}", "a = b", f"'{name}"]


@pytest.mark.parametrize(
    ("crs", "transform"),
    [
        (2154, Affine(0.5, 0, 770000, 0, -0.5, 6279000)),
        (4326, Affine(0.01, 0, 3, 0, -0.01, 43)),
        (4326, Affine(0.001, 0.0005, 3, 0.0005, -0.001, 43)),
        (3857, Affine(10, 0, 1_000_000, 0, -10, 8_000_000)),
    ],
)
def test_areas_of_pixels_add_up_to_those_of_classes(tmp_path: Path, crs: int, transform: Affine) -> None:
    pixels = random_labels(150, 200, 4)
    areas = class_areas(write_map(tmp_path / "map.tif", pixels, CRS.from_epsg(crs), transform), CLASSES)
    measure = PixelAreas(GeoBox(200, 150, transform, CRS.from_epsg(crs)))
    assert measure.method == areas.method
    rects = (Rect(0, 0, 130, 150), Rect(130, 0, 70, 150))
    pixel_areas = np.hstack([np.broadcast_to(measure.of(rect), (150, rect.width)) for rect in rects])
    for row in areas.classes:
        assert pixel_areas[pixels == row.value].sum() == pytest.approx(row.m2, rel=1e-5)
