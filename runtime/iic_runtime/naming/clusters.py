"""Clusters that take the class of the labels on them, for models that output only cluster probabilities."""

import numpy as np

from iic_runtime.naming.fitting import Judgement, judge, judge_by_fold, split_by_place
from iic_runtime.naming.regression import Floats, Ints


def name_by_majority(
    probabilities: Floats, labels: Ints, places: Ints, side: int, classes: int, scene: Floats
) -> tuple[Floats, Judgement]:
    """Give each cluster the class that most of its labels have, classes weighing the same.

    Args:
        probabilities: Of each cluster at each label `[N, clusters]`.
        labels: Class of each label.
        places: Row and column of each label in pixels `[N, 2]`.
        side: Side in pixels of the squares whose labels are of one place.
        scene: Cluster probabilities of pixels spread over the scene `[M, clusters]`.

    Returns:
        Weights `[classes, clusters]`, 1 where a cluster belongs to a class, and what cross-validation says of them.
    """
    clusters = probabilities.argmax(1)
    overlap = cluster_overlap(np.concatenate([scene, probabilities]))

    def merge(training: Ints) -> Floats:
        counts = np.zeros((classes, probabilities.shape[1]), np.float32)
        np.add.at(counts, (labels[training], clusters[training]), 1)
        return merge_clusters(counts, overlap, balance=1.0)

    folds = split_by_place(places, side, labels, classes)
    logits = judge_by_fold(
        folds, labels, classes, lambda training, test: probabilities[test] @ merge(np.flatnonzero(training)).T
    )
    return merge(np.arange(len(labels))), judge(logits, labels)


def cluster_overlap(probabilities: Floats) -> Floats:
    """Return the mean probability of every cluster (column) over the pixels of each (row)."""
    count = probabilities.shape[1]
    overlap = np.zeros((count, count), np.float32)
    np.add.at(overlap, probabilities.argmax(1), probabilities)
    return np.asarray(overlap / np.maximum(overlap.sum(1, keepdims=True), 1e-9))


def merge_clusters(counts: Floats, overlap: Floats, balance: float = 0.0) -> Floats:
    """Return which class each cluster takes: that of most labels, or of the nearest cluster that has some.

    Args:
        counts: Labels of each class (row) in each cluster (column); every class has one.
        overlap: The mean probability of every cluster (column) over the pixels of each (row): a cluster without labels
            is nearest to the one that its pixels could as well belong to.
        balance: How far the classes are weighted to equal numbers of labels, 0 to 1.

    Returns:
        `[classes, clusters]` of 0 and 1.
    """
    winners = (counts / np.maximum(counts.sum(1, keepdims=True), 1) ** balance).argmax(0)
    labelled = counts.sum(0) > 0
    for cluster in np.flatnonzero(~labelled):
        likeness = np.where(labelled, overlap[cluster] + overlap[:, cluster], -1.0)
        winners[cluster] = winners[int(likeness.argmax())]
    merge = np.zeros(counts.shape, np.float32)
    merge[winners, np.arange(counts.shape[1])] = 1.0
    return merge
