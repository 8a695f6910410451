"""The memory of a training step, estimated before any work."""

from pathlib import Path

import pytest
from support.runs import bright_and_dark_fields, train_on
from support.scenes import write_raster

from iic_geotools.errors import UsageError
from iic_train import trainer


def test_steps_that_do_not_fit_are_refused_before_a_run_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = write_raster(tmp_path / "fields.tif", bright_and_dark_fields(120, 144)[0])
    monkeypatch.setattr(trainer, "SMALL_STEP", 0)
    monkeypatch.setattr(trainer, "memory_of_machine", lambda: 8 << 20)
    with pytest.raises(UsageError, match=r"Windows of 24 px, 8 at once, need about .* GiB.* lower `size`"):
        train_on(scene, tmp_path / "runs")
    assert not (tmp_path / "runs").exists()
    monkeypatch.setattr(trainer, "memory_of_machine", lambda: 24 << 20)
    assert train_on(scene, tmp_path / "runs").path.is_dir()
