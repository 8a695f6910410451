"""The fit of a head to clicks, on made features."""

from dataclasses import replace

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from iic_runtime.model.card import FeatureGroup
from iic_runtime.model.onnx_head import Head
from iic_runtime.naming.clusters import cluster_overlap, merge_clusters, name_by_majority
from iic_runtime.naming.fitting import (
    PIXEL_FIT,
    Samples,
    advise,
    choose_members,
    fit_head,
    join,
    judge,
    learnt_features,
    split_by_place,
    unstandardised,
    weighted_by_frequency,
)
from iic_runtime.naming.regression import fit_linear, fit_network, minimise, one_thread, softmax


def blobs(count: int, classes: int = 3, spread: float = 1.0, seed: int = 0) -> Samples:
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(classes), count)
    centres = 2.0 * np.eye(classes, 6)
    rows = centres[labels] + spread * rng.normal(size=(len(labels), 6))
    owner = np.arange(len(labels))
    return Samples(
        rows=rows.astype(np.float32),
        weights=np.ones(len(labels), np.float32),
        owner=owner,
        own_row=owner,
        labels=labels,
        places=rng.integers(0, 2000, (len(labels), 2)),
        side=64,
        classes=classes,
        members=[np.arange(6)],
    )


def test_single_pixels_decide_where_surroundings_tell_less() -> None:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(600, 12)).astype(np.float32)  # two features of the pixel, ten of noise around it
    labels = (np.hypot(rows[:, 0], rows[:, 1]) < 1.2).astype(np.int64)
    owner = np.arange(150)
    samples = Samples(
        rows=rows[:150],
        weights=np.ones(150, np.float32),
        owner=owner,
        own_row=owner,
        labels=labels[:150],
        places=rng.integers(0, 2000, (150, 2)),
        side=64,
        classes=2,
        members=[np.arange(12)],
    )
    surrounded, _ = fit_head(samples, rows)
    alone, _ = fit_head(replace(samples, single=np.arange(2)), rows)
    assert alone.hidden_weight is not None
    assert not alone.hidden_weight[-PIXEL_FIT.units :, 2:].any()
    right, before = (
        (head.logits(rows[150:]).argmax(1) == labels[150:]).mean() for head in (alone, surrounded)
    )
    assert right > max(0.85, before + 0.05)


def test_few_clicks_see_what_was_learnt_apart() -> None:
    learnt = np.array([4, 5])
    units = {}
    for count in (5, 20):
        samples = replace(blobs(count), learnt=learnt)
        head, _ = fit_head(samples, samples.rows)
        assert head.hidden_weight is not None
        units[count] = head.hidden_weight
    computed, apart = np.split(units[5], 2)
    assert not computed[:, learnt].any()
    assert not np.delete(apart, learnt, 1).any()
    assert units[20].all()


def test_features_that_are_learnt_are_found_by_their_kind() -> None:
    groups = [FeatureGroup(3, 1, False), FeatureGroup(2, 1, True)]
    assert learnt_features(groups, 5).tolist() == [3, 4]
    assert not len(learnt_features(groups, 6))
    assert not len(learnt_features((), 5))


def test_the_solver_finds_the_minimum() -> None:
    rng = np.random.default_rng(0)
    matrix = rng.normal(size=(8, 5))
    target = rng.normal(size=8)

    def loss(point: np.ndarray) -> tuple[float, np.ndarray]:
        error = matrix @ point - target
        return float(error @ error), 2 * matrix.T @ error

    expected = np.linalg.lstsq(matrix, target, rcond=None)[0]
    assert np.allclose(minimise(loss, np.zeros(5)), expected, atol=1e-3)


