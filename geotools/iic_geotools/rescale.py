"""One linear map for a whole scene, from its values into the range that a model was trained on."""

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

Read = Callable[[Rect], tuple[NDArray[Any], NDArray[np.bool_] | None]]


@dataclass(frozen=True)
class Rescale:
    """Map `low`..`high` linearly onto `targets`, one (low, high) pair a band, clipped to the dtype's range."""

    low: float
    high: float
    targets: tuple[tuple[float, float], ...]

    def __post_init__(self) -> None:
        if not -np.inf < self.low < self.high < np.inf:
            raise UsageError(
                f"--rescale needs two finite numbers, MIN below MAX, not {self.low:g},{self.high:g}."
            )

    def apply(self, values: NDArray[Any], dtype: str) -> NDArray[Any]:
        """Rescale [bands, H, W]; integers are rounded, never wrapped around. What is not finite has no result."""
        starts = np.array([low for low, _ in self.targets], np.float32)[:, None, None]
        spans = np.array([high - low for low, high in self.targets], np.float32)[:, None, None]
        with np.errstate(over="ignore", invalid="ignore"):
            unit = (values.astype(np.float32) - np.float32(self.low)) * np.float32(1 / (self.high - self.low))
            scaled = unit * spans + starts
            if np.issubdtype(np.dtype(dtype), np.integer):
                limits = np.iinfo(dtype)
                scaled = np.clip(np.rint(scaled), limits.min, limits.max)
            return scaled.astype(dtype)


def parse_rescale(text: str) -> tuple[float, float]:
    """Read "MIN,MAX"."""
    try:
        low, high = (float(number) for number in text.split(","))
    except ValueError:
        raise UsageError(f'--rescale takes MIN,MAX or "auto", not "{text}".') from None
    return low, high


def robust_range(read: Read, width: int, height: int) -> tuple[float, float]:
    """The 2nd and 98th percentile over all bands of valid pixels, in windows spread evenly over the scene.

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
    low, high = (float(value) for value in np.percentile(pool, [2, 98]))
    return (low, high) if low < high else (low, low + 1.0)


def _sample(read: Read, windows: Iterable[Rect]) -> NDArray[Any]:
    """The values of valid pixels in windows, as many as are wanted at most."""
    samples: list[NDArray[Any]] = [np.empty(0, np.uint8)]
    count = 0
    for rect in windows:
        values, valid = read(rect)
        samples.append((values if valid is None else values[:, valid]).reshape(-1))
        count += samples[-1].size
        if count > PLENTY:
            break
    return np.concatenate(samples)


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
