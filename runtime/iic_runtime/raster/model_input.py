"""How a scene is read for a model: which of its bands, from which values, at which resolution."""

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from affine import Affine
from numpy.typing import NDArray

from iic_geotools.errors import ModelError, SceneError, UsageError, assume, collect_notes, remember
from iic_geotools.geobox import GeoBox
from iic_geotools.scene.bands import (
    BY_COLOUR,
    COLOURS,
    MOST_LISTED,
    OTHERS,
    USUAL_ORDER,
    Names,
    canonical,
    list_bands,
    match_bands,
    named_bands,
    pick,
    usual_orders,
)
from iic_geotools.scene.info import SceneInfo
from iic_geotools.scene.likelihood import Picture, judge_order, judge_picture
from iic_geotools.scene.listing import is_part_of_product
from iic_geotools.scene.radiometry import (
    WINDOWS_PER_SIDE,
    Pair,
    Radiometry,
    Rescale,
    parse_rescale,
    robust_ranges,
)
from iic_geotools.scene.reflectance import estimate_reflectance, known_reflectance
from iic_geotools.scene.scene import SceneSource, assume_nodata, value_sample
from iic_runtime.model.card import Card
from iic_runtime.model.select import describe_misfit, ground_resolution, matching_size

# Values that mean the same in both types, so that there is nothing to rescale.
_SAME_MEANING = {(kind, "float32") for kind in ("float64", "float16", "int32", "uint32", "int64", "uint64")}
BRIGHT_PERCENTILE, BRIGHT = 99, 235.0
"""The percentile of red, green and blue together that becomes this 8-bit value, for values of other types."""
_REPEATED = 257
"""Factor between 8 bits and the same values over the range of 16 bits."""

_LOG = logging.getLogger(__name__)
# Eight pixels for one on each side: still finer ones cost much and show nothing.
MOST_REFINED = 64
# Share of two-valued pixels above which a band is a mask: its edges may be smoothed.
ALPHA_SHARE = 0.95
RGB = ("red", "green", "blue")
INFRARED_PICTURE = ("nir", "red", "green")
FEW_WINDOWS = 3
"""Windows along each side of a scene in which a picture is searched for infrared."""
# How far from a whole number of pixels a factor may be: what a projection or rounded coordinates change.
WHOLE = 0.01


Sample = Callable[[int], NDArray[Any]]
"""Returns values [bands, N] of pixels in so many windows along each side of a scene."""


@dataclass(frozen=True)
class Input:
    """The input values of a model.

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
        rescale: "MIN,MAX", "auto" or "off"; None for what the card says.
        reflectance: Scale and offset that turn values into reflectance; None for what the scene says. For models that
            take reflectance.

    Raises:
        UsageError: `rescale` is none of these, or `reflectance` does not suit the model or `rescale`.
        ModelError: The values must be rescaled, and `rescale` does not say how.
    """
    if reflectance is not None:
        if card.values != "reflectance":
            raise UsageError(
                f"`reflectance` is for models that take reflectance, and {card.name} does not; use `rescale`."
            )
        if rescale is not None:
            raise UsageError("`reflectance` and `rescale` both say what the values mean; give one of them.")
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
    """Convert values to reflectance, or stretch them into the range that marks them as uncalibrated."""
    values = image.measure(True) if reflectance is None else np.empty((len(image.names), 0))
    radiometry = known_reflectance(image.declared, image.dtype, image.names, values, reflectance)
    if radiometry is None:
        if card.stretch is not None:
            return _stretch(card.stretch, image, values)
        radiometry = estimate_reflectance(image.names, values)
    function = radiometry.rescale(card.range_of(image.names))
    return None if image.dtype == card.dtype and function.changes_nothing else function


def _stretch(targets: Pair, image: Input, values: NDArray[Any]) -> Rescale:
    ranges = robust_ranges(values)
    if not values.shape[1]:
        remember(f"{image.title} holds no data where it was looked at.")
        return Rescale(ranges, (targets,) * len(ranges))
    if np.median(values) < 0:
        raise SceneError(
            "Most of the values are negative, as those of radar in decibels are, and no model is bundled for such "
            "scenes: teach one with clicks in iic-studio, or give `reflectance` if they are reflectance."
        )
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
    with collect_notes() as notes:
        if nodata is None:
            nodata = assume_nodata(info)
        chosen = choose_bands(info, card, bands, lambda per_side: _sample_all(info, nodata, per_side))
        bidx = tuple(chosen.values())
        source = SceneSource.of(
            info, bidx, card.dtype, nodata, fill=card.fill_for(chosen), optional=card.optional_bands(chosen)
        )
        values = describe_input(
            info, chosen, lambda skip_empty: value_sample(source, info, skip_empty=skip_empty)
        )
        function = choose_rescale(card, values, rescale, reflectance)
        grid = _choose_grid(info, card, match_gsd)
    # Maps keep the notes, and the address of a scene may hold a token.
    named = (note.replace(info.title, "the scene") for note in notes)
    kept = tuple(note[:1].upper() + note[1:] for note in named)
    return replace(source, rescale=function, grid=grid, notes=kept)


