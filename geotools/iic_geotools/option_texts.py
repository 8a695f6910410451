"""Values of options, read from text. Importing this imports nothing heavy.

Each function takes the text and the name of the setting, which its errors name.
"""

import math
import re
from collections.abc import Sequence
from typing import NamedTuple

from iic_geotools.errors import UsageError
from iic_geotools.settings import PathLike

Bounds = tuple[float, float, float, float]
AssetArgument = str | Sequence[str]
"""The assets of STAC items that are the bands of a scene, by name or common name."""
MaskArgument = tuple[PathLike, Sequence[int]] | str
"""A mask: its raster, and the values that mean that there is no data; or "auto"."""
_BYTES = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


class NumberRange(NamedTuple):
    """Two positive numbers, the lower one first."""

    low: float
    high: float


def keep_text(text: str, name: str) -> str:
    """Return the text as it is, for settings that in Python may be something else."""
    return text


def parse_names(text: str, name: str) -> list[str]:
    """Read names or numbers that are separated by commas."""
    return [entry.strip() for entry in text.split(",")]


def parse_size(text: str, name: str) -> int:
    """Read a number of bytes, such as 800M or 1.5G."""
    match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*([kmgt]?)i?b?\s*", text.lower())
    if not match:
        raise UsageError(f'`{name}` takes a size such as 800M or 2G, not "{text}".')
    return int(float(match[1]) * _BYTES[match[2]])


def parse_number_range(text: str, name: str) -> NumberRange:
    """Read MIN,MAX: two positive finite numbers, the lower one first."""
    try:
        low, high = (float(number) for number in text.split(","))
    except ValueError:
        raise UsageError(f'`{name}` takes two numbers MIN,MAX, e.g. 0.2,1, not "{text}".') from None
    if not 0 < low <= high < math.inf:
        raise UsageError(f"`{name}`: MIN and MAX must be above 0 and MIN not above MAX, not {text}.")
    return NumberRange(low, high)


def parse_bounds(text: str, name: str, unit: str = "the scene's CRS") -> Bounds:
    """Read "LEFT BOTTOM RIGHT TOP", separated by commas or spaces."""
    try:
        left, bottom, right, top = (float(number) for number in text.replace(",", " ").split())
    except ValueError:
        raise UsageError(f'`{name}` takes "LEFT BOTTOM RIGHT TOP" in {unit}, not "{text}".') from None
    return left, bottom, right, top


def parse_degrees(text: str, name: str) -> Bounds:
    """Read "LEFT BOTTOM RIGHT TOP" in degrees."""
    return parse_bounds(text, name, "degrees")


def parse_reflectance(text: str, name: str) -> tuple[float, float]:
    """Read SCALE,OFFSET, or SCALE with offset 0."""
    try:
        scale, offset = (float(number) for number in (text if "," in text else f"{text},0").split(","))
    except ValueError:
        raise UsageError(f'`{name}` takes SCALE,OFFSET, e.g. 0.0001,-0.1, not "{text}".') from None
    if not (math.isfinite(scale) and scale > 0 and math.isfinite(offset)):
        raise UsageError(f"`{name}` takes a scale above 0 and an offset, not {scale:g},{offset:g}.")
    return scale, offset


def parse_mask(text: str, name: str) -> tuple[str, tuple[int, ...]] | str:
    """Read FILE:VALUES, e.g. "scl.tif:3,8,9,10", or "auto"."""
    if text == "auto":
        return text
    path, _, numbers = text.rpartition(":")
    try:
        values = tuple(int(number) for number in numbers.split(","))
    except ValueError:
        values = ()
    if not path or not values:
        raise UsageError(f'`{name}` takes FILE:VALUES, e.g. scl.tif:3,8,9,10, or auto, not "{text}".')
    return path, values


def parse_creation_options(pairs: Sequence[str], name: str) -> dict[str, str]:
    """Read KEY=VALUE pairs."""
    options = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key.strip():
            raise UsageError(f'`{name}` takes KEY=VALUE, e.g. COMPRESS=ZSTD, not "{pair}".')
        options[key.strip().upper()] = value.strip()
    return options
