import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from iic_geotools.errors import TrainingError
from iic_research.baselines import score_baseline
from iic_train.config import DataConfig, TrainConfig
from iic_train.data.base import Arrays, Dataset
from iic_train.evaluation.evaluate import evaluate
from iic_train.evaluation.report import write_report
from iic_train.models.networks import Network
from iic_train.models.registry import NetworkConfig
from iic_train.runs import Choice, Run, create_run
from iic_train.views.settings import DensePairs, ImagePairs


class Fields:
    """Left half dark, right half bright; the second half of the images are larger."""

    channels = ("red", "green", "blue", "nir")

    def __len__(self) -> int:
        return 6

    def image(self, index: int) -> np.ndarray:
        side = 16 if index < 3 else 20
        image = np.zeros((4, side, side), np.uint8)
        image[:, :, side // 2 :] = 200
        return image

    def label(self, index: int) -> np.ndarray:
        return (self.image(index)[0] > 0).astype(np.uint8)

    def valid(self, index: int) -> None:
        return None


def dense_run(root: Path) -> tuple[Run, Dataset]:
    network = NetworkConfig(
        "edge-8", Fields.channels, clusters_b=2, clusters_a=3, sub_heads=2, widths=(2, 2, 2, 2, 4, 4)
    )
    config = TrainConfig("potsdam", DataConfig("potsdam"), network, DensePairs(), size=16, epochs=2)
    fields = Fields()
    data = Dataset("potsdam", True, fields, fields, map=fields, test=fields, classes=("dark", "bright"))
    return create_run(config, {}, root), data


def image_run(root: Path) -> tuple[Run, Dataset]:
    network = NetworkConfig(
        "6c", ("grey",), clusters_b=3, sub_heads=2, size=8, family="vgg", widths=(2, 2, 4, 4)
    )
    pairs = ImagePairs(size=8, crop=8, crops=(8,))
    config = TrainConfig("mnist", DataConfig("mnist"), network, pairs, size=None, passes=("b",), epochs=2)
    rng = np.random.default_rng(0)
    labels = np.arange(30) % 3
    part = Arrays(rng.integers(0, 256, (30, 1, 10, 10), np.uint8), labels, ("grey",))
    data = Dataset("mnist", False, part, part, map=part, test=part, classes=("a", "b", "c"))
    return create_run(config, {}, root), data


def fill(run: Run, *, accuracy: bool) -> None:
    torch.manual_seed(0)
    network = Network(run.config.network)
    for checkpoint in ("best", "last"):
        run.save_weights(network, checkpoint, Choice(epoch=1, sub_head=1, loss=-0.5))  # type: ignore[arg-type]
    counts = {"a": run.config.network.clusters_a, "b": run.config.network.clusters_b}
    for epoch in (1, 2):
        heads = {
            head: {
                "loss": [-0.1, -0.2 * epoch],
                "information": [0.1, 0.2],
                "entropy": [0.6, 0.7],
                "occupancy": [[1 / count] * count] * 2,
            }
            for head, count in counts.items()
            if count
        }
        row: dict[str, Any] = {"epoch": epoch, "seconds": 90.0, "images_per_second": 1234.0, "train": heads}
        if accuracy:
            row["accuracy"] = {"chosen": 0.5, "sub_heads": [0.4, 0.5], "label_picked": 0.5}
        run.append_metrics(row)


@pytest.mark.parametrize("make", [dense_run, image_run])
def test_evaluate_looks_at_the_sub_head_that_the_loss_chose(tmp_path: Path, make: object) -> None:
    run, data = make(tmp_path)  # type: ignore[operator]
    fill(run, accuracy=True)
    evaluation = evaluate(run, data)
    network = run.network()
    confusions = np.zeros((2, evaluation.sub_heads[0].mapping.__len__(), len(data.classes)), np.int64)
    for index in range(len(data.test)):
        raw = torch.from_numpy(np.ascontiguousarray(data.test.image(index)))[None]
        view = raw[..., 1:9, 1:9] if make is image_run else _centre(raw, 16)
        label = data.test.label(index)
        truth = np.atleast_1d(
            _centre(torch.from_numpy(label), 16) if isinstance(label, np.ndarray) else label
        )
        for sub_head, answer in enumerate(network(view)[0].argmax(1)):
            np.add.at(confusions[sub_head], (np.atleast_1d(answer).ravel(), truth.ravel()), 1)
    assert evaluation.chosen == 1
    for sub_head, counts in enumerate(confusions):
        masses = counts.sum(1) / counts.sum()
        assert evaluation.sub_heads[sub_head].occupancy == pytest.approx(tuple(masses))
        assert evaluation.sub_heads[sub_head].many_to_one.accuracy == pytest.approx(
            counts.max(1).sum() / counts.sum()
        )
    kept = json.loads((run.path / "evaluation.json").read_text())
    assert kept["accuracy"] == evaluation.accuracy
    assert kept["epoch"] == 1


def _centre(pixels: torch.Tensor, side: int) -> torch.Tensor:
    start = (pixels.shape[-1] - side) // 2
    return pixels[..., start : start + side, start : start + side]


@pytest.mark.parametrize("make", [dense_run, image_run])
def test_the_report_is_one_page(tmp_path: Path, make: object) -> None:
    run, data = make(tmp_path)  # type: ignore[operator]
    fill(run, accuracy=False)
    before = write_report(run, data).read_text()
    assert "Not evaluated" in before
    evaluate(run, data)
    page = write_report(run, data).read_text()
    assert "chosen without labels" in page
    assert "epoch 1, sub-head 1, loss -0.500" in page
    assert "3 min" in page
    assert ("</i>cluster 0: " in page) == (make is dense_run)
    assert page.count('alt="clusters"') == (6 if make is dense_run else 0)
    assert ("Images between clusters" in page) == (make is image_run)
    assert not [path for path in run.path.iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize("make", [dense_run, image_run])
def test_baselines_keep_to_the_protocol(tmp_path: Path, make: object) -> None:
    run, data = make(tmp_path)  # type: ignore[operator]
    random = score_baseline("random", run.config, data)
    assert score_baseline("random", run.config, data) == random
    assert len(random.sub_heads) == 2
    points = score_baseline("kmeans", run.config, data)
    assert len(points.sub_heads) == 1
    assert len(points.sub_heads[0].mapping) == len(random.sub_heads[0].mapping)
    if make is dense_run:
        assert points.accuracy == 1.0


def test_a_run_without_weights_has_nothing_to_evaluate(tmp_path: Path) -> None:
    run, data = image_run(tmp_path)
    with pytest.raises(TrainingError, match="no weights yet"):
        evaluate(run, data)
