"""How the values of a scene or an array become those that a model takes: one linear function per band."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from iic_geotools.errors import ModelError
from iic_geotools.scene.bands import canonical
from iic_geotools.scene.notes import assume
from iic_geotools.scene.radiometry import Radiometry
from iic_geotools.scene.reflectance import choose_reflectance, known_reflectance
from iic_geotools.scene.rescaling import Pair, Rescale, parse_rescale, robust_ranges
from iic_runtime.model.card import Card, check_reflectance_applies

_LOG = logging.getLogger(__name__)
# Values that mean the same in both types, so that there is nothing to rescale.
_SAME_MEANING = {(kind, "float32") for kind in ("float64", "float16", "int32", "uint32", "int64", "uint64")}
BRIGHT_PERCENTILE, BRIGHT = 99, 235.0
"""The percentile of red, green and blue together that becomes this 8-bit value, for values of other types."""
_REPEATED = 257
"""Factor between 8 bits and the same values over the range of 16 bits."""


@dataclass(frozen=True)
class Input:
    """The values that a model is to take.

    Attributes:
        names: The model's bands that there are values of, in the model's order.
        dtype: Data type of the values.
        measure: Returns values [bands, N] of pixels spread over the whole scene, if it is called with True without
            pixels that are 0 in every band; called only if they are needed.
        declared: What the file says about reflectance, if it says something.
        title: What messages call the scene.
    """

    names: tuple[str, ...]
    dtype: str
    measure: Callable[[bool], NDArray[Any]]
    declared: Radiometry | None = None
    title: str = "The array"


def choose_rescale(
    card: Card, image: Input, rescale: str | None = None, reflectance: Pair | None = None
) -> Rescale | None:
    """Return how values become the model's; None if they are taken as they are.

    Args:
        card: The card of the model.
        image: The values.
        rescale: "MIN,MAX", "auto" or "off"; None for what the card says.
        reflectance: Scale and offset that turn values into reflectance; None for what the scene says. For models that
            take reflectance.

    Raises:
        UsageError: `rescale` is none of these, or `reflectance` does not suit the model or `rescale`.
        ModelError: The values must be rescaled, and `rescale` does not say how.
    """
    check_reflectance_applies(card, rescale, reflectance)
    if card.values == "reflectance" and rescale is None:
        return _to_reflectance(card, image, reflectance)
    targets = card.range_of(image.names)
    rescale = rescale or card.rescale
    if rescale == "auto":
        ranges = robust_ranges(image.measure(False))
        _LOG.info("Values: each band from its 2nd to its 98th percentile (%s)", _format(image.names, ranges))
        return Rescale(ranges, targets)
    if rescale not in (None, "off"):
        return Rescale((parse_rescale(rescale),) * len(targets), targets)
    if image.dtype == card.dtype or (image.dtype, card.dtype) in _SAME_MEANING:
        return None
    if rescale is None and card.dtype == "uint8":
        return _to_eight_bits(image)
    raise ModelError(
        f"{image.title} is {image.dtype}, but the model was made for {card.dtype}; give `rescale` as MIN,MAX "
        "(the scene's values for black and white) or auto."
    )


def _to_reflectance(card: Card, image: Input, reflectance: Pair | None) -> Rescale | None:
    """Bring values to reflectance, or into the range that says to the model that it is not known."""
    values: NDArray[Any] | None = None

    def measure() -> NDArray[Any]:
        nonlocal values
        values = image.measure(True) if values is None else values
        return values

    if card.stretch is None:
        radiometry = choose_reflectance(image.declared, image.dtype, image.names, measure, reflectance)
    else:
        sample = measure() if reflectance is None else np.empty((len(image.names), 0))
        known = known_reflectance(image.declared, image.dtype, image.names, sample, reflectance)
        if known is None:
            return _stretch(card.stretch, image, sample)
        radiometry = known
    function = radiometry.rescale(card.range_of(image.names))
    return None if image.dtype == card.dtype and function.changes_nothing else function


def _stretch(targets: Pair, image: Input, values: NDArray[Any]) -> Rescale:
    ranges = robust_ranges(values)
    assume(
        f"{image.title} has no radiometric metadata, and its values do not look like reflectance: each band is "
        f"stretched from its 2nd to its 98th percentile ({_format(image.names, ranges)}). Override with `reflectance`."
    )
    return Rescale(ranges, (targets,) * len(ranges))


def _to_eight_bits(image: Input) -> Rescale:
    """Bring values of another type to 8 bits by one function for all bands, which keeps the white balance."""
    values = image.measure(False)
    colours = [canonical(name) in ("red", "green", "blue") for name in image.names]
    chosen = values[colours] if any(colours) else values
    white = _eight_bit_white(chosen)
    if white is not None:
        _LOG.info("Values: 8 bits stored as %s, 0 to %g", image.dtype, white)
        return Rescale(((0.0, white),) * len(values), ((0.0, 255.0),) * len(values))
    bright = float(np.percentile(chosen, BRIGHT_PERCENTILE, method="inverted_cdf")) if chosen.size else 0.0
    bright = bright if bright > 0 else 1.0
    assume(
        f"{image.title} is {image.dtype}, and the model takes 8 bits: values are scaled so that {bright:g}, their "
        f"{BRIGHT_PERCENTILE}th percentile, becomes {BRIGHT:g}. Override with `rescale`."
    )
    return Rescale(((0.0, bright),) * len(values), ((0.0, BRIGHT),) * len(values))


def _eight_bit_white(values: NDArray[Any]) -> float | None:
    """Return the value that stands for 255, if values are those of 8 bits in another type; None if they are not."""
    if not values.size or values.min() < 0:
        return None
    highest = float(values.max())
    if np.issubdtype(values.dtype, np.floating) and highest <= 1:
        steps = values * 255.0
        return 1.0 if np.allclose(steps, np.rint(steps), rtol=0, atol=0.01) else None
    whole = bool((values == np.rint(values)).all())
    if whole and 1 < highest <= 255:
        return 255.0
    return 65535.0 if whole and highest <= 65535 and bool((values % _REPEATED == 0).all()) else None


def _format(names: Sequence[str], ranges: Sequence[Pair]) -> str:
    return ", ".join(f"{band} {low:g} to {high:g}" for band, (low, high) in zip(names, ranges, strict=True))
