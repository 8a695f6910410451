import json
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.small_training import dense_config, dense_data, image_config, image_data, make_trainer

from iic_geotools.errors import DeviceError, TrainingError, UsageError
from iic_geotools.work import Progress
from iic_train.config import TrainConfig
from iic_train.data.loader import Batch
from iic_train.data.training_data import TrainingData
from iic_train.distributed import Ranks
from iic_train.evaluation.evaluate import evaluate
from iic_train.losses.step import Step, pair_terms
from iic_train.models.networks import Network
from iic_train.models.registry import NetworkConfig
from iic_train.runs import Checkpoint, Run, create_run, load_run
from iic_train.trainer import Trainer

MakeConfig = Callable[..., TrainConfig]
MakeData = Callable[[TrainConfig], TrainingData]
CASES: list[tuple[MakeConfig, MakeData]] = [(dense_config, dense_data), (image_config, image_data)]


@pytest.mark.parametrize(("make_config", "make_data"), CASES)
def test_a_resumed_run_equals_an_uninterrupted_one_bit_for_bit(
    tmp_path: Path, make_config: MakeConfig, make_data: MakeData
) -> None:
    config = make_config(schedule="cosine")
    whole = create_run(config, {}, tmp_path, "whole")
    make_trainer(whole, make_data(config)).run_all()

    broken = create_run(config, {}, tmp_path, "broken")
    first = make_trainer(broken, make_data(config))
    first._train_epoch()
    broken.append_metrics({"epoch": 2, "loss": -9.0})  # finished, but killed before its state was saved
    torch.manual_seed(99)
    make_trainer(load_run(broken.path), make_data(config)).run_all()
    assert_equal_runs(whole, broken)
    assert [row["epoch"] for row in broken.metrics()] == list(range(1, config.epochs + 1))


@pytest.mark.parametrize("reports", [1, 2, 3, 5, 6])
@pytest.mark.parametrize(("make_config", "make_data"), CASES)
def test_a_run_resumes_within_an_epoch(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    make_config: MakeConfig,
    make_data: MakeData,
    reports: int,
) -> None:
    monkeypatch.setattr("iic_train.loop.CHECK_EVERY", 1)
    monkeypatch.setattr("iic_train.trainer.SAVE_SECONDS", 0.0)
    config = make_config(schedule="cosine", steps=3, epochs=2)
    whole = create_run(config, {}, tmp_path, "whole")
    make_trainer(whole, make_data(config)).run_all()

    said: list[Progress] = []

    def interrupt(progress: Progress) -> None:
        said.append(progress)
        if len(said) == reports:
            raise KeyboardInterrupt

    broken = create_run(config, {}, tmp_path, "broken")
    with pytest.raises(KeyboardInterrupt):
        make_trainer(broken, make_data(config), progress=interrupt).run_all()
    torch.manual_seed(99)
    resumed = make_trainer(load_run(broken.path), make_data(config), progress=said.append)
    resumed.run_all()
    assert said[reports].done == said[reports - 1].done  # the step that was interrupted, and none before it
    assert_equal_runs(whole, broken)
    assert (broken.path / "simplex.jsonl").exists() == (whole.path / "simplex.jsonl").exists()
    if (whole.path / "simplex.jsonl").exists():
        assert (broken.path / "simplex.jsonl").read_text() == (whole.path / "simplex.jsonl").read_text()


def test_weights_that_are_not_finite_are_not_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("iic_train.loop.CHECK_EVERY", 1)
    monkeypatch.setattr("iic_train.trainer.SAVE_SECONDS", 0.0)
    config = image_config(steps=4, epochs=1)
    run = create_run(config, {}, tmp_path)
    trainer = make_trainer(run, image_data(config))

    updates = []

    def spoil(*_: Any) -> None:
        updates.append(1)
        if len(updates) == 3:
            next(trainer.network.parameters()).data.fill_(torch.nan)

    trainer.loop.optimiser.register_step_post_hook(spoil)
    with pytest.raises(
        TrainingError, match=r"not finite in epoch 1, .*, step 3 \(what was saved before is kept"
    ):
        trainer.run_all()
    state = run.load_state()
    assert state is not None
    assert state["under_way"]["steps"] == 2
    assert all(value.isfinite().all() for value in state["network"].values())


