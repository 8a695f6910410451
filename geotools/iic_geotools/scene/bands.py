"""Which band of a scene is which: by name, never by a guess.

Bands are recognised by what is written about them. The words, wavelengths, codes and usual orders are data
(`sensors.json`). In this order:

1. descriptions: a word in one of several languages, a wavelength, or the code of a sensor (`B04`, `SR_B4`, `nir08`);
   codes that mean different bands for different sensors are decided by the name of the product, or else left open;
2. wavelengths in the metadata;
3. colour interpretations, if somebody set them: GDAL marks any 8-bit file of three or four bands as red, green, blue
   and alpha, which states nothing.

What is left open is a list of readings, from which `likelihood` may choose.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from importlib import resources
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from iic_geotools.errors import SceneError, UsageError

MOST_LISTED = 24
"""The most bands that a sentence lists."""
_SYNONYMS = {
    "r": "red",
    "g": "green",
    "b": "blue",
    "grey": "gray",
    "ir": "nir",
    "infrared": "nir",
    "nearinfrared": "nir",
    "nir1": "nir",
}

COLOURS = ("red", "green", "blue", "nir")
"""The bands by which scenes are distinguished."""
_SAME = {"nir": ("nir", "nir08")}
"""Names that serve in place of a name if it does not occur, the best first."""
_CODE = re.compile(
    r"^(?:S2|L[4-9]|HLS|S30|L30)?[ _.-]?((?:SR|ST)_|SUR_REFL_)?B(?:AND)?[ _-]?(0?)(\d{1,2})(A?)$", re.I
)
# The code at the end of the name of a file that a band comes from.
_LAST_CODE = re.compile(r"(?:^|[_. -])((?:SR_|ST_)?B\d{1,2}A?)(?:_\d{1,3}m)?$", re.I)
_NUMBERED = re.compile(r"^(?:band|layer|channel|ch|kanal|bande|banda|b)?[ _.-]*0?(\d{1,3})$", re.I)
_LENGTH = re.compile(r"(\d+(?:\.\d+)?)\s*(nm|nanomet|µm|um|micromet|μm)", re.I)
_PICTURE = re.compile(r"TCI[_ ]?[RGB]$", re.I)
"""A band of the picture that comes with the bands of Sentinel-2."""
_QUALITY = re.compile(r"(?:^|[^a-z0-9])qa(?:[^a-z]|$)", re.I)
OTHERS = frozenset({"radar", "elevation", "index"})
"""Names of bands that no sensor of light has."""
_USELESS = {"pan", "lwir", "cirrus"}
_BY_DEFAULT = {
    ("red", "green", "blue"),
    ("red", "green", "blue", "alpha"),
    ("red", "green", "blue", "undefined"),
}
_PICTURES = ("JPEG", "PNG", "WEBP", "JP2OpenJPEG", "GIF", "BMP")

USUAL_ORDER, BY_COLOUR = "a usual order of bands", "their colour interpretation"
Names = tuple[str | None, ...]


def canonical(name: str) -> str:
    """The name of a band without case, punctuation and usual synonyms: "Near-infrared" is "nir"."""
    plain = re.sub(r"[^a-z0-9]", "", name.lower())
    plain = re.sub(r"^band(?=[a-z])|(?<=[a-z])band$", "", plain)
    return _SYNONYMS.get(plain, plain)


def colour_interpretations(dataset: Any) -> tuple[str, ...]:
    """The colour interpretations of the bands of an open dataset, e.g. "red" or "undefined"."""
    try:
        # One call, because each call asks about every band.
        return tuple(kind.name for kind in dataset.colorinterp)
    except ValueError:  # GDAL knows an interpretation that rasterio does not
        return ("undefined",) * int(dataset.count)


def match_bands(
    wanted: Sequence[str],
    descriptions: Names,
    names: Names,
    bands: Sequence[str | int] | None = None,
) -> tuple[int, ...]:
    """Find the scene's band for each band that a model takes.

    Args:
        wanted: Names of the bands that the model takes, in its order.
        names: Common names of the scene's bands, as far as they are known (`sensors`).
        bands: The user's choice: for each of the model's bands the name or number of a band of the scene.

    Returns:
        The numbers of the scene's bands, counted from 1, in the model's order.

    Raises:
        UsageError: `bands` does not fit the model or the scene.
        SceneError: A band is missing, or two bands have the same name.
    """
    if bands is None:
        bidx = tuple(_find(name, descriptions, names, wanted) for name in wanted)
    elif len(bands) != len(wanted):
        raise UsageError(
            f"`bands` names {len(bands)} band(s), but the model takes {len(wanted)}: {', '.join(wanted)}."
        )
    else:
        bidx = tuple(_choose(band, descriptions, names, wanted) for band in bands)
    if len(set(bidx)) < len(bidx):
        raise UsageError(
            f"`bands` names a band of the scene twice ({bidx}); the model takes {', '.join(wanted)}."
        )
    return bidx


def positional_name(band: int) -> str:
    """The name of a band that is known by its number only: "band3"."""
    return f"band{band}"


def named_bands(name: str, descriptions: Names, names: Names) -> tuple[int, ...]:
    """The scene's bands of that name, counted from 1: by description, by what it means, or by position ("band3")."""
    matches = tuple(
        index
        for index, description in enumerate(descriptions, 1)
        if description and canonical(description) == canonical(name)
    )
    at_position = tuple(band for band in range(1, len(names) + 1) if positional_name(band) == name)
    return matches or pick(names, canonical(name)) or at_position


