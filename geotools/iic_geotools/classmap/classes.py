"""The values of a map: classes with a name and a colour, and nodata."""

import colorsys
import math
import re
from collections.abc import Collection
from dataclasses import dataclass

from iic_geotools.errors import UsageError

NODATA = 255
"""Value of every map where there is no data."""
MAX_CLASSES = 254
"""The most classes that a map can have; they have the values 0 to 253."""
MAX_NAME = 200
"""The most characters of the name of a class: legends and tables show it whole."""
UNSURE_NAME = "unsure"
"""Name of the class of pixels that a model was not sure about."""

# Okabe and Ito's palette, which readers with any common colour blindness can tell apart. The order puts strong
# contrasts first and leaves out black, which reads as "no data" on a map. The grey is from Tol's "bright" scheme.
_SAFE = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442", "#bbbbbb")

_GOLDEN_ANGLE = 0.381966011250105
_COLOUR = re.compile(r"#[0-9a-fA-F]{6}")


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
    """Refuse a name that legends and tables cannot show.

    Raises:
        UsageError: The name is empty, too long, or not printable.
    """
    if not name.strip() or not name.isprintable():
        raise UsageError(
            f"{name[:MAX_NAME]!r} is not a name for a class: use printable characters only, and at least one."
        )
    if len(name) > MAX_NAME:
        raise UsageError(
            f"The name of a class may have {MAX_NAME} characters, and {name[:40]!r}... has {len(name)}."
        )


def rgb(colour: str) -> tuple[int, int, int]:
    """Red, green and blue (0 to 255) of a colour written as "#rrggbb".

    Raises:
        UsageError: The text is not such a colour.
    """
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
        count: Number of colours.
        besides: Colours that are taken already.

    Raises:
        UsageError: More colours than a map can have classes.
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
