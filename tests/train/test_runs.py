import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from iic_geotools.errors import TrainingError, UsageError
from iic_train.config import DataConfig, TrainConfig
from iic_train.models.networks import Network
from iic_train.models.registry import NetworkConfig
from iic_train.runs import Choice, create_run, load_run, load_weights, newest_run
from iic_train.views.settings import DensePairs, ImagePairs

DENSE = TrainConfig(
    preset="rasters",
    data=DataConfig("rasters", scenes=("a.tif",)),
    network=NetworkConfig("edge-8", ("red", "nir"), 3, 9, 2),
    pairs=DensePairs(flip_vertical=0.5),
    size=32,
)
IMAGES = TrainConfig(
    preset="mnist",
    data=DataConfig("mnist", root="data"),
    network=NetworkConfig("6c", ("grey",), 10, 50, 5, size=24),
    pairs=ImagePairs(24, 20, (16, 20, 24), rotation=25.0),
    size=None,
    repeats=5,
    batch=700,
    passes=("b", "b", "a"),
)


@pytest.mark.parametrize("config", [DENSE, IMAGES])
def test_a_run_is_read_back_as_it_was_made(tmp_path: Path, config: TrainConfig) -> None:
    run = create_run(config, {"fingerprint": "abc"}, tmp_path)
    again = load_run(run.path)
    assert again == run
    assert again.config == config
    assert json.loads((run.path / "config.json").read_text())["config"]["pairs"]["photometry"]["hue"] > 0
    assert newest_run(tmp_path) == run


def test_weights_travel_with_their_config_and_choice(tmp_path: Path) -> None:
    run = create_run(DENSE, {}, tmp_path)
    network = Network(DENSE.network).eval()
    run.save_weights(network, "best", Choice(4, 1, -0.75))
    assert (run.path / "best.safetensors").stat().st_mode == (run.path / "config.json").stat().st_mode
    moved = tmp_path / "elsewhere.safetensors"
    moved.write_bytes((run.path / "best.safetensors").read_bytes())
    for loaded, choice in (load_weights(moved), (run.network(), run.choice())):
        assert choice == Choice(4, 1, -0.75)
        assert not loaded.training
        image = torch.randint(0, 256, (1, 2, 9, 9))
        assert torch.equal(loaded(image, "a"), network(image, "a"))


def test_two_runs_of_one_second_do_not_share_a_folder(tmp_path: Path) -> None:
    assert create_run(DENSE, {}, tmp_path).path != create_run(DENSE, {}, tmp_path).path
    create_run(DENSE, {}, tmp_path, name="mine")
    with pytest.raises(UsageError, match="already"):
        create_run(DENSE, {}, tmp_path, name="mine")


def test_metrics_are_lines_and_a_half_written_one_is_not_read(tmp_path: Path) -> None:
    run = create_run(DENSE, {}, tmp_path)
    assert run.metrics() == []
    run.append_metrics({"epoch": 1, "loss": -0.1})
    run.append_metrics({"epoch": 2, "loss": -0.2})
    with (run.path / "metrics.jsonl").open("a") as file:
        file.write('{"epoch": 3, "lo')
    assert [row["epoch"] for row in run.metrics()] == [1, 2]
    run.forget_metrics_after(1)
    assert run.metrics() == [{"epoch": 1, "loss": -0.1}]


def test_missing_runs_are_reported(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="no run in"):
        newest_run(tmp_path / "runs")
    with pytest.raises(TrainingError, match="not a run folder"):
        load_run(tmp_path)
    run = create_run(DENSE, {}, tmp_path)
    assert run.load_state() is None
    with pytest.raises(TrainingError, match="no weights yet"):
        run.network()


def test_damage_is_said(tmp_path: Path) -> None:
    run = create_run(DENSE, {}, tmp_path)
    (run.path / "best.safetensors").write_bytes(b"not weights at all")
    with pytest.raises(TrainingError, match="damaged"):
        run.network()
    (run.path / "state.pt").write_bytes(b"PK broken")
    with pytest.raises(TrainingError, match="damaged"):
        run.load_state()
    run.save_weights(Network(replace(DENSE.network, clusters_b=5)), "last", Choice(1, 0, 0.0))
    assert run.network("last").config.clusters_b == 5
    record = json.loads((run.path / "config.json").read_text())
    record["config"]["attention"] = True
    (run.path / "config.json").write_text(json.dumps(record))
    with pytest.raises(TrainingError, match="no setting attention"):
        load_run(run.path)
    (run.path / "config.json").write_text("{")
    with pytest.raises(TrainingError, match="damaged"):
        load_run(run.path)


@pytest.mark.parametrize(
    "wrong",
    [
        {"passes": ("a",)},
        {"passes": ("b", "c")},
        {"size": None},
        {"pairs": IMAGES.pairs},
        {"epochs": 0},
        {"batch": 7, "repeats": 2},
        {"lr": 0.0},
        {"repeats": 2},
        {"margin": 16},
    ],
)
def test_impossible_settings_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        replace(DENSE, **wrong)


@pytest.mark.parametrize("name", ["../outside", "/tmp/outside", "a/b", "..", "a\\b", "", "n" * 300, "n\0"])
def test_a_run_stays_in_its_folder(tmp_path: Path, name: str) -> None:
    (tmp_path / "runs").mkdir()
    with pytest.raises(UsageError, match="name"):
        create_run(DENSE, {}, tmp_path / "runs", name=name)
    assert [entry.name for entry in tmp_path.rglob("*")] == ["runs"]
