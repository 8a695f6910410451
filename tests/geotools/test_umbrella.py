"""`iic`: every command under one name, each imported when it is run."""

import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest
from typer.testing import CliRunner

from iic_geotools.cli.umbrella import COMMANDS, app

ROOT = Path(__file__).resolve().parent.parent.parent


def test_every_command_of_the_project_is_under_it() -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    modules = {target.partition(":")[0] for name, target in scripts.items() if name != "iic"}
    assert {entry.module for entry in COMMANDS.values()} == modules
    for module in modules:
        assert import_module(module).app is not None


def test_help_lists_the_commands_without_importing_them() -> None:
    code = (
        "import sys\nfrom iic_geotools.cli.umbrella import main\n"
        "try: main(['--help'])\nexcept SystemExit: pass\n"
        "print(*(m for m in sys.modules if m.startswith(('iic_runtime', 'iic_train', 'iic_export', 'numpy'))))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    *lines, imported = done.stdout.splitlines()
    assert imported == ""
    assert all(any(f" {name} " in line for line in lines) for name in COMMANDS)


@pytest.mark.parametrize(
    "arguments", [["segment", "--help"], ["map", "clean", "--help"], ["scenes", "search", "--help"]]
)
def test_a_command_is_the_one_of_its_own_name(arguments: list[str]) -> None:
    result = CliRunner().invoke(app, arguments, prog_name="iic")
    assert result.exit_code == 0
    assert f"Usage: iic {' '.join(arguments[:-1])}" in result.output


def test_errors_name_options_and_unknown_commands() -> None:
    result = CliRunner().invoke(app, ["segment", "a.tif", "b.tif", "--max-memory", "much"])
    assert (result.exit_code, result.output) == (
        2,
        'Error: --max-memory takes a size such as 800M or 2G, not "much".\n',
    )
    assert CliRunner().invoke(app, ["nonsense"]).exit_code == 2
