import io
import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from iic_geotools.errors import TrainingError, UsageError
from iic_train.config import DataConfig, TrainConfig
from iic_train.data import Arrays, Dataset
from iic_train.distributed import Ranks
from iic_train.evaluate import evaluate
from iic_train.loading import Batch, ImageSource
from iic_train.loop import Trainer
from iic_train.networks import Network, NetworkConfig
from iic_train.opening import TrainingData
from iic_train.pairs import DensePairs, ImagePairs
from iic_train.photometry import Photometry
from iic_train.progress import Progress
from iic_train.runs import create_run, load_run
from iic_train.step import pair_terms


class Mosaics:
    """Small images of two materials, smooth dark and rough bright, with their label maps."""

    channels = ("grey",)

    def __init__(self, count: int = 24) -> None:
        rng = np.random.default_rng(0)
        self.labels = np.kron(rng.integers(0, 2, (count, 2, 2)), np.ones((20, 20))).astype(np.uint8)
        texture = rng.normal(0, 1, self.labels.shape)
        values = np.where(self.labels == 1, 170 + 40 * texture, 70 + 6 * texture)
        self.images = np.clip(values, 0, 255).astype(np.uint8)[:, None]

    def __len__(self):
        return len(self.images)

    def image(self, index):
        return self.images[index]

    def label(self, index):
        return self.labels[index]

    def valid(self, index):
        return None


def dense_config(**changes):
    settings = {
        "preset": "mosaics",
        "data": DataConfig("mosaics"),
        "network": NetworkConfig("edge-8", ("grey",), 2, 5, 2),
        "pairs": DensePairs(Photometry(all_brightness=0.1), flip_vertical=0.5, turn=0.5),
        "size": 16,
        "epochs": 3,
        "batch": 8,
        "lr": 3e-3,
        "radius": 2,
        "selection_steps": 2,
        "evaluation_images": 8,
    }
    return TrainConfig(**{**settings, **changes})


def dense_data(config):
    images = Mosaics()
    dataset = Dataset("mosaics", True, images, images, images, images, ("dark", "bright"))
    source = ImageSource(images, config.size)
    return TrainingData(source, source, dataset, {"fingerprint": dataset.fingerprint()})


def image_config(**changes):
    settings = {
        "preset": "blobs",
        "data": DataConfig("blobs"),
        "network": NetworkConfig("6c", ("grey",), 3, 6, 2, size=8, widths=(4, 8, 8, 8), family="vgg"),
        "pairs": ImagePairs(8, 10, (8, 10), centred=0.5, rotation=10.0),
        "size": None,
        "passes": ("b", "a"),
        "epochs": 2,
        "batch": 24,
        "repeats": 2,
        "selection_steps": 2,
        "evaluation_images": 10,
    }
    return TrainConfig(**{**settings, **changes})


def image_data(config):
    rng = np.random.default_rng(1)
    labels = rng.integers(0, 3, 60)
    images = (rng.integers(0, 60, (60, 1, 12, 12)) + 60 * labels[:, None, None, None]).astype(np.uint8)
    part = Arrays(images, labels, ("grey",))
    source = ImageSource(part)
    dataset = Dataset.of_labelled("blobs", part, part, ("0", "1", "2"), dense=False, overcluster=True)
    return TrainingData(source, source, dataset, {"fingerprint": dataset.fingerprint()})


def trainer(run, data, **options):
    return Trainer(
        run, data, torch.device("cpu"), Ranks(), options.get("workers", 0), Progress(io.StringIO())
    )


CASES = [(dense_config, dense_data), (image_config, image_data)]


@pytest.mark.parametrize(("make_config", "make_data"), CASES)
def test_a_resumed_run_equals_an_uninterrupted_one_bit_for_bit(tmp_path, make_config, make_data):
    config = make_config(schedule="cosine")
    whole = create_run(config, {}, tmp_path, "whole")
    trainer(whole, make_data(config)).run_all()

    broken = create_run(config, {}, tmp_path, "broken")
    first = trainer(broken, make_data(config))
    first._train_epoch(1)
    broken.append_metrics({"epoch": 2, "loss": -9.0})  # finished, but killed before its state was saved
    torch.manual_seed(99)
    trainer(load_run(broken.path), make_data(config)).run_all()

    for which in ("best", "last"):
        assert whole.choice(which) == broken.choice(which)
        for a, b in zip(
            whole.network(which).state_dict().values(),
            broken.network(which).state_dict().values(),
            strict=True,
        ):
            assert torch.equal(a, b)
    timeless = [
        [{**row, "seconds": 0, "images_per_second": 0} for row in run.metrics()] for run in (whole, broken)
    ]
    assert timeless[0] == timeless[1]
    assert [row["epoch"] for row in timeless[1]] == list(range(1, config.epochs + 1))


