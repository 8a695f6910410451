"""The values of a map: classes with a name and a colour, and nodata."""

import colorsys
import json
import math
import re
import unicodedata
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources

from iic_geotools.errors import UsageError

NODATA = 255
"""Value of every map where there is no data."""
MAX_CLASSES = 254
"""The most classes that a map can have; they have the values 0 to 253."""
MAX_NAME = 200
"""The most characters of the name of a class: legends and tables show it whole."""
UNSURE_NAME = "unsure"
"""Name of the class of pixels that a model was not sure about."""

# Okabe and Ito's palette, which readers with any common colour blindness can distinguish. The order puts strong
# contrasts first and leaves out black, which reads as "no data" on a map. The grey is from Tol's "bright" scheme.
_SAFE = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442", "#bbbbbb")

_GOLDEN_ANGLE = 0.381966011250105
_COLOUR = re.compile(r"#[0-9a-fA-F]{6}")
# Shorter words in Latin letters count only as the whole name; longer ones also as the end of one ("Kiefernwald").
_SHORT, _COMPOUND = 2, 4
_ENDINGS = ("", "s", "es", "n", "en", "e", "er", "flache", "flachen")
# How different two colours of a legend must be, as the sum over red, green and blue.
_APART = 60


@dataclass(frozen=True)
class MapClass:
    """A class of a map.

    Attributes:
        name: Name of the class in legends.
        colour: Colour of the class on maps, as "#rrggbb".
    """

    name: str
    colour: str

    def __post_init__(self) -> None:
        rgb(self.colour)
        check_class_name(self.name)


def check_class_name(name: str) -> None:
    """Refuse a name that legends and tables cannot show."""
    if not name.strip() or not name.isprintable():
        raise UsageError(
            f"{name[:MAX_NAME]!r} is not a name for a class: use printable characters only, and at least one."
        )
    if len(name) > MAX_NAME:
        raise UsageError(
            f"The name of a class may have {MAX_NAME} characters, and {name[:40]!r}... has {len(name)}."
        )


def rgb(colour: str) -> tuple[int, int, int]:
    """Red, green and blue (0 to 255) of a colour written as "#rrggbb"."""
    if not _COLOUR.fullmatch(colour):
        raise UsageError(f"{colour!r} is not a colour: write it as #rrggbb, e.g. #0072b2.")
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)


def least_confidence(probability: float) -> int:
    """The least value of a confidence map, 255 x the probability, that is not below a probability."""
    # Rounding keeps 0.6 x 255 from being a hair above 153.
    return math.ceil(round(255 * probability, 6))


