"""Run folders that were damaged: one sentence, or the run is used as before. `benchmarks/soak.py` tries every way."""

import random
from pathlib import Path

import pytest
from support.hostile_runs import check_damage, damages
from support.runs import bright_and_dark_fields, train_on
from support.scenes import write_raster


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fields")
    scene = write_raster(folder / "fields.tif", bright_and_dark_fields(120, 144)[0])
    return train_on(scene, folder / "runs").path


def test_damaged_runs(run: Path, tmp_path: Path) -> None:
    for damage in random.Random(0).sample(damages(run), 60):
        check_damage(damage, run, tmp_path / "run")
