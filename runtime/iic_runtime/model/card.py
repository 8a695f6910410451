"""The model card: everything that a runtime must know about a model, as JSON in the model file itself."""

import json
import math
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

from iic_geotools.classmap.classes import MAX_CLASSES, MAX_NAME, MapClass
from iic_geotools.errors import IICError, ModelError
from iic_geotools.scene.bands import OptionalBand

CARD_KEY = "iic_card"
CARD_VERSION = 1
# Limits far beyond any real model, so that a wrong or hostile card is refused before it costs memory or time.
MAX_CARD = 4 << 20
MAX_BANDS = 1024
MAX_TEXT = 10_000
MAX_PLACES = 1000
MAX_HALO, MAX_STRIDE, MAX_MEMORY_PER_PIXEL = 1 << 13, 1 << 10, 1 << 24
MAX_FEATURES, MAX_VALUE = 1 << 16, 1e18

Task = Literal["segmentation", "clustering"]
PixelType = Literal["uint8", "uint16", "int16", "float32"]
Precision = Literal["fp32", "fp16", "int8"]
_LIMITS = {"uint8": (0, 255), "uint16": (0, 65535), "int16": (-32768, 32767)}
Rescaling = Literal["auto"]
Values = Literal["reflectance"]


@dataclass(frozen=True)
class Origin:
    """Where a model comes from.

    Attributes:
        run: The training run.
        subhead: Number of the sub-head that was exported.
        chosen_by: How the sub-head was chosen.
        loss: Loss of the sub-head.
        data: The imagery that it was trained on.
        licence: Licence of the model.
        labels: The labels that it has learnt from or was named by; empty if it has seen none.
        places: Longitude and latitude of the points that it was named by, if they were points, so that nobody takes
            them for independent samples of a map.
    """

    run: str = ""
    subhead: int = 0
    chosen_by: str = ""
    loss: float | None = None
    data: str = ""
    licence: str = ""
    labels: str = ""
    places: tuple[tuple[float, float], ...] = ()


@dataclass(frozen=True)
class FeatureGroup:
    """Consecutive channels of the output `features` that are of one kind.

    Attributes:
        size: Number of channels.
        side: Side in pixels of the squares that they describe; 1 for the finest ones.
        learnt: Whether they were learnt, not computed by a fixed rule.
    """

    size: int
    side: int
    learnt: bool


