"""The settings of an export, each declared once. Nothing here needs PyTorch."""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Literal

from iic_geotools.errors import UsageError
from iic_geotools.option_texts import parse_number_range
from iic_geotools.settings import PathLike, Settings, setting

Format = Literal["onnx", "tensorrt"]
Precision = Literal["fp32", "fp16", "int8"]
Weights = Literal["best", "last", "finetuned"]
"""The weights of an epoch, or what a clustering run became by fine-tuning with labels."""


def _texts(texts: Sequence[str], name: str) -> tuple[str, ...]:
    return tuple(texts)


@dataclass(frozen=True)
class Naming(Settings, group="Names of clusters"):
    """Labels that name the clusters."""

    labels: Sequence[PathLike] = setting(
        (),
        "Name the clusters by a label raster, or by points or polygons with a class field. Give one for all scenes, or "
        "one for each in order.",
        metavar="FILE",
        repeat=True,
        parse=_texts,
    )
    label_field: str | None = setting(
        None,
        "Field of points and polygons that holds the class; by default the only one, or one named class.",
    )
    label_class: Sequence[str] = setting(
        (),
        "Group values of label rasters into a class.",
        details="If there are none, `own_labels` are grouped as the run groups them, and otherwise every value is a "
        "class.",
        metavar="NAME=VALUE,...[:#COLOUR]",
        repeat=True,
        parse=_texts,
    )
    scenes: Sequence[PathLike] = setting(
        (),
        "Scene under `labels`; by default the run's own scenes.",
        metavar="FILE",
        repeat=True,
        parse=_texts,
        flags=("--scene",),
    )
    own_labels: bool = setting(
        False,
        "Name the clusters by the labels that the run was evaluated with.",
        details="Its label rasters, or the classes of the images of its data set.",
    )
    balance: float = setting(
        0.0,
        "Class weight = labelled pixels ** -balance: 0 counts pixels, 1 gives every class the same weight.",
    )

    def __post_init__(self) -> None:
        if not self.labels and (self.label_field is not None or self.scenes):
            raise UsageError("`label_field` and `scenes` apply only to `labels`; give that too.")
        if not self.labels and not self.own_labels and (self.label_class or self.balance):
            raise UsageError(
                "`label_class` and `balance` apply only to `labels` or `own_labels`; give one of them."
            )


@dataclass(frozen=True, kw_only=True)
class CardSettings(Settings, group="Card"):
    """What the model says about itself."""

    name: str | None = setting(None, "Name of the model; by default that of the run.")
    attribution: str = setting("", "Whose data the run was trained on.")
    licence: str = setting("", "Licence of that data, e.g. CC-BY-4.0.")
    gsd_range: tuple[float, float] | None = setting(
        None,
        "Ground sample distances in metres that the model is meant for; by default those that it was trained at.",
        metavar="MIN,MAX",
        parse=parse_number_range,
    )
    stac: PathLike | None = setting(None, "Also write the card as a STAC item (.json).")


@dataclass(frozen=True, kw_only=True)
class ExportSettings(CardSettings, group="Model"):
    """Which weights of a run are exported, and how."""

    sub_head: int | None = setting(None, "Sub-head of head B; by default the one with the lowest IIC loss.")
    checkpoint: Weights = setting(
        "best", "The weights of the best or the last epoch, or a fine-tuned clustering network."
    )
    precision: Precision = setting(
        "fp32", "Precision of the model's arithmetic; int8 is calibrated on the run's images.", first=True
    )
    format: Format = setting(
        "onnx", "An ONNX file for every machine, or a TensorRT engine for the GPU of this one.", first=True
    )
    min_agreement: float | None = setting(
        None,
        "Share of labels that must equal the trained network's; by default in fp32 all that rounding cannot change, "
        "else 0.99.",
    )
    probabilities: bool = setting(False, "Add a third output, the probability of each class.")
    runs: PathLike = setting("runs", "Folder of the run folders.", first=True)
    overwrite: bool = setting(False, "Replace outputs that exist.", first=True)


def missing_extra() -> str:
    """Return the extras to advise, with ONNX Runtime only where no build of it is there: two overwrite each other."""
    return "train" if find_spec("onnxruntime") else "cpu,train"
