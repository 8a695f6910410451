import csv
import json
from dataclasses import replace

import numpy as np
import pytest
import rasterio
from affine import Affine
from hypothesis import given, settings
from hypothesis import strategies as st
from rasterio.crs import CRS
from rasterio.warp import transform as reproject

from iic_geotools.areas import (
    ClassArea,
    ClassAreas,
    area_method,
    class_areas,
    ground_sample_distance,
    write_stats,
)
from iic_geotools.classmap import NODATA, MapGrid, assemble
from iic_geotools.colours import MapClass, distinct_colours
from iic_geotools.ellipsoid import Ellipsoid, Ground
from iic_geotools.errors import OutputError, SceneError, UsageError
from iic_geotools.grid import Rect

CLASSES = [MapClass(f"class {i}", colour) for i, colour in enumerate(distinct_colours(4))]
WGS84 = Ellipsoid(6378137.0, 6378137.0 * (1 - 1 / 298.257223563))
EQUAL_AREA = CRS.from_epsg(6933)


def write_map(path, pixels, crs, transform, block=64):
    profile = {"driver": "GTiff", "count": 1, "dtype": "uint8", "nodata": NODATA, "crs": crs}
    tiling = {"tiled": True, "blockxsize": block, "blockysize": block}
    height, width = pixels.shape
    with rasterio.open(
        path, "w", width=width, height=height, transform=transform, **profile, **tiling
    ) as dst:
        dst.write(pixels, 1)
    return path


def labels(height, width, seed=0):
    values = np.random.default_rng(seed).integers(0, 5, (height, width), dtype=np.uint8)
    values[values == 4] = NODATA
    return values


def equal_area_sum(pixels, crs, transform, value):
    """Each pixel's area from its corners in a cylindrical equal-area projection."""
    rows, cols = np.nonzero(pixels == value)
    corners = [(cols + dx, rows + dy) for dx, dy in ((0, 0), (1, 0), (1, 1), (0, 1))]
    xs, ys = [], []
    for col, row in corners:
        x, y = (
            transform.a * col + transform.b * row + transform.c,
            transform.d * col + transform.e * row + transform.f,
        )
        moved = reproject(crs, EQUAL_AREA, x, y)
        xs.append(np.array(moved[0]))
        ys.append(np.array(moved[1]))
    xs, ys = np.array(xs) - xs[0], np.array(ys) - ys[0]
    return np.abs((xs * np.roll(ys, -1, 0) - np.roll(xs, -1, 0) * ys).sum(0) / 2).sum()


def test_the_whole_earth():
    assert 4 * np.pi * WGS84.zone(np.pi / 2) == pytest.approx(510_065_621_724_088, rel=1e-12)
    assert Ellipsoid(2.0, 2.0).zone(np.pi / 2) * 4 * np.pi == pytest.approx(16 * np.pi)


@settings(max_examples=30, deadline=None)
@given(
    top=st.floats(-80, 80), left=st.floats(-179, 150), size=st.tuples(st.integers(1, 40), st.integers(1, 40))
)
def test_degrees_are_measured_on_the_ellipsoid(tmp_path_factory, top, left, size):
    pixels = labels(*size)
    pixel = 0.001 + 0.2 * (abs(top) / 80)
    top = min(90.0, max(top, -90 + pixel * size[0]))
    transform = Affine(pixel, 0, left, 0, -pixel, top)
    path = write_map(tmp_path_factory.mktemp("m") / "map.tif", pixels, CRS.from_epsg(4326), transform, 16)
    areas = class_areas(path, CLASSES)
    assert areas.method == "ellipsoidal"
    for row in (*areas.classes, areas.nodata):
        assert row.pixels == np.count_nonzero(pixels == row.value)
        expected = equal_area_sum(pixels, CRS.from_epsg(4326), transform, row.value)
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
def test_projections_that_distort_areas_are_not_believed(tmp_path, crs, transform):
    pixels = labels(150, 200)
    areas = class_areas(write_map(tmp_path / "map.tif", pixels, crs, transform), CLASSES)
    assert areas.method == "ellipsoidal"
    for row in areas.classes:
        assert row.m2 == pytest.approx(equal_area_sum(pixels, crs, transform, row.value), rel=2e-5)


