"""The QGIS plugin, as far as it can be tested without QGIS."""

import ast
import importlib
import json
import os
import re
import subprocess
import sys
import time
import tomllib
import types
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import code_page
from support.qgis_plugin import PLUGIN, load, write_commands
from support.scenes import landscape
from support.tiny_onnx import make_model

MakeScene = Callable[..., Path]


@pytest.fixture
def command(tmp_path: Path) -> Path:
    return write_commands(tmp_path)


sys.modules.setdefault("iic_segment", types.ModuleType("iic_segment")).__path__ = [
    str(PLUGIN / "iic_segment")
]
running = importlib.import_module("iic_segment.command")
installing = importlib.import_module("iic_segment.environment")
MODULES = ("iic_runtime", "onnxruntime", "pyogrio", "rasterio", "shapely")


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


def write_wheel(folder: Path, requires: str = "", modules: tuple[str, ...] = MODULES) -> Path:
    """Write a wheel of the package's name with empty modules, so that nothing is downloaded."""
    folder.mkdir(exist_ok=True)
    wheel, facts = folder / "iic_edge-1.0-py3-none-any.whl", "iic_edge-1.0.dist-info"
    metadata = (
        "Metadata-Version: 2.1\nName: iic-edge\nVersion: 1.0\nProvides-Extra: cpu\nProvides-Extra: vector\n"
    )
    files = {f"{name}.py": "def main():\n    print('mapped')\n" for name in modules}
    files |= {
        f"{facts}/METADATA": metadata + requires,
        f"{facts}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{facts}/entry_points.txt": "[console_scripts]\niic-segment-raster = iic_runtime:main\n",
    }
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, text in (files | {f"{facts}/RECORD": "".join(f"{name},,\n" for name in files)}).items():
            archive.writestr(name, text)
    return wheel