def assert_equal_runs(whole: Run, broken: Run) -> None:
    """The same weights, choices and figures, bit for bit; times apart."""
    checkpoints: tuple[Checkpoint, ...] = ("best", "last")
    for checkpoint in checkpoints:
        assert whole.choice(checkpoint) == broken.choice(checkpoint)
        for a, b in zip(
            whole.network(checkpoint).state_dict().values(),
            broken.network(checkpoint).state_dict().values(),
            strict=True,
        ):
            assert torch.equal(a, b)
    timeless = [
        [{**row, "seconds": 0, "images_per_second": 0} for row in run.metrics()] for run in (whole, broken)
    ]
    assert timeless[0] == timeless[1]


def test_networks_that_cluster_images_keep_channels_together(tmp_path: Path) -> None:
    """Which is faster on any device, and changes nothing but the order of bytes in memory."""
    config = image_config()
    trainer = make_trainer(create_run(config, {}, tmp_path), image_data(config))
    kernels = [weight for weight in trainer.network.parameters() if weight.ndim == 4 and weight.shape[1] > 1]
    assert kernels
    assert all(weight.is_contiguous(memory_format=torch.channels_last) for weight in kernels)


def test_worker_processes_change_nothing(tmp_path: Path) -> None:
    config = dense_config(epochs=1)
    runs = []
    for workers in (0, 2):
        run = create_run(config, {}, tmp_path)
        make_trainer(run, dense_data(config), workers=workers).run_all()
        runs.append(run)
    for a, b in zip(*(run.network("last").parameters() for run in runs), strict=True):
        assert torch.equal(a, b)


def test_training_separates_two_materials_without_labels(tmp_path: Path) -> None:
    config = dense_config(size=32, radius=1, passes=("ab",), epochs=4)
    run = create_run(config, {}, tmp_path)
    data = dense_data(config)
    make_trainer(run, data).run_all()
    assert run.metrics()[-1]["selection"]["information"][run.choice("last").sub_head] > 0.3
    assert evaluate(run, data.dataset).accuracy > 0.9


@pytest.mark.parametrize(("make_config", "make_data"), CASES)
def test_best_is_the_epoch_and_sub_head_of_lowest_selection_loss(
    tmp_path: Path, make_config: MakeConfig, make_data: MakeData
) -> None:
    config = make_config(epochs=4)
    run = create_run(config, {}, tmp_path)
    make_trainer(run, make_data(config)).run_all()
    rows = run.metrics()
    lowest = min(rows, key=lambda row: min(row["selection"]["loss"]))
    choice = run.choice()
    assert choice.epoch == lowest["epoch"]
    assert choice.loss == min(lowest["selection"]["loss"]) == lowest["selection"]["loss"][choice.sub_head]
    assert run.choice("last").epoch == 4
    heads = {head for row in rows for head in row["train"]}
    assert heads == {"a", "b"}
    assert len(rows[0]["train"]["a"]["occupancy"][0]) == config.network.clusters_a
    assert set(rows[0]["accuracy"]) == {"chosen", "sub_heads", "label_picked"}
    json.dumps(rows)


def test_the_idle_head_stays_still(tmp_path: Path) -> None:
    config = dense_config(passes=("b",), epochs=1)
    run = create_run(config, {}, tmp_path)
    idle = make_trainer(run, dense_data(config))
    before = idle.network.heads["a"].weight.clone()
    main = idle.network.heads["b"].weight.clone()
    idle.run_all()
    assert torch.equal(idle.network.heads["a"].weight, before)
    assert not torch.equal(idle.network.heads["b"].weight, main)


@pytest.mark.parametrize(
    "changes",
    [
        {"passes": ("ab",)},
        {"passes": ("ab",), "micro_batch": 3},
        {"cells": True, "radius": 1},
        {"collapsed": True},
        {"margin": 4},
        {"margin": 4, "cells": True, "radius": 1},
    ],
)
def test_other_rhythms_and_forms_train_too(tmp_path: Path, changes: Any) -> None:
    config = dense_config(epochs=1, **changes)
    run = create_run(config, {}, tmp_path)
    make_trainer(run, dense_data(config)).run_all()
    assert run.metrics()[0]["loss"] < 0


