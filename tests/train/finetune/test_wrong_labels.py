"""Labels of every wrong kind: one sentence, and no run folder."""

from pathlib import Path

import pytest
import torch
from support.hostile_labels import WRONG
from support.runs import bright_and_dark_fields, train_on
from support.scenes import write_raster
from typer.testing import CliRunner

from iic_train.cli import app
from iic_train.runs import Run

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("fields")
    scene = write_raster(folder / "scene.tif", bright_and_dark_fields(120, 144)[0])
    return train_on(scene, folder / "runs")


@pytest.mark.parametrize("kind", WRONG)
def test_wrong_labels_are_a_sentence(run: Run, tmp_path: Path, kind: str) -> None:
    make, _ = WRONG[kind]
    runs = tmp_path / "runs"
    arguments = ["finetune", str(run.path), "--labels", str(make(tmp_path)), "--runs", str(runs), "-q"]
    result = CliRunner().invoke(app, [*arguments, "--device", "cpu", "--steps", "2", "--epochs", "1"])
    assert result.exit_code in (1, 2), result.output
    assert [line.startswith("Error: ") for line in result.output.splitlines()] == [True], result.output
    assert "Unexpected error" not in result.output
    assert not runs.exists() or not list(runs.iterdir())
