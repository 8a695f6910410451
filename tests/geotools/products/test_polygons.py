"""Polygons of a map: every pixel once, valid, with its class, in each format."""

import json
import shutil
import subprocess
import sys
import textwrap
import warnings
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import numpy as np
import pytest
import rasterio.features
import shapely
from affine import Affine
from pyarrow.parquet import ParquetFile, read_schema
from pyogrio.raw import read
from rasterio.crs import CRS
from rasterio.warp import transform as reproject
from rasterio.windows import Window
from scipy import ndimage
from support.maps import LAMBERT, TRANSFORM, make_classes, random_labels, write_map

from iic_geotools.classmap.classes import NODATA, rgb
from iic_geotools.errors import MissingPackageError, OutputError, SceneError, UsageError
from iic_geotools.products import polygons
from iic_geotools.products.areas import class_areas
from iic_geotools.products.polygons import LAYER, polygonise
from iic_geotools.scene.vectors import read_shapes
from iic_geotools.work import Progress

CLASSES = make_classes(3)


def read_polygons(path: Path) -> tuple[str, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """CRS, shapes, values, class names and areas."""
    meta, _, wkb, (values, names, areas, hectares) = read(path, layer=LAYER)
    np.testing.assert_allclose(hectares, areas / 10_000)
    return meta["crs"], shapely.from_wkb(wkb), values, names, areas


@pytest.mark.parametrize("suffix", [".gpkg", ".fgb"])
def test_polygons_cover_what_the_classes_cover(
    tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(polygons, "_BATCH", 100)
    pixels = random_labels(150, 200, 3, patch=3)
    path = write_map(tmp_path / "map.tif", pixels)
    out = tmp_path / f"polygons{suffix}"
    polygonise(path, out, CLASSES)
    crs, shapes, values, names, areas = read_polygons(out)
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


def test_vector_tiles_hold_all_classes_where_the_map_is(tmp_path: Path) -> None:
    path = write_map(tmp_path / "map.tif", random_labels(60, 60, 3, patch=10))
    polygonise(path, tmp_path / "p.pmtiles", CLASSES)
    meta, _, wkb, columns = read(tmp_path / "p.pmtiles", columns=list(polygons.FIELDS))
    names = dict(zip(meta["fields"], columns, strict=True))["class"]
    assert set(names) == {entry.name for entry in CLASSES[:3]}
    x, y = reproject(LAMBERT, CRS.from_epsg(3857), [TRANSFORM.c], [TRANSFORM.f])
    west, _, _, north = shapely.total_bounds(shapely.from_wkb(wkb))
    assert (west, north) == pytest.approx((x[0], y[0]), abs=100)
    assert [entry.name for entry in sorted(tmp_path.iterdir())] == ["map.tif", "p.pmtiles"]


def test_a_geopackage_holds_its_style_and_is_still_read_as_one_layer(tmp_path: Path) -> None:
    path = write_map(tmp_path / "map.tif", random_labels(30, 30, 3, patch=5))
    polygonise(path, tmp_path / "p.gpkg", CLASSES)
    _, _, _, columns = read(tmp_path / "p.gpkg", layer="layer_styles", columns=["styleQML"])
    style = ET.fromstring(columns[0][0])
    shown = {entry.get("value"): entry.get("symbol") for entry in style.iter("category")}
    assert list(shown) == [entry.name for entry in CLASSES]
    colours = [entry.get("value") for entry in style.iter("Option") if entry.get("name") == "color"]
    assert colours[int(shown[CLASSES[1].name])] == ",".join(map(str, (*rgb(CLASSES[1].colour), 255)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(read_shapes(tmp_path / "p.gpkg", "The zones").geometries) > 0


def test_geojson_is_in_longitude_and_latitude(tmp_path: Path) -> None:
    path = write_map(tmp_path / "map.tif", random_labels(60, 60, 3, patch=10))
    out = tmp_path / "polygons.geojson"
    polygonise(path, out, CLASSES)
    collection = json.loads(out.read_text())
    assert "crs" not in collection
    first = collection["features"][0]
    assert set(first["properties"]) == {"value", "class", "m2", "ha"}
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
def test_areas_on_the_ellipsoid_agree_with_those_of_the_classes(
    tmp_path: Path, crs: CRS, transform: Affine
) -> None:
    pixels = random_labels(200, 230, 3, patch=20)
    path = write_map(tmp_path / "map.tif", pixels, crs, transform)
    polygonise(path, tmp_path / "polygons.gpkg", CLASSES)
    _, _, values, _, areas = read_polygons(tmp_path / "polygons.gpkg")
    for row in class_areas(path, CLASSES).classes:
        assert areas[values == row.value].sum() == pytest.approx(row.m2, rel=1e-4)


def test_small_regions_become_part_of_their_neighbours(tmp_path: Path) -> None:
    pixels = random_labels(90, 100, 3, patch=4)
    rng = np.random.default_rng(0)
    speckle = (rng.random(pixels.shape) < 0.1) & (pixels != NODATA)
    pixels[speckle] = rng.integers(0, 3, int(speckle.sum()))
    pixels[40:60] = NODATA
    pixels[50, 50:52] = 1  # an island that is too small
    path = write_map(tmp_path / "map.tif", pixels)
    polygonise(path, tmp_path / "large.gpkg", CLASSES, min_area=5.0)
    _, shapes, values, _, areas = read_polygons(tmp_path / "large.gpkg")
    assert areas.min() >= 5.0
    drawn = rasterio.features.rasterize(
        zip(shapes, values, strict=True), pixels.shape, fill=NODATA, transform=TRANSFORM, dtype="uint8"
    )
    assert (drawn[40:60] == NODATA).all()
    numbers, count = ndimage.label(pixels != NODATA)
    large = np.isin(numbers, 1 + np.flatnonzero(np.bincount(numbers.ravel())[1:] >= 20))
    np.testing.assert_array_equal(drawn != NODATA, large, err_msg="no holes")
    assert count > 1
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["large.gpkg", "map.tif"]


def test_simplified_polygons_have_neither_gaps_nor_overlaps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(polygons, "TILE", 64)
    pixels = random_labels(150, 200, 3, patch=9)
    noise = np.random.default_rng(0).normal(size=(2, *pixels.shape)) * 2
    y, x = np.indices(pixels.shape) + np.rint(noise).astype(int)
    pixels = pixels[y.clip(0, 149), x.clip(0, 199)]  # ragged borders
    path = write_map(tmp_path / "map.tif", pixels)
    for name, tolerance in (("exact", 0.0), ("simple", 1.0)):
        polygonise(path, tmp_path / f"{name}.gpkg", CLASSES, min_area=5.0, simplify=tolerance)
    _, exact, _, _, exact_areas = read_polygons(tmp_path / "exact.gpkg")
    _, simple, values, names, areas = read_polygons(tmp_path / "simple.gpkg")
    assert len(simple) == len(exact)
    assert shapely.is_valid(simple).all()
    assert shapely.get_num_coordinates(simple).sum() < 0.6 * shapely.get_num_coordinates(exact).sum()
    assert shapely.coverage_is_valid(simple).all()
    assert areas.sum() == pytest.approx(shapely.union_all(simple).area)
    assert areas.sum() == pytest.approx(exact_areas.sum(), rel=0.02)
    assert list(names) == [CLASSES[value].name for value in values]
    left, bottom, right, top = shapely.total_bounds(exact)
    assert tuple(shapely.total_bounds(simple)) == (left, bottom, right, top)


def test_a_full_rectangle_keeps_four_corners(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(polygons, "TILE", 16)
    path = write_map(tmp_path / "map.tif", np.ones((40, 50), np.uint8))
    polygonise(path, tmp_path / "simple.gpkg", CLASSES, simplify=5.0)
    (shape,) = read_polygons(tmp_path / "simple.gpkg")[1]
    assert shapely.simplify(shape, 0).equals(shape)
    assert shapely.get_num_coordinates(shape) < 20
    assert shape.area == 40 * 50 / 4


def test_geoparquet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(polygons, "_BATCH", 100)
    path = write_map(tmp_path / "map.tif", random_labels(150, 200, 3, patch=3))
    polygonise(path, tmp_path / "p.gpkg", CLASSES)
    polygonise(path, tmp_path / "p.parquet", CLASSES)
    _, shapes, values, names, areas = read_polygons(tmp_path / "p.gpkg")
    file = ParquetFile(tmp_path / "p.parquet")
    assert file.num_row_groups > 1
    table = file.read().to_pydict()
    assert list(table) == ["value", "class", "m2", "ha", "geometry"]
    assert (table["value"], table["class"]) == (values.tolist(), names.tolist())
    assert table["m2"] == areas.tolist()
    assert shapely.equals(shapely.from_wkb(table["geometry"]), shapes).all()
    geo = json.loads(read_schema(tmp_path / "p.parquet").metadata[b"geo"])
    column = geo["columns"][geo["primary_column"]]
    assert (geo["version"], geo["primary_column"]) == ("1.1.0", "geometry")
    assert (column["encoding"], column["geometry_types"]) == ("WKB", ["Polygon"])
    assert CRS.from_user_input(json.dumps(column["crs"])) == LAMBERT
    assert column["bbox"] == shapely.total_bounds(shapes).tolist()


def test_geoparquet_without_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    path = write_map(tmp_path / "map.tif", random_labels(30, 30, 3))
    with pytest.raises(MissingPackageError, match=r"pyarrow.*parquet"):
        polygonise(path, tmp_path / "p.parquet", CLASSES)


def test_noise_is_refused_with_advice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(polygons, "MAX_CORNERS", 8000)
    monkeypatch.setattr(polygons, "TILE", 64)
    path = write_map(tmp_path / "map.tif", np.random.default_rng(0).integers(0, 2, (200, 200), np.uint8))
    with pytest.raises(SceneError, match=r"more than 8,000 corners.*`sieve`"):
        polygonise(path, tmp_path / "p.gpkg", CLASSES)
    assert [entry.name for entry in tmp_path.iterdir()] == ["map.tif"]
    polygonise(path, tmp_path / "p.gpkg", CLASSES, min_area=400.0)
    assert len(read_polygons(tmp_path / "p.gpkg")[1]) > 1


def test_tiles_that_are_not_in_the_file_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(polygons, "TILE", 64)
    pixels = np.full((640, 640), NODATA, np.uint8)
    pixels[300:330, 200:300] = 1
    path = write_map(tmp_path / "map.tif", pixels)
    windows: list[Window] = []
    trace = polygons._trace

    def record(pixels: np.ndarray, window: Window, *others: Any) -> Any:
        windows.append(window)
        return trace(pixels, window, *others)

    monkeypatch.setattr(polygons, "_trace", record)
    polygonise(path, tmp_path / "polygons.fgb", CLASSES)
    assert len(windows) == 4
    assert read_polygons(tmp_path / "polygons.fgb")[4].tolist() == [750.0]


@pytest.mark.parametrize("min_area", [0.0, 1.0])
def test_progress_is_reported_in_pixels(
    tmp_path: Path, min_area: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(polygons, "TILE", 64)
    path = write_map(tmp_path / "map.tif", random_labels(150, 200, 3, patch=3))
    reports: list[Progress] = []
    polygonise(path, tmp_path / "polygons.fgb", CLASSES, min_area, progress=reports.append)
    assert {report.stage for report in reports} == ({"clean", "polygons"} if min_area else {"polygons"})
    traced = [report for report in reports if report.stage == "polygons"]
    assert [report.done for report in traced] == [64 * 200, 128 * 200, 150 * 200]
    assert {report.total for report in traced} == {150 * 200}


@pytest.mark.parametrize("arguments", [{}, {"min_area": 3.0}, {"simplify": 1.0}])
@pytest.mark.parametrize("suffix", [".gpkg", ".fgb", ".geojson", ".parquet"])
def test_a_map_without_regions(tmp_path: Path, suffix: str, arguments: dict[str, float]) -> None:
    path = write_map(tmp_path / "map.tif", np.full((60, 60), NODATA, np.uint8))
    out = tmp_path / f"polygons{suffix}"
    polygonise(path, out, CLASSES, **arguments)
    assert (
        ParquetFile(out).metadata.num_rows if suffix == ".parquet" else len(read(out, layer=LAYER)[2])
    ) == 0


@pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")
def test_a_map_without_a_reference_system(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    path = write_map(tmp_path / "map.tif", random_labels(30, 30, 3, patch=5), None, Affine.identity())
    polygonise(path, tmp_path / "polygons.gpkg", CLASSES)
    _, shapes, values, _, areas = read_polygons(tmp_path / "polygons.gpkg")
    assert len(shapes) == len(values) > 0
    assert np.isnan(areas).all()
    assert not [warning for warning in recwarn if "crs" in str(warning.message)]
    with pytest.raises(UsageError, match=r"\.gpkg"):
        polygonise(path, tmp_path / "polygons.json", CLASSES)
    with pytest.raises(UsageError, match=r"`min_area` .* no reference system"):
        polygonise(path, tmp_path / "large.gpkg", CLASSES, min_area=3)
    with pytest.raises(UsageError, match=r"`simplify` is in metres, .* no reference system"):
        polygonise(path, tmp_path / "simple.gpkg", CLASSES, simplify=3)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["map.tif", "polygons.gpkg"]


def test_polygons_that_cannot_be_written(tmp_path: Path) -> None:
    path = write_map(tmp_path / "map.tif", random_labels(30, 30, 3))
    with pytest.raises(UsageError, match=r"\.gpkg, \.fgb"):
        polygonise(path, tmp_path / "polygons.shp", CLASSES)
    for number in (-1.0, float("nan"), float("inf")):
        with pytest.raises(UsageError, match="`simplify` must be 0 or more metres"):
            polygonise(path, tmp_path / "polygons.gpkg", CLASSES, simplify=number)
    with pytest.raises(OutputError, match="cannot be written"):
        polygonise(path, tmp_path / "nowhere" / "polygons.gpkg", CLASSES)
    with pytest.raises(SceneError, match="only 2 classes"):
        polygonise(path, tmp_path / "polygons.gpkg", CLASSES[:2])
    path.write_bytes(b"not a map")
    with pytest.raises(SceneError, match="cannot be read"):
        polygonise(path, tmp_path / "polygons.gpkg", CLASSES)
    assert [entry.name for entry in tmp_path.iterdir()] == ["map.tif"]


@pytest.mark.gdal
@pytest.mark.parametrize("suffix", [".gpkg", ".fgb", ".geojson"])
def test_ogrinfo_reads_the_polygons(tmp_path: Path, suffix: str) -> None:
    tool = shutil.which("ogrinfo")
    if tool is None:
        pytest.skip("ogrinfo is not installed")
    path = write_map(tmp_path / "map.tif", np.ones((40, 40), np.uint8))
    out = tmp_path / f"polygons{suffix}"
    polygonise(path, out, CLASSES)
    output = subprocess.run([tool, "-al", str(out)], check=True, capture_output=True, text=True).stdout
    assert "Feature Count: 1" in output
    assert "class (String) = class 1 é" in output
    assert "m2 (Real) = 400" in output


@pytest.mark.parametrize("suffix", [".gpkg", ".fgb", ".geojson"])
def test_a_full_disk_is_an_error_and_leaves_nothing(tmp_path: Path, suffix: str) -> None:
    path = write_map(tmp_path / "map.tif", random_labels(100, 100, 3))
    polygonise(path, tmp_path / f"whole{suffix}", CLASSES)
    size = (tmp_path / f"whole{suffix}").stat().st_size
    script = """
        import resource, signal, sys
        from pathlib import Path
        from iic_geotools.classmap.classes import MapClass
        from iic_geotools.errors import OutputError
        from iic_geotools.products.polygons import polygonise

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
