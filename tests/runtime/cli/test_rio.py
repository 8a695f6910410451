"""`rio iic-segment`: rasterio's own command line finds it, and it does what iic-segment-raster does."""

import os
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
import rasterio
from click.testing import CliRunner
from support.scenes import landscape
from typer.main import get_command

from iic_runtime import segment_raster
from iic_runtime.cli.rio import command
from iic_runtime.cli.segment_raster import app

MakeScene = Callable[..., Path]
Rio = Callable[..., "subprocess.CompletedProcess[str]"]
PYPROJECT = Path(__file__).parents[3] / "pyproject.toml"


@pytest.fixture
def rio(tmp_path: Path) -> Rio:
    """The real rio, in a process of its own, with the plugin as pyproject.toml registers it."""
    entries = tomllib.loads(PYPROJECT.read_text())["project"]["entry-points"]
    registered = tmp_path / "site" / "iic_edge-0.dist-info"
    registered.mkdir(parents=True)
    (registered / "METADATA").write_text("Metadata-Version: 2.1\nName: iic-edge\nVersion: 0\n")
    lines = [
        f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in plugins.items())
        for group, plugins in entries.items()
    ]
    (registered / "entry_points.txt").write_text("\n".join(lines))
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(registered.parent), *sys.path])}

    def run(*arguments: object) -> "subprocess.CompletedProcess[str]":
        code = "from rasterio.rio.main import main_group; main_group(prog_name='rio')"
        command = [sys.executable, "-c", code, *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)

    return run


def test_rio_maps_a_scene(rio: Rio, make_scene: MakeScene, model: Path, tmp_path: Path) -> None:
    scene = make_scene(landscape(90, 130))
    options = ("--model", model, "--bands", "4,1,2,3", "--bounds", "500010 5399960 500060 5399990")
    done = rio("iic-segment", scene, tmp_path / "rio.tif", *options, "--co", "COMPRESS=ZSTD", "--tile", 64)
    assert done.returncode == 0, done.stderr
    assert "rio.tif: 0.01 Mpx" in done.stderr
    segment_raster(
        scene,
        tmp_path / "own.tif",
        model,
        bands=["4", "1", "2", "3"],
        bounds=(500010, 5399960, 500060, 5399990),
        co={"COMPRESS": "ZSTD"},
        tile=64,
    )
    assert (tmp_path / "rio.tif").read_bytes() == (tmp_path / "own.tif").read_bytes()
    with rasterio.open(tmp_path / "rio.tif") as dataset:
        assert dataset.shape == (60, 100)


def test_failures_keep_their_exit_codes(make_scene: MakeScene, model: Path, tmp_path: Path) -> None:
    def fails(scene: Path, *options: object, verbosity: int = 0) -> tuple[int, str]:
        arguments = [str(argument) for argument in (scene, tmp_path / "map.tif", "--model", model, *options)]
        result = CliRunner().invoke(command, arguments, obj={"verbosity": verbosity, "env": rasterio.Env()})
        return result.exit_code, result.stderr

    code, output = fails(tmp_path / "nothing.tif")
    assert code == 1
    assert output.startswith("Error: There is no file")
    scene = make_scene(landscape(30, 30))
    code, output = fails(scene, "--bands", "1,2,3,9", verbosity=-1)
    assert code == 2
    assert output.startswith("Error: --bands asks for band 9")
    code, output = fails(scene, "--device", "abacus")
    assert code == 2
    assert "'abacus' is not one of" in output


def test_every_option_is_there_and_means_the_same() -> None:
    ours = [
        parameter for parameter in get_command(app).params if parameter.name != "version"
    ]  # rio has its own
    theirs = command.params
    spelled = [[p.name, sorted([*p.opts, *p.secondary_opts]), p.nargs, p.required] for p in ours]
    assert spelled == [[p.name, sorted([*p.opts, *p.secondary_opts]), p.nargs, p.required] for p in theirs]
    helps = {p.name: p.help for p in ours if p.param_type_name == "option"}
    assert helps == {p.name: p.help for p in theirs if p.param_type_name == "option"}
    assert len(helps) > 20
