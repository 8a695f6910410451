"""One linear function per band for a whole scene, from its values to the range that a model was trained on."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from iic_geotools.errors import UsageError
from iic_geotools.tiling import Rect

WINDOWS_PER_SIDE = 8
MOST_WINDOWS_PER_SIDE = 256
WINDOW = 256
PERCENTILES = (2, 98)
# Fewer values (of all bands) are too few for a percentile; more pixels make it slower, not better.
FEWEST_VALUES, MOST_PIXELS = 1 << 16, 1 << 18
# Values (of all bands) that are rescaled at once: their floats stay in a core's own cache.
CHUNK = 1 << 16

Pair = tuple[float, float]
Read = Callable[[Rect], tuple[NDArray[Any], NDArray[np.bool_] | None]]


@dataclass(frozen=True)
class Rescale:
    """A linear function per band, clipped to the range of the target's data type.

    Attributes:
        sources: Lower and upper end of the range of values of each band in the scene.
        targets: Lower and upper end of the range that it is mapped to.
    """

    sources: tuple[Pair, ...]
    targets: tuple[Pair, ...]

    def __post_init__(self) -> None:
        for low, high in self.sources:
            if not -np.inf < low < high < np.inf:
                raise UsageError(f"`rescale` needs two finite numbers, MIN below MAX, not {low:g},{high:g}.")

    @property
    def changes_nothing(self) -> bool:
        """Whether values stay as they are, apart from their data type."""
        return bool(np.allclose(self.sources, self.targets, rtol=1e-9, atol=1e-9))

    def apply(self, values: NDArray[Any], dtype: str) -> NDArray[Any]:
        """Rescale values [bands, H, W]; integers are rounded and clipped, never wrapped around.

        Values that are not finite have no defined result.
        """
        lows, highs = np.array(self.sources).T[:, :, None, None]
        # In double precision: as float32 the ends of a narrow range far from zero may be equal.
        spans = np.maximum(highs - lows, np.finfo(np.float32).tiny).astype(np.float32)
        starts, ends = np.array(self.targets, np.float32).T[:, :, None, None]
        lows, lengths = lows.astype(np.float32), ends - starts
        result = np.empty(values.shape, dtype)
        limits = np.iinfo(dtype) if np.issubdtype(np.dtype(dtype), np.integer) else None
        rows = max(1, CHUNK // max(1, values[:, :1].size))
        with np.errstate(over="ignore", invalid="ignore"):
            for row in range(0, values.shape[1], rows):
                chunk = values[:, row : row + rows].astype(np.float32)
                chunk -= lows
                chunk /= spans
                chunk *= lengths
                chunk += starts
                if limits is not None:
                    np.rint(chunk, out=chunk)
                    np.clip(chunk, limits.min, limits.max, out=chunk)
                result[:, row : row + rows] = chunk
        return result


def parse_rescale(text: str) -> tuple[float, float]:
    """Read "MIN,MAX".

    Raises:
        UsageError: The text is not two numbers.
    """
    try:
        low, high = (float(number) for number in text.split(","))
    except ValueError:
        raise UsageError(f'`rescale` takes MIN,MAX, "auto" or "off", not "{text}".') from None
    return low, high


def sample_values(read: Read, width: int, height: int, *, skip_empty: bool = False) -> NDArray[Any]:
    """The values [bands, N] of valid pixels in windows spread evenly over the scene.

    If these hold hardly any data, as in a mosaic of a few strips, twice as many windows are read, and so on.

    Args:
        read: Function that returns the values [bands, H, W] of a rectangle and which of its pixels are valid.
        width: Width of the scene in pixels.
        height: Height of the scene in pixels.
        skip_empty: Whether pixels that are 0 in every band are left out, even if they count as data.
    """
    if skip_empty:
        read = _without_empty(read)
    per_side = WINDOWS_PER_SIDE
    most_per_side = min(MOST_WINDOWS_PER_SIDE, -(-max(width, height) // WINDOW))
    values = _sample(read, spread_windows(width, height, per_side))
    while values.size < FEWEST_VALUES and per_side < most_per_side:
        per_side *= 2
        values = _sample(read, spread_windows(width, height, per_side))
    return values


def robust_ranges(values: NDArray[Any]) -> tuple[Pair, ...]:
    """The 2nd and 98th percentile of each band of a sample [bands, N].

    The percentiles are values that occur, never interpolated: with another gain and offset of the scene, the rescaled
    values are the same to the bit. For a scene without any data the ranges mean nothing.
    """
    if values.size == 0:
        return ((0.0, 1.0),) * len(values)
    ranges = np.percentile(values, PERCENTILES, axis=1, method="inverted_cdf").T.astype(np.float64).tolist()
    return tuple((low, high if low < high else low + 1.0) for low, high in ranges)


def _without_empty(read: Read) -> Read:
    def read_filled(rect: Rect) -> tuple[NDArray[Any], NDArray[np.bool_] | None]:
        values, valid = read(rect)
        filled = (values != 0).any(0)
        return values, filled if valid is None else filled & valid

    return read_filled


def _sample(read: Read, windows: Iterable[Rect]) -> NDArray[Any]:
    """The values [bands, N] of valid pixels in windows; if they are many, every 2nd, 4th, 8th... pixel of all."""
    samples: list[NDArray[Any]] = []
    step = 1
    for rect in windows:
        values, valid = read(rect)
        pixels = (values if valid is None else values[:, valid]).reshape(len(values), -1)
        samples.append(pixels[:, ::step].copy())
        while sum(sample.shape[1] for sample in samples) > MOST_PIXELS:
            step *= 2
            samples = [sample[:, ::2].copy() for sample in samples]
    return np.concatenate(samples, axis=1)


def spread_windows(width: int, height: int, per_side: int = WINDOWS_PER_SIDE) -> Iterator[Rect]:
    """Windows in even steps over a scene; they cover all of it if it is small.

    Args:
        width: Width of the scene in pixels.
        height: Height of the scene in pixels.
        per_side: Number of windows along each side of a large scene.
    """
    for row in _starts(height, per_side):
        for col in _starts(width, per_side):
            yield Rect(col, row, min(WINDOW, width - col), min(WINDOW, height - row))


def _starts(length: int, count: int) -> list[int]:
    """First pixels of at most `count` windows along a side."""
    whole = -(-length // WINDOW)
    if whole <= count:
        return [index * WINDOW for index in range(whole)]
    return [round(index * (length - WINDOW) / (count - 1)) for index in range(count)]