@pytest.mark.parametrize(("epsg", "unit"), [(2154, 1.0), (32631, 1.0), (2225, 1200 / 3937)])
def test_planar_areas_are_in_metres_whatever_the_unit(tmp_path, epsg, unit):
    crs = CRS.from_epsg(epsg)
    x, y = {2154: (770000, 6279000), 32631: (600000, 4.8e6), 2225: (6.5e6, 2.1e6)}[epsg]
    pixels = labels(70, 80)
    areas = class_areas(write_map(tmp_path / "map.tif", pixels, crs, Affine(0.5, 0, x, 0, -0.25, y)), CLASSES)
    assert areas.method == "planar"
    for row in areas.classes:
        assert row.m2 == pytest.approx(row.pixels * 0.125 * unit**2)
    assert sum(row.share for row in areas.classes) == pytest.approx(1)
    assert areas.nodata.share == pytest.approx(np.mean(pixels == NODATA))


@pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")
def test_without_a_reference_system_there_are_only_pixels(tmp_path):
    pixels = labels(30, 40)
    areas = class_areas(write_map(tmp_path / "map.tif", pixels, None, Affine.identity()), CLASSES)
    assert areas.method == "none"
    assert all(row.m2 is None and row.ha is None for row in (*areas.classes, areas.nodata))
    assert areas.classes[1].share == pytest.approx((pixels == 1).sum() / (pixels != NODATA).sum())


@pytest.mark.parametrize("epsg", [2154, 4326, 3857])
def test_tiles_the_file_leaves_out_count_as_nodata(tmp_path, epsg):
    transform = {
        2154: Affine(0.2, 0, 770000, 0, -0.2, 6279000),
        4326: Affine(1e-5, 0, 3, 0, -1e-5, 43),
        3857: Affine(1, 0, 400000, 0, -1, 5400000),
    }[epsg]
    full = np.full((900, 800), NODATA, np.uint8)
    full[600:700, 130:200] = labels(100, 70)
    dense = class_areas(write_map(tmp_path / "dense.tif", full, CRS.from_epsg(epsg), transform), CLASSES)
    write_map(tmp_path / "part.tif", full[512:768, 0:256], None, transform)
    part = [(tmp_path / "part.tif", Rect(0, 512, 256, 256))]
    grid = MapGrid(800, 900, transform, CRS.from_epsg(epsg))
    assemble(part, tmp_path / "sparse.tif", grid, classes=CLASSES, options={"BLOCKSIZE": "128"})
    sparse = class_areas(tmp_path / "sparse.tif", CLASSES)
    for a, b in zip((*dense.classes, dense.nodata), (*sparse.classes, sparse.nodata), strict=True):
        assert (a.value, a.name, a.pixels) == (b.value, b.name, b.pixels)
        assert a.m2 == pytest.approx(b.m2, rel=1e-5)


def test_values_without_a_class_are_an_error(tmp_path):
    path = write_map(
        tmp_path / "map.tif", labels(30, 40), CRS.from_epsg(2154), Affine(1, 0, 7e5, 0, -1, 6.6e6)
    )
    with pytest.raises(SceneError, match="value 2 but only 2 classes"):
        class_areas(path, CLASSES[:2])


def test_a_map_that_is_none(tmp_path):
    (tmp_path / "map.tif").write_text("no map")
    with pytest.raises(SceneError, match="cannot be read"):
        class_areas(tmp_path / "map.tif", CLASSES)


