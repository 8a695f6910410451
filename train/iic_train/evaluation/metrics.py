"""Figures of merit of a clustering, all computed from one confusion matrix."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Counts = NDArray[np.int64]
"""How often [cluster, class] occurred together."""
Mapping = NDArray[np.int64]
"""The class of each cluster; -1 for a cluster that was given none."""

NO_CLASS = -1


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