@dataclass(frozen=True)
class Card:
    """What a model takes, gives and needs.

    Attributes:
        name: Name of the model.
        task: "segmentation" labels pixels, "clustering" labels whole images.
        bands: Names of the bands that it takes, in this order.
        dtype: Data type of the raw pixels that it takes.
        offset: One number per band; the graph computes (pixel - offset) * scale.
        scale: One number per band; offset .. offset + 1 / scale is the range of values that it was trained on.
        rescale: "auto" if each band of a scene is brought into that range by its own 2nd and 98th percentile, unless
            the user says otherwise; None if values are taken as they are.
        values: "reflectance" if (pixel - offset) * scale is reflectance, so that scenes are brought to it by what
            they say about their values; None if the values have no unit.
        optional: The bands that a scene need not have, each with the value, in the card's data type, that says to the
            graph that the band is missing at a pixel.
        stretch: For models that take reflectance, values outside of its range that stand for the 2nd and 98th
            percentile of each band of a scene of whose values nothing is known; None if reflectance is estimated then.
        gsd: Ground sample distance that it was trained at, in metres per pixel; None if unknown.
        gsd_range: Smallest and largest ground sample distance that it is meant for.
        classes: Name and colour of every label, in the order of the labels.
        halo: Number of pixels around a tile that influence its labels.
        stride: Number of pixels that the origin of a tile must be a multiple of.
        memory_per_pixel: Bytes of working memory per pixel that is run at once.
        precision: Precision of the graph's arithmetic.
        features: Kinds of the channels of the output `features`, in order; empty if there is one kind only.
        origin: Where the model comes from.
        parity: Figures of the proof that it equals the trained model.
        accuracy: Figures of its accuracy by where they were measured, e.g.
            {"Sentinel-2, places left out": {"accuracy": 0.82, "mean_iou": 0.55}}.
        reliability: How far its confidence can be trusted, e.g. {"ece": 0.03, "measured_on": "places left out"}.
        packages: Versions of the packages that made it.
    """

    name: str
    bands: tuple[str, ...]
    classes: tuple[MapClass, ...]
    halo: int
    stride: int
    memory_per_pixel: int
    task: Task = "segmentation"
    dtype: PixelType = "uint8"
    offset: tuple[float, ...] = ()
    scale: tuple[float, ...] = ()
    rescale: Rescaling | None = None
    values: Values | None = None
    optional: Mapping[str, float] = field(default_factory=dict)
    stretch: tuple[float, float] | None = None
    gsd: float | None = None
    gsd_range: tuple[float, float] | None = None
    precision: Precision = "fp32"
    features: tuple[FeatureGroup, ...] = ()
    origin: Origin = Origin()
    parity: Mapping[str, float] = field(default_factory=dict)
    accuracy: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    reliability: Mapping[str, float | str] = field(default_factory=dict)
    packages: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        count = len(self.bands)
        if not self.offset:
            object.__setattr__(self, "offset", (0.0,) * count)
        if not self.scale:
            object.__setattr__(self, "scale", (1 / 255 if self.dtype == "uint8" else 1.0,) * count)
        self._check_texts()
        _require(len(self.bands) <= MAX_BANDS, "bands", f"at most {MAX_BANDS}")
        _require(len(self.bands) > 0 and len(set(self.bands)) == len(self.bands), "bands", "distinct names")
        for key in ("offset", "scale"):
            values = getattr(self, key)
            _require(len(values) == len(self.bands), key, "one number per band")
            _require(all(map(_is_number, values)), key, "finite numbers")
        _require(all(value != 0 for value in self.scale), "scale", "numbers other than 0")
        ends = [abs(end) for pair in self.value_range for end in pair]
        _require(max(ends) <= MAX_VALUE, "range of values", f"within {MAX_VALUE:g}")
        for group in self.features:
            sizes = type(group.size) is int and type(group.side) is int and type(group.learnt) is bool
            fits = sizes and 1 <= group.size <= MAX_FEATURES and 1 <= group.side <= 2 * MAX_HALO + 1
            _require(fits, "features", f"groups of 1 to {MAX_FEATURES} channels")
        _require(self.dtype in get_args(PixelType), "dtype", f"one of {get_args(PixelType)}")
        _require(
            self.rescale in (None, *get_args(Rescaling)), "rescale", f"null or one of {get_args(Rescaling)}"
        )
        _require(self.values in (None, *get_args(Values)), "values", f"null or one of {get_args(Values)}")
        _require(self.values is None or self.rescale is None, "rescale", "null if values are reflectance")
        self._check_optional()
        _require(self.task in get_args(Task), "task", f"one of {get_args(Task)}")
        _require(self.precision in get_args(Precision), "precision", f"one of {get_args(Precision)}")
        _require(1 <= len(self.classes) <= MAX_CLASSES, "classes", f"1 to {MAX_CLASSES} classes")
        _require(0 <= self.halo <= MAX_HALO, "halo", f"0 to {MAX_HALO}")
        _require(1 <= self.stride <= MAX_STRIDE, "stride", f"1 to {MAX_STRIDE}")
        _require(
            0 < self.memory_per_pixel <= MAX_MEMORY_PER_PIXEL,
            "memory_per_pixel",
            f"above 0 and at most {MAX_MEMORY_PER_PIXEL}",
        )
        _require(self.gsd is None or 0 < self.gsd < math.inf, "gsd", "a finite number above 0")
        low, high = self.gsd_range or (1.0, 1.0)
        _require(0 < low <= high < math.inf, "gsd_range", "a smallest and a largest distance")
        _require(all(map(_is_number, self.parity.values())), "parity", "a table of names and numbers")
        _require(self.origin.loss is None or _is_number(self.origin.loss), "loss", "a number")
        _require(type(self.origin.subhead) is int, "subhead", "a whole number")
        places = self.origin.places
        _require(len(places) <= MAX_PLACES, "places", f"at most {MAX_PLACES}")
        _require(
            all(len(place) == 2 and all(map(_is_number, place)) for place in places),
            "places",
            "pairs of longitude and latitude",
        )

    def _check_optional(self) -> None:
        """Check the values that stand for missing bands and unknown values."""
        optional, limits = self.optional, _LIMITS.get(self.dtype, (-MAX_VALUE, MAX_VALUE))
        _require(isinstance(optional, Mapping), "optional", "a table of bands and values")
        _require(optional.keys() < set(self.bands), "optional", "some of its bands, not all of them")
        values = [*optional.values(), *(self.stretch or ())]
        fit = all(_is_number(value) and limits[0] <= value <= limits[1] for value in values)
        whole = self.dtype == "float32" or all(value == int(value) for value in values if _is_number(value))
        _require(fit and whole, "optional and stretch", f"numbers that {self.dtype} holds")
        if self.stretch is not None:
            _require(self.values == "reflectance", "stretch", "null unless values are reflectance")
            _require(len(self.stretch) == 2 and self.stretch[0] < self.stretch[1], "stretch", "LOW and HIGH")

    def _check_texts(self) -> None:
        """Refuse control characters, which a terminal would obey, and texts that are too long."""
        for key in ("parity", "packages", "accuracy", "reliability"):
            _require(isinstance(getattr(self, key), Mapping), key, "a table of names and values")
        for figures in self.accuracy.values():
            _require(
                isinstance(figures, Mapping), "accuracy", "a table of figures by where they were measured"
            )
        measured = [pair for figures in self.accuracy.values() for pair in figures.items()]
        origin = self.origin
        texts = {
            "name": (self.name,),
            "bands": self.bands,
            "origin": (origin.run, origin.chosen_by, origin.data, origin.licence, origin.labels),
            "parity": tuple(self.parity),
            "packages": (*self.packages, *self.packages.values()),
            "accuracy": (*self.accuracy, *_texts_of(measured)),
            "reliability": _texts_of(list(self.reliability.items())),
        }
        for key, values in texts.items():
            printable = all(isinstance(value, str) and value.isprintable() for value in values)
            _require(printable, key, "text of printable characters")
            _require(sum(map(len, values)) <= MAX_TEXT, key, f"at most {MAX_TEXT} characters")
        _require(
            bool(self.name.strip()) and len(self.name) <= MAX_NAME, "name", f"1 to {MAX_NAME} characters"
        )

    @property
    def required(self) -> tuple[str, ...]:
        """The bands that a scene must have."""
        return tuple(band for band in self.bands if band not in self.optional)

    def range_of(self, names: Collection[str]) -> tuple[tuple[float, float], ...]:
        """The range of raw values of some bands, in the model's order: one (low, high) pair per band."""
        pairs = zip(self.bands, self.value_range, strict=True)
        return tuple(pair for band, pair in pairs if band in names)

    def optional_bands(self, names: Collection[str]) -> tuple[OptionalBand, ...]:
        """The bands that a scene need not have, for a scene that has the bands `names`."""
        return tuple(
            OptionalBand(position, self.optional[band], band not in names)
            for position, band in enumerate(self.bands)
            if band in self.optional
        )

    def fill_for(self, names: Collection[str]) -> tuple[float, ...]:
        """One value per band for pixels without data, for a scene that has the bands `names`."""
        pairs = zip(self.bands, self.offset, strict=True)
        return tuple(offset if band in names else self.optional[band] for band, offset in pairs)

    @property
    def value_range(self) -> tuple[tuple[float, float], ...]:
        """The range of raw values that the model was trained on: one (low, high) pair per band."""
        return tuple((low, low + 1 / scale) for low, scale in zip(self.offset, self.scale, strict=True))

    def to_json(self) -> str:
        """Return the card as it is in a model file."""
        content = {"version": CARD_VERSION, **asdict(self)}
        return json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> "Card":
        """Read a card.

        Raises:
            ModelError: The card is damaged or incomplete, or its version is not supported.
        """
        if len(text) > MAX_CARD:
            raise ModelError(f"its card has {len(text)} characters, and {MAX_CARD} are the most")
        try:
            content = json.loads(text)
        except RecursionError as error:
            raise ModelError("its card is nested too deeply") from error
        except ValueError as error:
            raise ModelError(f"its card is not JSON ({error})") from error
        version = content.pop("version", None) if isinstance(content, dict) else None
        if version != CARD_VERSION:
            hint = (
                "install a newer iic-edge"
                if isinstance(version, int) and version > CARD_VERSION
                else "export it again"
            )
            raise ModelError(
                f"its card has version {version}, and this package reads version {CARD_VERSION}; {hint}"
            )
        try:
            return cls(**_convert(content))
        except ModelError:
            raise
        except IICError as error:
            raise ModelError(f"its card is wrong: {error}") from error
        except (TypeError, KeyError, AttributeError, ValueError, OverflowError) as error:
            raise ModelError(
                f"its card is incomplete or has unknown fields ({error}); export it again"
            ) from error


