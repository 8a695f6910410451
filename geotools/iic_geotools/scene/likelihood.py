"""Likelihood of a scene under the spectra of the world, for each way of reading its values and bands.

The score of a reading is the mean log density of the scene's pixels under the mixture of `spectra`, with a background
of 2 % for what the mixture does not know, plus the logarithm of the Jacobian of the scaling (the log gain of every
band). Without it the darkest reading would always win, because water is a narrow cloud. Scores are nats per pixel, and
what a file's data type makes unusual is subtracted from them.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache
from itertools import permutations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from iic_geotools.scene.bands import COLOURS, Names, pick
from iic_geotools.scene.radiometry import Radiometry, landsat_level1, robust_ranges
from iic_geotools.scene.spectra import BANDS, Floats, Mixture, fit_score

BACKGROUND, DARKEST, BRIGHTEST = 0.02, -0.1, 1.5
"""Share of spectra that the mixture does not know, and between which reflectances they are as likely as each other."""
BEYOND = 0.01
"""Density of the background just outside of that range, from where it falls with the square of the distance."""
PIXELS, PIXELS_OF_ORDERS = 800, 400
"""Number of pixels that readings are compared on."""
RAW_BRIGHT = tuple(np.exp(np.linspace(math.log(0.12), math.log(1.1), 9)).tolist())
"""Reflectances that the brightest band may reach if the gain of the values is unknown."""
RAW_PENALTY = 2.0
"""How much more probable an unknown gain must make a scene before it is believed: a free parameter always fits."""
DIMMEST, DARK_END = 0.002, 0.5
"""Reflectance that the brightest band must reach, and that the darkest band must not begin above."""
SHIFTED_DARKEST, UNSHIFTED = 0.06, 1.5
"""Scenes hold something dark, so that a shift is unlikely, by so many nats, that leaves the darkest band above this."""
NOVEL = 128
"""Novelty from which a spectrum is called unlike those of the world."""
WRONG_GAINS, WRONG_GAIN = (0.001, 0.01, 0.1, 10.0, 100.0, 1000.0), 1.0
"""Factors that reflectance may be read wrong by, and nats per pixel by which one must lead to be suspected."""
STRANGE = 1.0
"""Nats above the background, per pixel, below which a scene holds no spectra that the mixture knows."""
CLEAR, CLEAR_ORDER = 0.5, 0.4
"""Nats per pixel by which a reading must lead before it is called sure."""
UNUSUAL_SCALING, UNUSUAL_DARKEST = 1.0, 0.15
"""What scalings of few programs must make up for, and what they must leave the darkest band below."""
BEYOND_10000 = 10_000.0
"""Scenes of one class say nothing of a gain: with no larger values, larger gains than 10000 are not considered."""
BRIGHT_WHITE, EVEN_WHITE = 0.4, 1.5
"""Reflectance that snow and clouds exceed in every band, and ratio of their brightest band to the darkest."""
RAW_BITS = 12
"""Values within these bits may be raw numbers of a camera; those of reflectance x 10000 usually reach beyond."""
UNUSUAL_ORDER = 1.0
"""Log-likelihood penalty of an unusual band order."""
INFRARED_PIXELS = 20_000
"""Number of pixels that are looked at for infrared shown as red."""
PINK, HARDLY_PINK, PARTLY_PINK, MOSTLY_PINK = 1.25, 0.01, 0.02, 0.5
"""How many times brighter than the third band the first is where plants are pink, and shares of such pixels."""
HARDLY_APART, APART, FAR_APART, ALIKE, VERY_ALIKE = 0.05, 0.15, 0.4, 0.7, 0.95
"""By how much the first or second band correlates less than the others, and how well these do at least."""
INFRARED_LEAD = 0.35
"""Nats per pixel by which a picture must be more probable as infrared, red and green before it is sure."""
GREY = 0.02
"""Difference of the bands of a grey picture, as a share of their spread."""


@dataclass(frozen=True)
class Scaling:
    """A way to read values as reflectance.

    Attributes:
        text: What it is called within a sentence: "reflectance x 10000".
        scale: The factor of the values.
        offset: What is added to them.
        floats: How unusual it is for real numbers, in nats per pixel; None if it does not occur.
        integers: The same for whole numbers.
        above: The 98th percentile of the brightest band below which it is not considered.
    """

    text: str
    scale: float
    offset: float
    floats: float | None
    integers: float | None
    above: float = 0.0

    def darkest(self, values: Floats) -> float:
        """Return the 2nd percentile of the darkest band of values `[N, bands]` as reflectance."""
        return float(np.percentile(values, 2, axis=0).min()) * self.scale + self.offset

    def is_possible(self, values: Floats) -> bool:
        """Return whether values `[N, bands]` become reflectances that a scene can have."""
        ends = np.percentile(values, (2, 98), axis=0)
        low, high = ends * self.scale + self.offset
        if self.above and (ends[1].max() < self.above or low.min() > UNUSUAL_DARKEST):
            return False
        return bool(-0.06 <= low.min() <= DARK_END and DIMMEST <= high.max() <= 2.0)

    @property
    def rare(self) -> bool:
        """Whether few programs write such values."""
        return self.above > 0

    def radiometry(self, count: int) -> Radiometry:
        """Return the scaling of `count` bands."""
        return Radiometry((self.scale,) * count, (self.offset,) * count, "what they look like")


@cache
def scalings() -> tuple[Scaling, ...]:
    """Return the ways to read values that occur in files."""
    level1 = landsat_level1(1, "")
    return (
        Scaling("reflectance", 1.0, 0.0, 0.0, None),
        Scaling("reflectance in per cent", 0.01, 0.0, 0.5, 1.5),
        Scaling("reflectance x 1000", 1e-3, 0.0, 0.7, 0.5),
        Scaling("reflectance x 10000", 1e-4, 0.0, 0.2, 0.0),
        Scaling("reflectance x 10000 + 1000, as of Sentinel-2 since baseline 04.00", 1e-4, -0.1, 0.5, 0.3),
        Scaling("reflectance x 32768, as of MicaSense", 1 / 32768, 0.0, None, UNUSUAL_SCALING, BEYOND_10000),
        Scaling(
            "reflectance x 65535, as of the Copernicus Browser",
            1 / 65535,
            0.0,
            None,
            UNUSUAL_SCALING,
            BEYOND_10000,
        ),
        Scaling("Landsat level 2", 2.75e-5, -0.2, 0.6, 0.3),
        Scaling("raw Landsat 8 or 9, level 1", level1.scales[0], level1.offsets[0], 0.6, 0.3),
    )


@dataclass(frozen=True)
class ValueVerdict:
    """How values are to be read.

    Attributes:
        scaling: The most probable scaling; None if their gain is unknown.
        sure: Whether it is clearly the most probable.
        doubt: What else they may be, to be quoted within a sentence; empty if it is sure.
        lead: Nats per pixel by which it leads.
    """

    scaling: Scaling | None
    sure: bool
    doubt: str
    lead: float


class Likelihood:
    """Scores readings of values.

    Args:
        names: Names of the bands, all of them in `BANDS`.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._mixture = Mixture.of_bands(names)

    def score(self, values: Floats, scale: float, offset: float) -> float:
        """Return the nats per pixel of values `[N, bands]` that become reflectance by a scale and an offset."""
        return float(self.log_density(values * scale + offset).mean() + values.shape[1] * math.log(scale))

    def log_density(self, spectra: Floats) -> Floats:
        """Return the log density of each spectrum `[N, bands]`, background included."""
        beyond = np.maximum(np.maximum(DARKEST - spectra, spectra - BRIGHTEST), 0.0)
        inside = -math.log(BRIGHTEST - DARKEST)
        background = np.where(beyond > 0, math.log(BEYOND) - 2 * np.log1p(beyond), inside).sum(1)
        known = self._mixture.log_likelihood(spectra)
        return np.asarray(np.logaddexp(known + math.log(1 - BACKGROUND), background + math.log(BACKGROUND)))

    def novelty(self, spectra: NDArray[np.float32]) -> NDArray[np.uint8]:
        """Return 255 x the probability that each spectrum `[bands, N]` is unlike those of the world, at most 254.

        The alternative is that all reflectances are equally likely; from `NOVEL` on, that explains a spectrum better.
        The figure of a pixel does not depend on the others: all operations are elementwise, because the result of a
        product of matrices may depend on its size.
        """
        density, background = self._densities(spectra)
        even = np.float32((BRIGHTEST - DARKEST) ** -len(spectra))
        known = np.float32(1 - BACKGROUND) * density + np.float32(BACKGROUND) * background
        return np.asarray(np.minimum(np.rint(255 * (even / (even + known))), 254), np.uint8)

    def _densities(self, spectra: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return the density of spectra `[bands, N]` under the mixture, and under the background."""
        bands, count = spectra.shape
        products = (spectra[:, None] * spectra[None]).reshape(-1, count)
        # Coefficients of two bands in either order are the same.
        pairs = [(i * bands + j, 1.0 if i == j else 2.0) for i in range(bands) for j in range(i, bands)]
        terms = [*spectra, *(products[index] for index, _ in pairs)]
        density, log, term = (np.zeros(count, np.float32) for _ in range(3))
        for height, *slopes in self._mixture.polynomials.tolist():
            log.fill(height)
            factors = [*slopes[:bands], *(slopes[bands + index] * times for index, times in pairs)]
            for factor, values in zip(factors, terms, strict=True):
                log += np.multiply(values, np.float32(factor), out=term)
            density += np.exp(log, out=log)
        beyond = np.maximum(np.maximum(DARKEST - spectra, spectra - BRIGHTEST), 0)
        background = np.where(beyond > 0, BEYOND / (1 + beyond) ** 2, 1 / (BRIGHTEST - DARKEST)).prod(0)
        return density, background.astype(np.float32)

    def gain(self, spectra: Floats) -> float:
        """Return the power of ten that would make spectra `[N, bands]` clearly more probable; 1 if none would."""
        scores = {gain: self.score(spectra, gain, 0.0) for gain in (1.0, *WRONG_GAINS)}
        best = max(scores, key=lambda gain: scores[gain])
        return best if scores[best] > scores[1.0] + WRONG_GAIN else 1.0

    def explains(self, spectra: Floats) -> bool:
        """Return whether spectra `[N, bands]` are those of the world, more than the background is."""
        background = math.log(BACKGROUND) - spectra.shape[1] * math.log(BRIGHTEST - DARKEST)
        return bool(self.log_density(spectra).mean() > background + STRANGE)

    def best_known(self, values: Floats, floats: bool) -> list[tuple[float, Scaling]]:
        """Return the scalings that are possible for a kind of numbers with their scores, the best first."""
        scored = []
        for scaling in scalings():
            unusual = scaling.floats if floats else scaling.integers
            if unusual is not None and scaling.is_possible(values):
                shifted = scaling.offset < 0 and scaling.darkest(values) > SHIFTED_DARKEST
                score = self.score(values, scaling.scale, scaling.offset)
                scored.append((score - unusual - shifted * UNSHIFTED, scaling))
        return sorted(scored, key=lambda entry: -entry[0])

    def raw(self, values: Floats) -> float:
        """Return the score of values of unknown gain: the mean of the three best of a range of gains."""
        bright = float(np.percentile(values, 98, axis=0).max())
        if bright <= 0:
            return -math.inf
        scores = sorted(self.score(values, level / bright, 0.0) for level in RAW_BRIGHT)
        return float(np.mean(scores[-3:]))


def judge_values(values: NDArray[Any], names: Sequence[str]) -> ValueVerdict | None:
    """Find out how values become reflectance.

    Args:
        values: Values `[bands, N]` of pixels spread over a scene, in the scene's data type.
        names: Names of the bands; those that the mixture does not know are left out.

    Returns:
        The verdict; None if there are no values, fewer than three bands that the mixture knows, or no spectra that it
        knows.
    """
    rows = [index for index, name in enumerate(names) if name in BANDS]
    if len(rows) < 3 or values.shape[1] == 0:
        return None
    floats = bool(np.issubdtype(values.dtype, np.floating))
    likelihood = Likelihood([names[row] for row in rows])
    sample = _sample(values[rows], PIXELS)
    known, raw = likelihood.best_known(sample, floats), likelihood.raw(sample)
    if not known:
        return ValueVerdict(None, False, "", math.inf)
    best, scaling = known[0]
    if not likelihood.explains(sample * scaling.scale + scaling.offset):
        return None
    second, other = known[1] if len(known) > 1 else (-math.inf, scaling)
    bits = (
        math.ceil(math.log2(float(values.max()) + 1))
        if np.issubdtype(values.dtype, np.unsignedinteger)
        else 0
    )
    may_be_raw = 0 < bits <= RAW_BITS
    if may_be_raw and raw - RAW_PENALTY > best:
        return ValueVerdict(None, False, scaling.text, raw - best)
    doubt = ""
    if best - second < CLEAR:
        doubt = other.text
    elif may_be_raw:
        doubt = f"raw numbers of {max(8, bits)} bits"
    elif scaling.rare or raw - RAW_PENALTY > best:
        doubt = "values of another gain"
    elif scaling.offset < 0 and _is_white(sample / 1e4):
        doubt = "reflectance x 10000 of snow or clouds"
    return ValueVerdict(scaling, not doubt, doubt, best - max(second, raw))


def _is_white(spectra: Floats) -> bool:
    """Return whether most reflectances `[N, bands]` are those of snow or clouds."""
    low, high = spectra.min(1), spectra.max(1)
    return bool(((low > BRIGHT_WHITE) & (high < EVEN_WHITE * low)).mean() > 0.5)


@dataclass(frozen=True)
class OrderVerdict:
    """In which order bands are.

    Attributes:
        readings: The readings, the most probable first.
        lead: Nats per pixel by which the first leads.
    """

    readings: tuple[Names, ...]
    lead: float

    @property
    def sure(self) -> bool:
        """Whether the first reading is clearly the most probable."""
        return self.lead >= CLEAR_ORDER


def judge_order(values: NDArray[Any], readings: Sequence[Names]) -> OrderVerdict | None:
    """Find out which reading of the bands of a scene is the most probable.

    Args:
        values: Values `[bands, N]` of all bands of the scene, of pixels spread over it.
        readings: What the bands may be; of four bands every order is compared.

    Returns:
        The verdict; None if nothing can be said: of values of 8 bits, whose gains differ, or of readings without
        three of red, green, blue and infrared.
    """
    if values.shape[1] == 0 or values.dtype.itemsize == 1:
        return None
    found = [(order, reading) for reading in readings if (order := _colours(reading))]
    most = max((len(order) for order, _ in found), default=0)
    usual = {order: reading for order, reading in found if len(order) == most > 0}
    if not usual:
        return None
    candidates = dict(usual)
    if most == len(values) == len(COLOURS):
        for bands in permutations(range(len(COLOURS))):
            candidates.setdefault(tuple(zip(COLOURS, bands, strict=True)), _reading(bands))
    floats = bool(np.issubdtype(values.dtype, np.floating))
    sample = _sample(values, PIXELS_OF_ORDERS)
    scored = {order: _likelihood(order) for order in candidates}
    # One scaling for all orders, the best of the usual ones: another would make amends for a wrong order.
    best = [
        entry
        for order in usual
        for entry in scored[order].best_known(sample[:, _positions(order)], floats)[:1]
    ]
    if not best:
        return None
    scaling = max(best, key=lambda entry: entry[0])[1]
    scores = {
        order: likelihood.score(sample[:, _positions(order)], scaling.scale, scaling.offset)
        - (0.0 if order in usual else UNUSUAL_ORDER)
        for order, likelihood in scored.items()
    }
    ranking = sorted(scores, key=lambda order: -scores[order])
    lead = math.inf if len(ranking) == 1 else scores[ranking[0]] - scores[ranking[1]]
    if lead < CLEAR_ORDER:  # an order that nobody uses is no answer to offer
        ranking.sort(key=lambda order: order not in usual)
    return OrderVerdict(tuple(candidates[order] for order in ranking), lead)


class Picture(Enum):
    """What three bands that should be red, green and blue show."""

    TRUE, INFRARED, FALSE, GREY = "true colours", "infrared, red and green", "infrared as green", "no colours"
    DOUBTFUL = "perhaps infrared, red and green"


def judge_picture(values: NDArray[Any]) -> Picture:
    """Find out what three bands show, whatever their gains.

    In infrared pictures (infrared, red, green) plants are pink, which hardly anything is in true colours: brighter in
    the first band, and no darker in the third than in the second. Either most of the picture is, or a part of it, and
    the first band goes its own way. In other false colours the second band does. Grey pictures have three equal bands.
    Where plants are few, the bands that make the picture more probable decide, each with its best gain and offset.
    """
    if values.shape[1] == 0:
        return Picture.TRUE
    first, second, third = bands = _sample(values, INFRARED_PIXELS).T
    if not all(band.std() for band in bands):
        return Picture.TRUE
    if max(np.abs(first - second).mean(), np.abs(second - third).mean()) < GREY * bands.std():
        return Picture.GREY
    pink = float(((first > PINK * third) & (third >= second)).mean())
    alike = np.atleast_2d(np.corrcoef(bands))
    apart = alike[1, 2] - max(alike[0, 1], alike[0, 2])
    if pink > MOSTLY_PINK or (pink > PARTLY_PINK and apart > APART and alike[1, 2] > ALIKE):
        return Picture.INFRARED
    hardly = pink > HARDLY_PINK and apart > HARDLY_APART and alike[1, 2] > VERY_ALIKE
    apart = alike[0, 2] - max(alike[0, 1], alike[1, 2])
    if apart > FAR_APART and alike[0, 2] > ALIKE:
        return Picture.FALSE
    ranges = robust_ranges(values)
    lead = fit_score(values, ranges, ("nir", "red", "green")) - fit_score(values, ranges, COLOURS[:3])
    unsure = Picture.DOUBTFUL if lead > 0 or hardly else Picture.TRUE
    return Picture.INFRARED if lead > INFRARED_LEAD else unsure


Order = tuple[tuple[str, int], ...]
"""Colours and their positions, in the order of `COLOURS`."""


def _colours(reading: Names) -> Order:
    """The colours of a reading; none if there are fewer than three, or if one of them occurs twice."""
    found = [(name, pick(reading, name)) for name in COLOURS]
    if any(len(bands) > 1 for _, bands in found):
        return ()
    order = tuple((name, bands[0] - 1) for name, bands in found if bands)
    return order if len(order) >= 3 else ()


def _positions(order: Order) -> list[int]:
    return [position for _, position in order]


def _likelihood(order: Order) -> Likelihood:
    return _likelihood_of(tuple(name for name, _ in order))


@cache
def _likelihood_of(names: tuple[str, ...]) -> Likelihood:
    return Likelihood(names)


def _reading(order: Sequence[int]) -> Names:
    return tuple(COLOURS[order.index(position)] for position in range(len(order)))


def _sample(values: NDArray[Any], count: int) -> Floats:
    """Every so many pixels as `[N, bands]`."""
    step = max(1, values.shape[1] // count)
    return np.ascontiguousarray(values[:, ::step].T, np.float64)
