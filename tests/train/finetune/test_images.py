import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from support.datasets import accept_checksums, make_stl10

from iic_geotools.errors import DataError, TrainingError, UsageError
from iic_train.config import DataConfig, TrainConfig
from iic_train.data.base import Arrays, Dataset
from iic_train.data.images import read_folds
from iic_train.finetune.image_runs import (
    Classifier,
    FinetuneSettings,
    distort,
    finetune,
    finetune_folds,
    finetune_run,
    load_finetuned,
    ten_crop_accuracy,
    ten_crops,
)
from iic_train.models.networks import Network
from iic_train.models.registry import NetworkConfig
from iic_train.runs import Choice, Run, create_run
from iic_train.views.random_numbers import Draw
from iic_train.views.settings import ImagePairs

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


def parts(train: Arrays, test: Arrays) -> Dataset:
    return Dataset("stripes", False, train, train, map=train, test=test, classes=("across", "down"))


def test_a_few_passes_learn_the_classes() -> None:
    seen: list[int] = []
    settings = FinetuneSettings(
        epochs=8, batch_size=12, hidden=32, head_rate=1e-2, trunk_rate=1e-2, affine=0.2, cutout=0.2
    )
    finetuned = finetune(
        network(),
        PAIRS,
        parts(stripes(97), stripes(20)),
        settings,
        progress=lambda progress: seen.append(progress.done),
    )
    assert seen == list(range(1, 9))
    assert finetuned.history[-1].loss < finetuned.history[0].loss
    assert finetuned.label_picked.accuracy >= finetuned.accuracy
    assert finetuned.accuracy >= 0.9


def test_the_head_starts_as_published() -> None:
    """Small normal weights and no bias: every class is about equally likely at first."""
    trained = network()
    before = {name: value.clone() for name, value in trained.state_dict().items()}
    classifier = Classifier(trained, 16, 10, 512)
    layers = [layer for layer in classifier.head if isinstance(layer, torch.nn.Linear)]
    assert len(layers) == 2
    for layer in layers:
        assert float(layer.weight.detach().std()) == pytest.approx(0.01, rel=0.1)
        assert not layer.bias.any()
    assert all(torch.equal(value, before[name]) for name, value in classifier.network.state_dict().items())


def test_head_and_trunk_learn_at_their_own_rates() -> None:
    frozen, moving = network(), network()
    before = {name: value.clone() for name, value in frozen.named_parameters()}
    settings = FinetuneSettings(epochs=1, batch_size=25, hidden=8, trunk_rate=0.0)
    finetune(frozen, PAIRS, parts(stripes(50), stripes(4)), settings)
    assert all(torch.equal(value, before[name]) for name, value in frozen.named_parameters())
    finetune(
        moving, PAIRS, parts(stripes(50), stripes(4)), FinetuneSettings(epochs=1, batch_size=25, hidden=8)
    )
    changed = {
        name.split(".")[0] for name, v in moving.named_parameters() if not torch.equal(v, before[name])
    }
    assert changed == {"trunk"}


def test_seeds_repeat() -> None:
    settings = FinetuneSettings(epochs=1, batch_size=10, hidden=8)
    one, two = (finetune(network(), PAIRS, parts(stripes(20), stripes(4)), settings) for _ in range(2))
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
    distorted = distort(views, settings, Draw(0))
    blanked = (distorted == 0).all(1).sum((1, 2)).sqrt()
    assert blanked.min() >= 4
    assert blanked.max() <= 10
    assert len(blanked.unique()) > 3
    assert torch.equal(distort(views, FinetuneSettings(affine=0.0, cutout=0.0), Draw(0)), views)
    moved = distort(views, FinetuneSettings(affine=1.0, cutout=0.0), Draw(0))
    assert (moved.flatten(1).mean(1) < 1).float().mean() > 0.8


def test_a_run_is_fine_tuned_in_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = stl10_run(tmp_path, monkeypatch)
    finetuned = finetune_run(run, FinetuneSettings(epochs=2, batch_size=4, hidden=4))
    kept = json.loads((run.path / "finetuned.json").read_text())
    assert kept["accuracy"] == finetuned.accuracy
    assert [epoch["epoch"] for epoch in kept["history"]] == [1, 2]
    weights = load_file(run.path / "finetuned.safetensors")
    assert torch.equal(weights["head.0.weight"], finetuned.classifier.head[0].weight)
    assert not torch.equal(weights["head.0.weight"], Classifier(network(), 16, 10, 4).head[0].weight)


def test_what_cannot_be_fine_tuned() -> None:
    with pytest.raises(DataError, match="class for every image"):
        finetune(network(), PAIRS, parts(stripes(4, labelled=False), stripes(4)))
    vgg = network(name="6c", family="vgg")
    with pytest.raises(UsageError, match="5g"):
        finetune(vgg, PAIRS, parts(stripes(4), stripes(4)))
    broken = network()
    next(broken.parameters()).data.fill_(float("nan"))
    with pytest.raises(TrainingError, match=r"learning rate below 0\.0001"):
        finetune(broken, PAIRS, parts(stripes(4), stripes(4)), FinetuneSettings(epochs=1, hidden=4))


def stl10_run(root: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    make_stl10(root)
    accept_checksums(root, monkeypatch)
    config = TrainConfig(
        *("stl10", DataConfig("stl10", str(root)), network().config, PAIRS, None), passes=("b",)
    )
    run = create_run(config, {}, root / "runs")
    run.save_weights(network(), "best", Choice(1, 0, -0.5))
    return run


def test_what_was_fine_tuned_is_a_network_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = stl10_run(tmp_path, monkeypatch)
    with pytest.raises(TrainingError, match="not fine-tuned"):
        load_finetuned(run)
    classifier = finetune_run(run, FinetuneSettings(epochs=2, batch_size=4, hidden=4)).classifier.eval()
    loaded, record = load_finetuned(run)
    assert record["classes"][0] == "airplane"
    assert loaded.config.clusters_b == 10
    views = torch.rand(3, 3, 16, 16)
    with torch.no_grad():
        assert torch.allclose(loaded.classify(views)[:, 0], classifier(views).softmax(1), atol=1e-6)
    (run.path / "finetuned.safetensors").write_bytes(b"damaged")
    with pytest.raises(TrainingError, match="is damaged or of another version"):
        load_finetuned(run)


def test_every_fold_starts_from_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = stl10_run(tmp_path, monkeypatch)
    settings = FinetuneSettings(epochs=1, batch_size=4, hidden=4)
    with pytest.raises(DataError, match="each fold"):
        finetune_folds(run, settings)
    (tmp_path / "stl10_binary/fold_indices.txt").write_text("0 1 2 \n1 2 3 \n0 1 2 \n")
    folds = finetune_folds(run, settings)
    assert len(folds.accuracies) == 3
    assert folds.accuracies[0] == folds.accuracies[2]
    assert folds.mean == pytest.approx(np.mean(folds.accuracies))
    assert json.loads((run.path / "folds.json").read_text())["mean"] == folds.mean
    assert finetune_folds(run, settings, folds=1).accuracies == folds.accuracies[:1]
    with pytest.raises(UsageError, match="only stl10"):
        read_folds("mnist", tmp_path)


def test_weights_are_kept_on_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("iic_train.finetune.image_runs.KEEP_EVERY", 2)
    kept: list[int] = []
    settings = FinetuneSettings(epochs=5, batch_size=4, hidden=4)
    finetune(
        *(network(), PAIRS, parts(stripes(4), stripes(2)), settings),
        keep=lambda finetuned: kept.append(len(finetuned.history)),
    )
    assert kept == [2, 4, 5]
