import json
import logging
import shutil
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import rasterio
import rasterio.features
import shapely
from affine import Affine
from hypothesis import given, settings
from hypothesis import strategies as st
from pyogrio.raw import read, write
from rasterio.crs import CRS
from rasterio.warp import transform as reproject

from iic_geotools import polygons
from iic_geotools.areas import class_areas
from iic_geotools.colours import MapClass, distinct_colours
from iic_geotools.errors import OutputError, SceneError, UsageError
from iic_geotools.levels import NODATA
from iic_geotools.vectors import polygonise, read_aoi

CLASSES = [MapClass(f"class {i} é", colour) for i, colour in enumerate(distinct_colours(3))]
LAMBERT = CRS.from_epsg(2154)
TRANSFORM = Affine(0.5, 0, 770000, 0, -0.5, 6279000)


def write_map(path, pixels, crs=LAMBERT, transform=TRANSFORM, block=32):
    profile = {"driver": "GTiff", "count": 1, "dtype": "uint8", "nodata": NODATA, "crs": crs}
    tiling = {"tiled": True, "blockxsize": block, "blockysize": block, "SPARSE_OK": True}
    height, width = pixels.shape
    with rasterio.open(
        path, "w", width=width, height=height, transform=transform, **profile, **tiling
    ) as dst:
        dst.write(pixels, 1)
    return path


