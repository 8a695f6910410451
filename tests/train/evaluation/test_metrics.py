from itertools import combinations, permutations
from math import log

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from iic_train.evaluation.evaluate import (
    Confusion,
    adjusted_rand_index,
    many_to_one,
    normalised_mutual_information,
    one_to_one,
    score,
)

square = st.integers(1, 5).flatmap(lambda k: arrays(np.int64, (k, k), elements=st.integers(0, 30)))
any_shape = st.tuples(st.integers(1, 6), st.integers(1, 4)).flatmap(
    lambda shape: arrays(np.int64, shape, elements=st.integers(0, 4))
)


def pairs_of(counts: np.ndarray) -> list[tuple[int, int]]:
    return [(k, c) for k, row in enumerate(counts) for c, n in enumerate(row) for _ in range(n)]


@given(square)
def test_matching_is_the_best_of_all_permutations(counts: np.ndarray) -> None:
    k = len(counts)
    best = max(sum(counts[i, p[i]] for i in range(k)) for p in permutations(range(k)))
    mapping = one_to_one(counts)
    assert sorted(mapping) == list(range(k))
    assert score(counts, mapping).accuracy == pytest.approx(best / max(counts.sum(), 1))


@given(any_shape)
def test_scores_by_counting_one_by_one(counts: np.ndarray) -> None:
    pairs = pairs_of(counts)
    for mapping in (one_to_one(counts), many_to_one(counts)):
        got = score(counts, mapping)
        named = [(mapping[k], c) for k, c in pairs]
        assert got.accuracy == pytest.approx(sum(p == c for p, c in named) / max(len(named), 1))
        ious = []
        for c in range(counts.shape[1]):
            predicted, actual = ({i for i, pair in enumerate(named) if pair[side] == c} for side in (0, 1))
            if actual:
                ious.append(len(predicted & actual) / len(predicted | actual))
                assert got.class_accuracy[c] == pytest.approx(len(predicted & actual) / len(actual))
            else:
                assert got.class_accuracy[c] is None
        assert got.mean_iou == pytest.approx(np.mean(ious) if ious else 0)


@given(any_shape)
def test_many_to_one_is_never_worse(counts: np.ndarray) -> None:
    assert score(counts, many_to_one(counts)).accuracy >= score(counts, one_to_one(counts)).accuracy


@given(any_shape.filter(lambda counts: 2 <= counts.sum() <= 40))
def test_rand_index_by_counting_pairs(counts: np.ndarray) -> None:
    items = pairs_of(counts)
    both = clusters = classes = every = 0
    for a, b in combinations(items, 2):
        every += 1
        clusters += a[0] == b[0]
        classes += a[1] == b[1]
        both += a == b
    expected, highest = clusters * classes / every, (clusters + classes) / 2
    wanted = 1.0 if highest == expected else (both - expected) / (highest - expected)
    assert adjusted_rand_index(counts) == pytest.approx(wanted)


@given(any_shape.filter(lambda counts: counts.sum() > 0))
def test_mutual_information_by_its_definition(counts: np.ndarray) -> None:
    total = counts.sum()
    rows, columns = counts.sum(1), counts.sum(0)
    information = sum(
        n / total * log(n * total / (rows[k] * columns[c])) for (k, c), n in np.ndenumerate(counts) if n
    )
    entropies = [-sum(n / total * log(n / total) for n in side if n) for side in (rows, columns)]
    wanted = information / (sum(entropies) / 2) if sum(entropies) else 1.0
    assert normalised_mutual_information(counts) == pytest.approx(wanted, abs=1e-9)


def test_known_values() -> None:
    perfect = np.diag([5, 3, 2])[[2, 0, 1]]
    assert normalised_mutual_information(perfect) == pytest.approx(1)
    assert adjusted_rand_index(perfect) == 1
    independent = np.full((2, 2), 10)
    assert normalised_mutual_information(independent) == pytest.approx(0, abs=1e-12)
    assert adjusted_rand_index(independent) == pytest.approx(
        -1 / 38
    )  # (180 - 380 * 380 / 780) / (380 - 380 * 380 / 780)


def test_clusters_that_are_left_over_count_as_wrong() -> None:
    counts = np.array([[6, 0], [0, 3], [1, 0]])
    mapping = one_to_one(counts)
    assert mapping.tolist() == [0, 1, -1]
    assert score(counts, mapping).accuracy == 0.9


def test_an_empty_cluster_is_given_the_commonest_class() -> None:
    assert many_to_one(np.array([[0, 0], [1, 5], [2, 1]])).tolist() == [1, 1, 0]


@given(
    st.lists(st.tuples(st.integers(0, 3), st.sampled_from([0, 1, 2, 255, -1])), max_size=60),
    st.integers(1, 7),
)
def test_confusion_does_not_depend_on_the_batches(pairs: list[tuple[int, int]], batch: int) -> None:
    confusion = Confusion(4, 3)
    for start in range(0, len(pairs), batch):
        part = torch.tensor(pairs[start : start + batch])
        confusion.add(part[:, 0], part[:, 1])
    wanted = np.zeros((4, 3), np.int64)
    for cluster, label in pairs:
        if 0 <= label < 3:
            wanted[cluster, label] += 1
    assert np.array_equal(confusion.counts, wanted)
