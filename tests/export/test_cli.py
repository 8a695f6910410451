"""The command `iic-export`: options, messages and what it writes."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support.runs import TrainedScene
from typer.testing import CliRunner, Result

import iic_export
from iic_export.cli import app
from iic_runtime.model.file import ModelFile

Invoke = Callable[..., Result]


@pytest.fixture
def invoke() -> Invoke:
    return lambda *arguments: CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_the_command_passes_its_options_to_the_function(
    trained: TrainedScene, invoke: Invoke, tmp_path: Path
) -> None:
    out = tmp_path / "m.onnx"
    result = invoke(
        trained.run.name, "--runs", trained.run.parent, "-o", out, "--best-subhead", "--name", "fields"
    )
    assert result.exit_code == 0, result.output
    assert "equal the trained network's" in result.output
    assert ModelFile.read(out).card.name == "fields"


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["--best-subhead", "--sub-head", "1"], 2, "exclude each other"),
        (["--sub-head", "9"], 2, "no sub-head 9"),
        (["--own-labels"], 2, "no labels of its own"),
        (["--balance", "1"], 2, "--labels or --own-labels"),
        (["--scene", "s.tif"], 2, "apply only to --labels"),
        (["--min-agreement", "2"], 2, "--min-agreement must be between 0 and 1"),
        (["--format", "tensorrt", "--workspace", "much"], 2, "--workspace takes a size"),
        (["--runs", "nowhere"], 1, "no run in nowhere"),
    ],
)
def test_errors_are_one_sentence(
    trained: TrainedScene, invoke: Invoke, tmp_path: Path, arguments: list[str], code: int, sentence: str
) -> None:
    run = [] if "--runs" in arguments else [trained.run]
    result = invoke(*run, "-o", tmp_path / "m.onnx", *arguments)
    assert (result.exit_code, result.output.startswith("Error: ")) == (code, True), result.output
    assert sentence in result.output
    assert len(result.output.strip().splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_the_help_shows_defaults_that_are_not_plain_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    shown = CliRunner().invoke(app, ["--help"], terminal_width=200).output
    for default in (
        "[default: (the newest)]",
        "[default: (model.onnx or model.engine)]",
        "by default in fp32 all that rounding cannot change",
        "by default that of the run",
    ):
        assert default in shown


@pytest.mark.parametrize("gsd_range", ["small", "2,1"])
def test_a_range_is_two_numbers_in_order(invoke: Invoke, gsd_range: str) -> None:
    result = invoke("--gsd-range", gsd_range)
    assert result.exit_code == 2
    assert "--gsd-range" in result.output
    assert gsd_range in result.output


def test_version(invoke: Invoke) -> None:
    result = invoke("--version")
    assert (result.exit_code, result.output.split()[-1]) == (0, iic_export.__version__)


def run_without(package: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run the command in a process where a package cannot be imported."""
    script = f"import sys; sys.modules[{package!r}] = None; from iic_export.cli import app; app()"
    command = [sys.executable, "-c", script, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("package", ["torch", "onnx", "onnxscript", "onnxruntime"])
def test_a_missing_package_is_named_with_its_extra(tmp_path: Path, package: str) -> None:
    process = run_without(package, "-o", str(tmp_path / "m.onnx"))
    assert process.returncode == 1, process.stderr
    assert f"needs the package {package}" in process.stderr
    # Whoever has a build of ONNX Runtime, perhaps that for GPUs, must not get the other one over it.
    extra = "cpu,train" if package == "onnxruntime" else "train"
    assert f'pip install ".[{extra}]"' in process.stderr
    assert len(process.stderr.strip().splitlines()) == 1


def test_help_answers_without_torch_and_names_the_default_sub_head() -> None:
    process = run_without("torch", "--help")
    assert process.returncode == 0
    assert "--best-subhead" in process.stdout
    assert "this is the default" in " ".join(process.stdout.replace("│", " ").split())
