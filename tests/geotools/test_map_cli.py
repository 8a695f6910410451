"""`iic-map`: what its commands print, write and refuse."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import shapely
from pyogrio import read_info
from support.maps import TRANSFORM, named, random_labels, write_map, write_shapes
from typer.testing import CliRunner

from iic_geotools.cli.map import app
from iic_geotools.products.polygons import polygonise

CLASSES = named("water", "forest [old]", "town")


def run(*arguments: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], prog_name="iic-map")
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture
def map_file(tmp_path: Path) -> Path:
    return write_map(tmp_path / "map.tif", random_labels(60, 60, 3, patch=5), classes=CLASSES)


@pytest.fixture
def samples(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    labels = random_labels(60, 60, 3, patch=5)
    rows, columns = np.nonzero(labels != 255)
    chosen = rng.choice(len(rows), 80, replace=False)
    places = [shapely.Point(TRANSFORM @ (columns[index] + 0.5, rows[index] + 0.5)) for index in chosen]
    names = [CLASSES[labels[rows[index], columns[index]]].name for index in chosen]
    return write_shapes(tmp_path / "samples.gpkg", places, "EPSG:2154", **{"class": names})


def test_assess_prints_matrix_and_figures(map_file: Path, samples: Path, tmp_path: Path) -> None:
    code, out, err = run(
        "assess", map_file, samples, "--report", tmp_path / "r.html", "--report", tmp_path / "r.csv"
    )
    assert code == 0
    assert err.startswith("± 0 is too narrow where no sample is wrong: up to")
    assert "forest [old]" in out
    assert "100.0 ± 0.0" in out
    assert (
        "100.0 ± 0.0 % of the area is classified correctly (95 % confidence, 80 samples); kappa 1.000" in out
    )
    assert (tmp_path / "r.html").exists()
    assert (tmp_path / "r.csv").exists()


def test_assess_prints_json(map_file: Path, samples: Path) -> None:
    code, out, _ = run("assess", map_file, samples, "--json", "--design", "simple")
    content = json.loads(out)
    assert code == 0
    assert content["design"] == "simple"
    assert content["count"] == 80


def test_draw_prints_what_to_do(map_file: Path, tmp_path: Path) -> None:
    code, out, _ = run("assess", map_file, tmp_path / "drawn.gpkg", "--draw", 90, "-q")
    assert (code, out) == (0, "")
    code, _, err = run("assess", map_file, tmp_path / "drawn.gpkg", "--draw", 90)
    assert code == 1
    assert "or --overwrite to replace it" in err
    code, out, _ = run("assess", map_file, tmp_path / "drawn.gpkg", "--draw", 90, "--overwrite", "--seed", 4)
    assert "in the field class: water, forest [old], town." in out
    code, _, err = run("assess", map_file, tmp_path / "drawn.gpkg")
    assert code == 1
    assert "No sample of" in err


def test_polygons_are_those_of_a_run(map_file: Path, tmp_path: Path) -> None:
    polygonise(map_file, tmp_path / "run.fgb", CLASSES, min_area=20.0, simplify=2.0)
    out = tmp_path / "map.fgb"
    code, _, err = run("polygons", map_file, out, "--min-area", 20, "--simplify", 2)
    assert code == 0
    assert out.read_bytes() == (tmp_path / "run.fgb").read_bytes()
    assert f"map.fgb: {read_info(out)['features']} polygons" in err
    code, _, err = run("polygons", map_file, out)
    assert code == 1
    assert "or --overwrite to replace it" in err
    assert run("polygons", map_file, tmp_path / "map.shp")[0] == 2


def test_polygons_are_made_of_maps_of_classes_only(tmp_path: Path) -> None:
    bare = write_map(tmp_path / "confidence.tif", random_labels(20, 20, 3))
    code, _, err = run("polygons", bare, tmp_path / "map.gpkg")
    assert code == 1
    assert "neither names of classes nor a colour table" in err
    assert not (tmp_path / "map.gpkg").exists()


def test_change_prints_the_balance(map_file: Path, tmp_path: Path) -> None:
    later = write_map(tmp_path / "later.tif", random_labels(60, 60, 3, seed=3, patch=5), classes=CLASSES)
    code, out, err = run("change", map_file, later, tmp_path / "change.tif", "--table", tmp_path / "t.json")
    assert code == 0
    assert "before, ha" in out
    assert "have another class than before" in err
    assert json.loads((tmp_path / "t.json").read_text())["classes"][1]["name"] == "forest [old]"
    code, _, err = run("change", map_file, later, tmp_path / "x.tif", "--skip-unsure")
    assert code == 2
    assert err == "Error: Neither map has a class unsure; leave out --skip-unsure.\n"


def test_stats_says_how_pixels_count(map_file: Path, tmp_path: Path) -> None:
    corner = TRANSFORM @ (30.3, 20.7)
    zones = write_shapes(tmp_path / "z.gpkg", [shapely.Point(corner).buffer(6)], "EPSG:2154", name=["round"])
    code, _, err = run("stats", map_file, zones, tmp_path / "z.csv")
    assert code == 0
    assert "1 polygons, 3 classes (planar, pixels on borders by share)" in err
    code, _, err = run(
        "stats", map_file, zones, tmp_path / "z.csv", "--overwrite", "--partial-pixels", "centre", "-q"
    )
    assert (code, err) == (0, "")
    assert "by centre" in (tmp_path / "z.csv").read_text()
    code, _, err = run("stats", map_file, zones, tmp_path / "z.txt")
    assert code == 2
    assert "Error: OUT must end in .csv or .gpkg" in err


def test_progress_as_json_has_standard_output_to_itself(
    map_file: Path, samples: Path, tmp_path: Path
) -> None:
    parcels = write_shapes(
        tmp_path / "z.gpkg", [shapely.Point(TRANSFORM @ (30, 20)).buffer(6)], "EPSG:2154", name=["round"]
    )
    lines = {
        ("assess", map_file, tmp_path / "drawn.gpkg", "--draw", 90): ("draw", "in the field class: water"),
        ("assess", map_file, samples): ("", "is classified correctly"),
        ("change", map_file, map_file, tmp_path / "change.tif"): ("write", "before, ha"),
        ("clean", map_file, tmp_path / "clean.tif", "--majority", 1): ("clean", "clean.tif"),
        ("stats", map_file, parcels, tmp_path / "z.csv"): ("measure", "1 polygons, 3 classes"),
    }
    for arguments, (stage, text) in lines.items():
        code, out, err = run(*arguments, "--progress-json")
        assert code == 0, err
        reports = [json.loads(line) for line in out.splitlines()]
        assert [report["stage"] for report in reports[-1:]] == ([stage] if stage else [])
        assert text in err


def test_help_answers_without_heavy_imports() -> None:
    code = (
        "import sys; from iic_geotools.cli.map import app; from typer.testing import CliRunner; "
        "assert CliRunner().invoke(app, ['assess', '--help']).exit_code == 0; "
        "print([name for name in ('rasterio', 'numpy', 'shapely', 'onnxruntime') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
