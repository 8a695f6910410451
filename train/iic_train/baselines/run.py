"""A baseline on a data set of the paper, without a run."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from iic_geotools.progress import OnProgress, silent
from iic_train.baselines.score import score_baseline
from iic_train.config import Baseline, change
from iic_train.data.training_data import open_dataset_of
from iic_train.distributed import choose_device
from iic_train.evaluation.evaluate import Evaluation
from iic_train.recipes.registry import config_of


def run_baseline(
    baseline: Baseline,
    preset_name: str,
    changes: Mapping[str, Any] = MappingProxyType({}),
    *,
    data: Path | None = None,
    overcluster: bool = False,
    download: bool = False,
    standardise: bool | None = None,
    sample: int | None = None,
    device: str = "auto",
    progress: OnProgress = silent,
) -> Evaluation:
    """Score a baseline on a data set of the paper, with the trunk, the views and the protocol of its preset.

    Args:
        baseline: One of `iic_train.config.BASELINES`.
        preset_name: A preset, or a recipe on images such as `mnist-small`.
        changes: Settings that replace those of the preset, by name; its number of epochs is meant for IIC.
        data: Folder that holds the data set; else what the variable IIC_DATA names, else `./data`.
        overcluster: Use the partitions and the number of clusters of semi-supervised overclustering.
        download: Download the data set if it is missing.
        standardise: For k-means: scale every value to unit deviation. By default pixels are, images are not.
        sample: Number of images or pixels from which k-means computes its centres, or which spectral clustering joins
            in a graph.
        device: `auto`, `cpu` or `cuda`.
        progress: Function that takes reports of progress.

    Raises:
        UsageError: The preset is not known, or the baseline is not made for its kind of data.
        DataError: The data is missing or damaged.
    """
    root = None if data is None else str(data.absolute())
    config = config_of(preset_name, overcluster=overcluster)
    config = change(replace(config, data=replace(config.data, root=root)), changes)
    return score_baseline(
        baseline,
        config,
        open_dataset_of(config, download=download),
        standardise=standardise,
        sample=sample,
        device=choose_device(device),
        progress=progress,
    )
