"""Run folder to model file: the one function behind `iic-export`."""

import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, get_args

import onnx
from torch import Tensor

from iic_export.graph import with_outputs
from iic_export.making import make_model
from iic_export.memory import memory_per_pixel
from iic_export.naming import Named, Naming, name_clusters
from iic_export.packages import require, versions
from iic_export.parity import Parity, label_agreement, trained
from iic_export.stac import check_stac, write_stac
from iic_export.subject import Subject, chips, find_run, take
from iic_export.trtbuild import EngineOptions, probe, write_engine
from iic_geotools.colours import MapClass, distinct_colours
from iic_geotools.errors import ModelError, UsageError
from iic_geotools.files import write_atomically
from iic_runtime.card import MAX_CLASSES, Card, Origin, Precision
from iic_runtime.enginefile import SUFFIX
from iic_runtime.engines import Engine
from iic_runtime.modelfile import put_card
from iic_runtime.validate import validate_model
from iic_train.runs import Which

Format = Literal["onnx", "tensorrt"]
PathLike = str | os.PathLike[str]


@dataclass(frozen=True)
class Exported:
    """What was written."""

    path: Path
    card: Card
    parity: Parity

    def sentence(self) -> str:
        """The export in a line."""
        where = "its own data" if self.parity.own_data else "noise"
        return (
            f"{self.path}: {len(self.card.classes)} classes from {', '.join(self.card.bands)}, {self.card.precision}; "
            f"{self.parity.agreement:.3%} of {self.parity.labels} labels on {where} equal the trained network's"
        )


def export(
    run: PathLike | None = None,
    out: PathLike = "model.onnx",
    *,
    subhead: int | None = None,
    which: Which = "best",
    precision: Precision = "fp32",
    min_agreement: float | None = None,
    probabilities: bool = False,
    format: Format = "onnx",
    engine: EngineOptions | None = None,
    naming: Naming | None = None,
    name: str | None = None,
    attribution: str = "",
    licence: str = "",
    gsd_range: tuple[float, float] | None = None,
    stac: PathLike | None = None,
    runs: PathLike = "runs",
    overwrite: bool = False,
) -> Exported:
    """Write a trained run as one model file, proven equal to the trained network.

    The file is written only after the exported graph was run: tiled it must equal itself whole, bit for bit, and on
    pictures of the run's own data it must give the trained network's probabilities and labels.

    Args:
        run: A run folder, or its name under `runs`; by default the newest one.
        out: The model file, .onnx, or .engine for TensorRT.
        subhead: Sub-head of head B; by default the one of the lowest IIC loss.
        which: Weights of the `best` or of the `last` epoch.
        precision: Of the graph's arithmetic: "fp32", "fp16" or "int8", which is calibrated on the run's pictures.
        min_agreement: Share of labels that must be the trained network's; by default 0.9999 in fp32, else 0.99.
        probabilities: Give the model a third output, the probability of each class.
        format: "onnx", or "tensorrt" for an engine that runs on this machine's GPU, its card in a file beside it.
        engine: What a TensorRT engine is built for.
        naming: Labels that turn clusters into named classes.
        name: What to call the model; by default as the run is called.
        attribution: Whose data the run was trained on; by default the names of its scenes or data set.
        licence: Licence of that data.
        gsd_range: Smallest and largest ground sample distance in metres that the model is meant for;
            by default those it was trained at, if they were several.
        stac: Also write the card as a STAC item, .json.
        runs: Folder of the run folders.
        overwrite: Replace a model file that exists.

    Raises:
        IICError: Something is wrong; the message says what, and what to do. No file was written.
    """
    require("onnxscript", "train")
    require("onnxruntime", "cpu")
    out = Path(out)
    tensorrt = format == "tensorrt"
    check_target(out, SUFFIX if tensorrt else ".onnx", overwrite)
    check_precision(precision, min_agreement)
    if stac is not None:
        check_target(Path(stac), ".json", overwrite)
        check_stac()
    if tensorrt:
        probe()
    subject = take(find_run(run, runs), subhead, which)
    if tensorrt and not subject.config.dense:
        raise UsageError("TensorRT engines are built for segmentation; export this run as .onnx.")
    named = None if naming is None else name_clusters(subject, naming)
    card = draft_card(subject, name or subject.run.id, attribution, licence, named)
    merge = None if named is None else named.merge
    made = make_model(subject, precision, merge, min_agreement, symmetric=tensorrt)
    outputs = ["labels", "confidence"]
    if (probabilities or not subject.config.dense) and not tensorrt:
        outputs.append("probabilities")
    model = with_outputs(made.model, outputs)
    card = replace(
        card, gsd_range=gsd_range or _trained_range(subject), precision=precision, parity=made.figures()
    )
    content, card = settle(model, card)
    if tensorrt:
        proof = _engine_proof(subject, merge, card, min_agreement)
        card = write_engine(model, card, out, engine or EngineOptions(), proof)
    else:
        write_atomically(out, content)
    if stac is not None:
        write_stac(Path(stac), out, card, subject)
    return Exported(out, card, made.parity)


