"""Outputs next to the map, regions, resolutions, and what the command shares with the function."""

import csv
import html
import json
import logging
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from warnings import catch_warnings

import numpy as np
import pyogrio
import pytest
import rasterio
from PIL import Image
from rasterio.features import geometry_mask
from rasterio.transform import from_origin
from rasterio.warp import transform_geom
from shapely import from_geojson, from_wkb, to_wkb
from support.maps import read_band
from support.scenes import landscape
from support.tiny_onnx import make_model
from typer.testing import CliRunner

from iic_runtime import Segmenter, segment_raster, segment_rasters
from iic_runtime.cli.segment_raster import app

MakeScene = Callable[..., Path]
WHERE = from_origin(500000, 5400000, 0.5, 0.5)


def triangle(tmp_path: Path, crs: str) -> tuple[Path, dict[str, Any]]:
    corners = [[(500020, 5399990), (500120, 5399940), (500030, 5399905), (500020, 5399990)]]
    shape: dict[str, Any] = {"type": "Polygon", "coordinates": corners}
    moved = transform_geom("EPSG:32631", crs, shape)
    path = tmp_path / "aoi.geojson"
    feature = {"type": "Feature", "properties": {}, "geometry": moved}
    path.write_text(json.dumps({"type": "FeatureCollection", "features": [feature]}))
    return path, shape


def test_an_area_of_interest_in_another_crs(make_scene: MakeScene, model: Path, tmp_path: Path) -> None:
    values = landscape(300, 400)
    aoi, shape = triangle(tmp_path, "EPSG:4326")
    segment_raster(make_scene(values), tmp_path / "map.tif", model, device="cpu", tile=64, aoi=aoi)
    whole = Segmenter(model, device="cpu", tile=4096)(values).labels
    inside = geometry_mask([shape], (300, 400), WHERE, invert=True)
    expected = np.where(inside, whole, 255)[20:190, 40:240]
    got = read_band(tmp_path / "map.tif")
    assert got.shape == expected.shape
    assert np.mean(got != expected) < 2e-3  # centres on the edge, by way of lon/lat and back
    assert (got == 255).any()


def test_an_area_of_interest_elsewhere(make_scene: MakeScene, model: Path, tmp_path: Path) -> None:
    aoi, _ = triangle(tmp_path, "EPSG:4326")
    far = make_scene(landscape(50, 50), transform=from_origin(600000, 5300000, 0.5, 0.5))
    with pytest.raises(OSError, match="outside the scene"):
        segment_raster(far, tmp_path / "map.tif", model, device="cpu", aoi=aoi)
    aoi.write_text(json.dumps({"type": "FeatureCollection", "features": []}))
    with pytest.raises(OSError, match=r"aoi\.geojson"):
        segment_raster(far, tmp_path / "map.tif", model, device="cpu", aoi=aoi)
    assert not (tmp_path / "map.tif").exists()


def test_everything_at_once(make_scene: MakeScene, model: Path, tmp_path: Path) -> None:
    names = {"confidence": "c.tif", "polygons": "p.gpkg", "stats": "s.json", "preview": "v.png"}
    names |= {"web": "w.html"}
    options = {name: tmp_path / file for name, file in names.items()}
    scene = make_scene(landscape(120, 160))
    segment_raster(scene, tmp_path / "map.tif", model, device="cpu", tile=64, min_area=1.0, **options)
    labels = read_band(tmp_path / "map.tif")
    stats = json.loads(options["stats"].read_text())
    for entry in stats["classes"]:
        pixels = int((labels == entry["value"]).sum())
        assert entry["pixels"] == pixels
        assert entry["m2"] == pytest.approx(pixels * 0.25)
    meta, _, shapes, fields = pyogrio.raw.read(options["polygons"])
    assert "32631" in meta["crs"]
    areas = np.array([shape.area for shape in from_wkb(shapes)])
    assert areas.min() >= 1.0
    assert areas.sum() <= labels.size * 0.25
    assert set(fields[list(meta["fields"]).index("class")]) <= {f"cluster {i}" for i in range(4)}
    with Image.open(options["preview"]) as picture:
        assert min(picture.size) > 100
    page = options["web"].read_text()
    assert "<h1>map.tif</h1>" in page
    assert "Scene: scene.tif. Model: tiny." in page
    for entry in stats["classes"]:
        assert f"{entry['m2']:,.0f}" in page
    assert not (tmp_path / "map.tif.parts").exists()


