"""The QGIS plugin, in the real QGIS: its zip installed in a profile, run by qgis_process, drawn with its legend."""

import ast
import csv
import json
import os
import shutil
import subprocess
import zipfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import cast

import numpy as np
import pyogrio
import pytest
import shapely
from PIL import Image
from support.maps import TRANSFORM, named, random_labels, read_band, write_map, write_shapes
from support.qgis_plugin import PLUGIN, load, write_commands
from support.scenes import landscape, write_points
from support.tiny_onnx import make_model

from iic_geotools import assess_map, change_map, clean_map, zone_statistics
from iic_geotools.classmap.classes import class_colours
from iic_runtime import segment_raster

MakeScene = Callable[..., Path]
SYSTEM_PYTHON = "/usr/bin/python3"


@pytest.fixture
def command(tmp_path: Path) -> Path:
    return write_commands(tmp_path)


Qgis = Callable[..., "subprocess.CompletedProcess[str]"]


def install(tmp_path: Path, settings: str, wheel: Path | None = None) -> Qgis:
    """Install the plugin's zip into a new profile; return what runs QGIS headless in it."""
    home = tmp_path / "home"
    profile = home / "profiles" / "default"
    (profile / "QGIS").mkdir(parents=True)
    zipped = load("pack", PLUGIN / "pack.py").pack(tmp_path / "plugin.zip", wheel)
    with zipfile.ZipFile(zipped) as archive:
        archive.extractall(profile / "python" / "plugins")
    enabled = "[PythonPlugins]\nprocessing=true\niic_segment=true\n"
    (profile / "QGIS" / "QGIS3.ini").write_text(f"{settings}\n{enabled}")
    cache = os.environ.get("PIP_CACHE_DIR", str(Path.home() / ".cache" / "pip"))
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    environment |= {"QT_QPA_PLATFORM": "offscreen", "QGIS_CUSTOM_CONFIG_PATH": str(home), "HOME": str(home)}
    environment["PATH"] = "/usr/bin:/bin"  # QGIS takes the first python3 on it for its own
    environment["PIP_CACHE_DIR"] = cache

    def run(*arguments: object) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [str(argument) for argument in arguments],
            capture_output=True,
            text=True,
            env=environment,
            cwd=tmp_path,
            check=False,
        )

    return run


@pytest.fixture
def qgis(tmp_path: Path, command: Path) -> Qgis:
    """Run QGIS headless, in a profile into which the plugin's zip was installed and its command set."""
    return install(tmp_path, f"[Processing]\nConfiguration\\IIC_COMMAND={command}")


