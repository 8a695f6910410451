"""The baselines of the paper in the protocol of the trained networks: one function scores any of them."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from iic_geotools.errors import UsageError
from iic_geotools.work import OnProgress, silent
from iic_research.features import Features, cluster_features, sift_features
from iic_research.neighbours import SAMPLE_IMAGES, Doersch, Isola, spectral_clusters, spectral_predict
from iic_research.training import DeepCluster, Triplets, calibrate, train_trunk
from iic_train.config import BASELINES, Baseline, TrainConfig, change
from iic_train.data.base import Dataset
from iic_train.data.training_data import open_dataset_of
from iic_train.distributed import choose_device
from iic_train.evaluation.evaluate import (
    Evaluation,
    Protocol,
    evaluate_clusters,
    evaluate_network,
    evaluation_crop,
    is_overclustered,
)
from iic_train.evaluation.kmeans import flat_images, kmeans_baseline
from iic_train.models.networks import Network
from iic_train.recipes.registry import config_of


def run_baseline(
    baseline: Baseline,
    preset_name: str,
    changes: Mapping[str, Any] = MappingProxyType({}),
    *,
    data: Path | None = None,
    overcluster: bool = False,
    download: bool = False,
    **options: Any,
) -> Evaluation:
    """Score a baseline on a data set of the paper, with the trunk, the views and the protocol of its preset.

    Args:
        baseline: One of `iic_train.config.BASELINES`.
        preset_name: A preset, or a recipe on images such as `mnist-small`.
        changes: Settings that replace those of the preset, by name; its number of epochs is meant for IIC.
        data: Folder that holds the data set; else what the variable IIC_DATA names, else `./data`.
        overcluster: Use the partitions and the number of clusters of semi-supervised overclustering.
        options: `standardise`, `sample`, `device` and `progress`, as `score_baseline` takes them.

    Raises:
        UsageError: The preset is not known, or the baseline is not made for its kind of data.
        DataError: The data is missing or damaged.
    """
    root = None if data is None else str(data.absolute())
    config = config_of(preset_name, overcluster=overcluster)
    config = change(replace(config, data=replace(config.data, root=root)), changes)
    dataset = open_dataset_of(config, download=download)
    return score_baseline(baseline, config, dataset, **{"device": "auto", **options})


OF_IMAGES: tuple[Baseline, ...] = ("spectral", "triplets")
"""Baselines that the paper has for whole images only."""
OF_PIXELS: tuple[Baseline, ...] = ("sift", "isola", "doersch")
"""Baselines that the paper has for segmentation only."""


def score_baseline(
    kind: Baseline,
    config: TrainConfig,
    dataset: Dataset,
    *,
    standardise: bool | None = None,
    sample: int | None = None,
    device: str = "cpu",
    progress: OnProgress = silent,
) -> Evaluation:
    """Score a baseline for a run with these settings.

    A baseline that learns has the trunk, views, epochs, images per step and learning rate of the run.

    Args:
        kind: One of `iic_train.config.BASELINES`.
        dataset: Images that the run would be trained on.
        standardise: For `kmeans`, as `kmeans_baseline` says.
        sample: Number of images or pixels from which k-means computes its centres, or which spectral clustering joins
            in a graph.
    """
    if kind not in BASELINES:
        raise UsageError(f"There is no baseline {kind}: choose one of {', '.join(BASELINES)}.")
    if kind in (OF_IMAGES if dataset.dense else OF_PIXELS):
        what = "whole images" if dataset.dense else "pixels"
        raise UsageError(f"The baseline {kind} clusters {what}, which {dataset.name} does not ask for.")
    if standardise is not None and kind != "kmeans":
        raise UsageError(f"`standardise` is for kmeans: the baseline {kind} has features of its own.")
    if kind == "kmeans":
        return kmeans_baseline(
            dataset,
            clusters=config.network.clusters_b,
            overcluster=is_overclustered(config, dataset),
            crop=evaluation_crop(config),
            standardise=standardise,
            sample=sample,
            seed=config.seed,
        )
    if kind == "spectral":
        return _score_spectral(config, dataset, SAMPLE_IMAGES if sample is None else sample)
    torch.manual_seed(config.seed)
    chosen = choose_device(device)
    network = Network(config.network).to(chosen)
    if kind == "random":
        calibrate(network, config, dataset, chosen)  # else nearly everything falls into one cluster
        return evaluate_network(network, config, dataset)
    if kind == "sift":
        features = sift_features(network, config)
    else:
        features = _learn(kind, network, config, dataset, sample, chosen, progress)
    return cluster_features(features, config, dataset, sample=sample, device=chosen)


def _learn(
    kind: Baseline,
    network: Network,
    config: TrainConfig,
    dataset: Dataset,
    sample: int | None,
    device: torch.device | str,
    progress: OnProgress,
) -> Features:
    """Train the trunk of a network by another task and return the features it has learnt."""
    if config.network.family == "bank":
        raise UsageError(
            f"The baseline {kind} trains a trunk from random weights, and that of a bank network is fitted to scenes: "
            "compare with a run of another `network`."
        )
    task: Triplets | DeepCluster | Isola | Doersch
    if kind == "triplets":
        task = Triplets(network, config)
    elif kind == "deepcluster":
        task = DeepCluster(network, config, dataset, sample=sample, device=device)
    else:
        task = Isola(network, config) if kind == "isola" else Doersch(network, config)
    train_trunk(network, config, dataset, task, device=device, progress=progress)
    return task.features()


def _score_spectral(config: TrainConfig, dataset: Dataset, sample: int) -> Evaluation:
    clusters = config.network.clusters_b
    points = flat_images(dataset.train_b, sample, config.seed)
    spectrum = spectral_clusters(points, clusters, torch.Generator().manual_seed(config.seed))
    return evaluate_clusters(
        spectral_predict(spectrum),
        dataset,
        clusters,
        protocol=Protocol(
            overcluster=is_overclustered(config, dataset),
            crop=evaluation_crop(config),
            seed=config.seed,
        ),
    )
