"""How a scene is read for a model: which of its bands, from which values, at which resolution."""

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from affine import Affine
from numpy.typing import NDArray

from iic_geotools.errors import ModelError, SceneError
from iic_geotools.geobox import GeoBox
from iic_geotools.scene.bands import canonical, list_bands, match_bands, named_bands
from iic_geotools.scene.info import SceneInfo
from iic_geotools.scene.rescaling import Pair, sample_values
from iic_geotools.scene.scene import SceneSource, value_sample
from iic_geotools.tiling import Rect
from iic_runtime.model.card import Card
from iic_runtime.model.select import describe_misfit, ground_resolution, matching_size
from iic_runtime.model.values import Input, choose_rescale

_LOG = logging.getLogger(__name__)
# Eight pixels for one on each side: still finer ones cost much and show nothing.
MOST_REFINED = 64
# Share of two-valued pixels above which a band is a mask: its edges may be smoothed.
ALPHA_SHARE = 0.95
# How far from a whole number of pixels a factor may be: what a projection or rounded coordinates change.
WHOLE = 0.01


def choose_reading(
    info: SceneInfo,
    card: Card,
    *,
    bands: Sequence[str | int] | None = None,
    nodata: float | None = None,
    rescale: str | None = None,
    reflectance: Pair | None = None,
    match_gsd: bool | None = None,
) -> SceneSource:
    """Choose how a scene is read for a model.

    Args:
        info: What is known about the scene.
        card: The card of the model.
        bands: The scene's bands for those of the model, by name or number; by default matched by name, or in the
            model's order if there are as many and none has a name.
        nodata: The scene's nodata value; by default the one in the file.
        rescale: "MIN,MAX", "auto" or "off"; by default as the card says.
        reflectance: Scale and offset that turn values into reflectance; by default as the scene says.
        match_gsd: Whether to read the scene at the model's ground sample distance; by default if it is finer than
            what the model is made for.

    Raises:
        IICError: The scene does not suit the model, or an argument does not suit them.
    """
    chosen = choose_bands(info, card, bands or _order_of_unnamed(info, card))
    bidx = tuple(chosen.values())
    if any(info.interpretations[band - 1] == "palette" for band in bidx):
        raise SceneError(
            f"{info.title} is a paletted image; expand it to colours first, e.g. with gdal_translate -expand rgb."
        )
    source = SceneSource(
        path=info.path,
        bidx=bidx,
        dtype=card.dtype,
        nodata=info.nodata_of(bidx) if nodata is None else nodata,
        masked=info.has_mask(bidx) and (nodata is None or info.mask_given),
        fill=card.fill_for(chosen),
        name=info.name,
        optional=card.optional_bands(chosen),
    )

    def measure(skip_empty: bool) -> NDArray[Any]:
        return value_sample(source, info, skip_empty=skip_empty)

    return replace(
        source,
        rescale=choose_rescale(card, describe_input(info, chosen, measure), rescale, reflectance),
        grid=_choose_grid(info, card, match_gsd),
    )


def describe_input(
    info: SceneInfo, chosen: Mapping[str, int], measure: Callable[[bool], NDArray[Any]]
) -> Input:
    """Return what is known about the values of the bands of a scene that a model takes."""
    bidx = tuple(chosen.values())
    declared = None if info.radiometry is None else info.radiometry.of_bands(bidx)
    return Input(tuple(chosen), info.dtype_of(bidx), measure, declared, info.title)


def choose_bands(info: SceneInfo, card: Card, bands: Sequence[str | int] | None = None) -> Mapping[str, int]:
    """Return the scene's band, counted from 1, by the name of the model's band, in the model's order.

    Bands that the model can do without are left out if the scene does not name them. An alpha band is a mask, and
    counts as a band only if it is named.

    Args:
        info: What is known about the scene.
        card: The card of the model.
        bands: Bands of the scene by name or number, for all bands of the model or for those that it cannot do
            without; by default those that have the names of the model's bands.

    Raises:
        UsageError: `bands` does not fit the model.
        SceneError: A band is missing, or two bands have the same name.
    """
    names = card.bands
    if bands is None:
        _check_band_names(info, card)
        absent = {
            name for name in card.optional if not named_bands(name, info.descriptions, info.interpretations)
        }
        names = tuple(name for name in names if name not in absent)
    elif len(bands) == len(card.required):
        names = card.required
    missing = [name for name in card.bands if name not in names]
    if missing:
        _LOG.info("Bands: %s without %s", card.name, " and ".join(missing))
    bidx = match_bands(names, info.descriptions, info.interpretations, bands)
    return dict(zip(names, bidx, strict=True))


def _order_of_unnamed(info: SceneInfo, card: Card) -> tuple[int, ...] | None:
    """Return all bands in order if none of them has a name and there are as many as the model takes; else None.

    Writers that know nothing about four bands mark them as red, green, blue and alpha: that says no more than their
    order, unless the fourth holds the values of a mask.
    """
    kinds = info.interpretations
    if len(kinds) != len(card.bands) or any(info.descriptions):
        return None
    unnamed = set(kinds) <= {"undefined", "gray"}
    by_default = (
        kinds == ("red", "green", "blue", "alpha") and tuple(map(canonical, card.bands[:3])) == kinds[:3]
    )
    if not unnamed and not (by_default and not _is_mask(info, len(kinds))):
        return None
    if all(named_bands(name, info.descriptions, kinds) for name in card.bands):
        return None
    order = ", ".join(f"{index} {name}" for index, name in enumerate(card.bands, 1))
    _LOG.warning(
        "The bands of %s have no names and are read in the order of the model %s (%s); give `bands` for another order.",
        *(info.title, card.name, order),
    )
    return tuple(range(1, len(kinds) + 1))


