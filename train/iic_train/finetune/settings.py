"""How a network learns from labelled pixels, as plain values: what `config.json` of such a run holds.

Nothing here needs PyTorch.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from iic_geotools.classmap.classes import MAX_CLASSES
from iic_geotools.errors import UsageError
from iic_train.views.settings import Light

Mode = Literal["auto", "head", "network"]
"""Train a linear head on frozen features, or the whole network, or what cross-validation finds better."""
Rescaling = Literal["auto", "reflectance"]
"""How scenes are brought to one range of values."""

UNCHANGED = Light()


@dataclass(frozen=True)
class Meaning:
    """What some values of the labels mean: one class, or one of several.

    Attributes:
        classes: The classes that such a pixel may have.
        values: The values as text: a number, a range such as `60-100`, or a name. If there are none, every pixel has
            this meaning, labelled or not.
        where: Conditions as (quantity, low, high), all of which must hold; a quantity is `ndvi`, `ndwi` or the name of
            a band, in scaled values.
    """

    classes: tuple[str, ...]
    values: tuple[str, ...] = ()
    where: tuple[tuple[str, float, float], ...] = ()


@dataclass(frozen=True)
class LabelSource:
    """Scenes that are read alike, and labels that mean the same.

    Attributes:
        name: Name of the source.
        scenes: The rasters.
        labels: One file per scene, or one for all of them: a raster, points, polygons, or a table of scenes and their
            class (`.csv` with the columns file and class). Empty if the scenes have no labels.
        meanings: What the values mean; later ones win. If there are none, every value is the class it names.
        label_field: Field of points and polygons that holds the class.
        weight: How often a crop is of this source, in relation to the other sources.
        bands: Band of the scenes for each channel; empty if bands are found by the channels' names. The last channels
            may be missing if the network can do without them.
        rescale: "reflectance" brings every scene to reflectance, "auto" to one range by the percentiles of each of its
            bands, "stretch" to the values that mean to the network that they have no unit, and "MIN,MAX" takes these
            values for black and white; None takes values as they are.
        reflectance: Scale and offset that turn values into reflectance; by default as the scene says, or an estimate.
        nodata: Value that means no data, instead of what the files say.
        dense: File of dense labels of windows of the scenes, which win over the others; None if there are none.
        factors: Numbers of pixels, on each axis, that are averaged into one: one level for each.
        gsd: Range of metres, instead of `factors`: each scene is read at every ground resolution in this range that
            whole numbers of its pixels make.
        pixel_size: Side of a pixel in metres, for scenes that do not say it.
        through_air: Whether the values are reflectance at the top of the atmosphere.
        folds: Part of the cross-validation in which scenes whose file names begin with a text are left out, as (text,
            number). Each text is a place. If there are none, places are found and shared out by themselves.
    """

    name: str
    scenes: tuple[str, ...]
    labels: tuple[str, ...] = ()
    meanings: tuple[Meaning, ...] = ()
    label_field: str | None = None
    weight: float = 1.0
    bands: tuple[str, ...] = ()
    rescale: str | None = None
    reflectance: tuple[float, float] | None = None
    nodata: float | None = None
    dense: str | None = None
    factors: tuple[int, ...] = (1,)
    gsd: tuple[float, float] | None = None
    pixel_size: float | None = None
    through_air: bool = False
    folds: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True)
class FinetuneConfig:
    """How a network learns from labelled pixels.

    Attributes:
        classes: Names of the classes, in the order of the labels.
        sources: What is learnt from.
        dtype: Type of the pixels that the network takes.
        colours: Colours of the classes as #rrggbb; if there are none, distinct ones are chosen.
        start: The run whose weights training starts from; None starts from random ones.
        checkpoint: The epoch of that run with the lowest loss, or its last one.
        mode: Train a head on frozen features, or the whole network, or what cross-validation finds better.
        folds: Number of parts of the cross-validation over places; 0 leaves it out.
        penalty: Weight of the squared weights of a linear head on frozen features.
        pixel_share: Share of the local path of a land-cover network in the logits; the context has the rest.
        balance: Class weight = frequency ** -balance.
        painted_water: Share of the crops into which water is painted, for aerial imagery with a class of that name.
        painted_soil: Share of the crops into which bare soil or sand is painted, for reflectance with a class `bare`.
        painted_shade: Share of the crops of which a part is darkened, as by the shade of mountains.
        set_weight: Weight of a pixel whose label leaves several classes open.
        smoothing: Share of every label that is spread over all classes, which bounds what a wrong label costs.
        weight_decay: Weight decay of AdamW.
        warmup: Number of steps over which the learning rate rises.
        average: Decay of the running mean of the weights, which is what is kept.
        clip: Largest norm of the gradient.
        dropout: Share of the features that are left out in training.
        iic_weight: Weight of the IIC objective of head A on unlabelled pixels next to the labels.
        light: Changes of light.
        zoom: Smallest and largest change of the resolution.
        bias: What is added to the logits of the classes in the end.
        temperature: What logits are divided by in the end; by default found on the places left out.
    """

    retired: ClassVar[tuple[str, ...]] = (
        "pixel_steps",
        "smoothed_share",
        "pixel_crops",
        "pixel_batch",
        "pixel_rate",
        "around",
        "rotated",
        "centred",
        "painting",
    )
    classes: tuple[str, ...]
    sources: tuple[LabelSource, ...]
    dtype: str = "uint8"
    colours: tuple[str, ...] = ()
    start: str | None = None
    checkpoint: Literal["best", "last"] = "best"
    mode: Mode = "auto"
    folds: int = 3
    penalty: float = 1e-3
    pixel_share: float = 0.5
    balance: float = 0.25
    painted_water: float = 0.0
    painted_soil: float = 0.0
    painted_shade: float = 0.0
    set_weight: float = 0.6
    smoothing: float = 0.0
    weight_decay: float = 1e-2
    warmup: int = 50
    average: float = 0.99
    clip: float = 5.0
    dropout: float = 0.1
    iic_weight: float = 0.0
    light: Light = UNCHANGED
    zoom: tuple[float, float] = (1.0, 1.0)
    bias: tuple[float, ...] = ()
    temperature: float | None = None

    def __post_init__(self) -> None:
        if not 2 <= len(self.classes) <= MAX_CLASSES:
            raise UsageError(
                f"Learning from labels needs 2 to {MAX_CLASSES} classes, and there are {len(self.classes)}: "
                "label at least two, or group values with `label_class`."
            )
        if len(set(self.classes)) < len(self.classes):
            raise UsageError(f"Two classes have the same name ({', '.join(self.classes)}).")
        for name in ("bias", "colours"):
            if getattr(self, name) and len(getattr(self, name)) != len(self.classes):
                raise UsageError(f"`{name}` needs one value for each of the {len(self.classes)} classes.")
        unknown = {
            name for source in self.sources for meaning in source.meanings for name in meaning.classes
        } - set(self.classes)
        if unknown:
            raise UsageError(f"The legend has no class {', '.join(sorted(unknown))}.")


SCENES_CHANGES: dict[str, Any] = {
    "epochs": 5,
    "steps": 100,
    "batch": 8,
    "size": 96,
    "lr": 3e-3,
    "schedule": "cosine",
    "passes": ("b",),
    "seed": 0,
    "balance": 0.5,
    "smoothing": 0.02,
    "iic_weight": 0.2,
    "light": Light(plain=0.4, varied=True, gain=0.1, band_gain=0.04, gamma=0.06, offset=0.01, noise=0.01),
}
"""What fine-tuning with labels on scenes changes: settings of `TrainConfig` and `FinetuneConfig`.

