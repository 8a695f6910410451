"""Which band of a scene is which: by name, never by a guess."""

import re
from collections.abc import Sequence
from itertools import islice
from typing import Any

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
    names: Sequence[str],
    descriptions: Sequence[str | None],
    interpretations: Sequence[str],
    bands: Sequence[str | int] | None = None,
) -> tuple[int, ...]:
    """Find the scene's band for each band that a model takes.

    A name is looked up among the band descriptions first, then among the colour interpretations: writers that know
    the name of an infrared band still mark it as alpha.

    Args:
        names: Names of the bands that the model takes, in its order.
        descriptions: Descriptions of the scene's bands.
        interpretations: Colour interpretations of the scene's bands.
        bands: The user's choice: for each of the model's bands the name or number of a band of the scene.

    Returns:
        The numbers of the scene's bands, counted from 1, in the model's order.

    Raises:
        UsageError: `bands` does not fit the model or the scene.
        SceneError: A band is missing, or two bands have the same name.
    """
    if bands is None:
        bidx = tuple(_find(name, descriptions, interpretations, names) for name in names)
    elif len(bands) != len(names):
        raise UsageError(
            f"`bands` names {len(bands)} band(s), but the model takes {len(names)}: {', '.join(names)}."
        )
    else:
        bidx = tuple(_choose(band, descriptions, interpretations, names) for band in bands)
    if len(set(bidx)) < len(bidx):
        raise UsageError(
            f"`bands` names a band of the scene twice ({bidx}); the model takes {', '.join(names)}."
        )
    return bidx


def positional_name(band: int) -> str:
    """The name of a band that is known by its number only: "band3"."""
    return f"band{band}"


def named_bands(
    name: str, descriptions: Sequence[str | None], interpretations: Sequence[str]
) -> tuple[int, ...]:
    """The scene's bands of that name, counted from 1: by description, colour interpretation or position ("band3")."""
    for candidates in (descriptions, interpretations):
        matches = tuple(
            index
            for index, candidate in enumerate(candidates, 1)
            if candidate and canonical(candidate) == canonical(name)
        )
        if matches:
            return matches
    position = re.fullmatch(r"band([1-9]\d{0,8})", name)
    return (int(position[1]),) if position and int(position[1]) <= len(descriptions) else ()


def list_bands(descriptions: Sequence[str | None], interpretations: Sequence[str]) -> str:
    """The scene's bands, to be used within a sentence: "1 red, 2 unnamed"."""
    names = (
        description or (colour if colour != "undefined" else "unnamed")
        for description, colour in zip(descriptions, interpretations, strict=True)
    )
    listed = [f"{index} {name[:40]}" for index, name in enumerate(islice(names, MOST_LISTED), 1)]
    more = len(descriptions) - len(listed)
    return ", ".join(listed) + (f" and {more} more" if more > 0 else "")


def _choose(
    band: str | int, descriptions: Sequence[str | None], interpretations: Sequence[str], names: Sequence[str]
) -> int:
    """The number of a band that the user gave by name or number."""
    band = str(band)  # from Python also a number
    if not re.fullmatch(r"[+-]?\d{1,9}", band.strip()):
        return _find(band, descriptions, interpretations, names)
    index = int(band)
    if not 1 <= index <= len(descriptions):
        raise UsageError(f"`bands` asks for band {index}, but the scene has bands 1 to {len(descriptions)}.")
    return index


def _find(
    name: str, descriptions: Sequence[str | None], interpretations: Sequence[str], names: Sequence[str]
) -> int:
    matches = named_bands(name, descriptions, interpretations)
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise SceneError(
            f"Bands {' and '.join(map(str, matches))} of the scene are both named {name}: "
            f"say which ones to use with `bands`, in the order {','.join(names)}."
        )
    raise SceneError(
        f"The scene has no band named {name} (it has {list_bands(descriptions, interpretations)}): "
        f"say which of its bands are {','.join(names)}, in that order, with `bands`, "
        f"e.g. `bands` {','.join(str(index) for index in range(1, len(names) + 1))}."
    )