def _engine_proof(
    subject: Subject, merge: Tensor | None, card: Card, min_agreement: float | None
) -> Callable[[Engine], Card]:
    """What compares an engine on its GPU with the trained network."""

    def prove(engine: Engine) -> Card:
        pictures, own_data = chips(subject)
        agreement = label_agreement(trained(subject.network, subject.config.pairs, merge), engine, pictures)
        Parity(0.0, agreement, len(pictures), own_data).check(card.precision, min_agreement)
        return replace(card, parity={**card.parity, "engine_label_agreement": agreement})

    return prove


def check_target(out: Path, suffix: str, overwrite: bool) -> None:
    """Refuse before any work what could not be written after it."""
    if out.suffix.lower() != suffix:
        raise UsageError(f"{out} must end in {suffix}.")
    if not out.parent.is_dir():
        raise UsageError(f"There is no folder {out.parent} to write {out.name} to; make it first.")
    if out.exists() and not overwrite:
        raise UsageError(f"There is a file {out} already; give --overwrite to replace it.")


def check_precision(precision: Precision, min_agreement: float | None) -> None:
    """Refuse a precision there is not, and a share that is none."""
    if precision not in get_args(Precision):
        raise UsageError(f"--precision must be one of {', '.join(get_args(Precision))}, not {precision}.")
    if min_agreement is not None and not 0 <= min_agreement <= 1:
        raise UsageError(f"--min-agreement is a share between 0 and 1, not {min_agreement}.")


def settle(model: onnx.ModelProto, card: Card) -> tuple[bytes, Card]:
    """Run a finished graph: measure its memory, see that it keeps what its card says, and give both as one file.

    Raises:
        ModelError: It does not keep it: tiled, the network would not say what it says of the whole.
    """
    with tempfile.TemporaryDirectory(prefix="iic-export-") as folder:
        path = Path(folder) / "model.onnx"
        content = put_card(model.SerializeToString(), card)
        path.write_bytes(content)
        if card.task == "segmentation":
            card = replace(card, memory_per_pixel=memory_per_pixel(path))
            content = put_card(content, card)
            path.write_bytes(content)
        broken = [check for check in validate_model(path) if not check.kept]
    if broken:
        failed = "; ".join(f"not so: {check.promise} ({check.found})" for check in broken)
        raise ModelError(
            f"The exported model does not keep what its card says, so nothing was written: {failed}."
        )
    return content, card


def draft_card(
    subject: Subject, name: str, attribution: str = "", licence: str = "", named: Named | None = None
) -> Card:
    """The card of a sub-head, but for what only the finished graph can tell."""
    network, config = subject.network, subject.network.config
    dense = subject.config.dense
    origin = Origin(
        run=subject.run.id,
        subhead=subject.subhead,
        chosen_by=subject.chosen_by,
        loss=subject.loss,
        data=attribution or _data_name(subject),
        licence=licence,
    )
    classes = named.classes if named is not None else clusters(config.clusters_b)
    return Card(
        name=name,
        task="segmentation" if dense else "clustering",
        bands=config.channels,
        classes=classes,
        halo=network.halo if dense else 0,
        stride=network.stride if dense else 1,
        memory_per_pixel=1,
        dtype=subject.dtype,
        offset=config.offset,
        scale=config.scale,
        rescale=subject.config.data.rescale,
        gsd=subject.run.data.get("gsd"),
        origin=origin,
        packages=versions(),
    )


def clusters(count: int) -> tuple[MapClass, ...]:
    """Classes of clusters that nobody named."""
    if count > MAX_CLASSES:
        raise UsageError(
            f"The run has {count} clusters, and a map holds {MAX_CLASSES}: train with fewer, "
            "or name them with --labels."
        )
    return tuple(MapClass(f"cluster {label}", colour) for label, colour in enumerate(distinct_colours(count)))


def _trained_range(subject: Subject) -> tuple[float, float] | None:
    found = subject.run.data.get("gsd_range")
    return None if found is None else (found[0], found[1])


def _data_name(subject: Subject) -> str:
    data = subject.config.data
    return ", ".join(Path(scene).name for scene in data.scenes) if data.scenes else data.name
