"""k-means of weighted points, with numpy alone."""

import numpy as np

from iic_runtime.naming.regression import Doubles, Ints

STARTS, MOST_STEPS = 20, 100
"""Starts, of which the one of least inertia is kept, and steps of each."""


def kmeans(
    points: Doubles,
    count: int,
    weights: Doubles,
    rng: np.random.Generator,
    *,
    starts: int = STARTS,
    steps: int = MOST_STEPS,
) -> Doubles:
    """Return the centres `[count, D]` of weighted points: Lloyd, the best of a few k-means++ starts."""
    best, least = points[:count], np.inf
    for _ in range(starts):
        centres, inertia = _spread_centres(points, count, weights, rng), np.inf
        for _ in range(steps):
            owners, distances = nearest(points, centres)
            previous, inertia = inertia, float(weights @ distances)
            if inertia > previous * (1 - 1e-5):
                break
            sizes = np.bincount(owners, weights, count)
            sums = np.stack([np.bincount(owners, weights * column, count) for column in points.T], 1)
            filled = sizes > 0
            centres[filled] = sums[filled] / sizes[filled, None]
        if inertia < least:
            best, least = centres, inertia
    return best


def _spread_centres(points: Doubles, count: int, weights: Doubles, rng: np.random.Generator) -> Doubles:
    """Choose first centres by k-means++: the farther from the others, the likelier a point is drawn."""
    chosen = [points[rng.integers(len(points))]]
    distances = ((points - chosen[0]) ** 2).sum(1)
    while len(chosen) < count:
        chances = np.cumsum(weights * distances)
        drawn = int(np.searchsorted(chances, rng.random() * chances[-1]))
        chosen.append(points[min(drawn, len(points) - 1)])
        distances = np.minimum(distances, ((points - chosen[-1]) ** 2).sum(1))
    return np.stack(chosen)


def nearest(points: Doubles, centres: Doubles) -> tuple[Ints, Doubles]:
    """Return the nearest centre of each point and the squared distance to it."""
    squared = (points**2).sum(1)[:, None] - 2 * points @ centres.T + (centres**2).sum(1)
    owners = squared.argmin(1)
    return owners, np.maximum(squared[np.arange(len(points)), owners], 0)
