"""Training on a real GPU: what it computes is what a CPU computes, and the host does not wait for it.

`pytest -m gpu` runs these tests, those of engines in tests/export and those of ONNX Runtime in tests/runtime.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.small_training import small_learner
from support.steps import DENSE, IMAGE, gradient, losses, make_network, make_objective, share_of_batch

from iic_train.config import TrainConfig
from iic_train.data.base import Arrays, Dataset
from iic_train.data.loader import Batch, ImageSource
from iic_train.data.training_data import TrainingData
from iic_train.distributed import Ranks, choose_device
from iic_train.evaluation.evaluate import evaluate
from iic_train.runs import create_run, load_run
from iic_train.trainer import Trainer

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU"),
]


def on_device(batch: Batch, device: torch.device) -> Batch:
    valid = None if batch.valid is None else batch.valid.to(device)
    return Batch(batch.pixels.to(device), valid)


@contextmanager
def no_waiting() -> Iterator[None]:
    """Let PyTorch raise where the host would wait for the device."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("config", [DENSE, IMAGE], ids=["dense", "image"])
@pytest.mark.parametrize("micro_batch", [None, 6])
def test_loss_and_gradient_are_those_of_the_cpu(config: TrainConfig, micro_batch: int | None) -> None:
    device, batch = choose_device("cuda"), share_of_batch(config)
    network = make_network(config).float()
    expected = gradient(network, make_objective(network, batch, config, "ab"))
    network = network.to(device)
    split = replace(config, micro_batch=micro_batch)
    actual = gradient(network, make_objective(network, on_device(batch, device), split, "ab"))
    for ours, theirs in zip(actual, expected, strict=True):
        torch.testing.assert_close(ours.cpu(), theirs, rtol=1e-2, atol=1e-3 * float(theirs.abs().max()))


@pytest.mark.parametrize("config", [DENSE, IMAGE], ids=["dense", "image"])
def test_a_step_does_not_make_the_host_wait(config: TrainConfig) -> None:
    device = choose_device("cuda")
    network = make_network(config).float().to(device).train()
    optimiser = torch.optim.Adam(network.parameters())
    batch = on_device(share_of_batch(config), device)

    def step() -> None:
        optimiser.zero_grad(set_to_none=True)
        objective = make_objective(network, batch, config, "ab")
        objective.backward(losses(objective))
        optimiser.step()

    step()  # constants are copied, kernels are chosen
    with no_waiting():
        step()


def test_a_step_of_fine_tuning_does_not_make_the_host_wait() -> None:
    learner = small_learner(choose_device("cuda"))

    def step(number: int) -> None:
        learner.loop.optimiser.zero_grad(set_to_none=True)
        learner._step_loss((1, number), None).backward()  # type: ignore[no-untyped-call]
        learner.loop._update()
        learner._average(number)

    step(0)  # constants are copied, kernels are chosen
    with no_waiting():
        step(1)


@pytest.mark.parametrize("amp", ["off", "bf16", "fp16"])
def test_a_run_is_trained_evaluated_and_resumed(tmp_path: Path, amp: Any) -> None:
    device = choose_device("cuda")
    config = replace(IMAGE, amp=amp, epochs=1, selection_steps=2, evaluation_images=8)
    rng = np.random.default_rng(1)
    labels = rng.integers(0, 3, 60)
    pixels = (rng.integers(0, 60, (60, 1, 16, 16)) + 60 * labels[:, None, None, None]).astype(np.uint8)
    part = Arrays(pixels, labels, ("grey",))
    dataset = Dataset.of_labelled("blobs", part, part, ("0", "1", "2"), dense=False, overcluster=True)
    data = TrainingData(ImageSource(part), ImageSource(part), dataset)
    run = create_run(config, {}, tmp_path, "run")
    Trainer(run, data, device, Ranks(), 2).run_all()
    resumed = replace(load_run(run.path), config=replace(config, epochs=2))
    Trainer(resumed, data, device, Ranks(), 2).run_all()
    assert [row["epoch"] for row in run.metrics()] == [1, 2]
    assert math.isfinite(run.metrics()[-1]["loss"])
    on_gpu, on_cpu = (evaluate(run, dataset, device=place) for place in (device, "cpu"))
    assert on_gpu.accuracy == pytest.approx(on_cpu.accuracy, abs=0.05)