@pytest.mark.qgis
@pytest.mark.network
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_new_profile_installs_maps_and_learns(tmp_path: Path) -> None:
    """Nothing is installed but QGIS: the plugin makes its own environment when it is first used."""
    try:
        wheel = load("pack", PLUGIN / "pack.py").build(tmp_path / "wheel")
    except subprocess.CalledProcessError:
        pytest.skip("the wheel cannot be built without the package index")
    proxy = "[proxy]\nproxyEnabled=true\nproxyType=HttpProxy\nproxyHost=127.0.0.1\nproxyPort=9"
    qgis = install(tmp_path, proxy, wheel)
    profile = tmp_path / "home" / "profiles" / "default"
    own = profile / "iic_segment"
    example = Path(shutil.copytree(Path(__file__).parents[2] / "examples", tmp_path / "examples"))
    outputs = ("OUTPUT=land.tif", "POLYGONS=fields.gpkg", "STATS=areas.csv")
    mapping = (
        "qgis_process.bin",
        "run",
        "iic:segmentraster",
        "--",
        f"INPUT={example / 'sentinel2.tif'}",
        *outputs,
    )
    done = qgis(*mapping)
    assert done.returncode != 0
    assert "its proxy in Settings > Options > Network" in done.stdout + done.stderr
    assert not list(own.iterdir())
    ini = profile / "QGIS" / "QGIS3.ini"
    ini.write_text(ini.read_text().replace("proxyEnabled=true", "proxyEnabled=false"))
    done = qgis(*mapping)
    if "cannot be downloaded" in done.stdout + done.stderr:
        pytest.skip("the package index does not answer")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Model: satellite" in done.stdout + done.stderr

    # Names, colours and areas are in the attribute tables of both layers.
    code = (
        "from osgeo import gdal; gdal.UseExceptions(); dataset = gdal.Open('land.tif'); "
        "table = dataset.GetRasterBand(1).GetDefaultRAT(); "
        "columns = range(table.GetColumnCount()); rows = range(table.GetRowCount()); "
        "cells = [[table.GetValueAsString(i, j) for j in columns] for i in rows]; "
        "print([[table.GetNameOfCol(j) for j in columns], *cells])"
    )
    head, *rows = ast.literal_eval(qgis(SYSTEM_PYTHON, "-c", code).stdout)
    assert head == ["Value", "Class", "Red", "Green", "Blue", "Alpha", "Pixels", "Hectares"]
    with (tmp_path / "areas.csv").open() as file:
        areas = {row["class"]: row for row in csv.DictReader(file)}
    for row in rows:
        assert (int(float(row[6])), float(row[7])) == pytest.approx(
            (int(areas[row[1]]["pixels"]), float(areas[row[1]]["ha"])), rel=1e-6
        )
    meta, _, _, values = pyogrio.raw.read(tmp_path / "fields.gpkg", read_geometry=False)
    polygons = dict(zip(meta["fields"], values, strict=True))
    kinds, hectares = polygons["class"], polygons["ha"]
    assert set(kinds) == {row[1] for row in rows if float(row[6])}
    assert sum(hectares) == pytest.approx(sum(float(row[7]) for row in rows), rel=1e-3)
    colours = {row[1]: "#{:02x}{:02x}{:02x}".format(*map(int, row[2:5])) for row in rows}
    shown = legends(qgis, tmp_path / "land.png", tmp_path / "land.tif", tmp_path / "fields.gpkg")
    assert shown == [colours, colours]

    clicks = example / "clicks.geojson"
    given = (
        f"INPUT={example / 'scene.tif'}",
        "MODEL=aerial",
        f"LABELS={clicks}",
        "NAMED=own.onnx",
        "OUTPUT=own.tif",
    )
    done = qgis("qgis_process.bin", "run", "iic:nameclusters", "--", *given)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Making an environment" not in done.stdout  # it is there
    names = {feature["properties"]["class"] for feature in json.loads(clicks.read_text())["features"]}
    legend = cast(dict[str, str], legends(qgis, tmp_path / "own.png", tmp_path / "own.tif")[0])
    assert legend.keys() == names
    done = qgis("qgis_process.bin", "run", "iic:setup", "--", "ACTION=remove")
    assert done.returncode == 0, done.stdout + done.stderr
    assert not own.exists()