def _sample_all(info: SceneInfo, nodata: float | None, per_side: int) -> NDArray[Any]:
    """Return values of all bands of a scene, of pixels spread over it."""
    bidx = tuple(range(1, len(info.dtypes) + 1))
    values = [value for value in info.nodatavals if value is not None]
    source = SceneSource(
        path=info.path,
        bidx=bidx,
        dtype=info.dtypes[0],
        nodata=nodata if nodata is not None else values[0] if values else 0.0,
        masked=False,
        fill=(0.0,) * len(bidx),
        name=info.name,
    )
    return value_sample(source, info, skip_empty=True, per_side=per_side)


def describe_input(
    info: SceneInfo, chosen: Mapping[str, int], measure: Callable[[bool], NDArray[Any]]
) -> Input:
    """Return what is known about the values of the bands of a scene that a model takes."""
    bidx = tuple(chosen.values())
    declared = None if info.radiometry is None else info.radiometry.of_bands(bidx)
    return Input(tuple(chosen), info.dtype_of(bidx), measure, declared, info.title)


def known_spectra(
    card: Card, reading: SceneSource, values: NDArray[np.generic]
) -> tuple[list[str], NDArray[np.float64]]:
    """Return common names of the bands that the scene has, and their values [N, bands] as parts of the model's range.

    These are reflectances, if the model takes such. There are no bands if the scene is stretched: its values have no
    unit then.

    Args:
        values: Values [bands, N] as the model takes them, one row per band of the model.
    """
    positions = reading.positions
    own = [card.bands[position] for position in positions]
    targets = card.range_of(own)
    if card.values == "reflectance" and reading.rescale is not None and reading.rescale.targets != targets:
        return [], np.empty((values.shape[1], 0))
    low, high = np.array(targets, np.float64).T
    return [canonical(name) for name in own], (values[list(positions)].T - low) / (high - low)


def choose_bands(
    info: SceneInfo,
    card: Card,
    bands: Sequence[str | int] | None = None,
    sample: Sample | None = None,
) -> Mapping[str, int]:
    """Return the scene's band, counted from 1, by the name of the model's band, in the model's order.

    Bands that the model can do without are left out if the scene does not have them. An alpha band is a mask, and
    counts as a band only if it is named.

    Args:
        bands: Bands of the scene by name or number, for all bands of the model or for those that it cannot do
            without; by default those that have the names of the model's bands, or are most probably these.
        sample: Returns values of all bands of the scene; called only if what is written about the bands does not
            identify them.

    Raises:
        UsageError: `bands` does not fit the model.
        SceneError: A band is missing, two bands have the same name, or what is written about them is contradictory.
    """
    known = info.bands
    if bands is not None:
        wanted = card.required if len(bands) == len(card.required) else card.bands
        bidx = match_bands(wanted, info.descriptions, known.certain, bands)
        return _announce_bands(card, dict(zip(wanted, bidx, strict=True)))
    if known.conflict:
        raise SceneError(
            f"{info.title} contradicts itself, {known.conflict}; say which bands are {','.join(card.bands)}, in that "
            "order, with `bands`."
        )
    names = known.certain
    if not known.stated and not _own_names(info, card):
        names = decide_names(info, card, sample)
    picture = known.reason == BY_COLOUR and names[: len(RGB)] == RGB and "nir" not in names
    if picture and card.optional and sample is not None:
        _check_picture(info, card, sample(FEW_WINDOWS))
    _check_band_names(info, card, names)
    wanted = tuple(
        name
        for name in card.bands
        if name not in card.optional or named_bands(name, info.descriptions, names)
    )
    bidx = match_bands(wanted, info.descriptions, names)
    _warn_of_unknown_bands(info, card, wanted, names)
    return _announce_bands(card, dict(zip(wanted, bidx, strict=True)))


