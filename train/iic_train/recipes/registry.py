"""The registry of presets and recipes: names, and training with one of them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import iic_train  # whose names are imported when they are used: lists of recipes need no PyTorch
from iic_geotools.errors import UsageError
from iic_train.config import Execution, TrainConfig, change, take
from iic_train.recipes import aerial, satellite, unlabelled
from iic_train.recipes.learnt import LearntRecipe, learnt_config
from iic_train.recipes.presets import preset
from iic_train.recipes.rasters import train_rasters
from iic_train.recipes.recipe import Recipe, find_files

RECIPES: dict[str, Recipe | LearntRecipe] = {
    recipe.name: recipe
    for recipe in (
        *(unlabelled.MNIST_SMALL, unlabelled.FASHION_MNIST_SMALL, unlabelled.CIFAR10_SMALL),
        *(aerial.RECIPE, satellite.RECIPE),
        *(unlabelled.FLAIR3, unlabelled.FLAIR3_24, aerial.UNLABELLED, satellite.UNLABELLED),
    )
}
"""The recipes by name."""
LEARNT_RECIPES = {name: recipe for name, recipe in RECIPES.items() if isinstance(recipe, LearntRecipe)}
"""Those of models that learn from labels."""


def config_of(name: str, *, overcluster: bool = False) -> TrainConfig:
    """Return the config of a preset, or of a recipe that changes one.

    Raises:
        UsageError: There is none of that name.
    """
    recipe = RECIPES.get(name)
    if not isinstance(recipe, Recipe) or not recipe.preset or overcluster:
        return preset(name, overcluster=overcluster)
    return change(preset(recipe.preset), {**recipe.changes, "preset": recipe.name})


def train_preset(preset_name: str, **settings: Any) -> "iic_train.Run":
    """Train on a data set of the paper with the published settings.

    Args:
        preset_name: One of `iic_train.recipes.presets.PRESETS`, or a recipe that changes one, such as `mnist-small`.
        settings: Settings that replace the published ones (`TrainConfig`, `HeadSettings`); where the run is written
            (`Execution`); `data`, the folder that holds the data set, else what the variable IIC_DATA names, else
            `./data`; `overcluster`, semi-supervised overclustering with one head; `unlabelled`, False to leave out
            images without labels; `download`, to get a data set that is missing.

    Example:
        >>> train_preset("mnist", epochs=3, seed=1, device="cpu")

    Raises:
        UsageError: There is no such preset or setting, or settings do not go together.
        DataError: The data is missing.
    """
    config = config_of(preset_name, overcluster=settings.pop("overcluster", False))
    data, unlabelled = settings.pop("data", None), settings.pop("unlabelled", True)
    root = None if data is None else str(Path(data).absolute())
    config = replace(config, data=replace(config.data, root=root, unlabelled=unlabelled))
    download, execution = settings.pop("download", False), take(Execution, settings)
    return iic_train.train(change(config, settings), download=download, **execution)


def train_recipe(
    recipe: str, *, data: Path = Path("data"), download: bool = False, **settings: Any
) -> "iic_train.Run":
    """Train with a named recipe.

    Args:
        recipe: One of `RECIPES`.
        data: Folder that holds the data of the recipe.
        download: Download the data set if it is missing; only for recipes on data sets of images.
        settings: Settings that replace those of the recipe, such as `epochs` and `seed`, and where the run is written
            (`Execution`).

    Raises:
        UsageError: There is no such recipe or setting.
        DataError: The data is missing.
    """
    found = RECIPES.get(recipe)
    if found is None:
        raise UsageError(f"There is no recipe {recipe}: choose one of {', '.join(RECIPES)}.")
    if isinstance(found, Recipe) and found.preset:
        return train_preset(recipe, data=data, download=download, **settings)
    if download:
        raise UsageError(f"`download` does not know the data of {recipe}: leave it out.")
    if isinstance(found, Recipe):
        return train_rasters(
            find_files(data, found.scenes),
            found.classes,
            labels=find_files(data, (found.labels,)) if found.labels else (),
            label_class=found.label_class,
            **{**found.changes, "preset": recipe, **settings},
        )
    execution = take(Execution, settings)
    execution.pop("workers", None)
    return iic_train.learn(learnt_config(found, data, **settings), facts=found.facts(), **execution)