@pytest.mark.parametrize("cells", [False, True])
def test_the_margin_of_windows_does_not_count(cells: bool) -> None:
    config = dense_config(margin=4, cells=cells)
    network = Network(config.network).eval()
    pixels = torch.randint(0, 256, (4, 1, 16, 16), generator=torch.Generator().manual_seed(0))
    batch = Batch(pixels, torch.ones(4, 16, 16, dtype=torch.bool))
    inner = torch.zeros(4, 16, 16, dtype=torch.bool)
    inner[:, 4:12, 4:12] = True
    step = Step((1, 2), nullcontext())
    cut = pair_terms(network, network.features, batch, "b", config, step)["b"][0]
    masked = pair_terms(
        network, network.features, Batch(pixels, inner), "b", replace(config, margin=0), step
    )["b"][0]
    torch.testing.assert_close(cut.loss, masked.loss)


@pytest.mark.parametrize("margin", [1, 7])
def test_a_margin_that_is_not_a_number_of_cells_leaves_something_to_learn_from(margin: int) -> None:
    config = dense_config(margin=margin, cells=True, radius=0)
    network = Network(config.network)
    pixels = torch.randint(0, 256, (4, 1, 16, 16), generator=torch.Generator().manual_seed(0))
    step = Step((1, 2), nullcontext())
    terms = pair_terms(network, network.features, Batch(pixels, None), "b", config, step)["b"][0]
    assert terms.loss.isfinite()
    assert terms.entropy > 0


def test_the_entropy_weight_settles_from_one() -> None:
    config = dense_config(entropy_weight=0.8, entropy_warmup=0.5)
    weights = [config.entropy_weight_of("b", progress) for progress in (0.0, 0.25, 0.5, 0.9)]
    assert weights == pytest.approx([1.0, 0.9, 0.8, 0.8])
    assert config.entropy_weight_of("b") == 0.8
    assert config.entropy_weight_of("a", 0.0) == 1.0
    assert dense_config(entropy_weight=0.8).entropy_weight_of("b", 0.0) == 0.8


def test_training_uses_the_weight_of_the_moment_and_selection_the_settled_one(tmp_path: Path) -> None:
    losses: dict[float, list[float]] = {}
    for entropy_warmup in (0.0, 1.0):
        config = dense_config(entropy_weight=0.5, entropy_warmup=entropy_warmup, epochs=1, passes=("ab",))
        data = dense_data(config)
        run = create_run(config, data.facts, tmp_path, f"entropy_warmup-{entropy_warmup}")
        make_trainer(run, data).run_all()
        row = run.metrics()[0]
        for part in (row["train"]["b"], row["selection"]):
            # the loss says which weight it was taken with: loss = -information - 2 (weight - 1) entropy
            weight = 1 - (part["loss"][0] + part["information"][0]) / (2 * part["entropy"][0])
            losses.setdefault(entropy_warmup, []).append(weight)
    assert losses[0.0] == pytest.approx([0.5, 0.5], abs=0.02)
    assert losses[1.0][0] > 0.6
    assert losses[1.0][1] == pytest.approx(0.5, abs=0.02)


def test_a_loss_that_is_not_finite_is_said_in_words(tmp_path: Path) -> None:
    config = dense_config(network=NetworkConfig("edge-8", ("grey",), 2, 5, 2, scale=(float("inf"),)))
    run = create_run(config, {}, tmp_path)
    with pytest.raises(TrainingError, match=r"not finite in epoch 1.*learning rate below 0\.003"):
        make_trainer(run, dense_data(config)).run_all()
    assert run.metrics() == []


