"""Without pyogrio and shapely everything but vector files works, and what needs them says so in one sentence."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from support.scenes import landscape

MakeScene = Callable[..., Path]
# A process in which the two packages cannot be found, as where the extra is not installed.
WITHOUT_VECTOR = """
import importlib.util, sys
for name in ("pyogrio", "shapely"):
    sys.modules[name] = None
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name in ("pyogrio", "shapely") else find(name, package)
"""
COMMAND = WITHOUT_VECTOR + "from iic_runtime.cli.{module} import main\nmain()"


def run(module: str, *arguments: object) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-c", COMMAND.format(module=module), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_map_with_areas_and_a_picture_needs_no_vector_packages(
    make_scene: MakeScene, model: Path, tmp_path: Path
) -> None:
    scene, out = make_scene(landscape(60, 50)), tmp_path / "map.tif"
    products = ("--stats", tmp_path / "areas.csv", "--preview", tmp_path / "map.png")
    done = run("segment_raster", scene, out, "--model", model, *products)
    assert done.returncode == 0, done.stderr
    assert out.exists()


@pytest.mark.parametrize(
    ("options", "what"),
    [
        (("--polygons", "map.gpkg"), "--polygons"),
        (("--aoi", "area.geojson"), "Reading the area of interest area.geojson"),
        (("--stats", "areas.csv", "--stats-by", "area.geojson"), "Reading the zones area.geojson"),
    ],
)
def test_an_option_that_needs_them_says_so(
    make_scene: MakeScene,
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: tuple[str, ...],
    what: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    scene, out = make_scene(landscape(60, 50)), tmp_path / "map.tif"
    (tmp_path / "area.geojson").write_text('{"type": "FeatureCollection", "features": []}')
    done = run("segment_raster", scene, out, "--model", model, *options)
    assert done.returncode == 1
    assert f"{what} needs the packages pyogrio and shapely" in done.stderr
    assert 'pip install ".[vector]"' in done.stderr
    assert len([line for line in done.stderr.splitlines() if "pyogrio" in line]) == 1
    assert "Traceback" not in done.stderr
    assert not out.exists()


def test_labels_in_a_vector_file_need_them_and_labels_in_a_raster_do_not(
    make_scene: MakeScene, model: Path, tmp_path: Path
) -> None:
    scene = make_scene(landscape(60, 50))
    clicks = tmp_path / "clicks.geojson"
    clicks.write_text('{"type": "FeatureCollection", "features": []}')
    classes = np.repeat(np.arange(50) // 25, 60).reshape(1, 50, 60).transpose(0, 2, 1).astype("uint8") + 1
    labels = make_scene(classes, "labels.tif", descriptions=None, nodata=0)
    common = ("--scene", scene, "-o", tmp_path / "named.onnx")
    refused = run("model", "name", model, "--labels", clicks, *common)
    assert refused.returncode == 1
    assert f"Reading the labels {clicks} needs the packages pyogrio and shapely" in refused.stderr
    named = run("model", "name", model, "--labels", labels, *common)
    assert named.returncode == 0, named.stderr
