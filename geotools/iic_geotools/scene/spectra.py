"""Reflectances that occur in the world, and the gain and offset of each band that make a scene look like them.

A mixture of Gaussians over red, green, blue and infrared, fitted to satellite scenes of five continents of which
reflectance is known, says how usual a spectrum is. Water, leaves, soil and roofs are clouds of their own in it, so a
scene stretched by anybody fits into it in hardly more than one way: the one that is most probable is taken. That works
where percentiles fail, because it does not matter how much of the scene is water or forest. `python -m
iic_research.spectra` fits it again.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources

import numpy as np
from numpy.typing import NDArray

BANDS = ("red", "green", "blue", "nir")
TYPICAL_REFLECTANCE: dict[str, tuple[float, float]] = {
    "red": (0.033, 0.140),
    "green": (0.041, 0.118),
    "blue": (0.022, 0.081),
    "nir": (0.094, 0.346),
}
"""The 2nd and 98th percentile of each band: medians over the satellite scenes of which reflectance is known."""
DARK_SPREAD = {"red": 0.025, "green": 0.025, "blue": 0.025, "nir": 0.07}
"""Standard deviation of the 2nd percentile between scenes."""
GAIN_SPREAD = 0.35
"""Standard deviation of the logarithm of a band's gain around the mean of all bands."""
CONTRAST_SPREAD = 0.3
"""Standard deviation of the logarithm of the contrast of a scene."""
DARK_INFRARED = (0.01, 0.094)
"""Starts of the search for the dark end of infrared: a scene with water, and one without."""
CONTRASTS = (0.8, 1.6)
"""Starts of the search for the contrast, relative to the typical one."""
PIXELS, WEIGHT, STEPS = 1500, 60.0, 120
"""Number of pixels that are fitted, how many independent ones they are worth, and number of steps of the search."""
PIXELS_OF_SCORES, TYPICAL_CONTRAST = 400, 1.2
"""Number of pixels that bands are compared on, and the only start of the search for their contrast."""
STRANGE = 1e-3
"""Density below which a spectrum is as strange as any other, so that clouds and errors do not decide."""

THREADED = 1 << 18
"""Number of multiplications from which OpenBLAS shares a product among threads."""

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class World:
    """The reflectances that occur in the world, as a mixture of Gaussians over `BANDS`.

    Attributes:
        shares: Share of each component, `[K]`.
        means: Their means `[K, bands]`.
        covariances: Their covariances `[K, bands, bands]`.
    """

    shares: Floats
    means: Floats
    covariances: Floats


@dataclass(frozen=True)
class Mixture:
    """A mixture of Gaussians over the reflectances of some bands.

    The logarithm of each component is a polynomial of second degree, so that one product of matrices gives all of them
    for all spectra.

    Attributes:
        polynomials: Coefficients of the logarithm of each component `[K, 1 + bands + bands * bands]`, for 1, the
            reflectances and their products.
        slopes: Coefficients of the gradients of these logarithms `[bands + bands * bands, K]`.
    """

    polynomials: Floats
    slopes: Floats

    @classmethod
    def of_bands(cls, names: Sequence[str], world: World | None = None) -> "Mixture":
        """Return the mixture of the world's spectra, as far as these bands show them."""
        world = world or bundled_world()
        chosen = [BANDS.index(name) for name in names]
        precisions = np.linalg.inv(world.covariances[:, chosen][:, :, chosen])
        volumes = 0.5 * np.linalg.slogdet(precisions)[1]
        constant = 0.5 * len(names) * np.log(2.0 * np.pi)
        pulls = np.einsum("kij,kj->ki", precisions, world.means[:, chosen])
        heights = np.log(world.shares) + volumes - constant - 0.5 * (pulls * world.means[:, chosen]).sum(1)
        flat = precisions.reshape(len(precisions), -1)
        return cls(np.column_stack([heights, pulls, -0.5 * flat]), np.vstack([pulls.T, -flat.T]))

    def log_likelihood(self, spectra: Floats) -> Floats:
        """Return the logarithm of the density of spectra `[N, bands]`."""
        logs = self._log_parts(spectra)
        highest = logs.max(0)
        return np.asarray(highest + np.log(np.exp(logs - highest).sum(0)))

    def _log_parts(self, spectra: Floats) -> Floats:
        """Return the logarithm of each component at spectra `[N, bands]`."""
        columns = spectra.T
        products = (columns[:, None] * columns[None]).reshape(-1, len(spectra))
        return _product(self.polynomials, np.vstack([np.ones(len(spectra)), columns, products]))

    def log_density(self, spectra: Floats) -> tuple[Floats, Floats]:
        """Return the logarithm of the density of spectra `[N, bands]` and its gradient `[N, bands]`."""
        count, bands = spectra.shape
        columns = spectra.T
        logs = self._log_parts(spectra)
        highest = logs.max(0)
        parts = np.exp(np.subtract(logs, highest, out=logs), out=logs)
        total = parts.sum(0)
        log_density = highest + np.log(total)
        bounded = np.logaddexp(log_density, np.log(STRANGE))
        slopes = _product(self.slopes, parts) * (np.exp(log_density - bounded) / total)
        turned = (slopes[bands:].reshape(bands, bands, count) * columns).sum(1)
        return bounded, (slopes[:bands] + turned).T


