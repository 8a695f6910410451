"""The baselines that need more than k-means on raw values."""

import torch

from iic_geotools.errors import UsageError
from iic_geotools.progress import OnProgress, silent
from iic_train.baselines.deepcluster import DeepCluster
from iic_train.baselines.features import Features, cluster_features
from iic_train.baselines.neighbours import Doersch, Isola
from iic_train.baselines.sift import sift_features
from iic_train.baselines.spectral import SAMPLE_IMAGES, spectral_clusters, spectral_predict
from iic_train.baselines.training import train_trunk
from iic_train.baselines.triplets import Triplets
from iic_train.config import Baseline, TrainConfig
from iic_train.data.base import Dataset
from iic_train.evaluation.evaluate import Evaluation, evaluate_clusters, evaluation_crop
from iic_train.evaluation.kmeans import flat_images
from iic_train.models.networks import Network


def score_method(
    kind: Baseline,
    config: TrainConfig,
    dataset: Dataset,
    *,
    sample: int | None = None,
    device: torch.device | str = "cpu",
    progress: OnProgress = silent,
) -> Evaluation:
    """Score spectral clustering, or k-means on the features of a method, as `score_baseline` says."""
    if kind == "spectral":
        return _score_spectral(config, dataset, SAMPLE_IMAGES if sample is None else sample)
    torch.manual_seed(config.seed)
    network = Network(config.network).to(device)
    if kind == "sift":
        features = sift_features(network, config)
    else:
        features = _learn(kind, network, config, dataset, sample, device, progress)
    return cluster_features(features, config, dataset, sample=sample, device=device)


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
        overcluster=config.data.overcluster or clusters != len(dataset.classes),
        crop=evaluation_crop(config),
        seed=config.seed,
    )
