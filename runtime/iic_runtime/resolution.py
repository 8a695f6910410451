"""How large a scene's pixels are on the ground, and whether a model is made for that."""

import math

from affine import Affine

from iic_geotools.areas import pixel_side
from iic_geotools.vrt import MapGrid
from iic_runtime.card import Card

# A model that was trained at one distance bears this much more or less.
DISTANCE_TOLERANCE = 0.25
# A range is meant as it stands, but a pixel's size depends a little on how and where in the scene it is measured.
RANGE_TOLERANCE = 0.05


def pixel_size(grid: MapGrid) -> float | None:
    """Side in metres of a square as large as a pixel at the scene's centre; None if that cannot be known."""
    if grid.transform == Affine.identity():  # a sign of no georeference
        return None
    return pixel_side(grid.crs, grid.transform, grid.width, grid.height)


def made_for(card: Card) -> tuple[float, float] | None:
    """The smallest and the largest pixel, in metres, that a model is made for, if its card says."""
    if card.gsd_range is not None:
        return card.gsd_range
    return None if card.gsd is None else (card.gsd, card.gsd)


def misfit(card: Card, size: float) -> float:
    """How far pixels of `size` metres are from what a model is made for.

    Returns:
        The logarithm of the ratio to the nearest end of its range; 0 if the model is made for them.
    """
    known = made_for(card)
    if known is None:
        return math.inf
    tolerance = DISTANCE_TOLERANCE if card.gsd_range is None else RANGE_TOLERANCE
    beyond = max(math.log(known[0] / size), math.log(size / known[1]))
    return beyond if beyond > math.log1p(tolerance) else 0.0


def matched_size(card: Card, size: float | None) -> float | None:
    """The pixel size in metres to read a scene at, so that it suits the model; None if the card does not say."""
    if card.gsd_range is None or size is None:
        return card.gsd
    return min(max(size, card.gsd_range[0]), card.gsd_range[1])


def in_words(known: tuple[float, float]) -> str:
    """A range of pixel sizes: "0.2 to 1 m"."""
    low, high = known
    return f"{low:g} m" if low == high else f"{low:g} to {high:g} m"


def mismatch(card: Card, size: float | None) -> str | None:
    """What to say about a scene whose pixels are not those a model is made for, without a full stop."""
    known = made_for(card)
    if size is None or known is None or not misfit(card, size):
        return None
    return (
        f"The scene's pixels measure {size:.3g} m, but the model {card.name} is made for {in_words(known)}, so the map "
        "may be poor"
    )