def test_a_replaced_class_map_takes_its_names_along(
    make_scene: MakeScene, model: Path, tmp_path: Path
) -> None:
    scene, old = make_scene(landscape(30, 30)), tmp_path / "old.tif"
    segment_raster(scene, old, model, device="cpu")
    assert (tmp_path / "old.tif.aux.xml").exists()
    assert (tmp_path / "old.qml").exists()
    segment_raster(scene, tmp_path / "map.tif", model, device="cpu", confidence=old, overwrite=True)
    assert not (tmp_path / "old.tif.aux.xml").exists()
    assert not (tmp_path / "old.qml").exists()


def test_many_scenes_have_a_page_each(make_scene: MakeScene, model: Path, tmp_path: Path) -> None:
    scenes = [make_scene(landscape(30, 40, seed=seed), f"{name}.tif") for seed, name in enumerate("ab")]
    segment_rasters(scenes, tmp_path / "maps", model, device="cpu", web=tmp_path / "maps/{name}.html")
    assert "<h1>a.tif</h1>" in (tmp_path / "maps" / "a.html").read_text()
    assert "<h1>b.tif</h1>" in (tmp_path / "maps" / "b.html").read_text()


def test_a_notebook_shows_the_map(make_scene: MakeScene, tmp_path: Path) -> None:
    model = tmp_path / "model.onnx"
    model.write_bytes(make_model(name="<b>bold</b>"))
    scene = make_scene(landscape(90, 2000))
    summary = segment_raster(
        scene, tmp_path / "map.tif", model, device="cpu", bounds=(500010, 5399960, 500900, 5399990)
    )
    shown = summary._repr_html_()
    assert shown.startswith("<iframe srcdoc=")
    assert "reduced to 800 x" in shown
    assert "<b>" not in html.unescape(html.unescape(shown).replace("&lt;", ""))
    scene.unlink()
    shown = summary._repr_html_()
    assert shown.startswith("<p>")
    assert "map.tif: 0.11 Mpx" in shown
    assert "No page can be made" in shown


@pytest.mark.parametrize("bands", [("nir",), ("nir", "red"), ("nir", "red", "green")])
def test_a_picture_of_other_bands(make_scene: MakeScene, tmp_path: Path, bands: tuple[str, ...]) -> None:
    model = tmp_path / "model.onnx"
    model.write_bytes(make_model(bands=bands))
    picture = tmp_path / "preview.png"
    segment_raster(make_scene(landscape(50, 60)), tmp_path / "map.tif", model, device="cpu", preview=picture)
    with Image.open(picture) as image:
        colours = image.convert("RGB").getcolors(maxcolors=1 << 24)
    assert colours is not None
    assert len(colours) > 100, "the scene is drawn, and not only the legend"


@pytest.mark.parametrize("scale", [2.0, 0.5])
def test_match_gsd_runs_at_the_models_resolution(make_scene: MakeScene, tmp_path: Path, scale: float) -> None:
    model = tmp_path / "model.onnx"
    model.write_bytes(make_model(gsd=0.5 * scale))
    values = np.kron(landscape(60, 80), np.ones((1, 2, 2), np.uint8))
    values[:, 30:61, 40:71] = 0
    scene = make_scene(values, nodata=0)
    segment_raster(scene, tmp_path / "map.tif", model, device="cpu", tile=32, match_gsd=True)
    got = read_band(tmp_path / "map.tif")
    with rasterio.open(scene) as a, rasterio.open(tmp_path / "map.tif") as b:
        assert (a.shape, a.transform, a.crs) == (b.shape, b.transform, b.crs)
    hole = (values == 0).all(axis=0)
    assert np.array_equal(got == 255, hole), "at the scene's own resolution"
    if scale == 2.0:
        halved = values[:, ::2, ::2]
        coarse = Segmenter(model, device="cpu", tile=4096)(halved, ~(halved == 0).all(axis=0)).labels
        expected = np.kron(coarse, np.ones((2, 2), np.uint8))
        near_hole = np.zeros_like(hole)
        near_hole[5:86, 15:96] = True
        assert np.array_equal(got[~near_hole], expected[~near_hole])


def test_match_gsd_in_degrees(make_scene: MakeScene, tmp_path: Path) -> None:
    model = tmp_path / "model.onnx"
    model.write_bytes(make_model(gsd=20.0))
    degree = 111_320.0
    where = from_origin(3.0, 60.0, 20 / degree / 0.5, 10 / degree)
    scene = make_scene(landscape(80, 60), crs="EPSG:4326", transform=where)
    segment_raster(scene, tmp_path / "map.tif", model, device="cpu", match_gsd=True)
    labels = read_band(tmp_path / "map.tif")
    assert labels.shape == (80, 60)
    assert np.array_equal(labels[::2], labels[1::2]), "rows were halved, columns kept"