def test_the_regression_is_that_of_scikit_learn() -> None:
    sklearn = pytest.importorskip("sklearn.linear_model")
    samples = blobs(40)
    head = fit_linear(samples.rows, samples.labels, samples.weights, 3)
    # The same penalty in the units of scikit-learn: inputs over sqrt(F), the mean loss against PENALTY / N.
    scaled = samples.rows / np.sqrt(6)
    other = sklearn.LogisticRegression(C=100.0, tol=1e-8, max_iter=5000).fit(scaled, samples.labels)
    ours = softmax(head.logits(samples.rows))
    assert np.abs(ours - other.predict_proba(scaled)).max() < 0.02


@pytest.mark.parametrize("count", [5, 20, 50])
def test_a_head_is_judged_as_well_as_it_does(count: int) -> None:
    others = blobs(500, seed=9)
    head, judgement = fit_head(blobs(count), others.rows)
    right = float((head.logits(others.rows).argmax(1) == others.labels).mean())
    assert judgement.accuracy is not None
    assert abs(judgement.accuracy - right) < 0.2
    assert right > 0.6
    assert head.hidden_weight is not None
    if count == 50:
        sure = softmax(head.logits(others.rows)).max(1).mean()
        assert abs(float(sure) - right) < 0.08


def test_rare_classes_count_as_much_as_common_ones() -> None:
    samples = blobs(100, classes=2, spread=1.5)
    kept = np.r_[np.arange(100), 100:105]
    head = fit_linear(samples.rows[kept], samples.labels[kept], np.ones(105, np.float32), 2)
    others = blobs(1000, classes=2, spread=1.5, seed=3)
    shares = np.bincount(head.logits(others.rows).argmax(1), minlength=2) / 2000
    assert 0.25 < shares[0] < 0.75


def test_classes_weigh_what_they_cover_of_the_scene() -> None:
    samples = blobs(20, classes=2, spread=1.5)
    head = fit_linear(samples.rows, samples.labels, samples.weights, 2)
    scene = blobs(1000, classes=2, spread=1.5, seed=3)
    common = np.r_[np.arange(1000), 1000:1060]  # 60 pixels of the second class next to 1000 of the first
    weighted = weighted_by_frequency(head, scene.rows[common])

    def right(head: Head) -> float:
        return float((head.logits(scene.rows[common]).argmax(1) == scene.labels[common]).mean())

    assert right(weighted) > right(head) + 0.02
    unmoved = weighted_by_frequency(head, scene.rows)
    assert np.abs((unmoved.bias - head.bias) - (unmoved.bias - head.bias).mean()).max() < 0.1


def test_a_class_that_is_nowhere_else_in_the_scene_keeps_its_clicks() -> None:
    head = Head(np.array([[9.0], [-9.0]], np.float32), np.zeros(2, np.float32))
    weighted = weighted_by_frequency(head, np.ones((100, 1), np.float32))
    assert weighted.logits(np.array([[-1.0]], np.float32)).argmax(1) == [1]


