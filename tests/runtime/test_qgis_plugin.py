"""The QGIS plugin, as far as it can be tested without QGIS."""

import re
import time
import tomllib
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from support.qgis_plugin import PLUGIN, load, write_commands
from support.scenes import landscape
from support.tiny_onnx import make_model

MakeScene = Callable[..., Path]


@pytest.fixture
def command(tmp_path: Path) -> Path:
    return write_commands(tmp_path)


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
        f"from pathlib import Path; from iic_runtime.model import select; select.FOLDER = Path('{bundle}'); "
    )
    command.write_text(script.replace('-c "', f'-c "{elsewhere}'))
    options = running.arguments(str(make_scene(landscape(60, 80))), str(tmp_path / "map.tif"), model="")
    said: list[str] = []
    assert running.run([str(command), *options], lambda percent: None, said.append, lambda: False)
    assert "Model: aerial (for 0.2 to 1 m; the scene has 0.5 m)" in said


def test_a_cancelled_run_ends(command: Path, make_scene: MakeScene, tmp_path: Path) -> None:
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
    project = tomllib.loads((PLUGIN.parents[1] / "pyproject.toml").read_text())["project"]["urls"]
    facts = {"version": __version__, "qgisMaximumVersion": "4.99", "tracker": project["Issues"]}
    facts |= {"homepage": project["Homepage"], "repository": project["Homepage"]}
    for key, value in facts.items():
        assert f"\n{key}={value}\n" in metadata
    assert not any("__pycache__" in name for name in names)


def test_the_documentation_shows_every_algorithm_with_its_parameters() -> None:
    page = (PLUGIN.parents[1] / "docs" / "embedding-qgis.md").read_text()
    shown = dict(re.findall(r"^    qgis_process run iic:(\w+) -- (.+)$", page, re.M))
    source = "".join(file.read_text() for file in (PLUGIN / "iic_segment").glob("*.py"))
    blocks = re.findall(r'NAME, TITLE = "(\w+)", "([^"]+)"(.+?)(?=\nclass |\Z)', source, re.S)
    assert {name for name, _, _ in blocks} == set(shown)
    for name, title, code in blocks:
        assert f"\n| {title} | " in page
        keys = re.findall(r"(?:^| )([A-Z_]+)=", shown[name])
        assert [key for key in keys if f'"{key}"' not in code] == []


def test_only_what_keeps_its_parts_is_said_to_resume() -> None:
    page = (PLUGIN.parents[1] / "docs" / "embedding-qgis.md").read_text()
    (sentence,) = re.findall(r"[^.]*\bresumes?\b[^.]*\.", page)
    assert "Segment raster" in sentence
    assert "Clean map" not in sentence
    source = "".join(file.read_text() for file in (PLUGIN / "iic_segment").glob("*.py"))
    blocks = re.findall(r'NAME, TITLE = "(\w+)"(.+?)(?=\nclass |\Z)', source, re.S)
    assert [name for name, code in blocks if "resumes" in code] == ["segmentraster"]