def list_bands(descriptions: Names, names: Names) -> str:
    """The scene's bands, to be used within a sentence: "1 red, 2 B08 (nir), 3 unnamed"."""
    if not any(descriptions) and not any(names) and len(names) > len(COLOURS):
        return f"{len(names)} bands, none of them with a name"
    texts = (
        _label(description, name)
        for description, name in islice(zip(descriptions, names, strict=True), MOST_LISTED)
    )
    listed = [f"{index} {text}" for index, text in enumerate(texts, 1)]
    more = len(descriptions) - len(listed)
    return ", ".join(listed) + (f" and {more} more" if more > 0 else "")


def _label(description: str | None, name: str | None) -> str:
    if description is None:
        return name or "unnamed"
    return description[:40] if name in (None, canonical(description)) else f"{description[:40]} ({name})"


def _choose(band: str | int, descriptions: Names, names: Names, wanted: Sequence[str]) -> int:
    """The number of a band that the user gave by name or number."""
    band = str(band)  # from Python also a number
    if not re.fullmatch(r"[+-]?\d{1,9}", band.strip()):
        return _find(band, descriptions, names, wanted)
    index = int(band)
    if not 1 <= index <= len(descriptions):
        raise UsageError(f"`bands` asks for band {index}, but the scene has bands 1 to {len(descriptions)}.")
    return index


def _find(name: str, descriptions: Names, names: Names, wanted: Sequence[str]) -> int:
    matches = named_bands(name, descriptions, names)
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise SceneError(
            f"Bands {' and '.join(map(str, matches))} of the scene are both named {name}: "
            f"say which ones to use with `bands`, in the order {','.join(wanted)}."
        )
    raise SceneError(
        f"The scene has no band named {name} (it has {list_bands(descriptions, names)}): "
        f"say which of these are {','.join(wanted)}, in that order, with `bands`."
    )


@dataclass(frozen=True)
class OptionalBand:
    """A band that a model can do without.

    Attributes:
        position: Its position among the model's bands, counted from 0.
        missing: The value, in the model's data type, that says that the band is missing at a pixel.
        absent: Whether the scene lacks it.
    """

    position: int
    missing: float
    absent: bool


