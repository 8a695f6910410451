"""Accuracy and areas estimated from a sample, with standard errors: formulas without any raster.

Rows are classes of the map, columns those of the reference. For stratified samples, whose strata are the classes of the
map, the formulas are those of Olofsson et al. (2014), Good practices for estimating area and assessing accuracy of land
change, Remote Sensing of Environment 148, equations 1 to 11. With W[i] the share of class i in the area of the map,
n[i, j] the sample counts and n[i] their sums over j, the share of the ground that the map calls i and that is j is

    p[i, j] = W[i] n[i, j] / n[i].

For a simple random sample p[i, j] is n[i, j] / n.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Counts = NDArray[np.int64]
Floats = NDArray[np.float64]
Z = 1.959963984540054
"""Standard errors to each side of an estimate that a 95 % confidence interval reaches."""
LEAST = 2
"""The fewest samples of a stratum from which its variance can be estimated."""


@dataclass(frozen=True)
class Estimate:
    """An estimated number.

    Attributes:
        value: The estimate.
        error: Its standard error; None if it cannot be estimated.
    """

    value: float
    error: float | None

    @property
    def margin(self) -> float | None:
        """Half of the width of the 95 % confidence interval."""
        return None if self.error is None else Z * self.error

    def times(self, factor: float) -> "Estimate":
        """The estimate of a multiple."""
        return Estimate(self.value * factor, None if self.error is None else self.error * factor)


@dataclass(frozen=True, eq=False)
class Estimates:
    """Estimates from a sample of a map; entries are None for a class without samples.

    Attributes:
        proportions: Estimated share `[i, j]` of the ground that the map calls i and that is j.
        overall: Overall accuracy: the share of the area that is classified correctly.
        users: User's accuracy: the share of the mapped area of i that is i.
        producers: Producer's accuracy: the share of the area of j that is mapped as j.
        shares: Share of the ground that is j.
    """

    proportions: Floats
    overall: Estimate
    users: tuple[Estimate | None, ...]
    producers: tuple[Estimate | None, ...]
    shares: tuple[Estimate, ...]

    @property
    def f1(self) -> tuple[float | None, ...]:
        """Harmonic mean of user's and producer's accuracy of each class."""
        mapped, actual, right = self._margins()
        return _ratios(2 * right, mapped + actual)

    @property
    def iou(self) -> tuple[float | None, ...]:
        """Intersection over union of each class."""
        mapped, actual, right = self._margins()
        return _ratios(right, mapped + actual - right)

    @property
    def mean_iou(self) -> float | None:
        """Mean intersection over union of the classes that occur in the reference."""
        _, actual, _ = self._margins()
        values = [iou for iou, share in zip(self.iou, actual, strict=True) if iou is not None and share > 0]
        return float(np.mean(values)) if values else None

    @property
    def kappa(self) -> float | None:
        """Cohen's kappa: agreement beyond what shares alone would give by chance."""
        mapped, actual, right = self._margins()
        chance = float(mapped @ actual)
        return None if chance >= 1 else float((right.sum() - chance) / (1 - chance))

    def _margins(self) -> tuple[Floats, Floats, Floats]:
        p = self.proportions
        return p.sum(1), p.sum(0), p.diagonal()


def most_errors(count: int) -> float:
    """The largest share of errors, with 95 % confidence, where none was found among some samples.

    A standard error of 0 says nothing there. This many errors would have shown themselves 19 times out of 20.
    """
    return float(1 - 0.05 ** (1 / count))


def usable_strata(counts: Counts) -> NDArray[np.bool_]:
    """Which classes of the map have enough samples to estimate a variance."""
    return np.asarray(counts.sum(1) >= LEAST)


def estimate_stratified(counts: Counts, areas: Floats) -> Estimates:
    """Estimates from a sample whose strata are the classes of the map.

    They hold as well for a simple random sample that is stratified afterwards. Classes of the map with fewer than two
    samples are left out: the estimates are then those of the other classes' ground.

    Args:
        counts: Number of samples `[class of the map, class of the reference]`.
        areas: Area of each class of the map, in any unit.
    """
    usable = usable_strata(counts) & (areas > 0)
    weights = np.where(usable, areas, 0.0) / areas[usable].sum()
    size = counts.sum(1)
    rates = counts / np.maximum(size, 1)[:, None]
    proportions = weights[:, None] * rates
    # Variance of each rate within its stratum.
    variances = rates * (1 - rates) / np.maximum(size - 1, 1)[:, None]
    squared = (weights**2)[:, None] * variances
    overall = Estimate(float(proportions.trace()), _root(squared.trace()))
    users = tuple(
        Estimate(float(rates[i, i]), _root(variances[i, i])) if usable[i] else None
        for i in range(len(counts))
    )
    actual = proportions.sum(0)
    shares = tuple(Estimate(float(actual[j]), _root(squared[:, j].sum())) for j in range(len(counts)))
    producers = tuple(_producers_accuracy(proportions, squared, j) for j in range(len(counts)))
    return Estimates(proportions, overall, users, producers, shares)


def _producers_accuracy(proportions: Floats, squared: Floats, j: int) -> Estimate | None:
    """Producer's accuracy by equations 3 and 7, areas divided by that of the map."""
    actual = proportions[:, j].sum()
    if actual <= 0:
        return None
    value = proportions[j, j] / actual
    others = squared[:, j].sum() - squared[j, j]
    variance = ((1 - value) ** 2 * squared[j, j] + value**2 * others) / actual**2
    return Estimate(float(value), _root(variance))


def estimate_simple(counts: Counts) -> Estimates:
    """Estimates from a simple random sample, all of whose places had the same chance.

    The accuracies of a class are those of a sample of as many places as were mapped, or found, to be of that class.

    Args:
        counts: Number of samples `[class of the map, class of the reference]`.
    """
    total = int(counts.sum())
    right, mapped, actual = counts.diagonal(), counts.sum(1), counts.sum(0)
    return Estimates(
        counts / total,
        _share(int(right.sum()), total),
        tuple(_share(int(k), int(n)) if n else None for k, n in zip(right, mapped, strict=True)),
        tuple(_share(int(k), int(n)) if n else None for k, n in zip(right, actual, strict=True)),
        tuple(_share(int(k), total) for k in actual),
    )


def _share(part: int, whole: int) -> Estimate:
    value = part / whole
    return Estimate(value, _root(value * (1 - value) / (whole - 1)) if whole >= LEAST else None)


def _root(variance: float) -> float:
    return float(np.sqrt(max(float(variance), 0.0)))  # rounding may leave a hair below 0


def _ratios(part: Floats, whole: Floats) -> tuple[float | None, ...]:
    return tuple(float(k / n) if n > 0 else None for k, n in zip(part, whole, strict=True))
