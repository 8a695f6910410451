from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.datasets import CIFAR10_FILES, make_mnist

from iic_train.config import TrainConfig
from iic_train.recipes.recipe import Recipe
from iic_train.recipes.registry import RECIPES, config_of, train_recipe


def make_binary_cifar10(root: Path) -> None:
    rng = np.random.default_rng(0)
    folder = root / "cifar-10-batches-bin"
    folder.mkdir()
    for name in CIFAR10_FILES:
        rows = rng.integers(0, 256, (4, 3073), np.uint8)
        rows[:, 0] = rng.integers(0, 10, 4)
        (folder / f"{name}.bin").write_bytes(rows.tobytes())


MAKE: dict[str, Callable[[Path], object]] = {
    "mnist-small": make_mnist,
    "fashion-mnist-small": lambda root: make_mnist(root, "FashionMNIST"),
    "cifar10-small": make_binary_cifar10,
}


@pytest.mark.parametrize("name", MAKE)
def test_recipes_on_images_train(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    MAKE[name](tmp_path)
    recipe = RECIPES[name]
    assert isinstance(recipe, Recipe)
    quick = replace(recipe, changes={**recipe.changes, "batch": 4, "steps": 1, "selection_steps": 1})
    monkeypatch.setitem(RECIPES, name, quick)
    run = train_recipe(name, data=tmp_path, epochs=1, seed=3, runs=tmp_path / "runs", device="cpu")
    assert run.id.startswith(name)
    assert TrainConfig.from_json(run.config.to_json()) == run.config
    assert (run.config.seed, run.config.network.widths) == (3, (16, 32, 64, 128))
    assert len(run.metrics()) == 1


def test_the_small_recipe_of_cifar10() -> None:
    config = config_of("cifar10-small")
    assert config.network.size == 24
    assert (config.network.name, config.network.sobel, config.network.colour) == ("5g-4", True, False)
    assert (config.network.clusters_b, config.network.clusters_a, config.network.sub_heads) == (10, 70, 5)
    assert config.schedule == "constant"  # so that a run can go on for more epochs