def mark_missing(values: NDArray[Any], optional: Sequence[OptionalBand]) -> NDArray[Any]:
    """Fill in the bands that a scene lacks, and move equal values of the others off the value for "missing".

    Args:
        values: Values [bands, H, W] of the bands that the scene has, in the model's data type; they may be changed.
        optional: The bands that the model can do without, in its order.

    Returns:
        Values of all bands of the model.
    """
    for band in optional:
        if band.absent:
            values = np.insert(values, band.position, band.missing, axis=0)
        else:
            plane = values[band.position]
            np.putmask(plane, plane == band.missing, _next_inside(band.missing, values.dtype))
    return values


def _next_inside(value: float, dtype: np.dtype[Any]) -> Any:
    """The value of a data type next to another one, towards the middle of the type's range."""
    if not np.issubdtype(dtype, np.integer):
        return np.nextafter(dtype.type(value), dtype.type(np.inf if value <= 0 else 0))
    limits = np.iinfo(dtype)
    return int(value) + (1 if value <= (limits.min + limits.max) / 2 else -1)


@dataclass(frozen=True)
class BandNames:
    """What the bands of a scene are.

    Attributes:
        readings: The common name of each band ("red", "nir", ...), None where it is not known. Several readings if what
            is written can be understood in several ways, the most usual first.
        reason: How that is known, to be quoted within a sentence: "their descriptions".
        stated: Whether somebody stated it; False for colours that GDAL sets by default and for usual orders.
        conflict: What contradicts itself, if anything does, as a clause.
    """

    readings: tuple[Names, ...]
    reason: str
    stated: bool = True
    conflict: str = ""

    @property
    def nameless(self) -> bool:
        """Whether no description and no wavelength says anything about the bands."""
        return self.reason in (USUAL_ORDER, BY_COLOUR)

    @property
    def certain(self) -> Names:
        """The names that all readings agree on; none if only a usual order suggests them."""
        if self.reason == USUAL_ORDER:
            return (None,) * len(self.readings[0])
        return tuple(names[0] if len(set(names)) == 1 else None for names in zip(*self.readings, strict=True))


@lru_cache(maxsize=256)
def identify_bands(
    descriptions: Names,
    interpretations: tuple[str, ...],
    wavelengths: tuple[float | None, ...] = (),
    product: str = "",
    driver: str = "",
) -> BandNames:
    """Identify the bands of a scene.

    Args:
        wavelengths: Central wavelengths of the bands in nm, as far as they are known.
        product: Texts that may name the product or sensor, such as the name of the file.
    """
    texts = _without_pictures(_without_numbering(descriptions))
    by_word = _without_stray_letters(texts)
    lengths = _wavelengths(texts, wavelengths)
    names: Names = tuple(
        word or length for word, length in zip(by_word, _by_wavelength(lengths), strict=True)
    )
    colours: Names = tuple(
        colour if colour in COLOURS or interpretations == ("gray",) else None for colour in interpretations
    )
    default = interpretations in _BY_DEFAULT and driver not in _PICTURES
    coded = _by_codes(texts, names, "\n".join((product, *filter(None, texts))))
    if coded is None and any(names):
        coded = BandNames((names,), "their descriptions" if any(by_word) else "their wavelengths")
    if coded is not None:
        if default:
            return coded
        readings = tuple(_complete(reading, colours) for reading in coded.readings)
        return replace(coded, readings=readings, conflict=_conflict(coded.readings, colours))
    orders = usual_orders(len(descriptions))
    if any(colours):
        more = orders if default and len(colours) == 4 else ()
        readings = tuple(dict.fromkeys((colours, *more)))
        return BandNames(readings, BY_COLOUR, stated=not default)
    return BandNames(orders or ((None,) * len(descriptions),), USUAL_ORDER, stated=False)


def pick(reading: Names, name: str) -> tuple[int, ...]:
    """The bands of a name, counted from 1; if there are none, those of a name that serves in its place."""
    for same in _SAME.get(name, (name,)):
        bands = tuple(index for index, other in enumerate(reading, 1) if other == same)
        if bands:
            return bands
    return ()