def test_stats_as_json_and_csv(tmp_path):
    path = write_map(
        tmp_path / "map.tif", labels(30, 40), CRS.from_epsg(2154), Affine(1, 0, 7e5, 0, -1, 6.6e6)
    )
    areas = class_areas(path, CLASSES)
    write_stats(tmp_path / "stats.json", areas)
    found = json.loads((tmp_path / "stats.json").read_text())
    assert found["method"] == "planar"
    assert found["classes"][2]["name"] == "class 2"
    assert found["classes"][2]["m2"] == areas.classes[2].m2
    assert found["nodata"]["pixels"] == areas.nodata.pixels
    write_stats(tmp_path / "stats.csv", areas)
    with (tmp_path / "stats.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["name"] for row in rows] == ["class 0", "class 1", "class 2", "class 3", "nodata"]
    assert float(rows[1]["ha"]) == areas.classes[1].ha
    noisy = ClassArea(0, "class 0", 3, 277788.36000000016, 27.778836000000016, 1 / 3)
    write_stats(tmp_path / "round.csv", ClassAreas("planar", (noisy,), replace(noisy, m2=None, ha=None)))
    assert "277788.36,27.778836,0.3333333333," in (tmp_path / "round.csv").read_text()
    with pytest.raises(UsageError, match=r"\.json or \.csv"):
        write_stats(tmp_path / "stats.xls", areas)
    with pytest.raises(OutputError):
        write_stats(tmp_path / "nowhere" / "stats.csv", areas)


@pytest.mark.parametrize(
    ("epsg", "transform", "expected"),
    [
        (2154, Affine(0.2, 0, 770000, 0, -0.25, 6279000), (0.2, 0.25)),
        (2225, Affine(1, 0, 6.5e6, 0, -1, 2.1e6), (0.3048, 0.3048)),
        (32631, Affine(0.3, 0.4, 500000, 0.4, -0.3, 4.8e6), (0.5, 0.5)),
        (4326, Affine(1e-5, 0, 3, 0, -1e-5, 60), (0.5580, 1.11412)),
        (3857, Affine(1, 0, 1e6, 0, -1, 8399737.9), (0.50126, 0.50042)),
    ],
)
def test_ground_sample_distance(epsg, transform, expected):
    assert ground_sample_distance(CRS.from_epsg(epsg), transform, 10, 10) == pytest.approx(expected, rel=2e-3)


def test_ground_sample_distance_of_systems_off_the_earth():
    local = CRS.from_wkt('LOCAL_CS["site",UNIT["metre",1]]')
    assert ground_sample_distance(None, Affine.identity(), 5, 5) is None
    assert ground_sample_distance(local, Affine(0.5, 0, 0, 0, -0.5, 0), 5, 5) == (0.5, 0.5)
    assert area_method(local, Affine(0.5, 0, 0, 0, -0.5, 0), 5, 5) == "planar"


@pytest.mark.parametrize("epsg", [4326, 4807, 2154, 3857, 7405, 3413])
def test_every_system_finds_its_ellipsoid(epsg):
    ground = Ground.of(CRS.from_epsg(epsg))
    assert ground is not None
    assert ground.ellipsoid.a == pytest.approx(6378000, abs=1000)
    assert 1 / (1 - ground.ellipsoid.b / ground.ellipsoid.a) == pytest.approx(297, abs=4)


def test_a_ring_around_the_pole():
    polar = Ground.of(CRS.from_epsg(3413))
    lon = np.append(np.arange(0, 360, 0.1), 0.0)
    x, y = map(np.array, reproject(CRS.from_epsg(4326), CRS.from_epsg(3413), lon, np.full(lon.shape, 88.0)))
    cap = 2 * np.pi * (WGS84.zone(np.pi / 2) - WGS84.zone(np.radians(88.0)))
    assert polar.ring_areas(x, y, np.zeros(len(x), int)) == pytest.approx(cap, rel=1e-5)


def test_a_ring_across_the_antimeridian():
    """The same box in metres, once on the antimeridian and once far from it."""
    box = np.array([[-1000.0, 0.0], [1000.0, 0.0], [1000.0, 2000.0], [-1000.0, 2000.0], [-1000.0, 0.0]])
    areas = []
    for lon in (180, 10):
        ground = Ground.of(CRS.from_string(f"+proj=tmerc +lon_0={lon} +lat_0=10 +ellps=WGS84"))
        areas.append(ground.ring_areas(*box.T, np.zeros(5, int))[0])
    assert areas == pytest.approx([4e6, 4e6], rel=1e-6)


def test_pixels_off_the_earth_have_no_area(tmp_path):
    """A full view of the globe from space: the corners see no ground."""
    crs = CRS.from_string("+proj=ortho +lat_0=40 +ellps=WGS84")
    pixels = np.ones((1300, 1300), np.uint8)
    transform = Affine(10_000, 0, -6_500_000, 0, -10_000, 6_500_000)
    areas = class_areas(write_map(tmp_path / "map.tif", pixels, crs, transform), CLASSES)
    assert areas.method == "ellipsoidal"
    half_the_earth = 2.55e14
    assert half_the_earth * 0.5 < areas.classes[1].m2 < half_the_earth