def test_collapse_is_a_warning_with_advice(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = dense_config(
        network=NetworkConfig("edge-8", ("grey",), 2, 5, 1, scale=(0.0,)), lr=1e-6, epochs=3
    )
    run = create_run(config, {}, tmp_path)
    make_trainer(run, dense_data(config)).run_all()
    assert caplog.text.count("Try") == 1
    assert "Head B" in caplog.text


def test_the_duration_is_estimated_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("iic_train.trainer.ESTIMATE_SECONDS", 0.0)
    monkeypatch.setattr("iic_train.loop.CHECK_EVERY", 1)
    config = dense_config(epochs=2, steps=2, selection_steps=1, evaluation_images=0)
    with caplog.at_level("INFO", "iic_train"):
        make_trainer(create_run(config, {}, tmp_path), dense_data(config)).run_all()
    assert caplog.text.count("At this speed 2 epochs take less than two minutes") == 1
    assert "CUDA" not in caplog.text  # the default precision is not worth a warning on a CPU


def test_half_precision_on_a_cpu_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = dense_config(amp="bf16", epochs=1, steps=1, selection_steps=1, evaluation_images=0)
    run = create_run(config, {}, tmp_path)
    make_trainer(run, dense_data(config)).run_all()
    assert "bf16 is for CUDA" in caplog.text


def test_batches_with_too_few_images_for_all_processes_are_refused(tmp_path: Path) -> None:
    config = dense_config(batch=3)
    run = create_run(config, {}, tmp_path)
    with pytest.raises(UsageError, match="3 images per step cannot be shared by 4 processes"):
        Trainer(run, dense_data(config), torch.device("cpu"), Ranks(0, 4))


def test_a_full_gpu_is_a_sentence_with_advice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: Any, **options: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    monkeypatch.setattr("iic_train.trainer.step_objective", full)
    config = dense_config()
    run = create_run(config, {}, tmp_path)
    with pytest.raises(DeviceError, match=r"8 pairs pass .* a `micro_batch` of 4"):
        make_trainer(run, dense_data(config)).run_all()


def test_half_precision_starts_again_after_epochs_on_a_cpu(tmp_path: Path) -> None:
    config = dense_config(amp="fp16", epochs=1, steps=1, selection_steps=1, evaluation_images=0)
    run = create_run(config, {}, tmp_path)
    on_cpu = make_trainer(run, dense_data(config))
    on_cpu.run_all()
    assert run.load_state()["scaler"] == {}
    on_cpu.loop.scaler = torch.amp.GradScaler("cpu", enabled=True)  # as it is on a GPU
    on_cpu._restore()
    assert on_cpu.loop.scaler.is_enabled()


def test_training_stops_once_the_loss_stops_early(tmp_path: Path) -> None:
    config = dense_config(lr=1e-9, epochs=9, patience=2, steps=1, evaluation_images=0)
    run = create_run(config, {}, tmp_path)
    make_trainer(run, dense_data(config)).run_all()
    assert [row.get("settled") for row in run.metrics()] == [None, None, True]
    make_trainer(load_run(run.path), dense_data(config)).run_all()
    assert len(run.metrics()) == 3  # a resumed run knows that it has settled


def test_progress_counts_the_images_of_the_whole_run(tmp_path: Path) -> None:
    config = dense_config(epochs=2)
    reports: list[Progress] = []
    run = create_run(config, {}, tmp_path)
    Trainer(run, dense_data(config), torch.device("cpu"), Ranks(), 0, reports.append).run_all()
    total = 2 * 2 * 24  # two epochs of two passes over 24 images
    assert [report.done for report in reports] == [8, 24, 32, 48, 56, 72, 80, 96]
    assert {(report.stage, report.total, report.unit) for report in reports} == {("train", total, "images")}
    assert reports[0].note.startswith("epoch 1/2  A -")


def test_a_huge_pixel_is_said_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = dense_config()
    data = dense_data(config)
    run = create_run(config, data.facts, tmp_path)
    trainer = make_trainer(run, data)
    batches = trainer._batches

    def spoilt(*arguments: Any) -> Iterator[Batch]:
        for batch in batches(*arguments):
            pixels = batch.pixels.float()
            pixels[0, 0, 5, 5] = 3e38
            yield batch._replace(pixels=pixels)

    monkeypatch.setattr(trainer, "_batches", spoilt)
    with pytest.raises(TrainingError, match=r"not finite .*huge \(3e38\), which should be nodata"):
        trainer.run_all()
    assert run.metrics() == []
    assert not list(run.path.glob("*.safetensors"))
