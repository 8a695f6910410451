"""The formulas, judged by a published example and by listing every sample that could have been drawn."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iic_geotools.products.assessment.accuracy import (
    Estimate,
    Estimates,
    estimate_simple,
    estimate_stratified,
    most_errors,
)

# Olofsson et al. (2014), section 5: deforestation, forest gain, stable forest, stable non-forest; Landsat pixels.
COUNTS = np.array([[66, 0, 5, 4], [0, 55, 8, 12], [1, 0, 153, 11], [2, 1, 9, 313]])
PIXELS = np.array([200_000, 150_000, 3_200_000, 6_450_000.0])
HECTARES_PER_PIXEL = 0.09


def published() -> Estimates:
    return estimate_stratified(COUNTS, PIXELS)


def rounded(estimates: tuple[Estimate | None, ...]) -> list[tuple[float, float]]:
    pairs = []
    for entry in estimates:
        assert entry is not None
        assert entry.margin is not None
        pairs.append((round(entry.value, 2), round(entry.margin, 2)))
    return pairs


def test_the_published_accuracies() -> None:
    result = published()
    assert rounded((result.overall,)) == [(0.95, 0.02)]
    assert rounded(result.users) == [(0.88, 0.07), (0.73, 0.10), (0.93, 0.04), (0.96, 0.02)]
    assert rounded(result.producers) == [(0.75, 0.21), (0.85, 0.25), (0.93, 0.03), (0.96, 0.02)]


def test_the_published_area_of_deforestation() -> None:
    """The paper says 21,158 ha with an interval of 6158 ha, that is 235,086 pixels; it takes 1.96 standard errors."""
    area = published().shares[0].times(PIXELS.sum())
    assert round(area.value) == 235_086
    assert area.error is not None
    assert round(1.96 * area.error) == 68_418
    assert round(area.value * HECTARES_PER_PIXEL) == 21_158
    assert round(1.96 * area.error * HECTARES_PER_PIXEL) == 6158
    assert sum(entry.value for entry in published().shares) == pytest.approx(1)


def test_the_same_from_the_definitions() -> None:
    """Every figure again, cell by cell with plain numbers."""
    weights = [area / 10_000_000 for area in PIXELS.tolist()]
    cells = [[weights[i] * COUNTS[i, j] / COUNTS[i].sum() for j in range(4)] for i in range(4)]
    result = published()
    assert result.proportions == pytest.approx(np.array(cells))
    for j in range(4):
        mapped, actual = sum(cells[j]), sum(row[j] for row in cells)
        precision, recall = cells[j][j] / mapped, cells[j][j] / actual
        assert result.f1[j] == pytest.approx(2 * precision * recall / (precision + recall))
        assert result.iou[j] == pytest.approx(cells[j][j] / (mapped + actual - cells[j][j]))
        # Equation 10: standard error of an estimated share.
        variance = sum(
            (weights[i] * cells[i][j] - cells[i][j] ** 2) / (COUNTS[i].sum() - 1) for i in range(4)
        )
        assert result.shares[j].error == pytest.approx(variance**0.5)
        # Equation 7: producer's accuracy, with areas in pixels.
        total = actual * PIXELS.sum()
        others = sum(
            PIXELS[i] ** 2
            * COUNTS[i, j]
            / COUNTS[i].sum()
            * (1 - COUNTS[i, j] / COUNTS[i].sum())
            / (COUNTS[i].sum() - 1)
            for i in range(4)
            if i != j
        )
        own = PIXELS[j] ** 2 * (1 - recall) ** 2 * precision * (1 - precision) / (COUNTS[j].sum() - 1)
        producers = result.producers[j]
        assert producers is not None
        assert producers.error == pytest.approx(((own + recall**2 * others) / total**2) ** 0.5)
    chance = sum(sum(cells[j]) * sum(row[j] for row in cells) for j in range(4))
    agreement = sum(cells[j][j] for j in range(4))
    assert result.kappa == pytest.approx((agreement - chance) / (1 - chance))


def every_sample(population: list[int], size: int) -> list[tuple[int, ...]]:
    return list(product(population, repeat=size))


def count(samples: list[tuple[int, ...]], classes: int) -> np.ndarray:
    counts = np.zeros((classes, classes), np.int64)
    for mapped, drawn in enumerate(samples):
        for actual in drawn:
            counts[mapped, actual] += 1
    return counts


def test_estimates_and_their_variances_are_right_on_average_over_every_stratified_sample() -> None:
    """The ground under two classes of a map, drawn from with replacement: all 3^2 x 4^3 samples are listed."""
    strata = [[0, 0, 1], [1, 1, 1, 0]]
    areas = np.array([3.0, 4.0])
    results = [
        estimate_stratified(count([first, second], 2), areas)
        for first in every_sample(strata[0], 2)
        for second in every_sample(strata[1], 3)
    ]
    for truth, entries in (
        (5 / 7, [result.overall for result in results]),
        (3 / 7, [result.shares[0] for result in results]),
        (2 / 3, [result.users[0] for result in results]),
    ):
        check_unbiased(truth, [entry for entry in entries if entry is not None])


def test_estimates_and_their_variances_are_right_on_average_over_every_simple_sample() -> None:
    ground = [(0, 0), (0, 1), (1, 1), (1, 1), (1, 0)]
    results = []
    for drawn in product(ground, repeat=4):
        counts = np.zeros((2, 2), np.int64)
        for mapped, actual in drawn:
            counts[mapped, actual] += 1
        results.append(estimate_simple(counts))
    check_unbiased(3 / 5, [result.overall for result in results])
    check_unbiased(2 / 5, [result.shares[0] for result in results])


def check_unbiased(truth: float, entries: list[Estimate]) -> None:
    values = np.array([entry.value for entry in entries])
    assert values.mean() == pytest.approx(truth)
    variances = [entry.error**2 for entry in entries if entry.error is not None]
    assert len(variances) == len(values)
    assert np.mean(variances) == pytest.approx(values.var())


def test_the_interval_of_producers_accuracy_holds_the_truth_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    rates = np.array([[0.9, 0.1], [0.05, 0.95]])
    areas = np.array([0.2, 0.8])
    truth = 0.18 / (0.18 + 0.04)
    hits = 0
    for _ in range(600):
        counts = np.stack([rng.multinomial(150, rates[0]), rng.multinomial(300, rates[1])])
        producers = estimate_stratified(counts, areas).producers[0]
        assert producers is not None
        assert producers.margin is not None
        hits += abs(producers.value - truth) <= producers.margin
    assert 0.92 < hits / 600 < 0.98


def test_simple_random_samples() -> None:
    result = estimate_simple(np.array([[8, 2], [1, 9]]))
    assert result.overall.value == 0.85
    assert result.overall.error == pytest.approx((0.85 * 0.15 / 19) ** 0.5)
    assert result.users[0] == Estimate(0.8, pytest.approx((0.8 * 0.2 / 9) ** 0.5))
    assert result.producers[1] == Estimate(9 / 11, pytest.approx((9 / 11 * 2 / 11 / 10) ** 0.5))
    assert result.kappa == pytest.approx(0.7)


def test_classes_with_too_few_samples_are_left_out() -> None:
    counts = np.array([[9, 1, 0], [0, 5, 5], [0, 0, 1]])
    result = estimate_stratified(counts, np.array([30.0, 10.0, 60.0]))
    assert result.users[2] is None
    assert result.overall.value == pytest.approx(0.75 * 0.9 + 0.25 * 0.5)
    assert result.producers[2] == Estimate(0.0, 0.0)
    assert estimate_simple(np.array([[1, 0], [0, 1]])).users[0] == Estimate(1.0, None)


def test_errors_that_may_have_escaped() -> None:
    """If this share were wrong, no error would be found in 5 % of the samples of this size."""
    for size in (2, 20, 200):
        assert (1 - most_errors(size)) ** size == pytest.approx(0.05)
    assert most_errors(300) == pytest.approx(3 / 300, rel=0.01)  # the rule of three


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_both_formulas_agree_on_proportional_samples(data: st.DataObject) -> None:
    """If every stratum has its share of the samples, weights change nothing."""
    classes = data.draw(st.integers(2, 5))
    cells = st.lists(st.integers(0, 30), min_size=classes**2, max_size=classes**2)
    counts = np.array(data.draw(cells)).reshape(classes, classes) + np.eye(classes, dtype=np.int64) * 2
    weighted, plain = estimate_stratified(counts, counts.sum(1).astype(float)), estimate_simple(counts)
    assert weighted.overall.value == pytest.approx(plain.overall.value)
    assert weighted.proportions == pytest.approx(plain.proportions)
    assert weighted.kappa == pytest.approx(plain.kappa)
    assert weighted.overall.error is not None
    assert weighted.overall.error >= 0
    for one, other in zip(
        (*weighted.users, *weighted.producers), (*plain.users, *plain.producers), strict=True
    ):
        assert one is not None
        assert other is not None
        assert one.value == pytest.approx(other.value)
        assert 0 <= one.value <= 1
