"""Which band of a scene is which: by name, never by a guess."""

import re
from collections.abc import Sequence
from itertools import islice
from typing import Any

from iic_geotools.errors import SceneError, UsageError
from iic_geotools.scene.sensors import Names, pick

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
    wanted: Sequence[str],
    descriptions: Names,
    names: Names,
    bands: Sequence[str | int] | None = None,
) -> tuple[int, ...]:
    """Find the scene's band for each band that a model takes.

    Args:
        wanted: Names of the bands that the model takes, in its order.
        descriptions: Descriptions of the scene's bands.
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