def read_bands(card: Card, source: SceneSource) -> dict[str, int]:
    """Return the scene's band, counted from 1, by the name of each band of the model that is read."""
    names = (card.bands[position] for position in source.positions)
    return dict(zip(names, source.bidx, strict=True))


def _warn_of_unknown_bands(
    info: SceneInfo, card: Card, wanted: Sequence[str], names: Sequence[str | None]
) -> None:
    """Warn where a band that is missed may be one that has a strange name, or none among bands with names."""
    missing = [name for name in card.bands if name not in wanted]
    unknown = [
        f"{number} {description or 'unnamed'}"
        for number, (description, name, colour) in enumerate(
            zip(info.descriptions, names, info.interpretations, strict=True), 1
        )
        if name is None and colour != "alpha"
    ]
    if missing and unknown and info.bands.stated and not info.bands.nameless:
        assume(
            f"{info.title} is read without {' and '.join(missing)}. If that is one of its other bands "
            f"({', '.join(unknown[:MOST_LISTED])}), give `bands` in the order {','.join(card.bands)}."
        )


def _announce_bands(card: Card, chosen: Mapping[str, int]) -> Mapping[str, int]:
    listed = ", ".join(f"{band} {name}" for name, band in chosen.items())
    remember(f"Bands: {listed}.")
    missing = [name for name in card.bands if name not in chosen]
    if missing:
        _LOG.info("Bands: %s without %s", card.name, " and ".join(missing))
    return chosen


def _own_names(info: SceneInfo, card: Card) -> bool:
    """Return whether every band that the model takes is described by its very name."""
    nameless = (None,) * len(info.descriptions)
    return all(named_bands(name, info.descriptions, nameless) for name in card.bands)


def decide_names(info: SceneInfo, card: Card, sample: Sample | None = None) -> tuple[str | None, ...]:
    """Identify unnamed bands by their spectra and return their common names, with a warning.

    Raises:
        SceneError: Two readings are about as probable as each other.
    """
    known = info.bands
    readings = known.readings
    values: NDArray[Any] | None = None
    if len(readings) == 1 and known.reason != USUAL_ORDER:
        if not any(readings[0]) or info.interpretations[: len(RGB)] == RGB:
            return readings[0]  # a picture of red, green and blue, or nothing at all
        return _assume(info, readings[0], known.reason)
    if sample is not None and len(set(info.dtypes)) == 1:
        values = sample(WINDOWS_PER_SIDE)
    if info.interpretations == (*RGB, "alpha") and not any(info.descriptions):
        if values is None or _is_mask(values[-1]):
            return readings[0]
        readings = tuple(reading for reading in readings if None not in reading)
    masked = (
        known.reason == USUAL_ORDER and values is not None and len(values) > len(RGB) and _is_mask(values[-1])
    )
    if masked:  # a mask that nobody has named is no band
        readings = tuple((*order, None) for order in usual_orders(len(info.dtypes) - 1)) or readings
    is_picture = values is not None and _eight_bit_white(values) is not None
    if values is not None and not is_picture and set(map(canonical, card.required)) <= set(COLOURS):
        verdict = judge_order(values, readings)
        if verdict is not None and not verdict.sure:
            raise _ask_for_order(info, card, verdict.readings)
        if verdict is not None:
            if verdict.readings[0][: len(RGB)] == INFRARED_PICTURE and "blue" not in verdict.readings[0]:
                raise _ask_about_infrared(info, card)
            return _assume(info, verdict.readings[0], "their spectra")
    if known.nameless:
        return _by_count(info, card, readings, values, int(masked))
    if len(readings) > 1:
        raise _ask_for_order(info, card, readings)
    return known.certain


def _by_count(
    info: SceneInfo, card: Card, readings: Sequence[Names], values: NDArray[Any] | None, masks: int
) -> Names:
    """Take as many bands without names as the model takes for these; nothing of another number."""
    for taken in (card.bands, card.required):
        if len(info.dtypes) - masks == len(taken):
            named = (*map(canonical, taken), *(None,) * masks)
            order = named if info.bands.reason == USUAL_ORDER else readings[0]
            if order[: len(RGB)] == RGB and "nir" not in order and values is not None:
                _check_picture(info, card, values)
            return _assume(info, order, f"the order of the model {card.name}")
    return info.bands.certain


def _assume(info: SceneInfo, names: tuple[str | None, ...], reason: str) -> tuple[str | None, ...]:
    listed = ", ".join(f"{index} {name}" for index, name in enumerate(names, 1) if name in COLOURS)
    assume(f"The bands of {info.title} are taken as {listed}, by {reason}. Override with `bands`.")
    return names