def _is_mask(info: SceneInfo, band: int) -> bool:
    """Return whether a band has almost no other values than its smallest and largest, as an alpha band has."""
    dtype = info.dtype_of((band,))
    source = SceneSource(info.path, (band,), dtype, nodata=None, masked=False, fill=(0.0,), name=info.name)
    with source.open() as scene:

        def read(rect: Rect) -> tuple[NDArray[Any], None]:
            return scene.read(rect).values, None

        values = sample_values(read, info.grid.width, info.grid.height)
    return bool(np.isin(values, (values.min(), values.max())).mean() > ALPHA_SHARE) if values.size else True


def _check_band_names(info: SceneInfo, card: Card) -> None:
    """Refuse a scene without a band that the model takes, and say what can be done about it."""
    matches = {name: named_bands(name, info.descriptions, info.interpretations) for name in card.bands}
    missing = [name for name in card.required if not matches[name]]
    if not missing:
        return
    count = len(info.descriptions)
    unmatched = [band for band in range(1, count + 1) if not any(band in hits for hits in matches.values())]
    present = [name for name in card.bands if matches[name]]
    order, absent = ",".join(card.bands), " or ".join(missing)
    usable = ",".join(present or map(str, range(1, count + 1)))
    train = f"train a model on the bands that the scene has ({usable}), with iic-train rasters"
    if len(unmatched) < len(missing):
        advice = f", but {card.name} takes {order}; {train}"
    else:
        spare = iter(unmatched)
        example = ",".join(str(matches[name][0] if matches[name] else next(spare)) for name in card.bands)
        advice = f"; say which of its bands are {order}, in that order, with `bands`, e.g. {example}"
        if present:
            advice = (
                f"; if it has {absent} under another name, say so with `bands`, e.g. {example} for {order}, "
                f"or else {train}"
            )
    known = list_bands(info.descriptions, info.interpretations)
    raise SceneError(f"The scene has no band named {absent} (it has {known}){advice}.")


def _coarser(length: int, side: float, size: float) -> tuple[int, float]:
    """Return how many pixels of a size cover `length` pixels of a side, and how many of these each of them spans.

    A whole number is kept where it divides the length, as in training, which averages so many pixels into one.
    """
    times = round(size / side)
    if times > 1 and length % times == 0 and abs(size / side - times) < WHOLE * times:
        return length // times, float(times)
    count = max(1, round(length * side / size))
    return count, length / count


def _choose_grid(info: SceneInfo, card: Card, match_gsd: bool | None) -> GeoBox | None:
    """Return the grid to read the scene on; None for its own."""
    grid = info.grid
    own = ground_resolution(grid)
    size = matching_size(card, own)
    if match_gsd is None:
        # Finer pixels are averaged to what the model has seen; larger ones have lost the detail that it looks for.
        finer = own is not None and size is not None and own < size and grid.crs is not None
        match_gsd = finer and describe_misfit(card, own) is not None
    if not match_gsd:
        warn_about_misfit(grid, card, "`match_gsd` reads the scene at {:.3g} m")
        return None
    if size is None:
        raise ModelError(
            "`match_gsd` needs a model whose card states a ground sample distance, and this card does not."
        )
    distance = grid.pixel_size
    if distance is None:
        raise SceneError(
            f"`match_gsd` needs a scene with a CRS, so that its pixels have a size, and {info.title} has none."
        )
    (width, across), (height, down) = (
        _coarser(length, side, size)
        for length, side in ((grid.width, distance[0]), (grid.height, distance[1]))
    )
    if (width, height) == (grid.width, grid.height):
        return None
    if width * height > MOST_REFINED * grid.width * grid.height:
        raise SceneError(
            f"`match_gsd` would read the scene's {grid.width} x {grid.height} pixels of "
            f"{math.sqrt(math.prod(distance)):.3g} m as {width} x {height} pixels of {size:.3g} m, in which there is "
            "nothing more to see; map it with a model that is made for such pixels."
        )
    scaled = grid.transform @ Affine.scale(across, down)
    _LOG.info("Reading the scene as %d x %d px of %.3g m, as the model takes it", width, height, size)
    return GeoBox(width, height, scaled, grid.crs)


def warn_about_misfit(grid: GeoBox, card: Card, cure: str) -> None:
    """Warn if a scene is read with pixels that the model is not made for.

    Args:
        grid: The grid that the scene is read on.
        card: The card of the model.
        cure: What to do if they are too fine, with a place for the size in metres that they should have.
    """
    size = ground_resolution(grid)
    warning, matching = describe_misfit(card, size), matching_size(card, size)
    if warning is None:
        return
    finer = size is not None and matching is not None and size < matching
    _LOG.warning("%s; %s.", warning, cure.format(matching) if finer else "train a model on such scenes")
