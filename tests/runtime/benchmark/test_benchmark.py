"""How fast a model runs on this machine: what is measured, and which settings are called the best."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from support.scenes import landscape
from typer.testing import CliRunner

from iic_geotools.errors import UsageError
from iic_runtime import Trial, benchmark_model
from iic_runtime import benchmark as module
from iic_runtime.benchmark import choose_best, thread_counts
from iic_runtime.cli.model import app
from iic_runtime.engine.parity import EngineParity

MakeScene = Callable[..., Path]
TRIAL = Trial("cpu", "CPUExecutionProvider", 2, 512, 1, 2, 3.0, 90.0, 95.0, 0.9, 400.0, None, None)


@pytest.fixture(autouse=True)
def few_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("IIC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(module, "cores", lambda: 1)
    monkeypatch.setattr(module, "TILES", (module.DEFAULT_TILE,))


def test_every_engine_is_measured_and_the_best_options_are_reported(
    make_scene: MakeScene, model: Path
) -> None:
    scene = make_scene(landscape(120, 90))
    run = CliRunner().invoke(app, ["benchmark", str(model), "--scene", str(scene), "--seconds", "0.05"])
    assert run.exit_code == 0, run.output
    assert f"tiles of {scene}" in run.stdout
    assert "CPUExecutionProvider" in run.stdout
    assert "file to file, with the best" in run.stdout
    assert "--device cuda" in run.stdout  # that there is none is said in the words of the command
    assert "Best: --device " in run.stdout


def test_the_figures_as_json(model: Path) -> None:
    run = CliRunner().invoke(app, ["benchmark", str(model), "--seconds", "0.05", "--json"])
    result = json.loads(run.stdout)
    assert result["scene"] is None
    assert result["best"]["device"] in ("cpu", "openvino")
    for trial in result["trials"]:
        assert trial["mpx_per_second"] > 0
        assert 0 < trial["p50_ms"] <= trial["p95_ms"]
        assert trial["start_seconds"] > 0
        assert trial["peak_mb"] > 20
        assert (trial["threads"], trial["tile"]) == (1, 512)


def test_failures_are_reported_and_nothing_is_best(make_scene: MakeScene, model: Path) -> None:
    scene = make_scene(landscape(40, 40)[:2], descriptions=("red", "green"))
    result = benchmark_model(model, scene, seconds=0.05)
    assert result.best is None
    assert result.whole_map is None
    assert any("bands" in problem for problem in result.problems)


@pytest.mark.parametrize("seconds", [0, -1, 4000])
def test_times_that_make_no_sense_are_refused(model: Path, seconds: float) -> None:
    with pytest.raises(UsageError, match=r"`seconds`"):
        benchmark_model(model, seconds=seconds)


def test_nearly_as_fast_with_less_memory_is_best() -> None:
    small = replace(TRIAL, tile=256, mpx_per_second=2.9, peak_mb=200)
    slow = replace(TRIAL, tile=128, mpx_per_second=2.0, peak_mb=100)
    assert choose_best([TRIAL, small, slow]) == small
    assert choose_best([]) is None


def test_openvino_is_best_only_if_every_label_is_equal() -> None:
    fast = replace(TRIAL, device="openvino", mpx_per_second=6.0)
    parity = EngineParity(1000, 0, 1, True, 2.0)
    assert choose_best([TRIAL, fast], parity) == fast
    assert choose_best([TRIAL, fast], replace(parity, labels_differing=1)) == TRIAL


def test_numbers_of_threads() -> None:
    assert [thread_counts(cores) for cores in (1, 2, 4, 6)] == [[1], [1, 2], [1, 2, 4], [1, 2, 4, 6]]