def test_worker_processes_change_nothing(tmp_path):
    config = dense_config(epochs=1)
    runs = []
    for workers in (0, 2):
        run = create_run(config, {}, tmp_path)
        trainer(run, dense_data(config), workers=workers).run_all()
        runs.append(run)
    for a, b in zip(*(run.network("last").parameters() for run in runs), strict=True):
        assert torch.equal(a, b)


def test_training_separates_two_materials_without_labels(tmp_path):
    config = dense_config(size=32, radius=1, passes=("ab",), epochs=4)
    run = create_run(config, {}, tmp_path)
    data = dense_data(config)
    trainer(run, data).run_all()
    assert run.metrics()[-1]["selection"]["information"][run.choice("last").sub_head] > 0.3
    assert evaluate(run, data.dataset).accuracy > 0.9


@pytest.mark.parametrize(("make_config", "make_data"), CASES)
def test_best_is_the_epoch_and_sub_head_of_lowest_selection_loss(tmp_path, make_config, make_data):
    config = make_config(epochs=4)
    run = create_run(config, {}, tmp_path)
    trainer(run, make_data(config)).run_all()
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


def test_the_idle_head_stays_still(tmp_path):
    config = dense_config(passes=("b",), epochs=1)
    run = create_run(config, {}, tmp_path)
    found = trainer(run, dense_data(config))
    before = found.network.heads["a"].weight.clone()
    main = found.network.heads["b"].weight.clone()
    found.run_all()
    assert torch.equal(found.network.heads["a"].weight, before)
    assert not torch.equal(found.network.heads["b"].weight, main)


@pytest.mark.parametrize(
    "changes",
    [
        {"passes": ("ab",)},
        {"cells": True, "radius": 1},
        {"collapsed": True},
        {"margin": 4},
        {"margin": 4, "cells": True, "radius": 1},
    ],
)
def test_other_rhythms_and_forms_train_too(tmp_path, changes):
    config = dense_config(epochs=1, **changes)
    run = create_run(config, {}, tmp_path)
    trainer(run, dense_data(config)).run_all()
    assert run.metrics()[0]["loss"] < 0


@pytest.mark.parametrize("cells", [False, True])
def test_the_margin_of_windows_does_not_count(cells):
    config = dense_config(margin=4, cells=cells)
    network = Network(config.network).eval()
    pixels = torch.randint(0, 256, (4, 1, 16, 16), generator=torch.Generator().manual_seed(0))
    batch = Batch(pixels, torch.ones(4, 16, 16, dtype=torch.bool))
    inner = torch.zeros(4, 16, 16, dtype=torch.bool)
    inner[:, 4:12, 4:12] = True
    options = {"key": (1, 2), "autocast": nullcontext()}
    cut = pair_terms(network, network.features, batch, "b", config, **options)["b"][0]
    masked = pair_terms(
        network, network.features, Batch(pixels, inner), "b", replace(config, margin=0), **options
    )["b"][0]
    torch.testing.assert_close(cut.loss, masked.loss)


def test_the_entropy_weight_settles_from_one():
    config = dense_config(lamb_b=0.8, settling=0.5)
    weights = [config.lamb("b", progress) for progress in (0.0, 0.25, 0.5, 0.9)]
    assert weights == pytest.approx([1.0, 0.9, 0.8, 0.8])
    assert config.lamb("b") == 0.8
    assert config.lamb("a", 0.0) == 1.0
    assert dense_config(lamb_b=0.8).lamb("b", 0.0) == 0.8


def test_training_uses_the_weight_of_the_moment_and_selection_the_settled_one(tmp_path):
    losses = {}
    for settling in (0.0, 1.0):
        config = dense_config(lamb_b=0.5, settling=settling, epochs=1, passes=("ab",))
        data = dense_data(config)
        run = create_run(config, data.facts, tmp_path, f"settling-{settling}")
        trainer(run, data).run_all()
        row = run.metrics()[0]
        for part in (row["train"]["b"], row["selection"]):
            # the loss says which weight it was taken with: loss = -information - 2 (weight - 1) entropy
            weight = 1 - (part["loss"][0] + part["information"][0]) / (2 * part["entropy"][0])
            losses.setdefault(settling, []).append(weight)
    assert losses[0.0] == pytest.approx([0.5, 0.5], abs=0.02)
    assert losses[1.0][0] > 0.6
    assert losses[1.0][1] == pytest.approx(0.5, abs=0.02)


def test_a_loss_that_is_not_finite_is_said_in_words(tmp_path):
    config = dense_config(network=NetworkConfig("edge-8", ("grey",), 2, 5, 2, scale=(float("inf"),)))
    run = create_run(config, {}, tmp_path)
    with pytest.raises(TrainingError, match=r"not finite in epoch 1.*learning rate below 0\.003"):
        trainer(run, dense_data(config)).run_all()
    assert run.metrics() == []