def _convert(content: dict[str, Any]) -> dict[str, Any]:
    """Turn the lists and objects of JSON into the tuples and values of the card."""
    typed = dict(content)
    for key in ("bands", "offset", "scale"):
        if key in typed:
            if not isinstance(typed[key], list):
                raise TypeError(f"{key} is not a list")
            typed[key] = tuple(typed[key])
    for key in ("gsd_range", "stretch"):
        if typed.get(key) is not None:
            low, high = typed[key]
            typed[key] = (low, high)
    typed["classes"] = tuple(MapClass(**entry) for entry in typed["classes"])
    typed["features"] = tuple(FeatureGroup(**entry) for entry in typed.get("features", ()))
    if "origin" in typed:
        places = tuple(tuple(place) for place in typed["origin"].get("places", ()))
        typed["origin"] = Origin(**{**typed["origin"], "places": places})
    for key in ("halo", "stride", "memory_per_pixel"):
        if type(typed[key]) is not int:  # a bool is an int too
            raise TypeError(f"{key} is not a whole number")
    return typed


def _texts_of(figures: list[tuple[Any, Any]]) -> tuple[Any, ...]:
    """The names of figures, and those values that are not numbers: all of these must be text."""
    return (*(name for name, _ in figures), *(value for _, value in figures if not _is_number(value)))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _require(holds: bool, key: str, what: str) -> None:
    if not holds:
        raise ModelError(f"its card's {key} must be {what}")
