"""The named recipes, and training with one of them."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from iic_geotools.errors import UsageError
from iic_geotools.progress import OnProgress, silent
from iic_train.config import TrainConfig
from iic_train.recipes import aerial, cifar10_small, flair3, mnist_small, satellite
from iic_train.recipes.data_files import find_files
from iic_train.recipes.learnt import LearntRecipe, learnt_config
from iic_train.recipes.rasters import RasterRecipe, train_rasters

if TYPE_CHECKING:
    from iic_train.runs import Run

RASTER_RECIPES: dict[str, RasterRecipe] = {
    recipe.name: recipe for recipe in (flair3.THREE, flair3.MANY, aerial.UNLABELLED, satellite.UNLABELLED)
}
LEARNT_RECIPES: dict[str, LearntRecipe] = {
    recipe.name: recipe for recipe in (aerial.RECIPE, satellite.RECIPE)
}
IMAGE_RECIPES: dict[str, TrainConfig] = {
    config.preset: config for config in (mnist_small.CONFIG, mnist_small.FASHION, cifar10_small.CONFIG)
}
RECIPES: dict[str, str] = {
    "mnist-small": "MNIST to 98.8 % in half an hour of one core.",
    "fashion-mnist-small": "Fashion-MNIST with the settings of mnist-small.",
    "cifar10-small": "CIFAR-10 with a quarter of the width.",
    **{name: recipe.summary for name, recipe in LEARNT_RECIPES.items()},
    **{name: recipe.summary for name, recipe in RASTER_RECIPES.items()},
}
"""The recipes, each with a sentence."""


def train_recipe(
    recipe: str,
    *,
    data: Path = Path("data"),
    epochs: int | None = None,
    seed: int = 0,
    download: bool = False,
    runs: Path = Path("runs"),
    name: str | None = None,
    device: str = "auto",
    workers: int | None = None,
    progress: OnProgress = silent,
) -> "Run":
    """Train with a named recipe.

    Args:
        recipe: One of `RECIPES`.
        data: Folder that holds the data of the recipe.
        epochs: Number of epochs to train, instead of what the recipe says.
        seed: Seed of everything that is random.
        download: Download the data set if it is missing; only for recipes on data sets of images.
        runs: Folder of the run folders.
        name: Name of the new run folder; by default recipe and time.
        device: `auto`, `cpu` or `cuda`.
        workers: Number of processes that read ahead; 0 reads between the steps. By default none on a CPU, and all
            cores but one for a GPU.
        progress: Function that takes reports of progress.

    Raises:
        UsageError: The recipe is not known.
        DataError: The data is missing.
    """
    if recipe in IMAGE_RECIPES:
        from iic_train.trainer import train

        config = IMAGE_RECIPES[recipe]
        config = replace(
            config,
            data=replace(config.data, root=str(data.absolute())),
            epochs=config.epochs if epochs is None else epochs,
            seed=seed,
        )
        return train(
            config,
            runs=runs,
            name=name,
            device=device,
            workers=workers,
            download=download,
            progress=progress,
        )
    if recipe not in RECIPES:
        raise UsageError(f"There is no recipe {recipe}: choose one of {', '.join(RECIPES)}.")
    if download:
        raise UsageError(f"`download` does not know the data of {recipe}: leave it out.")
    if recipe in LEARNT_RECIPES:
        from iic_train.finetune.pixel_runs import learn

        learnt = LEARNT_RECIPES[recipe]
        return learn(
            learnt_config(learnt, data, epochs=epochs, seed=seed),
            facts=learnt.facts(),
            runs=runs,
            name=name,
            device=device,
            progress=progress,
        )
    rasters = RASTER_RECIPES[recipe]
    settings = replace(
        rasters.settings, epochs=rasters.settings.epochs if epochs is None else epochs, seed=seed
    )
    return train_rasters(
        find_files(data, rasters.scenes),
        rasters.classes,
        settings,
        labels=find_files(data, (rasters.labels,)) if rasters.labels else (),
        label_class=rasters.label_class,
        preset=recipe,
        runs=runs,
        name=name,
        device=device,
        workers=workers,
        progress=progress,
    )