def test_collapse_is_said_in_words(tmp_path):
    config = dense_config(
        network=NetworkConfig("edge-8", ("grey",), 2, 5, 1, scale=(0.0,)), lr=1e-6, epochs=3
    )
    run = create_run(config, {}, tmp_path)
    stream = io.StringIO()
    Trainer(run, dense_data(config), torch.device("cpu"), Ranks(), 0, Progress(stream)).run_all()
    assert stream.getvalue().count("Try") == 1
    assert "Head B" in stream.getvalue()


def test_half_precision_on_a_cpu_is_said_not_done(tmp_path):
    config = dense_config(amp="bf16", epochs=1, steps=1, selection_steps=1, evaluation_images=0)
    run = create_run(config, {}, tmp_path)
    stream = io.StringIO()
    Trainer(run, dense_data(config), torch.device("cpu"), Ranks(), 0, Progress(stream)).run_all()
    assert "--amp bf16 is for CUDA" in stream.getvalue()


def test_batches_that_cannot_be_shared_are_refused(tmp_path):
    config = dense_config(batch=9)
    run = create_run(config, {}, tmp_path)
    with pytest.raises(UsageError, match="cannot be shared"):
        Trainer(run, dense_data(config), torch.device("cpu"), Ranks(0, 2), 0, Progress(io.StringIO()))


def test_progress_is_plain_lines_off_a_terminal_and_quiet_if_asked(tmp_path):
    config = dense_config(epochs=1)
    for quiet in (False, True):
        stream = io.StringIO()
        run = create_run(config, {}, tmp_path)
        Trainer(
            run, dense_data(config), torch.device("cpu"), Ranks(), 0, Progress(stream, quiet=quiet)
        ).run_all()
        text = stream.getvalue()
        assert "\r" not in text
        assert bool(text) != quiet


SCRIPT = """
import sys, torch
sys.path.insert(0, {tests!r})
import test_loop
from iic_train.distributed import joined
from iic_train.loop import Trainer
from iic_train.progress import Progress
from iic_train.runs import Run, create_run, load_run
from pathlib import Path
torch.set_num_threads(1)
config = test_loop.dense_config(**{changes!r})
with joined("cpu") as (ranks, device):
    folder = Path({folder!r})
    run = create_run(config, {{}}, folder, "run") if ranks.first else Run(folder, "", config, {{}}, {{}})
    trainer = Trainer(run, test_loop.dense_data(config), device, ranks, 0, Progress(quiet=not ranks.first))
    trainer.run_all()
    torch.save(trainer.network.state_dict(), folder / f"{{ranks.rank}}.pt")
"""


def script(tmp_path, **changes):
    path = tmp_path / "train.py"
    path.write_text(SCRIPT.format(tests=str(Path(__file__).parent), folder=str(tmp_path), changes=changes))
    return path


def environment(**more):
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "OMP_NUM_THREADS": "1",
        **more,
    }


def test_two_processes_train_one_network(tmp_path):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    path = script(tmp_path, epochs=2, steps=2, selection_steps=1, evaluation_images=0)
    processes = [
        subprocess.Popen(
            [sys.executable, str(path)],
            env=environment(
                RANK=str(rank),
                LOCAL_RANK=str(rank),
                WORLD_SIZE="2",
                MASTER_ADDR="127.0.0.1",
                MASTER_PORT=port,
            ),
        )
        for rank in (0, 1)
    ]
    assert [process.wait(240) for process in processes] == [0, 0]
    first, second = (torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in (0, 1))
    for name, value in first.items():
        if "num_batches" not in name:
            assert torch.equal(value, second[name]), name
    run = load_run(tmp_path / "run")
    assert [row["epoch"] for row in run.metrics()] == [1, 2]
    saved = run.network("last").state_dict()
    assert all(torch.equal(saved[name], value) for name, value in first.items())


def test_ctrl_c_says_how_to_go_on(tmp_path):
    path = script(tmp_path, epochs=5000, steps=1, selection_steps=1, evaluation_images=0)
    # What a shell starts in the background is deaf to SIGINT.
    path.write_text(
        f"import signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n{path.read_text()}"
    )
    process = subprocess.Popen(
        [sys.executable, str(path)], env=environment(), stderr=subprocess.PIPE, text=True
    )
    for _ in range(600):
        if (tmp_path / "run" / "state.pt").exists():
            break
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode != 0
    assert f"iic-train resume {tmp_path / 'run'}" in said
    run = load_run(tmp_path / "run")
    done = run.load_state()["epoch"]
    config = dense_config(epochs=done + 1, steps=1, selection_steps=1, evaluation_images=0)
    trainer(replace(run, config=config), dense_data(config)).run_all()
    assert run.metrics()[-1]["epoch"] == done + 1
