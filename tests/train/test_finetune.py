import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from iic_geotools.errors import DataError, TrainingError, UsageError
from iic_train.config import DataConfig, TrainConfig
from iic_train.data import Arrays
from iic_train.finetune import (
    Classifier,
    FinetuneSettings,
    distort,
    finetune,
    finetune_run,
    ten_crop_accuracy,
    ten_crops,
)
from iic_train.networks import Network, NetworkConfig
from iic_train.pairs import ImagePairs
from iic_train.photometry import Draw
from iic_train.runs import Choice, create_run

RGB = ("red", "green", "blue")
PAIRS = ImagePairs(size=16, crop=16, crops=(16,))


def network(**changes: object) -> Network:
    torch.manual_seed(0)
    settings = {"name": "5g", "family": "resnet", "widths": (4, 8, 8, 8), "size": 16, **changes}
    return Network(NetworkConfig(channels=RGB, clusters_b=4, **settings))  # type: ignore[arg-type]


def stripes(count: int, *, labelled: bool = True) -> Arrays:
    """Noise with horizontal or vertical stripes: the class survives crops, flips and jitter."""
    rng = np.random.default_rng(count)
    labels = np.arange(count) % 2
    images = rng.integers(0, 60, (count, 3, 24, 24)).astype(np.uint8)
    images[labels == 0, :, ::4] += 180
    images[labels == 1, :, :, ::4] += 180
    return Arrays(images, labels if labelled else None, RGB)


def test_a_few_passes_learn_the_classes() -> None:
    seen: list[int] = []
    settings = FinetuneSettings(
        epochs=8, batch_size=12, hidden=32, head_rate=1e-2, trunk_rate=1e-2, affine=0.2, cutout=0.2
    )
    found = finetune(
        network(),
        PAIRS,
        stripes(97),
        stripes(20),
        2,
        settings,
        progress=lambda epoch: seen.append(epoch.epoch),
    )
    assert seen == list(range(1, 9))
    assert found.history[-1].loss < found.history[0].loss
    assert found.label_picked.accuracy >= found.accuracy
    assert found.accuracy >= 0.9


def test_head_and_trunk_learn_at_their_own_rates() -> None:
    frozen, moving = network(), network()
    before = {name: value.clone() for name, value in frozen.named_parameters()}
    settings = FinetuneSettings(epochs=1, batch_size=25, hidden=8, trunk_rate=0.0)
    finetune(frozen, PAIRS, stripes(50), stripes(4), 2, settings)
    assert all(torch.equal(value, before[name]) for name, value in frozen.named_parameters())
    finetune(moving, PAIRS, stripes(50), stripes(4), 2, FinetuneSettings(epochs=1, batch_size=25, hidden=8))
    changed = {
        name.split(".")[0] for name, v in moving.named_parameters() if not torch.equal(v, before[name])
    }
    assert changed == {"trunk"}


def test_seeds_repeat() -> None:
    settings = FinetuneSettings(epochs=1, batch_size=10, hidden=8)
    one, two = (finetune(network(), PAIRS, stripes(20), stripes(4), 2, settings) for _ in range(2))
    assert one.history == two.history


def test_ten_crops_are_corners_centre_and_mirrors() -> None:
    images = torch.arange(100.0).view(1, 1, 10, 10)
    views = list(ten_crops(images, 4, 4))
    assert [int(view[0, 0, 0, 0]) for view in views[::2]] == [0, 6, 60, 66, 33]
    assert all(
        torch.equal(view.flip(-1), mirror) for view, mirror in zip(views[::2], views[1::2], strict=True)
    )
    assert next(ten_crops(images, 4, 8)).shape == (1, 1, 8, 8)


def test_the_test_averages_logits_over_crops() -> None:
    classifier = Classifier(network(), 16, 2, 8)
    test = stripes(7)
    logits = torch.stack(
        [classifier.eval()(v) for v in ten_crops(torch.from_numpy(test.images) / 255, 16, 16)]
    ).mean(0)
    expected = (logits.argmax(1).numpy() == test.labels).mean()
    assert ten_crop_accuracy(classifier, test, PAIRS, batch_size=3) == pytest.approx(expected)


def test_distortions_blank_a_square() -> None:
    views = torch.ones(64, 3, 20, 20)
    settings = FinetuneSettings(affine=0.0, cutout=1.0, cutout_sides=(0.2, 0.5))
    found = distort(views, settings, Draw(0))
    blanked = (found == 0).all(1).sum((1, 2)).sqrt()
    assert blanked.min() >= 4
    assert blanked.max() <= 10
    assert len(blanked.unique()) > 3
    assert torch.equal(distort(views, FinetuneSettings(affine=0.0, cutout=0.0), Draw(0)), views)
    moved = distort(views, FinetuneSettings(affine=1.0, cutout=0.0), Draw(0))
    assert (moved.flatten(1).mean(1) < 1).float().mean() > 0.8


def test_a_run_is_fine_tuned_in_its_folder(tmp_path: Path) -> None:
    folder = tmp_path / "stl10_binary"
    folder.mkdir()
    rng = np.random.default_rng(0)
    for part, count in (("train", 12), ("test", 6)):
        images = rng.integers(0, 256, (count, 3, 96, 96), np.uint8)
        (folder / f"{part}_X.bin").write_bytes(images.tobytes())
        (folder / f"{part}_y.bin").write_bytes((np.arange(count, dtype=np.uint8) % 10 + 1).tobytes())
    config = TrainConfig(
        *("stl10", DataConfig("stl10", str(tmp_path)), network().config, PAIRS, None), passes=("b",)
    )
    run = create_run(config, {}, tmp_path / "runs")
    run.save_weights(network(), "best", Choice(1, 0, -0.5))
    found = finetune_run(run, FinetuneSettings(epochs=2, batch_size=6, hidden=4))
    kept = json.loads((run.path / "finetuned.json").read_text())
    assert kept["accuracy"] == found.accuracy
    assert [epoch["epoch"] for epoch in kept["history"]] == [1, 2]
    weights = load_file(run.path / "finetuned.safetensors")
    assert torch.equal(weights["head.0.weight"], found.classifier.head[0].weight)
    assert not torch.equal(weights["head.0.weight"], Classifier(network(), 16, 10, 4).head[0].weight)


def test_what_cannot_be_fine_tuned() -> None:
    with pytest.raises(DataError, match="class for every image"):
        finetune(network(), PAIRS, stripes(4, labelled=False), stripes(4), 2)
    vgg = network(name="6c", family="vgg")
    with pytest.raises(UsageError, match="5g"):
        finetune(vgg, PAIRS, stripes(4), stripes(4), 2)
    broken = network()
    next(broken.parameters()).data.fill_(float("nan"))
    with pytest.raises(TrainingError, match="lower learning rates"):
        finetune(broken, PAIRS, stripes(4), stripes(4), 2, FinetuneSettings(epochs=1, hidden=4))
