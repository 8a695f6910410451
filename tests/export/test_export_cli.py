import subprocess
import sys

import pytest
from typer.testing import CliRunner

from iic_export.cli import app
from iic_runtime.modelfile import ModelFile


@pytest.fixture
def invoke():
    return lambda *arguments: CliRunner().invoke(app, [str(each) for each in arguments])


def test_the_command_is_the_function(trained, invoke, tmp_path):
    out = tmp_path / "m.onnx"
    done = invoke(
        trained.run.name, "--runs", trained.run.parent, "-o", out, "--best-subhead", "--name", "fields"
    )
    assert done.exit_code == 0, done.output
    assert "equal the trained network's" in done.output
    assert ModelFile.read(out).card.name == "fields"


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["--best-subhead", "--subhead", "1"], 2, "exclude each other"),
        (["--gsd-range", "small"], 2, "MIN,MAX"),
        (["--gsd-range", "2,1"], 2, "MIN,MAX"),
        (["--subhead", "9"], 2, "no sub-head 9"),
        (["--own-labels"], 2, "no labels of its own"),
        (["--balance", "1"], 2, "--labels or --own-labels"),
        (["--scene", "s.tif"], 2, "about --labels"),
        (["--runs", "nowhere"], 1, "no run in nowhere"),
    ],
)
def test_what_is_wrong_in_a_sentence(trained, invoke, tmp_path, arguments, code, sentence):
    given = [] if "--runs" in arguments else [trained.run]
    done = invoke(*given, "-o", tmp_path / "m.onnx", *arguments)
    assert (done.exit_code, done.output.startswith("Error: ")) == (code, True), done.output
    assert sentence in done.output
    assert len(done.output.strip().splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("missing", ["torch", "onnx", "onnxscript", "onnxruntime"])
def test_a_missing_package_is_named(tmp_path, missing):
    """In a process of its own, where the package cannot be imported."""
    script = f"import sys; sys.modules[{missing!r}] = None; from iic_export.cli import app; app()"
    done = subprocess.run(
        [sys.executable, "-c", script, "-o", str(tmp_path / "m.onnx")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert missing in done.stderr
    assert "pip install 'iic-edge[" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_help_is_there_without_torch():
    script = "import sys; sys.modules['torch'] = None; from iic_export.cli import app; app(['--help'])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert "--best-subhead" in done.stdout