def distinct_colours(count: int, besides: Collection[str | None] = ()) -> list[str]:
    """The first `count` of a fixed sequence of colours, no two alike and none of those that are taken.

    The first eight are safe for colour-blind readers. No larger palette is, so further hues follow the golden angle,
    which keeps neighbours in the sequence far apart, in turns of lightness and saturation.

    Args:
        besides: Colours that are taken already.
    """
    if not 0 <= count <= MAX_CLASSES:
        raise UsageError(f"There are colours for 0 to {MAX_CLASSES} classes, not for {count}.")
    colours = [colour for colour in _SAFE if colour not in besides][:count]
    index = 0
    while len(colours) < count:
        lightness = (0.45, 0.68, 0.30)[index % 3]
        saturation = (0.75, 0.50)[index // 3 % 2]
        red, green, blue = colorsys.hls_to_rgb(index * _GOLDEN_ANGLE % 1.0, lightness, saturation)
        candidate = f"#{round(red * 255):02x}{round(green * 255):02x}{round(blue * 255):02x}"
        if candidate not in colours and candidate not in besides:
            colours.append(candidate)
        index += 1
    return colours


def class_colours(names: Sequence[str], given: Sequence[str | None] = ()) -> list[str]:
    """Return a colour for each class, no two alike: the one given, else the usual one, else one that stands out.

    Args:
        given: A colour for each name, or None. One that is given twice counts as not given.
    """
    fixed = [colour if colour and given.count(colour) == 1 else None for colour in given] or [None] * len(
        names
    )
    usual = [colour or usual_colour(name) for name, colour in zip(names, fixed, strict=True)]
    if not any(usual):
        return distinct_colours(len(names))
    taken = [colour for colour in fixed if colour]
    colours: dict[int, str] = {index: colour for index, colour in enumerate(fixed) if colour}
    # Unknown names come last: what they may not look like is known by then.
    for index in sorted(range(len(names)), key=lambda index: usual[index] is None):
        if index not in colours:
            colours[index] = suggest_colour(names[index], taken)
            taken.append(colours[index])
    return [colours[index] for index in range(len(names))]


def spread_colours(colours: Sequence[str], besides: Collection[str] = ()) -> list[str]:
    """Return the colours, with another lightness for each that looks like an earlier or a taken one."""
    taken = list(besides)
    for colour in colours:
        shades = list(_shades(colour))
        free = (shade for shade in shades if _apart(shade, taken) > _APART)
        best = next(free, max(shades, key=lambda one: _apart(one, taken)))
        taken.append(best if best not in taken else distinct_colours(1, besides=taken)[0])
    return taken[len(besides) :]


def suggest_colour(name: str, taken: Collection[str]) -> str:
    """Return the usual colour of a class, in another lightness if that is taken, else one unlike the others.

    Args:
        name: Name of the class; a word of it is enough, e.g. "harvested fields".
    """
    usual = usual_colour(name)
    if usual is not None:
        free = [shade for shade in _shades(usual) if _apart(shade, taken) > _APART]
        if free:
            return free[0]
    candidates = distinct_colours(max(len(_SAFE), min(len(taken) + 1, MAX_CLASSES)), besides=taken)
    return max(candidates, key=lambda one: _apart(one, taken))


def usual_colour(name: str) -> str | None:
    """Return the colour that people expect of a class by its name, in two dozen languages; None if unknown.

    The longest phrase that is known decides, and of several the last one.
    """
    table, words = _usual_colours(), _plain(name).split()
    for length in range(len(words), 0, -1):
        for start in range(len(words) - length, -1, -1):
            phrase = " ".join(words[start : start + length])
            short = len(phrase) <= _SHORT and phrase.isascii() and length < len(words)
            known = None if short else _known(phrase, table)
            if known is not None:
                return known
    return None


def _known(phrase: str, table: dict[str, str]) -> str | None:
    for ending in _ENDINGS:
        stem = phrase.removesuffix(ending) if ending else phrase
        if stem in table:
            return table[stem]
    if " " in phrase:
        return None
    least = _COMPOUND if phrase.isascii() else 1
    ends = (phrase[start:] for start in range(1, len(phrase) - least + 1))
    return next((table[end] for end in ends if end in table), None)


@cache
def _usual_colours() -> dict[str, str]:
    """The usual colours by word or phrase."""
    text = resources.files("iic_geotools.classmap").joinpath("colours.json").read_text(encoding="utf-8")
    content = json.loads(text).items()
    return {_plain(phrase): colour for colour, phrases in content for phrase in phrases.split("|")}


def _plain(text: str) -> str:
    """Lower case without accents, words separated by one space."""
    letters = unicodedata.normalize("NFKD", text.casefold())
    bare = "".join(letter for letter in letters if not "\u0300" <= letter <= "\u036f")
    return " ".join(re.sub(r"[\W_]+", " ", unicodedata.normalize("NFC", bare)).split())


def _shades(colour: str) -> Iterator[str]:
    """A colour, and lighter and darker ones of its hue."""
    hue, lightness, saturation = colorsys.rgb_to_hls(*(part / 255 for part in rgb(colour)))
    for shift in (0.0, 0.15, -0.15, 0.3, -0.3, 0.45):
        parts = colorsys.hls_to_rgb(hue, min(max(lightness + shift, 0.12), 0.92), saturation)
        yield colour if not shift else "#{:02x}{:02x}{:02x}".format(*(round(part * 255) for part in parts))


def _apart(colour: str, others: Collection[str]) -> float:
    """The distance of a colour to the nearest of others."""
    own = rgb(colour)
    distances = (sum(abs(a - b) for a, b in zip(own, rgb(other), strict=True)) for other in others)
    return min(distances, default=math.inf)