def common_name(text: str) -> str | None:
    """The common name that a description means by a word or a wavelength; None if it is not one of these."""
    return _name_of(text) or _by_wavelength(_wavelengths((text,), ()))[0]


def words_of(name: str) -> frozenset[str]:
    """The words that mean a common name, in lower case and without spaces."""
    return frozenset(word for word, meaning in _words().items() if meaning == name)


def band_code(text: str) -> str | None:
    """The sensor's band code in a text, without leading zeros ("B02" is "B2"); None if there is none."""
    code = _code(text)
    return None if code is None else code[0]


def _name_of(text: str) -> str | None:
    """The common name in a text: all of it, or the only name among its words."""
    plain = _plain(text)
    words = _words()
    if _QUALITY.search(text):
        return None
    if plain in words:
        return words[plain]
    parts = [part for part in re.split(r"[\W_]+", text.lower()) if part]
    found: list[str] = []
    index = 0
    while index < len(parts):  # longest names first: "red edge" is not red
        for length in (3, 2, 1):
            name = words.get("".join(parts[index : index + length]))
            # A single letter within a longer text says nothing.
            if name is not None and (length > 1 or len(parts[index]) > 1):
                found.append(name)
                index += length
                break
        else:
            index += 1
    return found[0] if len(set(found)) == 1 else None


def _without_stray_letters(texts: Names) -> Names:
    """Name bands by words; single letters count only if they are those of red, green and blue."""
    names = tuple(None if text is None else _name_of(text) for text in texts)
    if {"red", "green", "blue"} <= set(names):
        return names
    return tuple(
        None if text is not None and len(_plain(text)) == 1 else name
        for text, name in zip(texts, names, strict=True)
    )


def _plain(text: str) -> str:
    plain = re.sub(r"[\W_]", "", text.lower())
    return re.sub(r"^band(?=[a-z])|(?<=[a-z])band$", "", plain)


def _without_numbering(descriptions: Names) -> Names:
    """Drop descriptions that only number the bands, such as "Band 1", which software writes by default."""
    numbers = [None if text is None else _NUMBERED.match(text.strip()) for text in descriptions]
    # "B1, B2, B3, ..." may be codes of a sensor.
    plain = [text for text in descriptions if text and not text.strip().lower().startswith("b")]
    by_position = all(
        number is not None and int(number[1]) in (index, index - 1) for index, number in enumerate(numbers, 1)
    )
    words = [text for text in descriptions if text and re.match(r"band[ _.-]", text.strip(), re.I)]
    if by_position and (len(plain) == len(descriptions) or len(words) == len(descriptions)):
        return (None,) * len(descriptions)
    return descriptions


def _without_pictures(texts: Names) -> Names:
    """Drop descriptions of the bands of a picture if other bands have the colours that it shows."""
    others = [text for text in texts if text is not None and not _PICTURE.match(text)]
    if not any(_code(text) or _name_of(text) in COLOURS for text in others):
        return texts
    return tuple(None if text is None or _PICTURE.match(text) else text for text in texts)


def _wavelengths(texts: Names, stated: tuple[float | None, ...]) -> tuple[float | None, ...]:
    known: list[float | None] = list(stated) if len(stated) == len(texts) else [None] * len(texts)
    for index, text in enumerate(texts):
        match = _LENGTH.search(text or "")
        if match:
            unit = match[2].lower()
            known[index] = float(match[1]) * (1.0 if unit.startswith("n") else 1000.0)
    return tuple(known)


def _by_wavelength(lengths: Sequence[float | None]) -> Names:
    """Name bands by wavelength; of several in one range, as of imaging spectrometers, the one nearest its centre."""
    names: list[str | None] = [None] * len(lengths)
    for name, (shortest, longest, centre) in _table()["wavelengths"].items():
        inside = [
            index
            for index, length in enumerate(lengths)
            if length is not None and shortest <= length < longest
        ]
        if inside:
            names[min(inside, key=lambda index: abs(float(lengths[index] or 0) - centre))] = name
    return tuple(names)


