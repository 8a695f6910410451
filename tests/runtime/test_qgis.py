"""The QGIS plugin, in the real QGIS: its zip installed in a profile, run by qgis_process, drawn with its legend."""

import json
import os
import subprocess
import sys
import time
import zipfile
from collections import Counter
from collections.abc import Callable
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import rasterio
from conftest import landscape
from PIL import Image
from tiny_onnx import make_model

from iic_runtime import segment_raster

MakeScene = Callable[..., Path]
PLUGIN = Path(__file__).parents[2] / "runtime" / "qgis_plugin"
SYSTEM_PYTHON = "/usr/bin/python3"


def load(name: str, file: Path) -> ModuleType:
    spec = spec_from_file_location(name, file)
    assert spec
    assert spec.loader
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def read(path: Path) -> np.ndarray:
    with rasterio.open(path) as dataset:
        return dataset.read(1)


@pytest.fixture
def command(tmp_path: Path) -> Path:
    """iic-segment-raster as it is installed: a script of another Python."""
    path = os.pathsep.join(str(Path(each).resolve()) for each in sys.path if each)
    script = tmp_path / "iic-segment-raster"
    script.write_text(
        f"#!/bin/sh\n[ -z \"$PYTHONPATH$PROJ_LIB\" ] || echo 'the environment of QGIS leaks' >&2\n"
        f'export PYTHONPATH="{path}"\n'
        # what a shell starts in the background is deaf to SIGINT
        f'exec "{sys.executable}" -c "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); '
        f'from iic_runtime.cli.segment_raster import main; main()" "$@"\n'
    )
    script.chmod(0o755)
    return script


@pytest.fixture
def qgis(tmp_path: Path, command: Path) -> Callable[..., "subprocess.CompletedProcess[str]"]:
    """Run QGIS headless, in a profile into which the plugin's zip was installed and its command set."""
    home = tmp_path / "home"
    profile = home / "profiles" / "default"
    (profile / "QGIS").mkdir(parents=True)
    zipped = load("pack", PLUGIN / "pack.py").pack(tmp_path / "plugin.zip")
    with zipfile.ZipFile(zipped) as archive:
        archive.extractall(profile / "python" / "plugins")
    enabled = "[PythonPlugins]\nprocessing=true\niic_segment=true\n"
    (profile / "QGIS" / "QGIS3.ini").write_text(
        f"[Processing]\nConfiguration\\IIC_COMMAND={command}\n{enabled}"
    )
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    environment |= {"QT_QPA_PLATFORM": "offscreen", "QGIS_CUSTOM_CONFIG_PATH": str(home), "HOME": str(home)}
    environment["PATH"] = "/usr/bin:/bin"  # QGIS takes the first python3 on it for its own

    def run(*arguments: object) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [str(each) for each in arguments], capture_output=True, text=True, env=environment, check=False
        )

    return run


@pytest.mark.qgis
def test_segment_raster_in_qgis(
    qgis: Callable[..., "subprocess.CompletedProcess[str]"],
    make_scene: MakeScene,
    model: Path,
    tmp_path: Path,
) -> None:
    values = landscape(300, 400)
    values[:, :60, :90] = 0
    scene = make_scene(values[[3, 0, 1, 2]], nodata=0, descriptions=None)
    outputs = {"OUTPUT": "land cover.tif", "CONFIDENCE": "sure.tif", "POLYGONS": "polygons.gpkg"}
    files = {key: tmp_path / name for key, name in outputs.items()}
    given = [f"INPUT={scene}", f"MODEL={model}", "BANDS=2,3,4,1", *(f"{k}={v}" for k, v in files.items())]
    done = qgis("qgis_process.bin", "run", "iic:segmentraster", "--", *given)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "100 - done." in done.stdout
    assert "leaks" not in done.stdout + done.stderr
    segment_raster(scene, tmp_path / "own.tif", model, bands=["2", "3", "4", "1"])
    labels = read(files["OUTPUT"])
    assert np.array_equal(labels, read(tmp_path / "own.tif"))
    assert files["CONFIDENCE"].exists()

    # QGIS opens them as they are: the legends are the model's, and what is drawn has their colours.
    picture = Path(os.environ.get("IIC_KEEP_PICTURES", tmp_path)) / "qgis.png"
    render = Path(__file__).with_name("qgis_render.py")
    told = qgis(SYSTEM_PYTHON, render, picture, files["OUTPUT"], files["POLYGONS"])
    plain = qgis(SYSTEM_PYTHON, render, tmp_path / "own.png", tmp_path / "own.tif")
    colours = {"cluster 0": "#0072b2", "cluster 1": "#e69f00", "cluster 2": "#009e73", "cluster 3": "#cc79a7"}
    expected = {"legends": [colours, colours], "drawn": True}
    assert json.loads(told.stdout.splitlines()[-1]) == expected, told.stderr
    assert json.loads(plain.stdout.splitlines()[-1])["legends"] == [colours], plain.stderr
    drawn = Counter(map(tuple, np.asarray(Image.open(picture).convert("RGB")).reshape(-1, 3).tolist()))
    for value in set(np.unique(labels)) - {255}:
        red, green, blue = (int(list(colours.values())[value][i : i + 2], 16) for i in (1, 3, 5))
        assert drawn[red, green, blue] > 100, value