def labels(height, width, seed=0, coarse=1):
    rng = np.random.default_rng(seed)
    values = rng.integers(0, 4, (height // coarse + 1, width // coarse + 1), dtype=np.uint8)
    values[values == 3] = NODATA
    return values.repeat(coarse, 0).repeat(coarse, 1)[:height, :width]


def read_back(path):
    meta, _, wkb, (values, names, areas) = read(path)
    return meta["crs"], shapely.from_wkb(wkb), values, names, areas


@settings(max_examples=40, deadline=None)
@given(
    size=st.tuples(st.integers(1, 90), st.integers(1, 90)),
    tile=st.sampled_from([1, 7, 16, 33, 2048]),
    coarse=st.sampled_from([1, 3, 10]),
    seed=st.integers(0, 10_000),
)
def test_regions_are_those_of_the_whole_map_however_it_is_cut(tmp_path_factory, size, tile, coarse, seed):
    pixels = labels(*size, seed, coarse)
    path = write_map(tmp_path_factory.mktemp("m") / "map.tif", pixels)
    whole = rasterio.features.shapes(pixels, mask=pixels != NODATA, connectivity=4)
    expected = {(shapely.normalize(shapely.geometry.shape(shape)), int(value)) for shape, value in whole}
    present = np.ones((-(-size[0] // 32), -(-size[1] // 32)), bool)
    with pytest.MonkeyPatch.context() as patch, rasterio.open(path) as dataset:
        patch.setattr(polygons, "TILE", tile)
        found = list(polygons.regions(dataset, present, (32, 32)))
    assert len(found) == len(expected)
    assert all(shape.is_valid for shape, _ in found)
    assert {(shapely.normalize(shape), value) for shape, value in found} == expected


@pytest.mark.parametrize("suffix", [".gpkg", ".fgb"])
def test_polygons_cover_what_the_classes_cover(tmp_path, suffix, monkeypatch):
    monkeypatch.setattr("iic_geotools.vectors._BATCH", 100)
    pixels = labels(150, 200, coarse=3)
    path = write_map(tmp_path / "map.tif", pixels)
    out = tmp_path / f"polygons{suffix}"
    polygonise(path, out, CLASSES)
    crs, shapes, values, names, areas = read_back(out)
    assert CRS.from_user_input(crs) == LAMBERT
    assert shapely.is_valid(shapes).all()
    np.testing.assert_allclose(areas, shapely.area(shapes))
    for row in class_areas(path, CLASSES).classes:
        assert set(names[values == row.value]) == {row.name}
        assert areas[values == row.value].sum() == pytest.approx(row.m2)
    drawn = rasterio.features.rasterize(
        zip(shapes, values, strict=True), pixels.shape, fill=NODATA, transform=TRANSFORM, dtype="uint8"
    )
    np.testing.assert_array_equal(drawn, pixels)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["map.tif", out.name]


def test_geojson_is_in_longitude_and_latitude(tmp_path):
    path = write_map(tmp_path / "map.tif", labels(60, 60, coarse=10))
    out = tmp_path / "polygons.geojson"
    polygonise(path, out, CLASSES)
    collection = json.loads(out.read_text())
    assert "crs" not in collection
    first = collection["features"][0]
    assert set(first["properties"]) == {"value", "class", "area_m2"}
    lon, lat = reproject(LAMBERT, CRS.from_epsg(4326), [TRANSFORM.c], [TRANSFORM.f])
    for x, y in first["geometry"]["coordinates"][0]:
        assert (x, y) == pytest.approx((lon[0], lat[0]), abs=1e-3)
    ring = shapely.LinearRing(first["geometry"]["coordinates"][0])
    assert ring.is_ccw


@pytest.mark.parametrize(
    ("crs", "transform"),
    [
        (CRS.from_epsg(4326), Affine(0.01, 0, 3, 0, -0.01, 60)),
        (CRS.from_epsg(3857), Affine(100, 0, 1e6, 0, -100, 8e6)),
        (CRS.from_epsg(3413), Affine(1000, 0, -100_000, 0, -1000, 100_000)),
    ],
)
def test_areas_on_the_ellipsoid_agree_with_those_of_the_classes(tmp_path, crs, transform):
    pixels = labels(200, 230, coarse=20)
    path = write_map(tmp_path / "map.tif", pixels, crs, transform)
    polygonise(path, tmp_path / "polygons.gpkg", CLASSES)
    _, _, values, _, areas = read_back(tmp_path / "polygons.gpkg")
    for row in class_areas(path, CLASSES).classes:
        assert areas[values == row.value].sum() == pytest.approx(row.m2, rel=1e-4)


def test_small_polygons_are_left_out(tmp_path):
    path = write_map(tmp_path / "map.tif", labels(60, 60))
    polygonise(path, tmp_path / "all.gpkg", CLASSES)
    polygonise(path, tmp_path / "large.gpkg", CLASSES, min_area=1.0)
    every, large = read_back(tmp_path / "all.gpkg")[4], read_back(tmp_path / "large.gpkg")[4]
    assert 0 < len(large) < len(every)
    assert sorted(large) == sorted(every[every >= 1.0])


def test_tiles_that_the_file_leaves_out_are_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr(polygons, "TILE", 64)
    pixels = np.full((640, 640), NODATA, np.uint8)
    pixels[300:330, 200:300] = 1
    path = write_map(tmp_path / "map.tif", pixels)
    read_windows = []
    traced = polygons._trace
    monkeypatch.setattr(polygons, "_trace", lambda *a: read_windows.append(a[1]) or traced(*a))
    polygonise(path, tmp_path / "polygons.fgb", CLASSES)
    assert len(read_windows) == 4
    assert read_back(tmp_path / "polygons.fgb")[4].tolist() == [750.0]


@pytest.mark.parametrize("suffix", [".gpkg", ".fgb", ".geojson"])
def test_a_map_without_regions(tmp_path, suffix):
    path = write_map(tmp_path / "map.tif", np.full((60, 60), NODATA, np.uint8))
    polygonise(path, tmp_path / f"polygons{suffix}", CLASSES)
    assert len(read(tmp_path / f"polygons{suffix}")[2]) == 0


@pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")
def test_a_map_without_a_reference_system(tmp_path, recwarn):
    path = write_map(tmp_path / "map.tif", labels(30, 30, coarse=5), None, Affine.identity())
    polygonise(path, tmp_path / "polygons.gpkg", CLASSES)
    _, shapes, values, _, areas = read_back(tmp_path / "polygons.gpkg")
    assert len(shapes) == len(values) > 0
    assert np.isnan(areas).all()
    assert not [w for w in recwarn if "crs" in str(w.message)]
    with pytest.raises(UsageError, match=r"\.gpkg"):
        polygonise(path, tmp_path / "polygons.json", CLASSES)
    with pytest.raises(UsageError, match="no reference system"):
        polygonise(path, tmp_path / "large.gpkg", CLASSES, min_area=3)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["map.tif", "polygons.gpkg"]


def test_polygons_that_cannot_be_written(tmp_path):
    path = write_map(tmp_path / "map.tif", labels(30, 30))
    with pytest.raises(UsageError, match=r"\.gpkg, \.fgb"):
        polygonise(path, tmp_path / "polygons.shp", CLASSES)
    with pytest.raises(OutputError, match="cannot be written"):
        polygonise(path, tmp_path / "nowhere" / "polygons.gpkg", CLASSES)
    with pytest.raises(SceneError, match="only 2 classes"):
        polygonise(path, tmp_path / "polygons.gpkg", CLASSES[:2])
    path.write_bytes(b"no map")
    with pytest.raises(SceneError, match="cannot be read"):
        polygonise(path, tmp_path / "polygons.gpkg", CLASSES)
    assert [entry.name for entry in tmp_path.iterdir()] == ["map.tif"]


@pytest.mark.gdal
@pytest.mark.parametrize("suffix", [".gpkg", ".fgb", ".geojson"])
def test_ogrinfo_reads_the_polygons(tmp_path, suffix):
    tool = shutil.which("ogrinfo")
    if tool is None:
        pytest.skip("ogrinfo is not installed")
    path = write_map(tmp_path / "map.tif", np.ones((40, 40), np.uint8))
    out = tmp_path / f"polygons{suffix}"
    polygonise(path, out, CLASSES)
    shown = subprocess.run([tool, "-al", str(out)], check=True, capture_output=True, text=True).stdout
    assert "Feature Count: 1" in shown
    assert "class (String) = class 1 é" in shown
    assert "area_m2 (Real) = 400" in shown


@pytest.mark.parametrize("suffix", [".gpkg", ".fgb", ".geojson"])
def test_a_full_disk_is_an_error_and_leaves_nothing(tmp_path, suffix):
    path = write_map(tmp_path / "map.tif", labels(100, 100))
    polygonise(path, tmp_path / f"whole{suffix}", CLASSES)
    size = (tmp_path / f"whole{suffix}").stat().st_size
    script = """
        import resource, signal, sys
        from pathlib import Path
        from iic_geotools.colours import MapClass
        from iic_geotools.errors import OutputError
        from iic_geotools.vectors import polygonise

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        classes = [MapClass(name, "#102030") for name in ("class 0 é", "class 1 é", "class 2 é")]
        for limit in map(int, sys.argv[3:]):
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
            try:
                polygonise(Path(sys.argv[1]), Path(sys.argv[2]), classes)
            except OutputError:
                continue
            sys.exit(f"no error at {limit} bytes")
    """
    out = tmp_path / f"polygons{suffix}"
    limits = [str(limit) for limit in (0, size // 2, size * 9 // 10, size - 300, size - 4, size - 1)]
    command = [sys.executable, "-c", textwrap.dedent(script), str(path), str(out), *limits]
    run = subprocess.run(command, check=False, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["map.tif", f"whole{suffix}"]


def write_shapes(path, shapes, crs="EPSG:2154", kind="Unknown"):
    write(path, shapely.to_wkb(np.array(shapes, object)), [], [], geometry_type=kind, crs=crs)
    return path


def test_areas_of_interest_are_split_into_polygons(tmp_path):
    box, other = shapely.box(0, 0, 10, 10), shapely.box(20, 0, 30, 5)
    shapes = [shapely.MultiPolygon([box, other]), shapely.Point(1, 1), None, shapely.Polygon()]
    path = write_shapes(tmp_path / "aoi.gpkg", shapes)
    found = read_aoi(path, LAMBERT)
    assert [polygon.geom_type for polygon in found] == ["Polygon", "Polygon"]
    assert [polygon.area for polygon in found] == [100, 50]


def test_areas_of_interest_are_mended(tmp_path):
    bow_tie = shapely.Polygon([(0, 0), (10, 10), (10, 0), (0, 10)])
    found = read_aoi(write_shapes(tmp_path / "aoi.fgb", [bow_tie], kind="Polygon"), LAMBERT)
    assert shapely.is_valid(found).all()
    assert shapely.area(found).sum() == pytest.approx(50)


def test_areas_of_interest_are_reprojected_with_their_long_edges_bent(tmp_path):
    """The northern edge of a box in degrees is an arc in Lambert 93: its middle lies far from the chord."""
    path = write_shapes(tmp_path / "aoi.gpkg", [shapely.box(-1, 45, 7, 46)], "EPSG:4326", "Polygon")
    (found,) = read_aoi(path, LAMBERT)
    xs, ys = reproject(CRS.from_epsg(4326), LAMBERT, [-1, 3, 3, 3, 3], [46, 46.001, 45.999, 45.001, 44.999])
    middle_top_out, middle_top_in, middle_bottom_in, middle_bottom_out = shapely.points(xs[1:], ys[1:])
    assert found.contains(middle_top_in)
    assert found.contains(middle_bottom_in)
    assert not found.contains(middle_top_out)
    assert not found.contains(middle_bottom_out)


@pytest.mark.parametrize(("aoi_crs", "scene_crs"), [(None, LAMBERT), ("EPSG:4326", None)])
@pytest.mark.filterwarnings("ignore:'crs' was not provided")
def test_a_missing_reference_system_is_noted(tmp_path, caplog, aoi_crs, scene_crs):
    path = write_shapes(tmp_path / "aoi.gpkg", [shapely.box(0, 0, 1, 1)], aoi_crs, "Polygon")
    with caplog.at_level(logging.WARNING):
        (found,) = read_aoi(path, scene_crs)
    assert found.bounds == (0, 0, 1, 1)
    assert "no coordinate reference system" in caplog.text


def test_areas_of_interest_that_are_none(tmp_path):
    with pytest.raises(SceneError, match="cannot be read"):
        read_aoi(tmp_path / "missing.gpkg", LAMBERT)
    (tmp_path / "text.geojson").write_text("hello")
    with pytest.raises(SceneError, match="cannot be read"):
        read_aoi(tmp_path / "text.geojson", LAMBERT)
    with pytest.raises(SceneError, match=r"cannot be read|is empty"):
        read_aoi(write_map(tmp_path / "map.tif", labels(5, 5)), LAMBERT)
    with pytest.raises(SceneError, match="is empty"):
        read_aoi(write_shapes(tmp_path / "empty.gpkg", [None]), LAMBERT)
    with pytest.raises(SceneError, match="no polygon"):
        read_aoi(write_shapes(tmp_path / "line.gpkg", [shapely.LineString([(0, 0), (1, 1)])]), LAMBERT)
    flat = shapely.Polygon([(0, 0), (1, 1), (0, 0), (0, 0)])
    with pytest.raises(SceneError, match="no polygon"):
        read_aoi(write_shapes(tmp_path / "flat.gpkg", [flat]), LAMBERT)
    world = write_shapes(tmp_path / "world.gpkg", [shapely.box(-180, -90, 180, 90)], "EPSG:4326")
    with pytest.raises(SceneError, match="scene"):
        read_aoi(world, CRS.from_string("+proj=ortho +lat_0=40"))


def test_areas_of_interest_may_reach_round_the_world(tmp_path):
    """The world's corners have no place in a transverse Mercator; the scene's part of it has."""
    world = write_shapes(tmp_path / "world.gpkg", [shapely.box(-180, -90, 180, 90)], "EPSG:4326")
    extent = (500000.0, 5399900.0, 500130.0, 5400000.0)
    found = read_aoi(world, CRS.from_epsg(32631), extent)
    assert shapely.union_all(found).covers(shapely.box(*extent))
    with pytest.raises(SceneError, match="outside the scene"):
        read_aoi(
            write_shapes(tmp_path / "far.gpkg", [shapely.box(90, 0, 91, 1)], "EPSG:4326"), LAMBERT, extent
        )


@pytest.mark.parametrize(
    ("crs", "extent"),
    [
        ("EPSG:4326", (179.9, 9.9, 180.1, 10.1)),
        ("EPSG:4326", (-180.1, 9.9, -179.9, 10.1)),
        ("EPSG:32660", (820000.0, 1090000.0, 840000.0, 1110000.0)),
    ],
)
def test_areas_of_interest_on_both_sides_of_the_antimeridian(tmp_path, crs, extent):
    sides = [shapely.box(179, 9, 180, 11), shapely.box(-180, 9, -179, 11)]
    found = read_aoi(write_shapes(tmp_path / "aoi.gpkg", sides, "EPSG:4326"), CRS.from_string(crs), extent)
    hole = shapely.box(*extent).difference(shapely.union_all(found))
    assert hole.area < 1e-6 * shapely.box(*extent).area
