"""One linear map a band for a whole scene, from its values into the range that a model was trained on."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from iic_geotools.errors import UsageError
from iic_geotools.grid import Rect

SAMPLES_A_SIDE = 8
SAMPLE_SIDE = 256
PERCENTILES = (2, 98)
# Fewer values, of all bands, are too few for a percentile; more pixels make it no better, only slower.
ENOUGH, PLENTY = 1 << 16, 1 << 18

Pair = tuple[float, float]
Read = Callable[[Rect], tuple[NDArray[Any], NDArray[np.bool_] | None]]


@dataclass(frozen=True)
class Rescale:
    """Map `sources` linearly onto `targets`, each one (low, high) pair a band, clipped to the dtype's range."""

    sources: tuple[Pair, ...]
    targets: tuple[Pair, ...]

    def __post_init__(self) -> None:
        for low, high in self.sources:
            if not -np.inf < low < high < np.inf:
                raise UsageError(f"--rescale needs two finite numbers, MIN below MAX, not {low:g},{high:g}.")

    def apply(self, values: NDArray[Any], dtype: str) -> NDArray[Any]:
        """Rescale [bands, H, W]; integers are rounded, never wrapped around. What is not finite has no result."""
        lows, highs = np.array(self.sources).T[:, :, None, None]
        # In double precision: as floats the ends of a narrow range far from zero may be one.
        spans = np.maximum(highs - lows, np.finfo(np.float32).tiny).astype(np.float32)
        starts, ends = np.array(self.targets, np.float32).T[:, :, None, None]
        with np.errstate(over="ignore", invalid="ignore"):
            unit = (values.astype(np.float32) - lows.astype(np.float32)) / spans
            scaled = unit * (ends - starts) + starts
            if np.issubdtype(np.dtype(dtype), np.integer):
                limits = np.iinfo(dtype)
                scaled = np.clip(np.rint(scaled), limits.min, limits.max)
            return np.asarray(scaled, dtype)


def parse_rescale(text: str) -> tuple[float, float]:
    """Read "MIN,MAX"."""
    try:
        low, high = (float(number) for number in text.split(","))
    except ValueError:
        raise UsageError(f'--rescale takes MIN,MAX, "auto" or "off", not "{text}".') from None
    return low, high


def robust_ranges(read: Read, width: int, height: int) -> tuple[Pair, ...]:
    """The 2nd and 98th percentile of each band over valid pixels, in windows spread evenly over the scene.

    Where these hit hardly any data, as in a mosaic of a few strips, twice as many are tried, and again. Percentiles
    are values that occur, never between two: another gain and offset of the scene give the same rescaled values, to
    the bit. Of a scene without any data the ranges mean nothing.

    Args:
        read: returns values [bands, H, W] and which pixels are valid.
        width: of the scene.
        height: of the scene.
    """
    a_side, every = SAMPLES_A_SIDE, -(-max(width, height) // SAMPLE_SIDE)
    pool = _sample(read, spread_windows(width, height, a_side))
    while pool.size < ENOUGH and a_side < every:
        a_side *= 2
        pool = _sample(read, spread_windows(width, height, a_side))
    if pool.size == 0:
        return ((0.0, 1.0),) * len(pool)
    found = np.percentile(pool, PERCENTILES, axis=1, method="inverted_cdf").T.astype(np.float64).tolist()
    return tuple((low, high if low < high else low + 1.0) for low, high in found)


def _sample(read: Read, windows: Iterable[Rect]) -> NDArray[Any]:
    """The values [bands, N] of valid pixels in windows; of many every second, fourth, eighth... from all of them."""
    samples: list[NDArray[Any]] = []
    step = 1
    for rect in windows:
        values, valid = read(rect)
        found = (values if valid is None else values[:, valid]).reshape(len(values), -1)
        samples.append(found[:, ::step].copy())
        while sum(each.shape[1] for each in samples) > PLENTY:
            step *= 2
            samples = [each[:, ::2].copy() for each in samples]
    return np.concatenate(samples, axis=1)


def spread_windows(width: int, height: int, a_side: int = SAMPLES_A_SIDE) -> Iterator[Rect]:
    """Windows in even steps over a scene, so many along either side; all of it if it is small."""
    for row in _starts(height, a_side):
        for col in _starts(width, a_side):
            yield Rect(col, row, min(SAMPLE_SIDE, width - col), min(SAMPLE_SIDE, height - row))


def _starts(length: int, count: int) -> list[int]:
    whole = -(-length // SAMPLE_SIDE)
    if whole <= count:
        return [index * SAMPLE_SIDE for index in range(whole)]
    return [round(index * (length - SAMPLE_SIDE) / (count - 1)) for index in range(count)]
