"""What IIC alone gives: the recipe without labels, named on the places learnt from, for `bundled.py --twin`."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from iic_train.config import TrainConfig
from iic_train.finetune.chips import LabelledChips
from iic_train.models.networks import Network
from iic_train.recipes.data_files import find_files
from iic_train.recipes.named import RASTER_RECIPES
from iic_train.recipes.rasters import train_rasters

STEP = 4
"""Names are found from every pixel of a grid of this step."""


def unlabelled_twin(
    name: str, folder: Path, config: TrainConfig, data: LabelledChips, fold: int, runs: Path
) -> Callable[[NDArray[Any]], NDArray[np.float32]]:
    """Train without labels on the imagery of the places that are not left out, and name clusters by the labels there.

    Args:
        name: The recipe that learns from labels; its twin has the same name with `-unlabelled`.
        folder: Folder of the data.
        config: The settings of the recipe that learns from labels.
        data: Its labelled chips.
        fold: The places that are left out: neither trained nor named on.
        runs: Folder of the run folders.
    """
    assert config.finetune is not None
    recipe = RASTER_RECIPES[f"{name}-unlabelled"]
    left_out = {
        str(Path(scene).resolve())
        for source in config.finetune.sources
        for scene in source.scenes
        if any(number == fold and Path(scene).name.startswith(text) for text, number in source.folds)
    }
    scenes = [
        scene for scene in find_files(folder, recipe.scenes) if str(Path(scene).resolve()) not in left_out
    ]
    settings = replace(recipe.settings, seed=config.seed)
    run = train_rasters(
        scenes,
        recipe.classes,
        settings,
        preset=recipe.name,
        runs=runs,
        name=f"{recipe.name}-{config.seed}-{fold}",
        device="cpu",
    )
    network = run.network("best").with_sub_head(run.choice("best").sub_head).eval()
    names = cluster_names(network, config, data, fold)

    def predict(chip: NDArray[Any]) -> NDArray[np.float32]:
        chosen = names[clusters(network, chip)]
        return np.float32(np.eye(len(data.legend.classes))[chosen].transpose(2, 0, 1))

    return predict


def cluster_names(network: Network, config: TrainConfig, data: LabelledChips, fold: int) -> NDArray[np.intp]:
    """Return the class that each cluster holds most of; sources count as often as they are learnt from."""
    assert config.finetune is not None
    members = data.legend.members()
    single = members.sum(1) == 1
    shape = (len(config.finetune.sources), network.config.clusters_b, len(data.legend.classes))
    counts = np.zeros(shape)
    for chip in data.chips:
        codes = chip.codes_without(fold)[::STEP, ::STEP]
        chosen = single[codes]
        if chosen.any():
            parts = clusters(network, chip.pixels)[::STEP, ::STEP][chosen]
            np.add.at(counts[chip.source], (parts, members.argmax(1)[codes[chosen]]), 1.0)
    shares = counts / np.maximum(counts.sum((1, 2), keepdims=True), 1.0)
    weights = np.array([source.weight for source in config.finetune.sources])
    return np.asarray(np.tensordot(weights, shares, 1).argmax(1))


@torch.inference_mode()
def clusters(network: Network, chip: NDArray[Any]) -> NDArray[np.intp]:
    """Return the cluster of each pixel of a chip."""
    return network(torch.from_numpy(np.ascontiguousarray(chip))[None])[0, 0].argmax(0).numpy()