@pytest.mark.qgis
def test_segment_raster_in_qgis(
    qgis: Qgis,
    make_scene: MakeScene,
    model: Path,
    tmp_path: Path,
) -> None:
    values = landscape(300, 400)
    values[:, :60, :90] = 0
    scene = make_scene(values[[3, 0, 1, 2]], nodata=0, descriptions=None)
    outputs = {"OUTPUT": "land cover.tif", "CONFIDENCE": "sure.tif", "POLYGONS": "polygons.gpkg"}
    files = {key: tmp_path / name for key, name in outputs.items()}
    given = [f"INPUT={scene}", f"MODEL={model}", "BANDS=2,3,4,1", "MIN_CONFIDENCE=0.4"]
    given += [f"{key}={file}" for key, file in files.items()]
    done = qgis("qgis_process.bin", "run", "iic:segmentraster", "--", *given)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "100 - done." in done.stdout
    assert "leaks" not in done.stdout + done.stderr
    segment_raster(scene, tmp_path / "own.tif", model, bands=["2", "3", "4", "1"], min_confidence=0.4)
    labels = read_band(files["OUTPUT"])
    assert np.array_equal(labels, read_band(tmp_path / "own.tif"))
    assert files["CONFIDENCE"].exists()

    # QGIS opens them as they are: the legends are the model's, and what is drawn has their colours.
    picture = Path(os.environ.get("IIC_KEEP_PICTURES", tmp_path)) / "qgis.png"
    render = Path(__file__).parents[1] / "support" / "qgis_render.py"
    output = qgis(SYSTEM_PYTHON, render, picture, files["OUTPUT"], files["POLYGONS"])
    plain = qgis(SYSTEM_PYTHON, render, tmp_path / "own.png", tmp_path / "own.tif")
    colours = {"cluster 0": "#0072b2", "cluster 1": "#e69f00", "cluster 2": "#009e73", "cluster 3": "#cc79a7"}
    expected = {"legends": [colours, colours], "drawn": True}
    assert json.loads(output.stdout.splitlines()[-1]) == expected, output.stderr
    assert json.loads(plain.stdout.splitlines()[-1])["legends"] == [colours], plain.stderr
    drawn = Counter(map(tuple, np.asarray(Image.open(picture).convert("RGB")).reshape(-1, 3).tolist()))
    for value in set(np.unique(labels)) - {255}:
        red, green, blue = (int(list(colours.values())[value][i : i + 2], 16) for i in (1, 3, 5))
        assert drawn[red, green, blue] > 100, value


@pytest.mark.qgis
def test_clicks_become_a_map_in_qgis(qgis: Qgis, make_scene: MakeScene, tmp_path: Path) -> None:
    values = landscape(200, 240)
    values[:, :, 120:] //= 3
    scene = make_scene(values)
    model, named, land = tmp_path / "m.onnx", tmp_path / "named.onnx", tmp_path / "land.tif"
    model.write_bytes(make_model(full=(12, 12), half=(), features=True))
    rows, columns = [20, 90, 160, 40, 100, 180], [30, 80, 40, 150, 220, 180]
    clicks = write_points(tmp_path / "clicks.gpkg", rows, columns, ["light"] * 3 + ["dark"] * 3, field="kind")
    given = [f"INPUT={scene}", f"MODEL={model}", f"LABELS={clicks}", "FIELD=kind", f"NAMED={named}"]
    given += [f"OUTPUT={land}", f"PLACES={tmp_path / 'places.gpkg'}"]
    done = qgis("qgis_process.bin", "run", "iic:nameclusters", "--", *given)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 classes by 6 labelled pixels" in done.stdout + done.stderr
    labels = read_band(land)
    assert (labels[:, :116] == 1).mean() > 0.75
    assert (labels[:, 124:] == 0).mean() > 0.75
    again = tmp_path / "again.gpkg"
    given = [f"INPUT={scene}", f"MODEL={named}", "COUNT=4", f"OUTPUT={again}"]
    done = qgis("qgis_process.bin", "run", "iic:suggestplaces", "--", *given)
    assert done.returncode == 0, done.stdout + done.stderr
    picture = Path(os.environ.get("IIC_KEEP_PICTURES", tmp_path)) / "clicks.png"
    render = Path(__file__).parents[1] / "support" / "qgis_render.py"
    output = qgis(SYSTEM_PYTHON, render, picture, land)
    assert json.loads(output.stdout.splitlines()[-1])["legends"] == [{"dark": "#3b3b4f", "light": "#bbbbbb"}]
    drawn = Counter(map(tuple, np.asarray(Image.open(picture).convert("RGB")).reshape(-1, 3).tolist()))
    assert min(drawn[0x3B, 0x3B, 0x4F], drawn[0xBB, 0xBB, 0xBB]) > 1000
    for file, count in ((tmp_path / "places.gpkg", 10), (again, 4)):
        assert 1 <= pyogrio.read_info(file)["features"] <= count


CLASSES = named("water", "forest's", "town")
NAMES = [entry.name for entry in CLASSES]
LEGEND = dict(zip(NAMES, map(str.lower, class_colours(NAMES)), strict=True))
"""Maps without colours of their own get those that people expect."""