@pytest.fixture
def without_ensurepip(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Take environments to be made as on Debian without python3-venv, which is several times as fast."""
    probe = installing._probe

    def hide() -> None:
        monkeypatch.setattr(
            installing,
            "_probe",
            lambda python: tuple(fact for fact in probe(python) if fact != "ensurepip"),
        )

    return hide


def make(environment: Any) -> list[str]:
    """Make an environment; return what was reported."""
    percents: list[float] = []
    messages: list[str] = []
    assert environment.make(percents.append, messages.append, lambda: False)
    assert percents == sorted(percents)
    assert percents[-1] == 100
    return messages


def test_the_environment_is_made_replaced_and_removed(
    tmp_path: Path, without_ensurepip: Callable[[], None]
) -> None:
    home = tmp_path / "my profile"
    environment = installing.Environment(home, write_wheel(tmp_path / "one"))
    assert environment.command("iic-segment-raster") is None
    assert str(home) in make(environment)[0]
    command = environment.command("iic-segment-raster")
    said: list[str] = []
    assert running.execute([command], lambda stream, line: said.append(line), lambda: False) == 0
    assert said == ["mapped"]

    # Another wheel, as after an update of the plugin: the old environment is not used, and goes.
    update = installing.Environment(home, write_wheel(tmp_path / "two", modules=(*MODULES, "news")))
    assert update.command("iic-segment-raster") is None
    without_ensurepip()
    make(update)
    assert environment.command("iic-segment-raster") is None
    (folder,) = home.glob("env-*")
    assert folder.name in update.command("iic-segment-raster")

    # The Python that it was made with is gone, as after an update of QGIS.
    record = home / "environment.json"
    intact = record.read_text()
    record.write_text(json.dumps(json.loads(intact) | {"python": str(tmp_path / "gone")}))
    assert update.command("iic-segment-raster") is None
    record.write_text(intact[:-9])  # a damaged record is none
    assert update.command("iic-segment-raster") is None
    record.write_text(intact)
    assert update.command("iic-segment-raster") is not None
    update.remove()
    assert not home.exists()


def test_an_environment_that_cannot_be_made_leaves_nothing(
    tmp_path: Path, without_ensurepip: Callable[[], None]
) -> None:
    without_ensurepip()
    # A proxy that does not answer, and an index that is not asked for anything else.
    nowhere = "http://127.0.0.1:9"
    blocked = dict.fromkeys(("HTTPS_PROXY", "HTTP_PROXY", "https_proxy", "http_proxy"), nowhere)
    blocked |= {"PIP_RETRIES": "0", "PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "0"}
    wheel = write_wheel(tmp_path / "needs", "Requires-Dist: there-is-no-such-package-of-iic\n")
    offline = installing.Environment(tmp_path / "home", wheel, blocked)
    with pytest.raises(
        running.CommandError, match=r"cannot be downloaded.*proxy in Settings > Options > Network"
    ):
        offline.make(*[lambda _: None] * 2, lambda: False)
    broken = installing.Environment(
        tmp_path / "home", write_wheel(tmp_path / "broken", modules=("iic_runtime",))
    )
    with pytest.raises(running.CommandError, match="No module named 'onnxruntime'"):
        broken.make(*[lambda _: None] * 2, lambda: False)
    cancelled = installing.Environment(tmp_path / "home", write_wheel(tmp_path / "cancelled"))
    assert not cancelled.make(*[lambda _: None] * 2, lambda: True)
    assert list((tmp_path / "home").iterdir()) == []


def test_an_environment_is_made_by_what_there_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def ways(**modules: tuple[object, ...]) -> Any:
        monkeypatch.setattr(installing, "_candidates", lambda: list(modules))
        monkeypatch.setattr(installing, "_probe", modules.__getitem__)
        return installing.find_way(tmp_path)

    old, bare = ((3, 9), "venv", "ensurepip", "pip"), ((3, 11), "venv")
    assert ways(qgis=old, other=((3, 12), "venv", "ensurepip")).python == "other"
    assert "--without-pip" in ways(debian=(*bare, "pip")).create
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(running.CommandError, match=r"There is no Python 3\.11 or later"):
        ways(qgis=old)
    with pytest.raises(running.CommandError, match="package python3-venv"):
        ways(qgis=old, debian=bare)
    uv = tmp_path / "uv"
    uv.write_text("#!/bin/sh\n")
    uv.chmod(0o755)
    assert ways(qgis=old).create[:5] == [str(uv), "venv", "--quiet", "--python", "3.12"]
    assert ways(qgis=old, debian=bare).create[4] == "debian"


def test_the_zip_is_what_qgis_installs(tmp_path: Path) -> None:
    from iic_geotools import __version__

    wheel = write_wheel(tmp_path / "wheel")
    zipped = load("pack", PLUGIN / "pack.py").pack(tmp_path / "dist" / "plugin.zip", wheel)
    with zipfile.ZipFile(zipped) as archive:
        names = set(archive.namelist())
        metadata = archive.read("iic_segment/metadata.txt").decode()
    assert {"iic_segment/__init__.py", "iic_segment/metadata.txt", "iic_segment/LICENSE"} <= names
    project = tomllib.loads((PLUGIN.parents[1] / "pyproject.toml").read_text())["project"]["urls"]
    facts = {"version": __version__, "qgisMaximumVersion": "4.99", "tracker": project["Issues"]}
    facts |= {"homepage": project["Homepage"], "repository": project["Homepage"]}
    for key, value in facts.items():
        assert f"\n{key}={value}\n" in metadata
    for key in (
        "about",
        "author",
        "description",
        "email",
        "license",
        "name",
        "qgisMinimumVersion",
    ):  # asked for
        assert re.search(rf"^{key}=.", metadata, re.M), key
    assert not any("__pycache__" in name for name in names)
    assert [name for name in names if Path(name).suffix not in (".py", ".txt", "")] == [
        f"iic_segment/{wheel.name}"
    ]


def test_the_zip_does_not_depend_on_the_code_page(tmp_path: Path) -> None:
    code = (
        "import runpy, sys; from pathlib import Path; runpy.run_path(sys.argv[1])['pack'](Path(sys.argv[2]))"
    )
    code_page.run(code, PLUGIN / "pack.py", tmp_path / "plugin.zip")
    with zipfile.ZipFile(tmp_path / "plugin.zip") as archive:
        assert archive.read("iic_segment/maps.py") == (PLUGIN / "iic_segment" / "maps.py").read_bytes()


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


def members(classes: dict[str, ast.ClassDef], name: str) -> set[str]:
    """The members of a class of a type stub, inherited ones too; those of classes in it as "outer.inner"."""
    found: set[str] = set()
    for node in classes[name].body if name in classes else ():
        if isinstance(node, ast.ClassDef):
            found |= {node.name, *(f"{node.name}.{each}" for each in members({node.name: node}, node.name))}
        elif isinstance(node, ast.FunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.AnnAssign | ast.Assign):
            targets = [node.target] if isinstance(node, ast.AnnAssign) else node.targets
            found |= {ast.unparse(target) for target in targets}
    bases = classes[name].bases if name in classes else ()
    return found.union(*(members(classes, ast.unparse(base).split(".")[-1]) for base in bases))


def unknown_names(source: str, stubs: dict[str, dict[str, ast.ClassDef]]) -> set[str]:
    """The classes of QGIS and Qt that a source imports, and the attributes it takes from them, that stubs lack."""
    tree = ast.parse(source)
    for node in ast.walk(tree):  # names for older versions of QGIS
        if isinstance(node, ast.If) and "hasattr" in ast.unparse(node.test):
            node.orelse = []
    classes = {
        alias.name: stubs[node.module]
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module in stubs
        for alias in node.names
    }
    unknown = {name for name, known in classes.items() if name not in known}
    for node in ast.walk(tree):
        owner, _, attribute = (
            ast.unparse(node).partition(".") if isinstance(node, ast.Attribute) else ("",) * 3
        )
        if re.fullmatch(r"[\w.]+", attribute) and owner in classes.keys() - unknown:
            unknown |= {f"{owner}.{attribute}"} if attribute not in members(classes[owner], owner) else set()
    return unknown


@pytest.mark.slow
@pytest.mark.network
def test_names_are_those_of_qgis_and_qt_6(tmp_path: Path) -> None:
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(tmp_path)]
    done = subprocess.run([*pip, "qgis-stubs>=0.5", "PyQt6"], capture_output=True, check=False)
    if done.returncode:
        pytest.skip("the type stubs of QGIS and Qt 6 cannot be downloaded")
    files = {
        "qgis.core": ("qgis_stubs*", "qgis-stubs/_core.pyi"),
        "qgis.PyQt.QtGui": ("*yqt6-*", "PyQt6/QtGui.pyi"),
    }
    stubs: dict[str, dict[str, ast.ClassDef]] = {}
    for module, (wheel, name) in files.items():
        (file,) = [each for each in tmp_path.iterdir() if each.match(wheel)]
        with zipfile.ZipFile(file) as archive:
            # some releases of PyQt6 write "*args, /", which is no Python
            tree = ast.parse(archive.read(name).decode().replace(", /)", ")"))
        stubs[module] = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    stubs["qgis.core"]["QgsProcessingException"] = ast.ClassDef("", [], [], [], [])  # made when QGIS starts
    source = "\n".join(file.read_text() for file in sorted((PLUGIN / "iic_segment").glob("*.py")))
    source = source.replace("from __future__ import annotations", "")
    assert set(re.findall(r"^from (qgis\S*)", source, re.M)) == stubs.keys()
    assert unknown_names(source, stubs) == set()
    older = "from qgis.core import Qgis, QgsGone, QgsProcessing\n"
    older += "QgsProcessing.TypeNone\nQgis.ProcessingSourceType.No"
    assert unknown_names(older, stubs) == {
        "QgsGone",
        "QgsProcessing.TypeNone",
        "Qgis.ProcessingSourceType.No",
    }