The changes of light hold for imagery of any kind.
"""


def own_names(classes: Sequence[str]) -> tuple[Meaning, ...]:
    """Return the meaning of labels whose values name the classes themselves."""
    return tuple(Meaning((name,), (name,)) for name in classes)


def parse_meanings(label_class: Sequence[str]) -> tuple[Meaning, ...]:
    """Read classes written as NAME=VALUE,VALUE...; a value under two classes may be either of them."""
    classes_of: dict[str, list[str]] = {}
    for text in label_class:
        name, _, values = text.partition("=")
        tokens = [value.strip() for value in values.split(",")]
        if not name.strip() or not all(tokens):
            raise UsageError(f'`label_class` must be NAME=VALUE,VALUE..., not "{text}".')
        for token in tokens:
            classes_of.setdefault(token, []).append(name.strip())
    values_of: dict[tuple[str, ...], list[str]] = {}
    for token, classes in classes_of.items():
        values_of.setdefault(tuple(dict.fromkeys(classes)), []).append(token)
    return tuple(Meaning(classes, tuple(values)) for classes, values in values_of.items())


def class_names(label_class: Sequence[str]) -> tuple[str, ...]:
    """Return the classes of texts NAME=VALUE,VALUE..., each once, in order."""
    return tuple(dict.fromkeys(text.partition("=")[0].strip() for text in label_class))


def without_temperature(config: FinetuneConfig) -> FinetuneConfig:
    """Return the settings without the temperature, which is found on places left out."""
    return replace(config, temperature=1.0)