def test_clicks_of_one_place_share_a_fold() -> None:
    rng = np.random.default_rng(0)
    places, labels = rng.integers(0, 600, (300, 2)), rng.integers(0, 4, 300)
    folds = split_by_place(places, 64, labels, 4)
    for cell in np.unique(places // 64, axis=0):
        assert len(np.unique(folds[(places // 64 == cell).all(1)])) == 1
    assert len(np.unique(folds)) == 5
    assert all(len(np.unique(folds[labels == label])) == 5 for label in range(4))


def test_advice() -> None:
    logits = np.full((12, 3), np.nan, np.float32)
    logits[:8] = np.eye(3)[[0, 0, 0, 0, 1, 2, 2, 2]]
    judgement = judge(logits, np.array([0] * 4 + [1] * 4 + [2] * 4))
    sentences = advise(judgement, ["water", "wood", "rock"])
    assert sentences[0].startswith("wood: 1 of 4 clicks are recognised")
    assert "taken for rock" in sentences[0]
    assert sentences[1] == "rock: all clicks lie in one place; click it elsewhere too."
    assert judgement.accuracy == 5 / 8


def test_a_joined_head_is_the_mean_of_two() -> None:
    samples = blobs(10)
    data = samples.rows, samples.labels, samples.weights, 3
    first, second = (fit_network(*data, seed) for seed in (0, 1))
    joined = join(first, second, 0.4)
    mean = 0.6 * first.logits(samples.rows) + 0.4 * second.logits(samples.rows)
    assert np.allclose(joined.logits(samples.rows), mean, atol=1e-4)
    raw = samples.rows * 3 + 5
    plain = unstandardised(joined, np.full(6, 5, np.float32), np.full(6, 1 / 3, np.float32))
    assert np.allclose(plain.logits(raw), mean, atol=1e-3)


def test_without_time_a_head_is_linear() -> None:
    samples = blobs(20)
    head, _ = fit_head(samples, samples.rows, full=False)
    assert head.hidden_weight is None


def test_members_see_nested_parts() -> None:
    groups = [FeatureGroup(4, 1, True), FeatureGroup(3, 1, False)]
    for side in (3, 9, 27):
        groups += [FeatureGroup(3, side, False), FeatureGroup(2, side, True)]
    members = choose_members(groups, 22)
    assert [len(member) for member in members] == [22, 12, 17, 9, 12]
    assert choose_members((), 8)[0].tolist() == list(range(8))
    assert len(choose_members(groups, 21)) == 1
    assert len(choose_members([FeatureGroup(5, 1, True)], 5)) == 1


def test_clusters_without_labels_take_the_class_of_the_nearest() -> None:
    counts = np.array([[9, 0, 0, 0], [0, 5, 0, 0]], np.float32)
    overlap = np.array(
        [[0.7, 0, 0.1, 0.2], [0, 0.6, 0.4, 0], [0, 0.5, 0.5, 0], [0.3, 0.1, 0, 0.6]], np.float32
    )
    assert merge_clusters(counts, overlap).tolist() == [[1, 0, 0, 1], [0, 1, 1, 0]]


def test_clusters_are_named_by_majority() -> None:
    rng = np.random.default_rng(0)
    probabilities = rng.dirichlet([0.3] * 5, 400).astype(np.float32)
    labels = (probabilities.argmax(1) > 2).astype(np.int64)
    places = rng.integers(0, 3000, (400, 2))
    merge, judgement = name_by_majority(probabilities, labels, places, 64, 2, probabilities)
    assert merge.tolist() == [[1, 1, 1, 0, 0], [0, 0, 0, 1, 1]]
    assert judgement.accuracy is not None
    assert judgement.accuracy > 0.8
    assert np.allclose(cluster_overlap(probabilities).sum(1), 1)


def numpy_threads() -> list[int]:
    """The threads of numpy's own library; others that tests have loaded may have theirs."""
    return [library["num_threads"] for library in threadpool_info() if "numpy" in library["filepath"]]


def test_fits_hold_blas_at_one_thread_until_the_last_has_ended() -> None:
    with threadpool_limits(2, "blas"):
        before = numpy_threads()
        first, second = one_thread(), one_thread()
        with first:
            second.__enter__()
        assert set(numpy_threads()) <= {1}
        second.__exit__(None, None, None)
        assert numpy_threads() == before


def test_a_fit_does_not_depend_on_the_number_of_threads() -> None:
    rng = np.random.default_rng(0)
    owner = np.arange(1000)
    rows = rng.normal(size=(1000, 200)).astype(np.float32)
    samples = replace(
        blobs(1),
        rows=rows,
        weights=np.ones(1000, np.float32),
        owner=owner,
        own_row=owner,
        labels=np.argmax(rows[:, :5], axis=1),
        places=rng.integers(0, 2000, (1000, 2)),
        classes=5,
        members=[np.arange(200)],
    )
    heads = []
    for threads in (1, 2):
        with threadpool_limits(threads, "blas"):
            heads.append(fit_head(samples, rows, full=False)[0])
    np.testing.assert_array_equal(heads[0].weight, heads[1].weight)
