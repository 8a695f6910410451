"""What a GPU would refuse or wait for, found without one: forward passes on CUDA tensors that hold no values.

Backward passes, kernels and memory need a real GPU: tests marked `gpu`, and docs/gpu.md.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.fake_cuda import CUDA, FakeCuda, fake_cuda
from support.presets import DISTINCT_PRESETS
from support.small_training import small_learner

from iic_export.torch_to_onnx import served_head
from iic_train.config import DataConfig, TrainConfig
from iic_train.data.base import Arrays, Dataset
from iic_train.data.loader import Batch, ImageSource
from iic_train.data.training_data import TrainingData
from iic_train.distributed import Ranks
from iic_train.evaluation.evaluate import network_predict
from iic_train.finetune.image_runs import Classifier, FinetuneSettings, _batches, distort, ten_crops
from iic_train.losses.step import Step, StepObjective, step_objective
from iic_train.models.networks import Network
from iic_train.models.registry import NetworkConfig
from iic_train.recipes.presets import preset
from iic_train.recipes.rasters import PAIRS
from iic_train.runs import create_run
from iic_train.trainer import Trainer
from iic_train.views.pairs import image_views
from iic_train.views.random_numbers import Draw
from iic_train.views.settings import ImagePairs

pytestmark = pytest.mark.gpu_smoke
FAST = ("fashion-mnist", "coco-stuff-3")
SIDES = {"mnist": 28, "fashion-mnist": 28, "stl10": 96}


def presets() -> list[Any]:
    return [
        pytest.param(name, over, marks=[] if name in FAST and not over else pytest.mark.slow)
        for name in DISTINCT_PRESETS
        for over in (False, True)
    ]


def published_batch(config: TrainConfig) -> Batch:
    """A batch as the preset reads it, on the device."""
    side = config.size or SIDES.get(config.preset, 32)
    shape = (config.batch // config.repeats, len(config.network.channels), side, side)
    valid = torch.ones(shape[0], side, side, dtype=torch.bool, device=CUDA)
    masked = config.preset.startswith(("coco", "rasters"))
    return Batch(torch.zeros(shape, dtype=torch.uint8, device=CUDA), valid if masked else None)


def take_step(network: Network, batch: Batch, config: TrainConfig) -> StepObjective:
    dtype = torch.bfloat16 if config.amp == "bf16" else torch.float16
    autocast = torch.autocast("cuda", dtype=dtype, enabled=config.amp in ("bf16", "fp16"))
    heads = "b" if config.network.clusters_a is None else "ab"
    return step_objective(network, network.features, batch, heads, config, Step((1,), autocast))


def check_step(mode: FakeCuda, config: TrainConfig) -> None:
    network = Network(config.network).to(CUDA)
    batch = published_batch(config)
    take_step(network, batch, config)  # copies constants, once
    mode.copies.clear()
    mode.waits.clear()
    objective = take_step(network, batch, config)
    for terms in (term for head in objective.terms.values() for term in head):
        assert (terms.loss.device.type, terms.loss.dtype) == ("cuda", torch.float32)
        assert terms.loss.requires_grad
    assert not mode.waits, "the host waits for the device"
    assert mode.copies.total() == 1, "all random numbers of a step go in one copy"


@pytest.mark.parametrize(("name", "overcluster"), presets())
def test_a_step_of_every_preset_runs_without_waiting(name: str, overcluster: bool) -> None:
    with fake_cuda() as mode:
        check_step(mode, preset(name, overcluster=overcluster))


@pytest.mark.parametrize("amp", ["bf16", pytest.param("fp16", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ["mnist", pytest.param("potsdam-3", marks=pytest.mark.slow)])
def test_half_precision_leaves_the_objective_in_float32(name: str, amp: Any) -> None:
    config = replace(preset(name), amp=amp)
    with fake_cuda() as mode:
        network = Network(config.network).to(CUDA)
        with torch.autocast("cuda", dtype=torch.bfloat16 if amp == "bf16" else torch.float16):
            side = config.size or config.network.size or 0
            features = network.features(torch.zeros(2, len(config.network.channels), side, side, device=CUDA))
        assert features.dtype == (torch.bfloat16 if amp == "bf16" else torch.float16)
        check_step(mode, config)


@pytest.mark.parametrize("name", ["mnist", pytest.param("coco-stuff-3", marks=pytest.mark.slow)])
def test_micro_batches_do_not_wait_either(name: str) -> None:
    config = preset(name)
    with fake_cuda() as mode:
        check_step(mode, replace(config, micro_batch=config.batch // 3))


def raster_config(network: str = "local") -> TrainConfig:
    bank = network == "bank"
    return TrainConfig(
        preset="rasters",
        data=DataConfig("rasters"),
        network=NetworkConfig(network, ("red", "green", "blue", "nir"), 4, 16, bias=bank),
        pairs=PAIRS,
        size=32,
        batch=8,
        radius=1,
        cells=True,
        passes=("a",) if bank else ("ab",),
        start="kmeans" if bank else "random",
        selection_steps=1,
        epochs=1,
    )


@pytest.mark.parametrize(
    "network",
    [
        "bank",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("local", "edge-8", "context-small")),
    ],
)
def test_networks_for_rasters(network: str) -> None:
    with fake_cuda() as mode:
        check_step(mode, raster_config(network))


def tiny_data(config: TrainConfig) -> TrainingData:
    images = np.random.default_rng(0).integers(0, 256, (16, 4, 32, 32), np.uint8)
    part = Arrays(images, None, config.network.channels)
    source = ImageSource(part, config.size)
    return TrainingData(source, source, Dataset("tiny", True, part, part, part, part, ()))


@pytest.mark.filterwarnings("ignore:'pin_memory' argument")
def test_a_trainer_on_the_device(tmp_path: Path) -> None:
    """Without calibration, which asks the device for values: how many batches it has seen, principal axes."""
    config = raster_config("bank")
    with fake_cuda():
        run = create_run(config, {}, tmp_path)
        trainer = Trainer(run, tiny_data(config), CUDA, Ranks(), 0)
        batches = list(trainer._batches(trainer.data.train_b, (0, 1, 0), 2))
        assert {batch.pixels.device.type for batch in batches} == {"cuda"}
        assert {value.device.type for value in trainer.network.state_dict().values()} == {"cuda"}
        (terms,) = trainer._objective(batches[0], "a", (0, 1)).terms["a"]
        assert trainer.loop.scaler.scale(terms.loss).device == CUDA


@pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor")
@pytest.mark.parametrize("name", [pytest.param("mnist", marks=pytest.mark.slow), "coco-stuff-3"])
def test_evaluation_and_serving(name: str) -> None:
    config = preset(name)
    with fake_cuda(), torch.no_grad():
        network = Network(config.network).to(CUDA)
        pixels = published_batch(replace(config, batch=4, repeats=1)).pixels
        clusters = network_predict(network, config.pairs)(pixels)
        assert (clusters.device.type, clusters.shape[0]) == ("cuda", config.network.sub_heads)
        single = network.with_sub_head(0).eval()
        for half in (False, True):
            head = served_head(single, config.pairs, half=half).to(CUDA)
            labels, confidence = head(pixels)[:2]
            assert {labels.dtype, confidence.dtype} == {torch.uint8}


def test_fine_tuning_of_images() -> None:
    config = preset("stl10", overcluster=True)
    pairs, settings = config.pairs, FinetuneSettings(hidden=16)
    assert isinstance(pairs, ImagePairs)
    small = replace(config.network, widths=(8, 8, 8, 8), clusters_b=10, sub_heads=1)
    labelled = Arrays(np.zeros((4, 3, 96, 96), np.uint8), np.arange(4), small.channels)
    with fake_cuda() as mode:
        classifier = Classifier(Network(small).to(CUDA), pairs.size, 10, settings.hidden).to(CUDA)
        draw = Draw(0, CUDA)
        mode.waits.clear()
        (pixels, _), *_ = _batches(labelled, np.arange(4), 4, CUDA)
        assert not mode.waits
        scaled = classifier.network.scale(pixels)
        _, views = image_views(pairs, scaled, small.channels, draw)
        assert classifier(distort(views, settings, draw)).shape == (4, 10)
        assert all(classifier(view).device == CUDA for view in ten_crops(scaled, pairs.crop, pairs.size))


def test_fine_tuning_on_scenes_in_half_precision_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Noise, which is drawn by a generator on the device, is left to a real GPU."""
    monkeypatch.setattr(Draw, "normal", lambda self, like: torch.zeros_like(like))
    with fake_cuda() as mode:
        learner = small_learner(CUDA)
        assert learner.loop.amp == "bf16"
        assert learner.loop.optimiser.defaults["fused"]
        learner._step_loss((1, 0), None)  # copies constants, once
        mode.waits.clear()
        loss = learner._step_loss((1, 1), None)
        assert (loss.device, loss.dtype, loss.requires_grad) == (CUDA, torch.float32, True)
        assert not mode.waits, "the host waits for the device"
