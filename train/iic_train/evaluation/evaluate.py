"""How well clusters agree with labels that training never saw.

All figures come from confusion matrices that are filled in one pass over the images: one per sub-head, and one per
random subset of the labels for the curve over the share of labels.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from iic_geotools.errors import DataError, UsageError
from iic_geotools.files import write_atomically
from iic_geotools.settings import checked
from iic_train.config import TrainConfig
from iic_train.data.base import Dataset, Images, Subset
from iic_train.data.loader import labelled_batches
from iic_train.distributed import choose_device, explain_full_memory
from iic_train.models.networks import Network
from iic_train.runs import Checkpoint, Run
from iic_train.views.pairs import central_views
from iic_train.views.settings import DensePairs, ImagePairs

Counts = NDArray[np.int64]
"""How often [cluster, class] occurred together."""
Mapping = NDArray[np.int64]
"""The class of each cluster; -1 for a cluster that was given none."""

NO_CLASS = -1

Predict = Callable[[Tensor], Tensor]
"""From raw images [N, C, H, W] to clusters, [S, N] or [S, N, H, W] with S sub-heads."""

EVALUATION = "evaluation.json"
LABEL_FRACTIONS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
_REPEATS = 10


class Confusion:
    """Counts pairs of cluster and class in batches, on the device of the predictions."""

    def __init__(self, clusters: int, classes: int, device: torch.device | str = "cpu") -> None:
        self.clusters = clusters
        self.classes = classes
        self._counts = torch.zeros(clusters * classes, dtype=torch.int64, device=device)

    def add(self, predicted: Tensor, labels: Tensor) -> None:
        """Count one batch; labels that are not a class, such as 255, are not counted."""
        predicted, labels = predicted.flatten().long(), labels.to(predicted.device).flatten().long()
        known = (labels >= 0) & (labels < self.classes)
        pairs = predicted[known] * self.classes + labels[known]
        self._counts += torch.bincount(pairs, minlength=self.clusters * self.classes)

    @property
    def counts(self) -> Counts:
        """The matrix [clusters, classes] of everything counted so far."""
        return self._counts.view(self.clusters, self.classes).cpu().numpy()


@dataclass(frozen=True)
class Scores:
    """How well mapped clusters agree with the classes.

    Attributes:
        accuracy: Share of everything counted that has the right class.
        mean_iou: Intersection over union, mean over the classes that occur.
        class_accuracy: Share of each class that was recognised. None for a class that does not occur.
    """

    accuracy: float
    mean_iou: float
    class_accuracy: tuple[float | None, ...]


def one_to_one(counts: Counts) -> Mapping:
    """Match clusters and classes one to one with the best accuracy; remaining clusters get no class."""
    from scipy.optimize import linear_sum_assignment

    clusters, classes = linear_sum_assignment(counts, maximize=True)
    mapping = np.full(len(counts), NO_CLASS, np.int64)
    mapping[clusters] = classes
    return mapping


def many_to_one(counts: Counts) -> Mapping:
    """Give each cluster its majority class, and an empty cluster the most common class."""
    mapping = np.asarray(counts.argmax(1), np.int64)
    mapping[counts.sum(1) == 0] = counts.sum(0).argmax()
    return mapping


def score(counts: Counts, mapping: Mapping) -> Scores:
    """Score `counts` with the classes that `mapping` gives to clusters; it may come from other images."""
    classes = counts.shape[1]
    by_class = np.zeros((classes, classes), np.int64)
    named = mapping != NO_CLASS
    np.add.at(by_class, mapping[named], counts[named])
    right, predicted, actual = by_class.diagonal(), by_class.sum(1), counts.sum(0)
    occurs = actual > 0
    union = predicted + actual - right
    recall = right / np.maximum(actual, 1)
    return Scores(
        accuracy=_ratio(right.sum(), counts.sum()),
        mean_iou=float((right[occurs] / union[occurs]).mean()) if occurs.any() else 0.0,
        class_accuracy=tuple(float(r) if o else None for r, o in zip(recall, occurs, strict=True)),
    )


def normalised_mutual_information(counts: Counts) -> float:
    """Mutual information of cluster and class over the mean of their entropies, between 0 and 1."""
    joint = counts / max(counts.sum(), 1)
    clusters, classes = joint.sum(1), joint.sum(0)
    mean_entropy = (_entropy(clusters) + _entropy(classes)) / 2
    if mean_entropy == 0:
        return 1.0
    return float(max(0.0, _entropy(clusters) + _entropy(classes) - _entropy(joint)) / mean_entropy)


def adjusted_rand_index(counts: Counts) -> float:
    """Agreement on which pairs belong together, corrected for chance: 0 at random, 1 if perfect."""
    together = _pairs(counts).sum()
    by_cluster, by_class = _pairs(counts.sum(1)).sum(), _pairs(counts.sum(0)).sum()
    every = float(_pairs(counts.sum()))
    expected = by_cluster * by_class / every if every else 0.0
    highest = (by_cluster + by_class) / 2
    if highest == expected:
        return 1.0
    return float((together - expected) / (highest - expected))


def _pairs(count: Any) -> NDArray[np.float64]:
    count = np.asarray(count, np.float64)
    return np.asarray(count * (count - 1) / 2)


def _entropy(probabilities: NDArray[np.float64]) -> float:
    positive = probabilities[probabilities > 0]
    return float(-(positive * np.log(positive)).sum())


def _ratio(part: Any, whole: Any) -> float:
    return float(part / whole) if whole else 0.0


@dataclass(frozen=True)
class SubHead:
    """Figures of one sub-head on the test part.

    Attributes:
        one_to_one: Scores after Hungarian matching on the mapping part.
        many_to_one: Scores after giving each cluster its majority class on the mapping part.
        nmi: Normalised mutual information of cluster and class; needs no matching.
        ari: Adjusted Rand index; needs no matching.
        occupancy: Share of the test part in each cluster.
        mapping: The class of each cluster by the protocol of the run; -1 for a cluster without one.
    """

    one_to_one: Scores
    many_to_one: Scores
    nmi: float
    ari: float
    occupancy: tuple[float, ...]
    mapping: tuple[int, ...]


@dataclass(frozen=True)
class FewerLabels:
    """Accuracy when clusters are named with a random share of the labels: mean and deviation of ten draws."""

    fraction: float
    accuracy: float
    deviation: float


@dataclass(frozen=True)
class Evaluation:
    """The result of `evaluate_clusters`.

    Attributes:
        protocol: `one_to_one` (unsupervised) or `many_to_one` (overclustering): which scores are the result.
        classes: Names of the classes.
        sub_heads: Figures of each sub-head.
        chosen: The sub-head that was chosen without labels, by its loss.
        fewer_labels: Accuracy of the chosen sub-head against the share of labels used to name its clusters.
    """

    protocol: str
    classes: tuple[str, ...]
    sub_heads: tuple[SubHead, ...]
    chosen: int
    fewer_labels: tuple[FewerLabels, ...] = ()

    def scores(self, sub_head: int) -> Scores:
        """Return the scores of a sub-head under the protocol."""
        figures = self.sub_heads[sub_head]
        return figures.one_to_one if self.protocol == "one_to_one" else figures.many_to_one

    @property
    def accuracy(self) -> float:
        """Accuracy of the sub-head chosen without labels: the figure to report."""
        return self.scores(self.chosen).accuracy

    @property
    def accuracies(self) -> tuple[float, ...]:
        """Accuracy of each sub-head."""
        return tuple(self.scores(index).accuracy for index in range(len(self.sub_heads)))

    @property
    def label_picked(self) -> int:
        """The sub-head whose accuracy is highest: knowing it takes the labels."""
        return int(np.argmax(self.accuracies))

    def to_json(self) -> dict[str, Any]:
        """Return everything as plain values, the derived figures included."""
        accuracies = np.array(self.accuracies)
        return {
            **asdict(self),
            "accuracy": self.accuracy,
            "mean": float(accuracies.mean()),
            "deviation": float(accuracies.std()),
            "label_picked": {"sub_head": self.label_picked, "accuracy": float(accuracies.max())},
        }

    def describe(self) -> str:
        """Return an evaluation in a few lines."""
        accuracies = self.accuracies
        mean = sum(accuracies) / len(accuracies)
        deviation = (sum((value - mean) ** 2 for value in accuracies) / len(accuracies)) ** 0.5
        chosen = self.sub_heads[self.chosen]
        matching = self.protocol.replace("_", "-")
        lines = [
            f"accuracy {self.accuracy:.2%} ({matching}, sub-head {self.chosen}, chosen by loss), "
            f"mean IoU {self.scores(self.chosen).mean_iou:.2%}, NMI {chosen.nmi:.3f}, ARI {chosen.ari:.3f}",
        ]
        if len(accuracies) > 1:
            lines += [
                f"sub-heads {', '.join(f'{value:.2%}' for value in accuracies)}: "
                f"mean {mean:.2%}, deviation {deviation:.2%}",
                f"picked by labels: sub-head {self.label_picked}, {max(accuracies):.2%}",
            ]
        if matching == "one-to-one":
            lines.append(f"many-to-one instead: {chosen.many_to_one.accuracy:.2%}")
        lines += [
            f"clusters named by {share.fraction:.0%} of the labels: {share.accuracy:.2%} +- {share.deviation:.2%}"
            for share in self.fewer_labels
            if share.fraction < 1
        ]
        return "\n".join(lines)


@dataclass(frozen=True)
class Protocol:
    """How clusters are matched to classes, and how images are read for it.

    Attributes:
        overcluster: Report many-to-one matching, because there are more clusters than classes.
        crop: Side of the central square to look at. None means whole images.
        batch_size: Number of images that are predicted at once.
        device: Device on which images are predicted.
        seed: Seed of the random shares of labels.
    """

    overcluster: bool = False
    crop: int | None = None
    batch_size: int = 500
    device: torch.device | str = "cpu"
    seed: int = 0


PUBLISHED = Protocol()


def evaluate_clusters(
    predict: Predict,
    dataset: Dataset,
    clusters: int,
    *,
    chosen: int = 0,
    protocol: Protocol = PUBLISHED,
) -> Evaluation:
    """Name the clusters on the mapping part of a data set and score them on its test part.

    Args:
        predict: Function that turns raw images into clusters, one result per sub-head.
        dataset: Data set whose `map` and `test` parts are used.
        chosen: The sub-head that was chosen by its loss.
    """
    classes = len(dataset.classes)
    shares = _Shares(len(dataset.map), clusters, classes, protocol.seed)

    def confusions(images: Images, shares: _Shares | None = None) -> list[Confusion]:
        matrices: list[Confusion] = []
        for predicted, labels, indices in _predictions(predict, images, protocol):
            if not 0 <= chosen < len(predicted):
                raise UsageError(f"There is no sub-head {chosen}: the network has {len(predicted)}.")
            matrices = matrices or [Confusion(clusters, classes, protocol.device) for _ in predicted]
            for confusion, answer in zip(matrices, predicted, strict=True):
                confusion.add(answer, labels)
            if shares is not None:
                shares.add(predicted[chosen], labels, indices)
        if not matrices or not matrices[0].counts.any():
            raise DataError(f"The data set {dataset.name} has no labels to evaluate with.")
        return matrices

    mapped = confusions(dataset.map, shares)
    tested = mapped if dataset.test is dataset.map else confusions(dataset.test)
    return Evaluation(
        protocol="many_to_one" if protocol.overcluster else "one_to_one",
        classes=dataset.classes,
        sub_heads=tuple(
            _sub_head(a.counts, b.counts, protocol.overcluster) for a, b in zip(mapped, tested, strict=True)
        ),
        chosen=chosen,
        fewer_labels=shares.accuracies(tested[chosen].counts, protocol.overcluster),
    )


def _sub_head(mapped: Counts, tested: Counts, overcluster: bool) -> SubHead:
    single, multiple = one_to_one(mapped), many_to_one(mapped)
    return SubHead(
        one_to_one=score(tested, single),
        many_to_one=score(tested, multiple),
        nmi=normalised_mutual_information(tested),
        ari=adjusted_rand_index(tested),
        occupancy=tuple((tested.sum(1) / tested.sum()).tolist()),
        mapping=tuple((multiple if overcluster else single).tolist()),
    )


@checked
def evaluate(
    run: Run,
    dataset: Dataset | None = None,
    *,
    checkpoint: Checkpoint = "best",
    device: str = "cpu",
    batch_size: int | None = None,
) -> Evaluation:
    """Evaluate the trained network of a run and write the figures to its folder as `evaluation.json`.

    Args:
        dataset: Images to evaluate on; by default those that the run was trained on.
    """
    choice = run.choice(checkpoint)
    with explain_full_memory("evaluate on another `device`, such as cpu"):
        evaluation = evaluate_network(
            run.network(checkpoint).to(choose_device(device)),
            run.config,
            dataset or run.dataset(),
            chosen=choice.sub_head,
            batch_size=batch_size,
        )
    record = {"checkpoint": checkpoint, "epoch": choice.epoch, **evaluation.to_json()}
    write_atomically(run.path / EVALUATION, json.dumps(record, indent=1).encode())
    return evaluation


def follow_accuracy(network: Network, config: TrainConfig, dataset: Dataset, sub_head: int) -> dict[str, Any]:
    """Return the accuracy on a part of the labelled images, to follow training with."""

    def part(images: Images) -> Images:
        count = config.evaluation_images
        if len(images) <= count:
            return images
        return Subset(images, np.linspace(0, len(images) - 1, count).round().astype(np.int64))

    mapped = part(dataset.map)
    tested = mapped if dataset.map is dataset.test else part(dataset.test)
    evaluation = evaluate_network(network, config, replace(dataset, map=mapped, test=tested), chosen=sub_head)
    return {
        "chosen": evaluation.accuracy,
        "sub_heads": list(evaluation.accuracies),
        "label_picked": max(evaluation.accuracies),
    }


def evaluate_network(
    network: Network,
    config: TrainConfig,
    dataset: Dataset,
    *,
    chosen: int = 0,
    batch_size: int | None = None,
) -> Evaluation:
    """Evaluate head B of a network, on the device it is on, in the protocol of its settings."""
    clusters = network.config.clusters_b
    return evaluate_clusters(
        network_predict(network, config.pairs),
        dataset,
        clusters,
        chosen=chosen,
        protocol=Protocol(
            overcluster=is_overclustered(config, dataset),
            crop=evaluation_crop(config),
            batch_size=batch_size or (8 if dataset.dense else 500),
            device=next(network.parameters()).device,
            seed=config.seed,
        ),
    )


def is_overclustered(config: TrainConfig, dataset: Dataset) -> bool:
    """Return whether clusters are matched many to one, because there are not as many of them as classes."""
    return config.data.overcluster or config.network.clusters_b != len(dataset.classes)


def evaluation_crop(config: TrainConfig) -> int | None:
    """Return the side of the central square that the paper evaluates, or None for whole images, as for rasters."""
    return None if config.data.name == "rasters" else config.size


def network_predict(network: Network, pairs: DensePairs | ImagePairs) -> Predict:
    """Return a function from raw images to clusters of head B, per pixel or, for clustering, of the central square."""
    network.eval()

    def predict(images: Tensor) -> Tensor:
        scaled = network.scale(images)
        if isinstance(pairs, ImagePairs):
            scaled = central_views(pairs, scaled)
        return network.classify(scaled).argmax(2).transpose(0, 1)

    return predict


class _Shares:
    """Confusion matrices of random shares of the labelled images, several draws at once.

    In each draw an image belongs to one bucket, the smallest share that contains it. Larger shares contain it too, so
    their matrices are running sums over the buckets.
    """

    def __init__(self, images: int, clusters: int, classes: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        limits = np.maximum(1, np.round(np.array(LABEL_FRACTIONS) * images))
        self.buckets = [np.searchsorted(limits, rng.permutation(images) + 1) for _ in range(_REPEATS)]
        self.counts = np.zeros((_REPEATS, len(LABEL_FRACTIONS), clusters, classes), np.int64)

    def add(self, predicted: Tensor, labels: Tensor, indices: NDArray[np.int64]) -> None:
        clusters, classes = self.counts.shape[2:]
        images = torch.arange(len(predicted), device=predicted.device).view(-1, *[1] * (predicted.ndim - 1))
        confusion = Confusion(len(predicted) * clusters, classes, predicted.device)
        confusion.add(images * clusters + predicted, labels)
        by_image = confusion.counts.reshape(-1, clusters, classes)
        for counts, buckets in zip(self.counts, self.buckets, strict=True):
            np.add.at(counts, buckets[indices], by_image)

    def accuracies(self, tested: Counts, overcluster: bool) -> tuple[FewerLabels, ...]:
        match = many_to_one if overcluster else one_to_one
        shares = self.counts.cumsum(1)
        accuracy = np.array([[score(tested, match(share)).accuracy for share in draw] for draw in shares])
        return tuple(
            FewerLabels(fraction, float(mean), float(deviation))
            for fraction, mean, deviation in zip(
                LABEL_FRACTIONS, accuracy.mean(0), accuracy.std(0), strict=True
            )
        )


def _predictions(
    predict: Predict, images: Images, protocol: Protocol
) -> Iterator[tuple[Tensor, Tensor, NDArray[np.int64]]]:
    """Yield clusters, labels and indices of the labelled images in batches."""
    for pixels, labels, indices in labelled_batches(images, protocol.batch_size, protocol.crop):
        with torch.inference_mode():
            yield predict(pixels.to(protocol.device)), labels.to(protocol.device), indices
