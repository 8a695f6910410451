"""Recipes of models that learn from public labels: from patterns of files to the config of a run."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from iic_geotools.errors import DataError
from iic_geotools.settings import names
from iic_train.config import DataConfig, TrainConfig, check_names
from iic_train.finetune.settings import FinetuneConfig, LabelSource, Meaning
from iic_train.models.registry import NetworkConfig
from iic_train.recipes.recipe import find_files
from iic_train.views.settings import DensePairs


@dataclass(frozen=True)
class LearntRecipe:
    """How a model that learns from labels is trained.

    Attributes:
        name: Name of the recipe, which the run folder starts with.
        summary: What it trains, in a sentence.
        finetune: How it learns; scenes and labels of the sources are patterns under the data folder.
        network: What is trained.
        changes: The settings of `TrainConfig` that it changes, by name.
        gsd: Smallest and largest ground resolution in metres that the model is meant for.
        attribution: Whose data it learns from.
        licence: Licences of that data.
    """

    name: str
    summary: str
    finetune: FinetuneConfig
    network: NetworkConfig
    changes: Mapping[str, Any]
    gsd: tuple[float, float]
    attribution: str
    licence: str

    def facts(self) -> dict[str, str]:
        """Return what the record of a run says about its data."""
        return {"attribution": self.attribution, "licence": self.licence}


def pool_source(
    name: str,
    weight: float,
    meanings: tuple[Meaning, ...],
    *,
    scenes: str,
    labels: str | None,
    folder: str | None = None,
    **about: Any,
) -> LabelSource:
    """Return a source from patterns of files.

    Args:
        name: Its name; that of its folder in `pool` too, unless another is given.
        labels: Pattern of its labels there, or a file of drawn polygons; None if all labels are dense chips.
        about: Other fields of `LabelSource`.
    """
    folder = folder or f"pool/{name}"
    drawn = labels is not None and Path(labels).is_absolute()
    files = () if labels is None else (labels if drawn else f"{folder}/{labels}",)
    field = "class" if drawn else None
    return LabelSource(
        name, (f"{folder}/{scenes}",), files, meanings, label_field=field, weight=weight, **about
    )


def learnt_config(recipe: LearntRecipe, data: Path, **settings: Any) -> TrainConfig:
    """Return the config of a run with a recipe, its patterns replaced by the files of a data folder.

    Args:
        settings: Settings of `TrainConfig` that replace those of the recipe.

    Raises:
        UsageError: There is no such setting.
        DataError: A pattern matches nothing, or scenes and labels do not pair.
    """
    check_names(settings, names(TrainConfig))
    finetune = replace(
        recipe.finetune, sources=tuple(_with_files(source, data) for source in recipe.finetune.sources)
    )
    reflectance = any(source.rescale == "reflectance" for source in finetune.sources)
    return TrainConfig(
        recipe.name,
        DataConfig("rasters", gsd=recipe.gsd, rescale="reflectance" if reflectance else None),
        recipe.network,
        DensePairs(),
        finetune=finetune,
        **{"passes": ("b",), "schedule": "cosine", "radius": 1, **recipe.changes, **settings},
    )


def _with_files(source: LabelSource, folder: Path) -> LabelSource:
    """Replace patterns by files; where a pattern of labels has a star, it stands for what the scene's star does."""
    folder = folder.absolute()
    scenes = find_files(folder, source.scenes)
    if not any("*" in pattern for pattern in source.labels):
        labels = find_files(folder, source.labels)
    else:
        labels = [
            _label_of(scene, folder, scene_pattern, label_pattern)
            for scene_pattern, label_pattern in zip(source.scenes, source.labels, strict=True)
            for scene in find_files(folder, (scene_pattern,))
        ]
    return replace(source, scenes=tuple(scenes), labels=tuple(labels))


def _label_of(scene: str, folder: Path, scene_pattern: str, label_pattern: str) -> str:
    """Return the labels of a scene."""
    before, after = (len(part) for part in str(folder / scene_pattern).split("*"))
    path = folder / label_pattern.replace("*", scene[before : len(scene) - after])
    if not path.is_file():
        raise DataError(
            f"The scene {scene} has no labels {path}: restore them, or name another folder with `data`."
        )
    return str(path)
