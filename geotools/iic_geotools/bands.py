"""Which band of a scene is which: by name, never by a guess."""

import re
from collections.abc import Sequence

from iic_geotools.errors import SceneError, UsageError

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
    """A band's name without case, punctuation and the usual synonyms: "Near-infrared" is "nir"."""
    plain = re.sub(r"[^a-z0-9]", "", name.lower())
    plain = re.sub(r"^band(?=[a-z])|(?<=[a-z])band$", "", plain)
    return _SYNONYMS.get(plain, plain)


def match_bands(
    wanted: Sequence[str],
    descriptions: Sequence[str | None],
    interpretations: Sequence[str],
    given: Sequence[str] | None = None,
) -> tuple[int, ...]:
    """Find the scene's band, counted from 1, for each band in `wanted`.

    A name is looked for among the band descriptions first, then among the colour interpretations: writers
    that know an infrared band's name still mark it as alpha. `given` says it outright: one name or number of
    a scene's band for each wanted band, in that order.

    Raises:
        UsageError: `given` does not fit `wanted`.
        SceneError: a band is missing, or two bands go by the same name.
    """
    if given is None:
        bidx = tuple(_find(name, descriptions, interpretations, wanted) for name in wanted)
    elif len(given) != len(wanted):
        raise UsageError(
            f"--bands names {len(given)} band(s), but the model wants {len(wanted)}: {', '.join(wanted)}."
        )
    else:
        bidx = tuple(_given(token, descriptions, interpretations, wanted) for token in given)
    if len(set(bidx)) < len(bidx):
        raise UsageError(
            f"--bands takes a band of the scene twice ({bidx}); the model wants {', '.join(wanted)}."
        )
    return bidx


def _given(
    token: str, descriptions: Sequence[str | None], interpretations: Sequence[str], wanted: Sequence[str]
) -> int:
    if not re.fullmatch(r"[+-]?\d+", token.strip()):
        return _find(token, descriptions, interpretations, wanted)
    index = int(token)
    if not 1 <= index <= len(descriptions):
        raise UsageError(f"--bands asks for band {index}, but the scene has bands 1 to {len(descriptions)}.")
    return index


def named_bands(
    name: str, descriptions: Sequence[str | None], interpretations: Sequence[str]
) -> tuple[int, ...]:
    """The scene's bands, counted from 1, of that name: by description, else by colour interpretation."""
    for names in (descriptions, interpretations):
        hits = tuple(
            index for index, known in enumerate(names, 1) if known and canonical(known) == canonical(name)
        )
        if hits:
            return hits
    return ()


def list_bands(descriptions: Sequence[str | None], interpretations: Sequence[str]) -> str:
    """The scene's bands for a sentence: "1 red, 2 unnamed"."""
    names = (
        d or (c if c != "undefined" else "unnamed")
        for d, c in zip(descriptions, interpretations, strict=True)
    )
    return ", ".join(f"{index} {name}" for index, name in enumerate(names, 1))


def _find(
    name: str, descriptions: Sequence[str | None], interpretations: Sequence[str], wanted: Sequence[str]
) -> int:
    hits = named_bands(name, descriptions, interpretations)
    if len(hits) == 1:
        return hits[0]
    if hits:
        raise SceneError(
            f"Bands {' and '.join(map(str, hits))} of the scene are both named {name}; "
            f"say which to use with --bands, in the order {','.join(wanted)}."
        )
    raise SceneError(
        f"The scene has no band named {name} (it has {list_bands(descriptions, interpretations)}); "
        f"say which of its bands are {','.join(wanted)}, in that order, with --bands, "
        f"e.g. --bands {','.join(str(i) for i in range(1, len(wanted) + 1))}."
    )