def _product(matrix: Floats, columns: Floats) -> Floats:
    """Return the product of a small matrix and many columns, by this thread alone.

    numpy's BLAS shares larger products among threads that wait for each other by spinning. A search makes a thousand
    of them, and next to other programs each would wait for the scheduler.
    """
    result = np.empty((len(matrix), columns.shape[1]))
    step = max(1, THREADED // matrix.size)
    for first in range(0, columns.shape[1], step):
        np.matmul(matrix, columns[:, first : first + step], out=result[:, first : first + step])
    return result


def fit_world(
    values: NDArray[np.generic],
    ranges: Sequence[tuple[float, float]],
    names: Sequence[str],
    world: World | None = None,
) -> tuple[list[float], list[float]]:
    """Find the gain and offset of each band that make the values of a scene the most probable reflectances.

    Args:
        values: Values `[bands, N]` of pixels spread over the scene.
        ranges: The 2nd and 98th percentile of each band.
        names: Names of the bands, all of them in `BANDS`.
        world: The reflectances that occur; by default those that come with the package.

    Returns:
        Gains and offsets, rounded so that machines agree.
    """
    low, high = np.array(ranges, np.float64).T
    search = _Search.of_values(values, ranges, names, world, PIXELS)
    starts = [(dark, contrast) for dark in DARK_INFRARED for contrast in CONTRASTS]
    _, spans, darks = max((search.climb(*start) for start in starts), key=lambda result: result[0])
    gains = [float(f"{gain:.4g}") for gain in spans / (high - low)]
    offsets = [
        round(float(dark - gain * start), 5) for dark, gain, start in zip(darks, gains, low, strict=True)
    ]
    return gains, offsets


def fit_score(
    values: NDArray[np.generic], ranges: Sequence[tuple[float, float]], names: Sequence[str]
) -> float:
    """Return the nats per pixel of values `[bands, N]` as these bands, each with its most probable gain and offset."""
    search = _Search.of_values(values, ranges, names, None, PIXELS_OF_SCORES)
    starts = DARK_INFRARED if "nir" in names else DARK_INFRARED[:1]
    return max(search.climb(dark, TYPICAL_CONTRAST)[0] for dark in starts) / WEIGHT


class _Search:
    """The most probable reflectances of a scene's dark and bright ends.

    Args:
        unit: Values `[N, bands]`, 0 at the dark and 1 at the bright end of a band.
        spans: Distance between the ends, in values.
    """

    def __init__(self, unit: Floats, spans: Floats, names: Sequence[str], world: World | None) -> None:
        self.unit, self.log_spans = unit, np.log(spans)
        self.mixture = Mixture.of_bands(names, world)
        typical = np.array([TYPICAL_REFLECTANCE[name] for name in names])
        self.dark, self.contrast = typical[:, 0], np.log(typical[:, 1] - typical[:, 0])
        self.dark_spread = np.array([DARK_SPREAD[name] for name in names])
        self.infrared = np.array([name == "nir" for name in names])

    @classmethod
    def of_values(
        cls,
        values: NDArray[np.generic],
        ranges: Sequence[tuple[float, float]],
        names: Sequence[str],
        world: World | None,
        count: int,
    ) -> "_Search":
        """Return the search for values `[bands, N]`, by about `count` pixels that are not at an end of their range."""
        low, high = np.array(ranges, np.float64).T
        inside = ((values > values.min(1, keepdims=True)) & (values < values.max(1, keepdims=True))).all(0)
        chosen = values[:, inside] if inside.sum() >= count // 10 else values
        step = max(1, chosen.shape[1] // count)
        return cls(((chosen[:, ::step].T - low) / (high - low)).astype(np.float64), high - low, names, world)

    def climb(self, dark_infrared: float, contrast: float) -> tuple[float, Floats, Floats]:
        """Climb from a start by Adam; return the score, the spans and the dark ends in reflectance."""
        bands = len(self.dark)
        dark = np.where(self.infrared, dark_infrared, self.dark)
        point = np.concatenate([np.log((np.exp(self.contrast) + self.dark - dark) * contrast), dark])
        rates = np.repeat([0.05, 0.003], bands)
        mean = square = np.zeros(2 * bands)
        for step in range(STEPS):
            _, gradient = self._score(point)
            mean, square = 0.9 * mean + 0.1 * gradient, 0.99 * square + 0.01 * gradient**2
            size = np.sqrt(square / (1 - 0.99 ** (step + 1))) + 1e-9
            point = point + rates * (1 - 0.9 * step / STEPS) * mean / (1 - 0.9 ** (step + 1)) / size
        return self._score(point)[0], np.exp(point[:bands]), point[bands:]

    def _score(self, point: Floats) -> tuple[float, Floats]:
        """Return the log posterior of spans and dark ends, and its gradient."""
        bands = len(self.dark)
        spans, dark = np.exp(point[:bands]), point[bands:]
        log_density, slope = self.mixture.log_density(self.unit * spans + dark)
        gains = point[:bands] - self.log_spans
        uneven = (gains - gains.mean()) / GAIN_SPREAD**2
        contrast = (point[:bands] - self.contrast).mean() / CONTRAST_SPREAD**2
        darkness = (dark - self.dark) / self.dark_spread**2
        score = (
            WEIGHT * (log_density.mean() + point[:bands].sum())
            - 0.5 * (uneven * (gains - gains.mean())).sum()
            - 0.5 * contrast * (point[:bands] - self.contrast).mean()
            - 0.5 * (darkness * (dark - self.dark)).sum()
        )
        along = WEIGHT * ((slope * self.unit * spans).mean(0) + 1.0) - uneven - contrast / bands
        return float(score), np.concatenate([along, WEIGHT * slope.mean(0) - darkness])


@cache
def bundled_world() -> World:
    """Return the mixture that comes with the package; `iic_research.spectra` fits it."""
    table = json.loads(resources.files("iic_geotools.scene").joinpath("spectra.json").read_bytes())
    return World(*(np.array(table[name]) for name in ("shares", "means", "covariances")))