def test_a_mismatch_of_resolution_warns(
    make_scene: MakeScene, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = tmp_path / "model.onnx"
    for gsd, match, warned, matched in (
        (0.5, None, False, False),
        (0.6, None, False, False),
        (0.7, None, False, True),
        (0.7, False, True, False),
        (0.2, None, True, False),  # reading larger pixels finer brings nothing back
    ):
        model.write_bytes(make_model(gsd=gsd))
        caplog.clear()
        scene, out = make_scene(landscape(20, 20)), tmp_path / "map.tif"
        with caplog.at_level(logging.INFO), catch_warnings(record=True) as caught:
            segment_raster(scene, out, model, device="cpu", match_gsd=match, overwrite=True)
        assert any("may be poor" in str(entry.message) for entry in caught) == warned, gsd
        assert ("Reading the scene as" in caplog.text) == matched, gsd


def test_the_command_is_the_function(make_scene: MakeScene, model: Path, tmp_path: Path) -> None:
    """Every option of the command is an argument of the function, by the same name, and the other way round."""
    from inspect import signature

    from iic_geotools.cli.app import CONTEXT, expand
    from iic_runtime.cli.segment_raster import segment_raster as command

    own = {"verbose", "quiet", "progress_json", "traceback", "version", CONTEXT}
    one, many = (set(signature(function).parameters) for function in (segment_raster, segment_rasters))
    functions = (one | many) - {"progress", "keep", "scene", "folder", "on_outcome", "arguments"}
    assert set(signature(expand(command)).parameters) - own == functions


def test_progress_for_programs(make_scene: MakeScene, model: Path, tmp_path: Path) -> None:
    scene = make_scene(landscape(120, 160))
    arguments = [scene, tmp_path / "map.tif", "--model", model, "--tile", 64, "--progress-json", "-q"]
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output
    moments = [json.loads(line) for line in result.stdout.splitlines()]
    assert moments[0] == {"stage": "segment", "done": 0, "total": 120 * 160}
    assert moments[-1] == {"stage": "write", "done": 1, "total": 1}
    assert sum(moment["stage"] == "segment" for moment in moments) == 1 + 6


def test_the_segmenter_is_safe_to_share(model: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    segment = Segmenter(model, device="cpu", tile=64, threads=1)
    images = [landscape(90, 110, seed=seed) for seed in range(8)]
    alone = [segment(image).labels for image in images]
    with ThreadPoolExecutor(4) as pool:
        together = [result.labels for result in pool.map(segment, images)]
    assert all(np.array_equal(a, b) for a, b in zip(alone, together, strict=True))
    with pytest.raises(ValueError, match=r"takes \[4, H, W\]"):
        segment(images[0][:3])
    assert np.array_equal(segment(images[0].astype(float)).labels, alone[0])
    with pytest.raises(ValueError, match="takes uint8, not float64"):
        segment(images[0].astype(float), rescale="off")


def test_no_engine_installed(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ImportError, match=r"pip install \"\.\[cpu\]\""):
        Segmenter(model)


def test_help_answers_without_heavy_imports() -> None:
    import subprocess
    import sys

    script = (
        "import sys; from typer.testing import CliRunner; from iic_runtime.cli.segment_raster import app;"
        "from iic_runtime.cli.model import app as other;"
        "assert CliRunner().invoke(app, ['--help']).exit_code == 0;"
        "assert CliRunner().invoke(other, ['--help']).exit_code == 0;"
        "heavy = {'numpy', 'rasterio', 'onnxruntime', 'torch'} & set(sys.modules); assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_statistics_by_polygon(make_scene: MakeScene, model: Path, tmp_path: Path) -> None:
    zones, shape = triangle(tmp_path, "EPSG:4326")
    scene = make_scene(landscape(300, 400))
    out, stats = tmp_path / "map.tif", tmp_path / "zones.csv"
    segment_raster(scene, out, model, device="cpu", stats=stats, stats_by=zones)
    with stats.open() as file:
        (row,) = csv.DictReader(file)
    areas = [float(value) for key, value in row.items() if key.endswith("_ha")]
    assert sum(areas) == pytest.approx(from_geojson(json.dumps(shape)).area / 10_000, rel=1e-3)
    assert float(row["covered"]) == pytest.approx(1)
    summary = segment_raster(scene, out, model, device="cpu", stats=stats, stats_by=zones, keep=True)
    assert summary.made_before
    text = zones.read_text()
    longitude = text.partition("[[[")[2].partition(",")[0]
    for other in (
        text.replace('"properties": {}', '"properties": {"name": "west"}'),
        text.replace(longitude, longitude[:-6]),
    ):
        assert other != text
        zones.write_text(other)
        with pytest.raises(OSError, match="exists"):
            segment_raster(scene, out, model, device="cpu", stats=stats, stats_by=zones, keep=True)


def test_statistics_by_polygon_in_a_layer_with_the_name_of_the_file(
    make_scene: MakeScene, model: Path, tmp_path: Path
) -> None:
    zones, _ = triangle(tmp_path, "EPSG:4326")
    scene, stats = make_scene(landscape(300, 400)), tmp_path / "areas.gpkg"
    segment_raster(scene, tmp_path / "map.tif", model, device="cpu", stats=stats, stats_by=zones)
    assert pyogrio.list_layers(stats)[:, 0].tolist() == ["areas"]


@pytest.mark.parametrize("name", ["zones.gdb", "/vsizip/zones.zip/aoi.geojson"])
def test_statistics_by_polygons_in_a_folder_or_an_archive(
    make_scene: MakeScene, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    zones, shape = triangle(tmp_path, "EPSG:4326")
    with zipfile.ZipFile(tmp_path / "zones.zip", "w") as archive:
        archive.write(zones, zones.name)
    kind = {"geometry_type": "Polygon", "crs": "EPSG:32631"}
    wkb = np.array([to_wkb(from_geojson(json.dumps(shape)))], object)
    pyogrio.raw.write(tmp_path / "zones.gdb", wkb, [], [], driver="OpenFileGDB", **kind)
    monkeypatch.chdir(tmp_path)
    scene, stats = make_scene(landscape(300, 400)), tmp_path / "areas.csv"
    segment_raster(scene, "map.tif", model, device="cpu", stats=stats, stats_by=name)
    assert stats.exists()
    assert segment_raster(
        scene, "map.tif", model, device="cpu", stats=stats, stats_by=name, keep=True
    ).made_before


def test_statistics_by_polygon_that_a_run_has_written_are_written_again(
    make_scene: MakeScene, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that ends between the statistics and the preview resumes."""
    from iic_geotools.products import preview

    zones, _ = triangle(tmp_path, "EPSG:4326")
    scene, out = make_scene(landscape(300, 400)), tmp_path / "map.tif"
    names = {"stats": "areas.gpkg", "preview": "preview.png"}
    options = {"device": "cpu", "stats_by": zones} | {key: tmp_path / name for key, name in names.items()}

    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(preview, "preview", stop)
        with pytest.raises(KeyboardInterrupt):
            segment_raster(scene, out, model, **options)
    assert list((tmp_path / "map.tif.parts").glob("*.gpkg"))
    assert segment_raster(scene, out, model, **options).parts_reused
    assert all((tmp_path / name).exists() for name in names.values())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"stats": None}, "`stats_by` applies only to `stats`"),
        ({"stats": "areas.json"}, r"`stats` must end in \.csv or \.gpkg"),
        ({"stats_by": "none.gpkg"}, "there is no such file"),
        ({"stats": "zones.gpkg", "stats_by": "zones.gpkg"}, "is an input"),
        ({"crs": None}, "no CRS in which areas can be measured"),
    ],
)
def test_statistics_by_polygon_that_cannot_be_made(
    make_scene: MakeScene, model: Path, tmp_path: Path, change: dict[str, str | None], message: str
) -> None:
    zones, _ = triangle(tmp_path, "EPSG:4326")
    zones.rename(tmp_path / "zones.gpkg")
    names = {"stats": "areas.csv", "stats_by": "zones.gpkg"} | change
    profile = {"crs": None} if "crs" in names else {}
    names.pop("crs", None)
    scene = make_scene(landscape(100, 100), **profile)
    before = sorted(tmp_path.iterdir())
    with pytest.raises((ValueError, OSError), match=message):
        segment_raster(
            scene,
            tmp_path / "map.tif",
            model,
            device="cpu",
            **{key: name and tmp_path / name for key, name in names.items()},  # type: ignore[arg-type]
        )
    assert sorted(tmp_path.iterdir()) == before
