"""The model card: everything a runtime must know about a model, as JSON in the model file itself."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

from iic_geotools.colours import MapClass
from iic_geotools.errors import IICError, ModelError

CARD_KEY = "iic_card"
CARD_VERSION = 1
MAX_CLASSES = 254

Task = Literal["segmentation", "clustering"]
PixelType = Literal["uint8", "uint16", "int16", "float32"]
Precision = Literal["fp32", "fp16", "int8"]
Rescaling = Literal["auto"]


@dataclass(frozen=True)
class Origin:
    """Where a model comes from: the run, the sub-head and how it was chosen, and whose imagery it saw."""

    run: str = ""
    subhead: int = 0
    chosen_by: str = ""
    loss: float | None = None
    data: str = ""
    licence: str = ""


@dataclass(frozen=True)
class Card:
    """What a model takes, gives and needs.

    Attributes:
        name: what to call it.
        task: "segmentation" labels pixels, "clustering" labels images.
        bands: names of the bands it takes, in order.
        dtype: dtype of the raw pixels it takes.
        offset: one a band; the graph computes (pixel - offset) * scale.
        scale: one a band; offset .. offset + 1 / scale is the range of values it was trained on.
        rescale: "auto": scenes are brought into that range by each band's own 2nd and 98th percentile unless told
            otherwise; None: their values are taken as they are.
        gsd: ground sample distance it was trained at, in metres a pixel; None if unknown.
        gsd_range: the distances it is meant for.
        classes: name and colour of each label, in the order of the labels.
        halo: how many pixels around a tile decide about its edge.
        stride: what a tile's origin must be a multiple of.
        memory_per_pixel: bytes of working memory for each pixel run at once.
        precision: of the graph's arithmetic.
        origin: where it comes from.
        parity: figures of the proof that it equals the trained model.
        packages: versions of the packages that made it.
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
    gsd: float | None = None
    gsd_range: tuple[float, float] | None = None
    precision: Precision = "fp32"
    origin: Origin = Origin()
    parity: Mapping[str, float] = field(default_factory=dict)
    packages: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        count = len(self.bands)
        if not self.offset:
            object.__setattr__(self, "offset", (0.0,) * count)
        if not self.scale:
            object.__setattr__(self, "scale", (1 / 255 if self.dtype == "uint8" else 1.0,) * count)
        self._check()

    def _check(self) -> None:
        _require(len(self.bands) > 0 and len(set(self.bands)) == len(self.bands), "bands", "distinct names")
        for key in ("offset", "scale"):
            values = getattr(self, key)
            _require(len(values) == len(self.bands), key, "one number a band")
            _require(all(map(math.isfinite, values)), key, "finite numbers")
        _require(all(value != 0 for value in self.scale), "scale", "numbers other than 0")
        _require(self.dtype in get_args(PixelType), "dtype", f"one of {get_args(PixelType)}")
        _require(
            self.rescale in (None, *get_args(Rescaling)), "rescale", f"null or one of {get_args(Rescaling)}"
        )
        _require(self.task in get_args(Task), "task", f"one of {get_args(Task)}")
        _require(self.precision in get_args(Precision), "precision", f"one of {get_args(Precision)}")
        _require(1 <= len(self.classes) <= MAX_CLASSES, "classes", f"1 to {MAX_CLASSES} classes")
        _require(self.halo >= 0, "halo", "at least 0")
        _require(self.stride >= 1, "stride", "at least 1")
        _require(self.memory_per_pixel > 0, "memory_per_pixel", "above 0")
        _require(self.gsd is None or 0 < self.gsd < math.inf, "gsd", "a finite number above 0")
        low, high = self.gsd_range or (1.0, 1.0)
        _require(0 < low <= high < math.inf, "gsd_range", "a smallest and a largest distance")
        for key in ("parity", "packages"):
            _require(isinstance(getattr(self, key), Mapping), key, "a table of names and values")

    @property
    def value_range(self) -> tuple[tuple[float, float], ...]:
        """The raw values, one (low, high) pair a band, that the model was trained on."""
        return tuple((low, low + 1 / scale) for low, scale in zip(self.offset, self.scale, strict=True))

    def to_json(self) -> str:
        """The card as it stands in a model file."""
        content = {"version": CARD_VERSION, **asdict(self)}
        return json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> "Card":
        """Read a card.

        Raises:
            ModelError: it is damaged, incomplete, or of a version this package does not know.
        """
        try:
            content = json.loads(text)
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
                f"its card is of version {version}, this package reads version {CARD_VERSION}; {hint}"
            )
        try:
            return cls(**_typed(content))
        except ModelError:
            raise
        except IICError as error:
            raise ModelError(f"its card is wrong: {error}") from error
        except (TypeError, KeyError, AttributeError, ValueError, OverflowError) as error:
            raise ModelError(
                f"its card is incomplete or has unknown fields ({error}); export it again"
            ) from error


def _typed(content: dict[str, Any]) -> dict[str, Any]:
    """JSON's lists and objects as the card's tuples and value objects."""
    typed = dict(content)
    for key in ("bands", "offset", "scale"):
        if key in typed:
            typed[key] = tuple(typed[key])
    if typed.get("gsd_range") is not None:
        low, high = typed["gsd_range"]
        typed["gsd_range"] = (low, high)
    typed["classes"] = tuple(MapClass(**entry) for entry in typed["classes"])
    if "origin" in typed:
        typed["origin"] = Origin(**typed["origin"])
    for key in ("halo", "stride", "memory_per_pixel"):
        if type(typed[key]) is not int:  # a bool is an int too
            raise TypeError(f"{key} is not a whole number")
    return typed


def _require(holds: bool, key: str, what: str) -> None:
    if not holds:
        raise ModelError(f"its card's {key} must be {what}")
