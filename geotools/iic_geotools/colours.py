"""Classes as people see them: a name and a colour."""

import colorsys
import re
from dataclasses import dataclass

from iic_geotools.errors import UsageError

MAX_CLASSES = 254

# Okabe and Ito's palette, told apart under every common colour blindness; the order puts strong contrasts
# first and leaves out black, which reads as "no data" on a map. The grey is from Tol's "bright" scheme.
_SAFE = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442", "#bbbbbb")

_GOLDEN_ANGLE = 0.381966011250105
_COLOUR = re.compile(r"#[0-9a-fA-F]{6}")


@dataclass(frozen=True)
class MapClass:
    """A class of a map.

    Attributes:
        name: What legends call it.
        colour: How maps draw it, as "#rrggbb".
    """

    name: str
    colour: str

    def __post_init__(self) -> None:
        rgb(self.colour)
        if not self.name.strip() or not self.name.isprintable():
            raise UsageError(f"{self.name!r} is no name for a class: use printable characters, at least one.")


def rgb(colour: str) -> tuple[int, int, int]:
    """Red, green and blue (0 to 255) of a colour written as "#rrggbb"."""
    if not _COLOUR.fullmatch(colour):
        raise UsageError(f"{colour!r} is not a colour: write it as #rrggbb, e.g. #0072b2.")
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)


def distinct_colours(n: int) -> list[str]:
    """The first `n` (at most 254) of a fixed sequence of colours, no two alike.

    The first eight are safe for colour-blind readers. Beyond those no palette is, so hues then follow the
    golden angle, which keeps neighbours in the sequence far apart, in rings of lightness and saturation.
    """
    if not 0 <= n <= MAX_CLASSES:
        raise UsageError(f"There are colours for 0 to {MAX_CLASSES} classes, not for {n}.")
    colours = list(_SAFE[:n])
    index = 0
    while len(colours) < n:
        lightness = (0.45, 0.68, 0.30)[index % 3]
        saturation = (0.75, 0.50)[index // 3 % 2]
        red, green, blue = colorsys.hls_to_rgb(index * _GOLDEN_ANGLE % 1.0, lightness, saturation)
        candidate = f"#{round(red * 255):02x}{round(green * 255):02x}{round(blue * 255):02x}"
        if candidate not in colours:
            colours.append(candidate)
        index += 1
    return colours
