"""Reflectance from a scene's values: by metadata, by the user's choice, or estimated.

One linear function per band for the whole scene, never for a tile. In this order:

1. what the user says;
2. what the file says (`radiometry`), if it gives values that reflectance can have;
3. of the ways in which files store reflectance, the one that makes the scene most probable (`likelihood`), unless an
   unknown gain makes it much more so;
4. an estimate: the gain and offset of each band that make the scene's spectra most like those that occur in the world
   (`spectra`).
"""

import logging
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from iic_geotools.errors import SceneError, UsageError, assume, remember
from iic_geotools.scene.bands import canonical
from iic_geotools.scene.info import SceneInfo
from iic_geotools.scene.likelihood import judge_values
from iic_geotools.scene.radiometry import Pair, Radiometry, robust_ranges
from iic_geotools.scene.spectra import BANDS, fit_world

_LOG = logging.getLogger(__name__)
# What the 2nd percentile of the darkest band and the 98th of the brightest may be, as reflectance: air that was
# removed too thoroughly makes dark water negative, and sun on snow and clouds is brighter than a white board.
DARKEST, DIMMEST, BRIGHTEST = -0.06, 0.002, 2.0
# As reflectance x 10000.
SCALED, SCALED_DARKEST, SCALED_DIMMEST = 10000.0, 5000.0, 255.0

Measure = Callable[[], NDArray[Any]]
"""Returns values [bands, N] of pixels spread over the whole scene."""


def reflectance_of(
    info: SceneInfo,
    bidx: Sequence[int],
    names: Sequence[str],
    measure: Measure,
    reflectance: Pair | None = None,
) -> Radiometry:
    """How the values of a scene become reflectance. The log says in a sentence how that is known.

    Args:
        measure: Function that returns values [bands, N] of pixels spread over the whole scene, without those that
            are 0 in every band: `value_sample` or `sample_values` with `skip_empty`.
        reflectance: Scale and offset that the user gives: reflectance = value x scale + offset.

    Raises:
        UsageError: `reflectance` is not a scale above 0 and an offset.
        SceneError: An estimate is needed and not possible.
    """
    declared = None if info.radiometry is None else info.radiometry.of_bands(bidx)
    return choose_reflectance(declared, info.dtype_of(tuple(bidx)), names, measure, reflectance)


def choose_reflectance(
    declared: Radiometry | None,
    dtype: str,
    names: Sequence[str],
    measure: Measure,
    reflectance: Pair | None = None,
) -> Radiometry:
    """As `reflectance_of`, for values that need not be in a file.

    Args:
        declared: What the file says about these bands, if there is one that says something.
    """
    values = measure() if reflectance is None else np.empty((len(names), 0))
    known = known_reflectance(declared, dtype, names, values, reflectance)
    return known or estimate_reflectance(names, values)


def known_reflectance(
    declared: Radiometry | None,
    dtype: str,
    names: Sequence[str],
    values: NDArray[Any],
    reflectance: Pair | None = None,
) -> Radiometry | None:
    """As `choose_reflectance`, but without an estimate: None if nothing says how values become reflectance.

    Args:
        values: Values [bands, N] of pixels spread over the whole scene, without those that are 0 in every band.
    """
    if reflectance is not None:
        scale, offset = check_reflectance(reflectance)
        radiometry = Radiometry((scale,) * len(names), (offset,) * len(names), "as given")
        _LOG.info("Values: reflectance is %s, as given", radiometry.formula())
        return radiometry
    ranges = robust_ranges(values)
    if declared is not None:
        low, high = _ends(declared.reflectances(ranges))
        if low >= DARKEST and DIMMEST <= high <= BRIGHTEST:
            _LOG.info("Values: reflectance is %s, by %s", declared.formula(), declared.source)
            remember(f"Values: reflectance is {declared.formula()}, by {declared.source}.")
            return declared
        _LOG.warning(
            "By %s reflectance would be %s and reach from %.3g to %.3g, which is impossible; this is ignored.",
            declared.source,
            declared.formula(),
            low,
            high,
        )
    return _recognise(dtype, values, ranges, names)