@pytest.fixture
def run_algorithm(
    qgis: Qgis,
) -> Callable[..., str]:
    """Run an algorithm, from names in the working folder; return the log."""

    def run(name: str, *given: str) -> str:
        done = qgis("qgis_process.bin", "run", f"iic:{name}", "--", *given)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "leaks" not in done.stdout + done.stderr
        return done.stdout + done.stderr

    return run


def legends(qgis: Qgis, picture: Path, *files: Path) -> list[object]:
    """Draw layers with their legends, and return these."""
    folder = Path(os.environ.get("IIC_KEEP_PICTURES", picture.parent))
    render = Path(__file__).parents[1] / "support" / "qgis_render.py"
    done = qgis(SYSTEM_PYTHON, render, folder / picture.name, *files)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])["legends"]


@pytest.mark.qgis
def test_a_map_is_cleaned_and_compared_in_qgis(
    qgis: Qgis,
    run_algorithm: Callable[..., str],
    tmp_path: Path,
) -> None:
    labels = random_labels(90, 120, 3, patch=15)
    labels[40, 50] = (labels[40, 50] + 1) % 3
    write_map(tmp_path / "raw.tif", labels, classes=CLASSES)
    log = run_algorithm("cleanmap", "INPUT=raw.tif", "MAJORITY=0", "SIEVE=1.5", "OUTPUT=clean.tif")
    assert "100 - done." in log
    clean_map(tmp_path / "raw.tif", tmp_path / "own.tif", sieve=1.5)
    assert np.array_equal(read_band(tmp_path / "clean.tif"), read_band(tmp_path / "own.tif"))
    assert read_band(tmp_path / "clean.tif")[40, 50] != labels[40, 50]

    later = write_map(tmp_path / "later.tif", np.roll(labels, 30, axis=1), classes=CLASSES)
    given = ("BEFORE=clean.tif", "AFTER=later.tif", "OUTPUT=change.tif", "TABLE=change.csv")
    assert "before, ha" in run_algorithm("changemap", *given)
    change = change_map(
        tmp_path / "clean.tif", later, tmp_path / "own change.tif", tables=[tmp_path / "own.csv"]
    )
    assert np.array_equal(read_band(tmp_path / "change.tif"), read_band(tmp_path / "own change.tif"))
    assert (tmp_path / "change.csv").read_text() == (tmp_path / "own.csv").read_text()
    shown = legends(qgis, tmp_path / "change.png", tmp_path / "change.tif", tmp_path / "clean.tif")
    assert shown == [{entry.name: entry.colour.lower() for entry in change.classes}, LEGEND]

    # A vector layer of the same name has no style of its own, because QGIS would look for both in one file.
    style = (tmp_path / "clean.qml").read_bytes()
    west, north = TRANSFORM @ (10, 10)
    write_shapes(
        tmp_path / "field.gpkg", [shapely.box(west, north - 9, west + 9, north)], "EPSG:2154", id=[1]
    )
    run_algorithm("polygonstatistics", "INPUT=clean.tif", "ZONES=field.gpkg", "OUTPUT=clean.gpkg")
    assert (tmp_path / "clean.gpkg").exists()
    assert (tmp_path / "clean.qml").read_bytes() == style


def label_sample(sample: Path, out: Path, labels: np.ndarray) -> Path:
    """Give places the class that the map has there, but the first five water."""
    _, _, shapes, (_, numbers) = pyogrio.raw.read(sample)
    points = shapely.from_wkb(shapes)
    columns, rows = ~TRANSFORM @ (shapely.get_x(points), shapely.get_y(points))
    kinds = [CLASSES[value].name for value in labels[rows.astype(int), columns.astype(int)]]
    fields = [np.array(["water"] * 5 + kinds[5:], object), numbers]
    metadata = pyogrio.read_info(sample)["layer_metadata"]
    pyogrio.raw.write(
        out,
        shapes,
        fields,
        ["kind", "number"],
        geometry_type="Point",
        crs="EPSG:2154",
        layer_metadata=metadata,
    )
    return out


