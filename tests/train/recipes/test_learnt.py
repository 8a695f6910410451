"""Recipes that learn from labels: which files they take, and that a small one trains from a folder."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from support.runs import bright_and_dark_fields
from support.scenes import write_raster

from iic_geotools.errors import DataError, UsageError
from iic_train.config import TrainConfig
from iic_train.finetune.settings import FinetuneConfig, LabelSource, Meaning
from iic_train.models.networks import Network
from iic_train.models.registry import NetworkConfig
from iic_train.recipes import aerial, satellite
from iic_train.recipes.learnt import LearntRecipe, learnt_config
from iic_train.recipes.registry import RECIPES, train_recipe

torch.set_num_threads(1)
SOURCE = LabelSource(
    "fields",
    ("made/*_rgbn.tif",),
    ("made/*_label.tif",),
    (Meaning(("bright",), ("1",)), Meaning(("dark", "bright"), ("2",)), Meaning(("dark",), ("0",))),
    bands=satellite.CHANNELS,
    rescale="reflectance",
    reflectance=(1e-2, 0.0),
    folds=(("a", 0), ("b", 1)),
)
TINY = LearntRecipe(
    "tiny",
    "For tests.",
    FinetuneConfig(
        ("bright", "dark"), (SOURCE,), dtype="int16", mode="network", folds=2
    ),
    NetworkConfig(
        "context", satellite.CHANNELS, 2, scale=(1e-4,) * 4, beside="log", bias=True,
        family="context", widths=(4, 4, 4),
    ),
    {"size": 32, "batch": 2, "epochs": 1, "steps": 2, "lr": 1e-3},
    gsd=(1.0, 2.0), attribution="made for tests", licence="CC0-1.0",
)  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two scenes with labels, in the order in which names with a suffix mislead."""
    (tmp_path / "made").mkdir()
    for seed, name in enumerate(("a", "a_old", "b")):
        values, bright = bright_and_dark_fields(40, 56, seed)
        write_raster(tmp_path / "made" / f"{name}_rgbn.tif", (values // 3).astype(np.uint8))
        write_raster(tmp_path / "made" / f"{name}_label.tif", bright.astype(np.uint8)[None])
    return tmp_path


def test_a_scene_gets_the_labels_of_its_name(folder: Path) -> None:
    config = learnt_config(TINY, folder)
    assert config.finetune is not None
    (source,) = config.finetune.sources
    assert [Path(scene).name[:-9] for scene in source.scenes] == [
        Path(label).name[:-10] for label in source.labels
    ]
    assert len(source.scenes) == 3
    assert TrainConfig.from_json(json.loads(json.dumps(config.to_json()))) == config
    (folder / "made" / "a_old_label.tif").unlink()
    with pytest.raises(DataError, match="has no labels"):
        learnt_config(TINY, folder)
    with pytest.raises(DataError, match=r"no made/\*_rgbn.tif"):
        learnt_config(TINY, folder / "elsewhere")


def test_settings_replace_those_of_the_recipe(folder: Path) -> None:
    config = learnt_config(TINY, folder, epochs=3, seed=5, batch=4)
    assert (config.epochs, config.seed, config.batch, config.steps) == (3, 5, 4, 2)
    with pytest.raises(UsageError, match="no setting epoch: did you mean `epochs`"):
        learnt_config(TINY, folder, epoch=3)


def test_a_recipe_is_one_command(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(RECIPES, "tiny", TINY)
    run = train_recipe("tiny", data=folder, runs=folder / "runs", device="cpu")
    assert run.data["attribution"] == "made for tests"
    assert run.data["gsd_range"] == (1.0, 2.0)
    assert run.config.data.rescale == "reflectance"
    figures = run.held_out()
    assert figures is not None
    assert figures["folds"] == 2
    assert figures["pixels"] == 3 * 40 * 56


@pytest.mark.parametrize("recipe", [aerial.RECIPE, satellite.RECIPE])
def test_bundled_recipes_build_small_networks_and_leave_every_source_out_once(
    recipe: LearntRecipe,
) -> None:
    parameters = sum(p.numel() for p in Network(recipe.network).parameters())
    assert 4 * parameters < 2_000_000
    assert recipe.network.clusters_b == len(recipe.finetune.classes)
    module = {"aerial": aerial, "satellite": satellite}[recipe.name]
    learnt = [source for source in recipe.finetune.sources if source.weight > 0]
    assert {fold for source in learnt for _, fold in source.folds} == set(range(len(module.GROUPS)))
    locked = {source.name for source in recipe.finetune.sources if source.weight == 0}
    assert locked == set(module.LOCKED)
    assert all(
        source.folds == (("", module.LOCKED_FOLD),)
        for source in recipe.finetune.sources
        if source.name in locked
    )


@pytest.mark.parametrize("recipe", [aerial.RECIPE, satellite.RECIPE])
def test_drawn_labels_come_with_the_package_and_name_classes_of_the_legend(recipe: LearntRecipe) -> None:
    files = {
        label for source in recipe.finetune.sources for label in source.labels if Path(label).is_absolute()
    }
    assert len(files) == 1
    features = json.loads(Path(files.pop()).read_text())["features"]
    assert {feature["properties"]["class"] for feature in features} == set(recipe.finetune.classes)
    assert min(len(feature["geometry"]["coordinates"][0]) for feature in features) >= 4


def test_labels_that_come_with_the_package_are_not_sought_in_the_data_folder(folder: Path) -> None:
    drawn = folder / "drawn.geojson"
    source = replace(SOURCE, labels=(str(drawn),))
    recipe = replace(TINY, finetune=replace(TINY.finetune, sources=(source,)))
    config = learnt_config(recipe, folder)
    assert config.finetune is not None
    assert config.finetune.sources[0].labels == (str(drawn),)


def test_classes_that_the_legend_lacks_are_refused() -> None:
    with pytest.raises(ValueError, match="no class dark"):
        replace(TINY.finetune, classes=("bright", "grey"))