@pytest.mark.qgis
def test_errors_are_told_in_qgis(
    qgis: Callable[..., "subprocess.CompletedProcess[str]"],
    make_scene: MakeScene,
    model: Path,
    tmp_path: Path,
) -> None:
    scene = make_scene(landscape(60, 80), descriptions=None)
    given = (f"INPUT={scene}", f"MODEL={model}", f"OUTPUT={tmp_path / 'map.tif'}")
    done = qgis("qgis_process.bin", "run", "iic:segmentraster", "--", *given)
    assert done.returncode != 0
    assert "The scene has no band named red" in done.stdout + done.stderr
    assert not (tmp_path / "map.tif").exists()


# What follows is the part of the plugin that knows nothing of QGIS.
running = load("iic_segment_command", PLUGIN / "iic_segment" / "command.py")


def test_progress_and_messages(command: Path, make_scene: MakeScene, model: Path, tmp_path: Path) -> None:
    scene = make_scene(landscape(200, 200))
    options = running.arguments(str(scene), str(tmp_path / "map.tif"), model=str(model), bands="", rescale="")
    percents: list[float] = []
    said: list[str] = []
    whole = [running.find_command(str(command)), *options, "--tile=64"]
    assert running.run(whole, percents.append, said.append, lambda: False)
    assert percents == sorted(percents)
    assert percents[0] == 0
    assert percents[-1] == 100
    assert len(percents) > 16
    assert any("tiny on CPU" in line for line in said)
    with pytest.raises(running.CommandError, match="Error: There is no file"):
        running.run(
            [str(command), "nothing.tif", str(tmp_path / "b.tif"), f"--model={model}"], *[print] * 2, bool
        )


def test_without_a_model_the_bundled_one_is_taken(
    command: Path, bundle: Path, make_scene: MakeScene, tmp_path: Path
) -> None:
    script = command.read_text()
    elsewhere = (
        f"from pathlib import Path; from iic_runtime import bundled; bundled.FOLDER = Path('{bundle}'); "
    )
    command.write_text(script.replace('-c "', f'-c "{elsewhere}'))
    options = running.arguments(str(make_scene(landscape(60, 80))), str(tmp_path / "map.tif"), model="")
    said: list[str] = []
    assert running.run([str(command), *options], lambda percent: None, said.append, lambda: False)
    assert "Model: aerial (for 0.2 to 1 m; the scene has 0.5 m)" in said


def test_cancelled_it_ends_and_can_go_on(command: Path, make_scene: MakeScene, tmp_path: Path) -> None:
    model = tmp_path / "slow.onnx"
    model.write_bytes(make_model(full=(32, 32), half=((64, 1), (64, 2))))
    scene = make_scene(landscape(1000, 1000))
    percents: list[float] = []
    said: list[str] = []
    options = running.arguments(str(scene), str(tmp_path / "map.tif"), model=str(model))
    whole = [str(command), *options, "--tile=128", "--threads=1"]

    def cancelled() -> bool:
        return bool(percents) and percents[-1] > 0

    begun = time.monotonic()
    assert not running.run(whole, percents.append, said.append, cancelled)
    assert "Interrupted." in said, (said, time.monotonic() - begun)
    assert not (tmp_path / "map.tif").exists()


def test_a_command_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(running.CommandError, match="Processing > Providers > IIC"):
        running.find_command(str(tmp_path / "nothing"))


def test_the_zip_is_what_qgis_installs(tmp_path: Path) -> None:
    from iic_geotools import __version__

    with zipfile.ZipFile(load("pack", PLUGIN / "pack.py").pack(tmp_path / "dist" / "plugin.zip")) as archive:
        names = set(archive.namelist())
        metadata = archive.read("iic_segment/metadata.txt").decode()
    assert {"iic_segment/__init__.py", "iic_segment/metadata.txt", "iic_segment/LICENSE"} <= names
    assert f"version={__version__}\n" in metadata
    assert not any("__pycache__" in name for name in names)
