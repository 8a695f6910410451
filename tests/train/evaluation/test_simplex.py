from pathlib import Path

import numpy as np
import pytest

from iic_train.config import DataConfig, TrainConfig
from iic_train.data.base import Arrays, Dataset
from iic_train.evaluation.plots import simplex_corners
from iic_train.evaluation.report import simplex_pictures
from iic_train.evaluation.simplex import (
    KEPT_IMAGES,
    SIMPLEX,
    cluster_probabilities,
    keep_simplex,
    read_simplex,
)
from iic_train.models.networks import Network
from iic_train.models.registry import NetworkConfig
from iic_train.runs import create_run
from iic_train.views.settings import DensePairs, ImagePairs

NETWORK = NetworkConfig("6c", ("grey",), clusters_b=3, sub_heads=2, size=8, family="vgg", widths=(2, 2, 4, 4))
CONFIG = TrainConfig(
    "mnist", DataConfig("mnist"), NETWORK, ImagePairs(8, 8, (8,)), size=None, passes=("b",), epochs=9
)


def images(count: int) -> Dataset:
    rng = np.random.default_rng(0)
    part = Arrays(rng.integers(0, 256, (count, 1, 10, 10), np.uint8), np.arange(count) % 3, ("grey",))
    return Dataset("mnist", False, part, part, map=part, test=part, classes=("a", "b", "c"))


def test_a_long_run_keeps_few_epochs(tmp_path: Path) -> None:
    run, network, data = create_run(CONFIG, {}, tmp_path), Network(NETWORK), images(12)
    for epoch in range(10):
        keep_simplex(run, network, data, epoch)
    kept = read_simplex(run)
    assert list(kept) == [0, 1, 2, 4, 8]
    probabilities = cluster_probabilities(network, CONFIG.pairs, data.test, np.arange(12))
    assert kept[8].shape == (2, 12, 2)
    assert kept[8][1] == pytest.approx(probabilities[:, 1] @ simplex_corners(3), abs=1e-3)
    with (run.path / SIMPLEX).open("a") as file:
        file.write('{"epoch": 4, "points": [[[0.5, 0.5]]]}\n{"epoch": 16, "poi')
    assert read_simplex(run)[4].tolist() == [[[0.5, 0.5]]]  # of the run that was resumed
    assert 16 not in read_simplex(run)


def test_only_a_few_images_of_clustering_runs_are_kept(tmp_path: Path) -> None:
    run = create_run(CONFIG, {}, tmp_path, "images")
    keep_simplex(run, Network(NETWORK), images(KEPT_IMAGES + 100), 1)
    assert read_simplex(run)[1].shape == (2, KEPT_IMAGES, 2)
    dense = NetworkConfig("edge-8", ("grey",), clusters_b=2)
    config = TrainConfig("x", DataConfig("potsdam"), dense, DensePairs(), size=32, passes=("b",))
    pixels = create_run(config, {}, tmp_path, "pixels")
    keep_simplex(pixels, Network(dense), images(4), 1)
    assert read_simplex(pixels) == {}


def test_the_epochs_stand_side_by_side() -> None:
    kept = {0: np.zeros((1, 6, 2)), 1: np.ones((1, 6, 2)) * 0.1, 2: np.ones((1, 6, 2)) * 0.2}
    (figure,) = simplex_pictures(kept, 0, 4, np.arange(6) % 2, ("cat", "dog"))
    assert [f">{name}</text>" in figure for name in ("untrained", "epoch 1", "epoch 2")] == [True] * 3
    assert figure.count("<polygon") == 3
    assert figure.count('class="dots"') == 6
    (plain,) = simplex_pictures(kept, 0, 4, None, ())
    assert plain.count('class="dots"') == 3
    assert simplex_pictures({}, 0, 4, None, ()) == []