def _by_codes(texts: Names, names: Names, product: str) -> BandNames | None:
    """The readings of codes such as B04 or SR_B4; None without a code."""
    codes = [None if text is None or name else _code(text) for text, name in zip(texts, names, strict=True)]
    given = [code for code in codes if code is not None]
    padded = any(zero for _, zero in given)
    able = [
        sensor
        for sensor in _table()["sensors"]
        if given
        and all(code in sensor["codes"] for code, _ in given)
        and not (padded and sensor["padded"] is False)
    ]
    if not able:
        return None
    named = [sensor for sensor in able if re.search(sensor["product"], product, re.IGNORECASE)]
    readings: dict[tuple[tuple[int, ...], ...], tuple[Names, str]] = {}
    for sensor in named or able:
        reading = tuple(
            name or (None if code is None else sensor["codes"][code[0]])
            for name, code in zip(names, codes, strict=True)
        )
        readings.setdefault(tuple(pick(reading, colour) for colour in COLOURS), (reading, sensor["name"]))
    most = max(sum(map(bool, bands)) for bands in readings)
    # Nobody exports red, green, blue and one that shows no land; another band in place of infrared is unusual.
    likely = {
        bands: found
        for bands, found in readings.items()
        if sum(map(bool, bands)) == most or not _USELESS & set(found[0])
    }
    stated = len(likely) == 1
    readings = {bands: found for bands, found in likely.items() if sum(map(bool, bands)) == most}
    orders = [reading for reading, _ in readings.values()]
    if not named and [code for code, _ in given] == [f"B{index}" for index in range(1, len(codes) + 1)]:
        # Some writers number bands so, whatever they are.
        orders, stated = [*orders, *usual_orders(len(codes))], False
    sensors = " or ".join(sensor for _, sensor in readings.values())
    return BandNames(tuple(dict.fromkeys(orders)), f"their descriptions, as of {sensors}", stated)


def _code(text: str) -> tuple[str, bool] | None:
    """The code of a band without leading zeros, and whether it had one."""
    last = _LAST_CODE.search(text.strip())
    match = _CODE.match(text.strip()) or (_CODE.match(last[1]) if last else None)
    if match is None:
        return None
    prefix, zero, number, letter = match.groups()
    return f"{(prefix or '').upper()}B{int(number)}{letter.upper()}", bool(zero)


def _conflict(readings: Sequence[Names], colours: Names) -> str:
    """The clause about a band whose description and colour contradict each other in every reading."""
    for index, colour in enumerate(colours):
        names = {reading[index] for reading in readings}
        if (
            colour in COLOURS
            and None not in names
            and all(name not in _SAME.get(colour, (colour,)) for name in names)
        ):
            said = " or ".join(sorted(map(str, names)))
            return f"band {index + 1} is {said} by its description and {colour} by its colour interpretation"
    return ""


def _complete(names: Names, colours: Names) -> Names:
    """Name the bands that have no description by their colours, unless that name is taken."""
    return tuple(
        name or (colour if colour not in names else None) for name, colour in zip(names, colours, strict=True)
    )


def usual_orders(count: int) -> tuple[Names, ...]:
    """The usual orders of `count` unnamed bands, the most common first."""
    return tuple(tuple(order) for order in _table()["orders"].get(str(count), ()))


@cache
def _words() -> Mapping[str, str]:
    return {word: name for name, words in _table()["words"].items() for word in words}


@cache
def _table() -> Mapping[str, Any]:
    text = resources.files("iic_geotools.scene").joinpath("sensors.json").read_text(encoding="utf-8")
    table: dict[str, Any] = json.loads(text)
    return table