@pytest.mark.qgis
def test_a_map_is_assessed_and_measured_in_qgis(
    qgis: Qgis,
    run_algorithm: Callable[..., str],
    tmp_path: Path,
) -> None:
    labels = random_labels(90, 120, 3, patch=15)
    write_map(tmp_path / "raw.tif", labels, classes=CLASSES)
    clean_map(tmp_path / "raw.tif", tmp_path / "map.tif", majority=1)  # has colours
    log = run_algorithm("drawsample", "INPUT=map.tif", "COUNT=60", "SEED=3", "OUTPUT=sample.gpkg")
    assert "in the field class: water, forest's, town." in log
    assert pyogrio.read_info(tmp_path / "sample.gpkg")["features"] == 60
    form = (tmp_path / "sample.qml").read_text()
    assert 'type="ValueMap"' in form
    again = qgis(
        "qgis_process.bin", "run", "iic:drawsample", "--", "INPUT=map.tif", "OUTPUT=sample.gpkg", "COUNT=60"
    )
    assert "exists, perhaps with labels" in again.stdout + again.stderr

    # A layer with a filter is saved first, and still knows that it was drawn by class.
    seen = label_sample(tmp_path / "sample.gpkg", tmp_path / "seen.gpkg", read_band(tmp_path / "map.tif"))
    samples = "SAMPLES=seen.gpkg|subset=number < 100"
    given = ("INPUT=map.tif", samples, "FIELD=kind", "DESIGN=simple", "OUTPUT=report.html", "CSV=report.csv")
    log = run_algorithm("assessmap", *given)
    reports = [tmp_path / "own.csv"]
    own = assess_map(tmp_path / "map.tif", seen, label_field="kind", design="simple", reports=reports)
    assert "These samples were drawn by class" in log
    assert own.sentence() in log
    assert (tmp_path / "report.csv").read_text() == (tmp_path / "own.csv").read_text()
    assert "<html" in (tmp_path / "report.html").read_text()

    parcels = [
        shapely.box(*(TRANSFORM @ (x, y + 29.5)), *(TRANSFORM @ (x + 29.5, y)))
        for y in range(0, 90, 30)
        for x in range(0, 120, 30)
    ]
    write_shapes(tmp_path / "parcels.gpkg", parcels, "EPSG:2154", owner=[f"o{i}" for i in range(12)])
    zones = "ZONES=parcels.gpkg|subset=owner <> 'o0'"  # a filter, which the file itself does not know
    log = run_algorithm("polygonstatistics", "INPUT=map.tif", zones, "OUTPUT=areas.gpkg")
    assert "11 polygons, 3 classes" in log
    zone_statistics(tmp_path / "map.tif", tmp_path / "parcels.gpkg", tmp_path / "own.gpkg")
    measured, expected = (pyogrio.raw.read(tmp_path / name)[3] for name in ("areas.gpkg", "own.gpkg"))
    assert all(np.array_equal(a, b[1:]) for a, b in zip(measured, expected, strict=True))
    files = [tmp_path / name for name in ("sample.gpkg", "areas.gpkg", "map.tif")]
    white = {"": "#ffffff"}
    assert legends(qgis, tmp_path / "areas.png", *files) == [LEGEND | white, LEGEND | white, LEGEND]


@pytest.mark.qgis
def test_errors_are_shown_in_qgis(
    qgis: Qgis,
    make_scene: MakeScene,
    model: Path,
    tmp_path: Path,
) -> None:
    scene = make_scene(landscape(60, 80)[:2], descriptions=("green", "blue"))
    given = (f"INPUT={scene}", f"MODEL={model}", f"OUTPUT={tmp_path / 'map.tif'}")
    done = qgis("qgis_process.bin", "run", "iic:segmentraster", "--", *given)
    assert done.returncode != 0
    assert "The scene has no band named red" in done.stdout + done.stderr
    assert not (tmp_path / "map.tif").exists()


# What follows is the part of the plugin that knows nothing of QGIS.
