"""Maps whose sidecar or transform is odd: one sentence from every map command."""

import math
from pathlib import Path

import pytest
import shapely
from affine import Affine
from hypothesis import HealthCheck, given, settings
from rasterio.crs import CRS
from support.hostile import check_result
from support.hostile_maps import MapCase, check_map_case, map_cases
from support.maps import make_classes, random_labels, write_map, write_shapes
from typer.testing import CliRunner

from iic_geotools.classmap.sidecars import sidecar_path
from iic_geotools.cli.map import app

COMMANDS = {
    "stats": "stats map.tif zones.gpkg out.csv",
    "change": "change map.tif other.tif out.tif",
    "change to": "change other.tif map.tif out.tif",
    "clean": "clean map.tif out.tif --majority 1 --sieve 20",
    "draw": "assess map.tif out.gpkg --draw 20",
    "assess": "assess map.tif points.gpkg",
}
TRANSFORMS = {
    "singular": Affine(1, 1, 0, 1, 1, 0),
    "zeros": Affine(0, 0, 0, 0, 0, 0),
    "not a number": Affine(math.nan, 0, 0, 0, -1, 0),
    "infinite": Affine(math.inf, 0, 0, 0, -1, 0),
    "huge": Affine(1e300, 0, 0, 0, -1e300, 0),
    "tiny": Affine(1e-300, 0, 0, 0, -1e-300, 0),
    "off the earth": Affine(0.5, 0, 1e12, 0, -0.5, 1e12),
}
ENCODINGS = ("klingon", "utf-7", "rot13", "shift_jis", "idna", "utf-16", "cp037")


def run(folder: Path, command: str) -> int:
    before = {entry.name for entry in folder.iterdir()}
    words = [str(folder / word) if "." in word else word for word in COMMANDS[command].split()]
    result = CliRunner().invoke(app, words)
    check_result(result, folder, before, f"{command}\n{result.output}")
    return int(result.exit_code)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("map.tif", "other.tif"):
        write_map(tmp_path / name, random_labels(60, 70, 3, patch=5), classes=make_classes(3))
    write_shapes(
        tmp_path / "zones.gpkg", [shapely.box(770001, 6278980, 770020, 6278999)], "EPSG:2154", name=["a"]
    )
    points = [shapely.Point(770001 + 3 * number, 6278995) for number in range(6)]
    write_shapes(tmp_path / "points.gpkg", points, "EPSG:2154", **{"class": ["class 0 é", "class 1 é"] * 3})
    return tmp_path


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("name", TRANSFORMS)
def test_odd_transforms(folder: Path, name: str, command: str) -> None:
    labels = random_labels(60, 70, 3, patch=5)
    write_map(folder / "map.tif", labels, transform=TRANSFORMS[name], classes=make_classes(3))
    run(folder, command)


def test_samples_beyond_the_pole(folder: Path) -> None:
    labels, place = random_labels(9, 9, 3), Affine(0.5, 0, 770000, 0, -0.5, 6279000)
    write_map(folder / "map.tif", labels, CRS.from_epsg(4326), place, classes=make_classes(3))
    assert run(folder, "draw") == 1


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(case=map_cases())
def test_odd_maps_zones_and_options(case: MapCase, tmp_path: Path) -> None:
    check_map_case(case, tmp_path / "case")


@pytest.mark.parametrize("encoding", [*ENCODINGS, "a folder"])
def test_odd_sidecars(folder: Path, encoding: str) -> None:
    file = sidecar_path(folder / "map.tif")
    text = file.read_text()
    file.unlink()
    if encoding == "a folder":
        file.mkdir()
    else:
        file.write_bytes(f'<?xml version="1.0" encoding="{encoding}"?>{text}'.encode())
    for command in ("stats", "clean"):
        assert run(folder, command) == 1