class BandOrderError(SceneError):
    """Two orders of the bands of a scene are about as probable as each other."""

    def __init__(self, message: str, readings: Sequence[tuple[str | None, ...]] = ()) -> None:
        super().__init__(message)
        self.readings = tuple(readings)


def _ask_for_order(info: SceneInfo, card: Card, readings: Sequence[tuple[str | None, ...]]) -> SceneError:
    orders = [
        ",".join(str(bands[0]) for name in card.bands if (bands := pick(reading, canonical(name))))
        for reading in readings[:2]
    ]
    return BandOrderError(
        f"It is not clear which bands of {info.title} are {','.join(card.bands)}: their spectra suit `bands` "
        f"{orders[0]} and {orders[1]} about equally well; give one of them.",
        readings[:2],
    )


def _check_picture(info: SceneInfo, card: Card, values: NDArray[Any]) -> None:
    """Refuse a picture in infrared colours, and warn of others that are not true ones.

    Not for a model without optional bands, which may have been made from such pictures.
    """
    kind = judge_picture(values[: len(RGB)]) if card.optional else Picture.TRUE
    advice = f"which {card.name} is not made for: check the map, or teach it with clicks in iic-studio."
    if kind is Picture.INFRARED:
        raise _ask_about_infrared(info, card)
    if kind is Picture.DOUBTFUL:
        assume(
            f"{info.title} may show infrared as red: if plants are pink in it, teach it with clicks in iic-studio."
        )
    if kind is Picture.FALSE:
        assume(f"{info.title} seems to show infrared as green, {advice}")
    if kind is Picture.GREY:
        assume(f"{info.title} is grey, its bands are alike, {advice}")


def _ask_about_infrared(info: SceneInfo, card: Card) -> SceneError:
    return BandOrderError(
        f"{info.title} looks like an infrared picture (1 infrared, 2 red, 3 green), which {card.name} cannot map "
        "without blue: teach it with clicks in iic-studio, or give `bands` 1,2,3 if its colours are true.",
        (INFRARED_PICTURE, RGB),
    )


def _is_mask(values: NDArray[Any]) -> bool:
    """Return whether a band has almost no other values than its smallest and largest, as an alpha band has."""
    if not values.size:
        return True
    return bool(np.isin(values, (values.min(), values.max())).mean() > ALPHA_SHARE)


def _check_band_names(info: SceneInfo, card: Card, names: tuple[str | None, ...]) -> None:
    """Refuse a scene without a band that the model takes, and say what can be done about it."""
    matches = {name: named_bands(name, info.descriptions, names) for name in card.bands}
    missing = [name for name in card.required if not matches[name]]
    if not missing:
        return
    count = len(info.descriptions)
    matched = {band for bands in matches.values() for band in bands}
    unmatched = sum(name not in OTHERS and band not in matched for band, name in enumerate(names, 1))
    present = [name for name in card.bands if matches[name]]
    order, absent = ",".join(card.bands), " or ".join(missing)
    usable = ",".join(present or map(str, range(1, count + 1)))
    train = (
        f"teach it with clicks in iic-studio, or train a model on its bands ({usable}) with iic-train rasters"
    )
    kinds = ("alpha" if kind == "alpha" else None for kind in info.interpretations)
    known = list_bands(
        info.descriptions, tuple(name or kind for name, kind in zip(names, kinds, strict=True))
    )
    if count == 1 and is_part_of_product(info.path):
        advice = "; give the folder that holds it and the other bands of its product"
    elif unmatched < len(missing):
        advice = f", but {card.name} takes {order}; {train}"
    elif present:
        advice = (
            f"; if it has {absent} under another name, give `bands` in the order {order}, or else {train}"
        )
    else:
        advice = f"; say which of these are {order}, in that order, with `bands`"
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
    remember(f"Pixels: read at {size:.3g} m, as the model takes them.")
    return GeoBox(width, height, scaled, grid.crs)


def warn_about_misfit(grid: GeoBox, card: Card, cure: str) -> None:
    """Warn if a scene is read with pixels that the model is not made for.

    Args:
        grid: The grid that the scene is read on.
        cure: What to do if they are too fine, with a place for the size in metres that they should have.
    """
    size = ground_resolution(grid)
    warning, matching = describe_misfit(card, size), matching_size(card, size)
    if warning is None:
        return
    finer = size is not None and matching is not None and size < matching
    assume(f"{warning}; {cure.format(matching) if finer else 'train a model on such scenes'}.")