def check_reflectance(reflectance: Pair) -> Pair:
    """Check a scale and an offset that a user gives."""
    scale, offset = reflectance
    if not (math.isfinite(scale) and scale > 0 and math.isfinite(offset)):
        raise UsageError(f"`reflectance` takes a scale above 0 and an offset, not {scale:g},{offset:g}.")
    return scale, offset


def _ends(ranges: Sequence[Pair]) -> Pair:
    """The 2nd percentile of the darkest band and the 98th of the brightest."""
    return min(low for low, _ in ranges), max(high for _, high in ranges)


def _recognise(
    dtype: str, values: NDArray[Any], ranges: Sequence[Pair], names: Sequence[str]
) -> Radiometry | None:
    """Recognise the known scaling under which the scene is most probable; None if none fits."""
    if dtype in ("uint8", "int8"):
        return None
    verdict = judge_values(values.astype(dtype, copy=False), [canonical(name) for name in names])
    if verdict is None:
        return _by_range(dtype, ranges, names)
    if verdict.scaling is None:
        return None
    radiometry = verdict.scaling.radiometry(len(names))
    example = f"{verdict.scaling.scale:g},{verdict.scaling.offset:g}"
    if verdict.sure:
        _LOG.info("Values: assuming %s (`reflectance` %s)", verdict.scaling.text, example)
        remember(f"Values: {verdict.scaling.text}, by their spectra.")
        return radiometry
    assume(
        f"Assuming that the values are {verdict.scaling.text}; they might also be {verdict.doubt}. Give `reflectance` "
        f"to be sure, {example} for what is assumed."
    )
    return radiometry


def _by_range(dtype: str, ranges: Sequence[Pair], names: Sequence[str]) -> Radiometry | None:
    """Take values of bands whose spectra are not known for reflectance, or reflectance x 10000, by their range."""
    low, high = _ends(ranges)
    floats = np.issubdtype(np.dtype(dtype), np.floating)
    if floats and low >= DARKEST and DIMMEST <= high <= BRIGHTEST:
        text, scale = "reflectance", 1.0
    elif DARKEST * SCALED <= low <= SCALED_DARKEST and SCALED_DIMMEST < high <= BRIGHTEST * SCALED:
        text, scale = "reflectance x 10000", 1 / SCALED
    else:
        return None
    assume(f"Assuming that the values are {text}, by their range only. Give `reflectance` to be sure.")
    return Radiometry((scale,) * len(names), (0.0,) * len(names), "what they look like")


def estimate_reflectance(names: Sequence[str], values: NDArray[Any]) -> Radiometry:
    """Find the gain and offset of each band that make the scene look most like the world.

    Args:
        values: Values [bands, N] of pixels spread over the whole scene, without those that are 0 in every band.
    """
    known = [canonical(name) for name in names]
    if not set(known) <= set(BANDS):
        missing = ", ".join(name for name, band in zip(names, known, strict=True) if band not in BANDS)
        raise SceneError(
            f"The scene has no radiometric metadata, and there is no estimate for {missing}; give "
            "scale and offset as `reflectance`."
        )
    if values.size == 0:
        assume("Assuming reflectance x 10000: no pixel has data other than 0. Override with `reflectance`.")
        return Radiometry((1 / SCALED,) * len(names), (0.0,) * len(names), "an estimate")
    ranges = robust_ranges(values)
    gains, offsets = fit_world(values, ranges, known)
    radiometry = Radiometry(tuple(gains), tuple(offsets), "an estimate")
    texts = (
        f"{name} {here[0]:g} to {here[1]:g} as {low:.3f} to {high:.3f}"
        for name, here, (low, high) in zip(names, ranges, radiometry.reflectances(ranges), strict=True)
    )
    assume(
        "No radiometric metadata, and values that do not look like reflectance: gain and offset of each band are "
        f"estimated over the whole scene ({', '.join(texts)}). Override with `reflectance`."
    )
    return radiometry
