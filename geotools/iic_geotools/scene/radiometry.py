"""Radiometric calibration in a raster's metadata, and linear functions of bands.

`Radiometry` is what somebody wrote down, in tags of bands, metadata or the name; whether it makes sense for the values
is for `reflectance` to judge. `Rescale` brings the values of a whole scene to the range that a model was trained on.
"""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
    """Read "MIN,MAX"."""
    try:
        low, high = (float(number) for number in text.split(","))
    except ValueError:
        raise UsageError(f'`rescale` takes MIN,MAX, "auto" or "off", not "{text}".') from None
    return low, high


def sample_values(
    read: Read, width: int, height: int, *, skip_empty: bool = False, per_side: int = WINDOWS_PER_SIDE
) -> NDArray[Any]:
    """The values [bands, N] of valid pixels in windows spread evenly over the scene.

    If these hold hardly any data, as in a mosaic of a few strips, twice as many windows are read, and so on.

    Args:
        read: Function that returns the values [bands, H, W] of a rectangle and which of its pixels are valid.
        skip_empty: Whether pixels that are 0 in every band are left out, even if they count as data.
        per_side: Number of windows along each side of a large scene.
    """
    most_per_side = min(MOST_WINDOWS_PER_SIDE, -(-max(width, height) // WINDOW))
    values = _sample(read, spread_windows(width, height, per_side), skip_empty)
    while values.size < FEWEST_VALUES and per_side < most_per_side:
        per_side *= 2
        values = _sample(read, spread_windows(width, height, per_side), skip_empty)
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


def _sample(read: Read, windows: Iterable[Rect], skip_empty: bool) -> NDArray[Any]:
    """The values [bands, N] of valid pixels in windows; if they are many, every 2nd, 4th, 8th... pixel of all."""
    samples: list[NDArray[Any]] = []
    step = 1
    for rect in windows:
        values, valid = read(rect)
        if skip_empty:
            filled = (values != 0).any(0)
            valid = filled if valid is None else filled & valid
        pixels = (values if valid is None else values[:, valid]).reshape(len(values), -1)
        samples.append(pixels[:, ::step].copy())
        while sum(sample.shape[1] for sample in samples) > MOST_PIXELS:
            step *= 2
            samples = [sample[:, ::2].copy() for sample in samples]
    return np.concatenate(samples, axis=1)


def spread_windows(width: int, height: int, per_side: int = WINDOWS_PER_SIDE) -> Iterator[Rect]:
    """Windows in even steps over a scene; they cover all of it if it is small.

    Args:
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


# Sentinel-2 products since processing baseline 04.00 are shifted by 1000, so that no value is negative.
_S2_QUANTIFICATION, _S2_OFFSET, _S2_SHIFTED_SINCE = 10000.0, -1000.0, 4.0
_LANDSAT_SURFACE = (2.75e-5, -0.2)
_OLI_TOP_OF_ATMOSPHERE = (2e-5, -0.1)
TYPICAL_SUN_ELEVATION = 50.0
"""Degrees; the models' Landsat scenes of level 1 without metadata were trained on with it."""

_S2_NAME = re.compile(r"S2[A-D]_MSIL(?:1C|2A)_\d{8}T\d{6}_N(\d\d)(\d\d)_")
_LANDSAT_SURFACE_NAME = re.compile(r"L[CETO]0[4-9]_L2S[PR]_")
_OLI_NAME = re.compile(r"L[CO]0[89]_L1(?:TP|GT|GS)_")
_BAND_NUMBER = re.compile(r"(?:^|_)B(?:and)?[ _]?0?(\d{1,2})(?:\.\w+)?$", re.IGNORECASE)
_MULT_KEY = re.compile(r"(?:^|\.)REFLECTANCE_MULT_BAND_(\d+)$")
# Tags whose text may hold the name of a product.
_NAME_TAGS = re.compile(r"PRODUCT|IMAGEDESCRIPTION|DOCUMENTNAME", re.IGNORECASE)

Tags = Mapping[str, str]


@dataclass(frozen=True)
class Radiometry:
    """How values become reflectance: value x scale + offset, per band.

    Attributes:
        scales: The factor of each band, above 0.
        offsets: What is added to each band.
        source: Who says so, to be quoted within a sentence.
    """

    scales: tuple[float, ...]
    offsets: tuple[float, ...]
    source: str

    def of_bands(self, bidx: Sequence[int]) -> "Radiometry":
        """The radiometry of some bands, counted from 1."""
        scales, offsets = (tuple(values[band - 1] for band in bidx) for values in (self.scales, self.offsets))
        return Radiometry(scales, offsets, self.source)

    def reflectances(self, ranges: Sequence[Pair]) -> tuple[Pair, ...]:
        """Ranges of values, one per band, as reflectance."""
        return tuple(
            (low * scale + offset, high * scale + offset)
            for (low, high), scale, offset in zip(ranges, self.scales, self.offsets, strict=True)
        )

    def rescale(self, targets: Sequence[Pair]) -> Rescale:
        """The function from values to a model's range.

        Args:
            targets: The model's values of reflectance 0 and 1, one pair per band.
        """
        sources = tuple(
            (-offset / scale, (1 - offset) / scale)
            for scale, offset in zip(self.scales, self.offsets, strict=True)
        )
        return Rescale(sources, tuple(targets))

    def formula(self) -> str:
        """The formula in words, in general terms if bands differ."""
        if len(set(zip(self.scales, self.offsets, strict=True))) > 1:
            return "value x scale + offset of each band"
        scale, offset = self.scales[0], self.offsets[0]
        shift = "" if offset == 0 else f" {'-' if offset < 0 else '+'} {abs(offset):g}"
        return f"value x {scale:g}{shift}"


def make_radiometry(
    scales: Sequence[float | None], offsets: Sequence[float | None], source: str
) -> Radiometry | None:
    """The radiometry of scales and offsets in metadata; None if they change nothing or cannot be right."""
    pairs = [
        (1.0 if scale is None else float(scale), 0.0 if offset is None else float(offset))
        for scale, offset in zip(scales, offsets, strict=True)
    ]
    usable = all(math.isfinite(scale) and scale > 0 and math.isfinite(offset) for scale, offset in pairs)
    if not usable or all(pair == (1.0, 0.0) for pair in pairs):
        return None
    return Radiometry(tuple(scale for scale, _ in pairs), tuple(offset for _, offset in pairs), source)


def read_radiometry(dataset: Any, path: str) -> Radiometry | None:
    """The radiometric calibration in the metadata of an open raster; None if there is none.

    Looked at in this order: scale and offset of the bands; tags scale_factor and add_offset; quantification, offset
    and processing baseline of Sentinel-2; the multipliers in the metadata of Landsat; the name of a Sentinel-2 or
    Landsat product in tags or path.
    """
    tags = {**dataset.tags(ns="IMD"), **dataset.tags()}
    bands = [{**tags, **dataset.tags(band)} for band in range(1, dataset.count + 1)]
    names = [path, *(value for key, value in tags.items() if _NAME_TAGS.search(key))]
    labels = [name or path for name in dataset.descriptions]
    return (
        make_radiometry(dataset.scales, dataset.offsets, "the scale and offset of its bands")
        or _scale_tags(bands)
        or _sentinel2_tags(bands)
        or _landsat_tags(tags, labels)
        or _product_name(names, dataset.dtypes)
    )


def stac_radiometry(asset: Mapping[str, Any], count: int) -> Radiometry | None:
    """The radiometric calibration of an asset of a STAC item; None if it states none.

    Scale and offset are those of `raster:bands`, or since STAC 1.1 `raster:scale` and `raster:offset` of `bands` or
    of the asset itself.
    """
    bands = asset.get("raster:bands") or asset.get("bands") or [{}]
    if not isinstance(bands, list) or not all(isinstance(band, Mapping) for band in bands):
        return None
    if len(bands) == 1:
        bands = bands * count
    if len(bands) != count:
        return None

    def numbers(key: str) -> list[Any]:
        common = asset.get(f"raster:{key}")
        values = [band.get(key, band.get(f"raster:{key}", common)) for band in bands]
        return [value if isinstance(value, int | float) else None for value in values]

    offsets = numbers("offset")
    # Earth Search states the offset of Sentinel-2 also for files that have it applied already.
    if asset.get("earthsearch:boa_offset_applied") is True:
        offsets = [None] * count
    return make_radiometry(numbers("scale"), offsets, "its STAC item")


def _scale_tags(bands: Sequence[Tags]) -> Radiometry | None:
    scales = [_number(tags, r"scale_factor$") for tags in bands]
    if None in scales:
        return None
    offsets = [_number(tags, r"add_offset$") for tags in bands]
    return make_radiometry(scales, offsets, "its tags scale_factor and add_offset")


def _sentinel2_tags(bands: Sequence[Tags]) -> Radiometry | None:
    """(value + offset) / quantification, as in the metadata of Sentinel-2."""
    scales, offsets = [], []
    for tags in bands:
        quantification = _number(tags, r"(?<!AOT_)(?<!WVP_)QUANTIFICATION_VALUE$")
        baseline = _number(tags, r"PROCESSING_BASELINE$")
        offset = _number(tags, r"(BOA|RADIO)_ADD_OFFSET")
        if quantification is None and baseline is None and offset is None:
            return None
        if offset is None:
            offset = _S2_OFFSET if baseline is not None and baseline >= _S2_SHIFTED_SINCE else 0.0
        divisor = quantification or _S2_QUANTIFICATION
        scales.append(1 / divisor)
        offsets.append(offset / divisor)
    return make_radiometry(scales, offsets, "its metadata of Sentinel-2")


def _landsat_tags(tags: Tags, labels: Sequence[str]) -> Radiometry | None:
    """The multipliers of Landsat's metadata, those of surface reflectance first."""
    keys = [key for key in tags if _MULT_KEY.search(key)]
    surface = [key for key in keys if "SURFACE_REFLECTANCE" in key]
    pairs = {}
    for key in surface or keys:
        mult, add = (_number(tags, f"^{re.escape(name)}$") for name in (key, key.replace("_MULT_", "_ADD_")))
        if mult is not None and add is not None:
            pairs[key.rpartition("_")[2]] = (mult, add)
    if not pairs:
        return None
    numbers = [_BAND_NUMBER.search(label) for label in labels]
    chosen = [pairs.get(number[1]) if number else None for number in numbers]
    if None in chosen:
        if len(set(pairs.values())) > 1:
            return None
        chosen = [next(iter(pairs.values()))] * len(labels)
    sun, source = 1.0, "its metadata of Landsat"
    if not surface:
        sun, height = _sun(_number(tags, r"(?:^|\.)SUN_ELEVATION$"))
        source += f", {height}"
    known = [pair for pair in chosen if pair is not None]
    return make_radiometry([mult / sun for mult, _ in known], [add / sun for _, add in known], source)


def _product_name(names: Sequence[str], dtypes: Sequence[str]) -> Radiometry | None:
    if not all(dtype in ("uint16", "int16") for dtype in dtypes):
        return None
    count = len(dtypes)
    for name in names:
        if match := _S2_NAME.search(name):
            shifted = float(f"{match[1]}.{match[2]}") >= _S2_SHIFTED_SINCE
            offset = _S2_OFFSET / _S2_QUANTIFICATION if shifted else 0.0
            return make_radiometry(
                [1 / _S2_QUANTIFICATION] * count, [offset] * count, "its name, a product of Sentinel-2"
            )
        if _LANDSAT_SURFACE_NAME.search(name):
            scale, offset = _LANDSAT_SURFACE
            return make_radiometry(
                [scale] * count, [offset] * count, "its name, surface reflectance of Landsat"
            )
        if _OLI_NAME.search(name):
            return landsat_level1(count, "its name, Landsat of level 1")
    return None


def landsat_level1(count: int, source: str) -> Radiometry:
    """The published constants of Landsat 8 and 9, level 1, under a typical sun."""
    (scale, offset), (sun, height) = _OLI_TOP_OF_ATMOSPHERE, _sun(None)
    return Radiometry((scale / sun,) * count, (offset / sun,) * count, f"{source}, {height}")


def _sun(elevation: float | None) -> tuple[float, str]:
    """The sine of the sun's elevation, and how it is known; level 1 of Landsat leaves this division to its users."""
    if elevation is None or not 0 < elevation <= 90:
        return math.sin(
            math.radians(TYPICAL_SUN_ELEVATION)
        ), f"the sun at typical {TYPICAL_SUN_ELEVATION:g} degrees"
    return math.sin(math.radians(elevation)), f"the sun at {elevation:.0f} degrees"


def _number(tags: Tags, pattern: str) -> float | None:
    """The number under the first key that a pattern matches; None if there is none."""
    for key, text in tags.items():
        if re.search(pattern, key, re.IGNORECASE):
            try:
                return float(text)
            except ValueError:
                continue
    return None
