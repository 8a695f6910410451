"""One linear map a band for a whole scene, from its values into the range that a model was trained on."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from iic_geotools.errors import SceneError, UsageError
from iic_geotools.grid import Rect

SAMPLES_A_SIDE = 8
SAMPLE_SIDE = 256
# Values, of all bands: a percentile needs no more than the one, and memory must not hold more than the other.
ENOUGH, PLENTY = 1 << 16, 1 << 25

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
        lows, highs = np.array(self.sources, np.float32).T[:, :, None, None]
        starts, ends = np.array(self.targets, np.float32).T[:, :, None, None]
        with np.errstate(over="ignore", invalid="ignore"):
            unit = (values.astype(np.float32) - lows) / (highs - lows)
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
        raise UsageError(f'--rescale takes MIN,MAX or "auto", not "{text}".') from None
    return low, high


def robust_ranges(read: Read, width: int, height: int) -> tuple[Pair, ...]:
    """The 2nd and 98th percentile of each band over valid pixels, in windows spread evenly over the scene.

    Where these hit hardly any data, as in a mosaic of a few strips, twice as many are tried, and again.

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
        raise SceneError(
            "No pixel with data was found to take --rescale auto from; say --rescale MIN,MAX instead."
        )
    found = np.percentile(pool, [2, 98], axis=1).T.tolist()
    return tuple((low, high) if low < high else (low, low + 1.0) for low, high in found)


def _sample(read: Read, windows: Iterable[Rect]) -> NDArray[Any]:
    """The values [bands, N] of valid pixels in windows, as many as are wanted at most."""
    samples: list[NDArray[Any]] = []
    count = 0
    for rect in windows:
        values, valid = read(rect)
        samples.append((values if valid is None else values[:, valid]).reshape(len(values), -1))
        count += samples[-1].size
        if count > PLENTY:
            break
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
