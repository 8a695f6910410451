"""From a run folder to a model file: the one function behind `iic-export`."""

import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, get_args

import onnx
from numpy.typing import NDArray
from torch import Tensor

from iic_export.name_clusters import NamedClusters, list_files, name_clusters
from iic_export.proof import (
    Parity,
    Predict,
    compare,
    label_agreement,
    onnx_model,
    prove_file,
    sample_images,
    trained_model,
)
from iic_export.settings import CardSettings, ExportSettings, Naming, missing_extra
from iic_export.tensorrt_graph import check_graph
from iic_export.torch_to_onnx import float_graph, quantise, with_outputs
from iic_export.trained_head import TrainedHead, load_head
from iic_geotools.classmap.class_map import NAMED_BY
from iic_geotools.classmap.classes import MAX_CLASSES, MapClass, class_colours, distinct_colours
from iic_geotools.errors import MissingPackageError, UsageError
from iic_geotools.files import check_writable, write_atomically
from iic_geotools.settings import PathLike, takes
from iic_geotools.tiling import largest_read
from iic_runtime.engine.base import Engine
from iic_runtime.engine.tensorrt_build import find_tensorrt, write_engine
from iic_runtime.model.card import Card, FeatureGroup, Origin, Precision
from iic_runtime.model.engine_card import ENGINE_SUFFIX
from iic_runtime.model.onnx_head import FEATURES, PROBABILITIES
from iic_runtime.model.select import record_export
from iic_runtime.options import EngineOptions
from iic_train.runs import find_run

TIMED_RUNS = 3

RECORDED_PACKAGES = ("iic-edge", "torch", "onnx", "onnxscript", "onnxruntime", "numpy")
"""Packages whose versions the card records."""
LEFT_OUT = "places left out in turn"
"""Where a run that learnt from labels measures how good it is."""


@dataclass(frozen=True)
class Exported:
    """A model file that was written.

    Attributes:
        path: The file.
        card: Its card.
        parity: How it compares with the trained network.
        used_here: True if commands in the working directory use it when no other model is named.
    """

    path: Path
    card: Card
    parity: Parity
    used_here: bool = False

    def sentence(self) -> str:
        """The export in one line."""
        data = "its own data" if self.parity.own_data else "noise"
        on_gpu = self.card.parity.get("engine_label_agreement")
        also = "" if on_gpu is None else f", and {on_gpu:.3%} on the GPU"
        return (
            f"{self.path}: {len(self.card.classes)} classes from {', '.join(self.card.bands)}, {self.card.precision}; "
            f"{self.parity.agreement:.3%} of {self.parity.labels} labels on {data} equal the trained network's{also}"
        )

    def next_command(self) -> str:
        """The command that uses the model."""
        model = "" if self.used_here else f" --model {shlex.quote(str(self.path))}"
        if self.card.task == "clustering":
            return f"iic-classify IMAGES -o labels.csv{model}"
        return f"iic-segment-raster scene.tif out.tif{model}"


@dataclass(frozen=True)
class ExportArguments(ExportSettings):
    """Arguments of `export`."""

    run: PathLike | None = None
    out: PathLike = "model.onnx"
    naming: Naming | None = field(default=None, kw_only=True)
    engine: EngineOptions = field(default=EngineOptions(), kw_only=True)


@takes(ExportArguments)
def export(arguments: ExportArguments) -> Exported:
    """Write a trained run as one model file, proven equal to the trained network.

    The file is written only after the exported graph was run: in tiles it must equal itself run whole, bit for bit,
    and on images of the run's own data it must give the trained network's probabilities and labels.

    A model in the working directory is recorded there, so that commands in this directory use it unless another one
    is named (`iic_runtime.model.select`).

    Args:
        run: A run folder, or its name under `runs`; by default the newest one.
        out: The model file, `.onnx`, or `.engine` for TensorRT, which has its card in a second file.
        naming: Labels that turn clusters into named classes.
        engine: What a TensorRT engine is built for.

    Raises:
        IICError: Something is wrong; the message says what, and what to do. No file was written.
    """
    check_arguments(arguments)
    out, tensorrt, naming = Path(arguments.out), arguments.format == "tensorrt", arguments.naming
    head = load_head(find_run(arguments.run, arguments.runs), arguments.sub_head, arguments.checkpoint)
    if tensorrt and not head.config.dense:
        raise UsageError("TensorRT engines are built for segmentation only; export this run as .onnx.")
    if naming is not None and head.classes:
        raise UsageError("A fine-tuned network has classes already: leave out the labels that name clusters.")
    named = None if naming is None else name_clusters(head, naming)
    merge = None if named is None else named.merge
    graph = build_graph(head, arguments.precision, merge, arguments.min_agreement, symmetric=tensorrt)
    model = with_outputs(graph.model, _outputs(arguments, head.config.dense))
    card = draft_card(head, arguments.part(CardSettings), named)
    card = replace(card, precision=arguments.precision, parity=graph.figures())
    content, card = prove_file(model.SerializeToString(), card)
    if tensorrt:
        side = largest_read(arguments.engine.tile, card.halo, card.stride)
        prove = _engine_proof(head, merge, card, arguments.min_agreement, side)
        graph_file = check_graph(model).SerializeToString()
        card = write_engine(graph_file, card, out, arguments.engine, prove)
    else:
        write_atomically(out, content)
    if arguments.stac is not None:
        # Imported here because few exports need it and what it imports.
        from iic_export.stac import write_stac

        write_stac(Path(arguments.stac), out, card, head)
    return Exported(out, card, graph.parity, record_export(out, head.run.path))


def check_arguments(arguments: ExportArguments) -> None:
    """Check before any work that the outputs can be written and proven.

    Raises:
        IICError: An argument is wrong, an output exists, or a package is missing.
    """
    tensorrt = arguments.format == "tensorrt"
    check_packages()
    check_precision(arguments.precision, arguments.min_agreement)
    outputs = [(Path(arguments.out), (ENGINE_SUFFIX if tensorrt else ".onnx",), "out")]
    if arguments.stac is not None:
        outputs.append((Path(arguments.stac), (".json",), "stac"))
    check_writable(outputs, overwrite=arguments.overwrite)
    if arguments.stac is not None:
        try:
            for module in ("jsonschema", "iic_export.stac"):
                import_module(module)
        except ImportError as error:
            raise MissingPackageError.for_extra(error.name or "", "stac") from error
    if tensorrt:
        find_tensorrt()


def _outputs(arguments: ExportArguments, dense: bool) -> list[str]:
    """Return the outputs of the model file: labels, confidence, and what naming and classifying need."""
    outputs = ["labels", "confidence"]
    if arguments.format == "tensorrt":
        return outputs
    if arguments.probabilities or not dense:
        outputs.append(PROBABILITIES)
    return [*outputs, FEATURES] if dense else outputs


@dataclass(frozen=True)
class ProvenGraph:
    """A graph with all outputs, and how it compares with the trained network.

    Attributes:
        model: The graph.
        parity: The comparison with the trained network.
        against_fp32: Figures of the comparison with the same graph in fp32; empty for fp32 itself.
    """

    model: onnx.ModelProto
    parity: Parity
    against_fp32: Mapping[str, float] = field(default_factory=dict)

    def figures(self) -> dict[str, float]:
        """All figures as the card records them."""
        return {**self.parity.figures(), **self.against_fp32}


def build_graph(
    head: TrainedHead,
    precision: Precision = "fp32",
    merge: Tensor | None = None,
    min_agreement: float | None = None,
    *,
    symmetric: bool = False,
) -> ProvenGraph:
    """Trace a head in the precision asked for, and prove the graph.

    Args:
        merge: `[classes, clusters]` of 0 and 1, if clusters are merged into classes.
        min_agreement: Share of labels that must equal the trained network's.
        symmetric: Quantise to int8 as TensorRT requires.

    Raises:
        ModelError: The graph does not say what the trained network says.
    """
    images, own_data = sample_images(head)
    proof_images = images
    size = images[0].shape[-2:]
    fp32 = model = float_graph(head, size, merge)
    if precision == "fp16":
        model = float_graph(head, size, merge, half=True)
    elif precision == "int8":
        # The images that calibrate must not be those that prove.
        calibration_images, proof_images = (
            (images[::2], images[1::2]) if len(images) > 1 else (images, images)
        )
        model = quantise(fp32, calibration_images, symmetric=symmetric)
    predict = onnx_model(model.SerializeToString())
    exact = trained_model(head, merge, double=True)
    parity = compare(trained_model(head, merge), predict, proof_images, own_data, exact)
    parity.check(precision, min_agreement)
    if precision == "fp32":
        return ProvenGraph(model, parity)
    predict_fp32 = onnx_model(fp32.SerializeToString())
    agreement = compare(predict_fp32, predict, proof_images, own_data).agreement
    speed = _cpu_seconds(predict_fp32, proof_images) / _cpu_seconds(predict, proof_images)
    return ProvenGraph(
        model, parity, {"agreement_with_fp32": agreement, "cpu_speed_against_fp32": round(speed, 3)}
    )


def _cpu_seconds(predict: Predict, images: Sequence[NDArray[Any]]) -> float:
    """CPU seconds for all images, the least of a few runs, so that other work on the machine does not count."""
    durations = []
    for _ in range(TIMED_RUNS):
        start = time.process_time()
        for image in images:
            predict(image)
        durations.append(time.process_time() - start)
    return min(durations)


def _engine_proof(
    head: TrainedHead, merge: Tensor | None, card: Card, min_agreement: float | None, side: int
) -> Callable[[Engine], Card]:
    """Make the function that compares an engine on its GPU with the trained network, on images of at most `side`."""

    def prove(engine: Engine) -> Card:
        images, own_data = sample_images(head)
        images = [image[:, :side, :side] for image in images]
        agreement = label_agreement(trained_model(head, merge), engine, images)
        Parity(0.0, agreement, len(images), own_data).check(card.precision, min_agreement)
        return replace(card, parity={**card.parity, "engine_label_agreement": agreement})

    return prove


def check_packages() -> None:
    """Refuse to start without the packages that are imported late."""
    try:
        for package in ("onnxruntime", "onnxscript"):
            import_module(package)
    except ImportError as error:
        raise MissingPackageError.for_extra(error.name or "", missing_extra()) from error


def check_precision(precision: Precision, min_agreement: float | None) -> None:
    """Refuse an unknown precision, and an agreement that is not a share."""
    if precision not in get_args(Precision):
        raise UsageError(f"`precision` must be one of {', '.join(get_args(Precision))}, not {precision}.")
    if min_agreement is not None and not 0 <= min_agreement <= 1:
        raise UsageError(f"`min_agreement` must be between 0 and 1, not {min_agreement}.")


def draft_card(head: TrainedHead, settings: CardSettings, named: NamedClusters | None = None) -> Card:
    """Draft the card of a head, without the figures of the finished graph.

    Args:
        settings: What the model says about itself; by default what the run says.
        named: The classes that labels made of its clusters, if there are any.
    """
    network, config = head.network, head.network.config
    dense = head.config.dense
    origin = Origin(
        run=head.run.id,
        subhead=head.sub_head,
        chosen_by=head.chosen_by,
        loss=head.loss,
        data=settings.attribution or str(head.run.data.get("attribution", "")) or _data_name(head),
        licence=settings.licence or str(head.run.data.get("licence", "")),
        labels=_labels_seen(head, named),
    )
    return Card(
        name=settings.name or head.run.id,
        task="segmentation" if dense else "clustering",
        bands=config.channels,
        classes=_classes(head) if named is None else named.classes,
        halo=network.halo if dense else 0,
        stride=network.stride if dense else 1,
        memory_per_pixel=1,
        dtype=head.dtype,
        offset=config.offset,
        scale=config.scale,
        rescale="auto" if head.config.data.rescale == "auto" else None,
        values="reflectance" if head.config.data.rescale == "reflectance" else None,
        optional={config.channels[band]: value for band, value in config.optional.items()},
        stretch=config.stretch,
        gsd=head.run.data.get("gsd"),
        gsd_range=settings.gsd_range or _trained_gsd_range(head),
        features=tuple(FeatureGroup(*group) for group in getattr(network.trunk, "feature_groups", ())),
        origin=origin,
        accuracy=_held_out_accuracy(head),
        reliability=_reliability(head),
        packages=_package_versions(),
    )


def _classes(head: TrainedHead) -> tuple[MapClass, ...]:
    """The classes that a run has learnt from labels, or its clusters."""
    if head.classes:
        return tuple(map(MapClass, head.classes, class_colours(head.classes)))
    learnt = head.config.finetune
    if learnt is None:
        return _unnamed_classes(head.network.config.clusters_b)
    return tuple(map(MapClass, learnt.classes, learnt.colours or class_colours(learnt.classes)))


def _labels_seen(head: TrainedHead, named: NamedClusters | None) -> str:
    """Say which labels the model has learnt from, and which ones named its clusters."""
    seen = []
    learnt = head.config.finetune
    if head.classes:
        seen.append(f"the training part of {head.config.data.name}")
    elif learnt is not None:
        sources = [source for source in learnt.sources if source.weight > 0]
        files = list_files([label for source in sources for label in source.labels])
        names = ", ".join(dict.fromkeys(source.name for source in sources))
        seen.append(f"{files or 'rules'} ({names})")
    if named is not None:
        seen.append(
            f"{NAMED_BY}{named.labels}; {named.agreement:.1%} of them lie in a cluster of their class"
        )
    return "; ".join(seen)


def _held_out_accuracy(head: TrainedHead) -> dict[str, dict[str, float]]:
    """Figures of the run on places left out in turn; empty if it measured none."""
    figures = head.run.held_out()
    if figures is None:
        return {}
    where = figures.get("measured_on", LEFT_OUT)
    return {where: {name: round(figures[name], 4) for name in ("accuracy", "mean_iou")}}


def _reliability(head: TrainedHead) -> dict[str, float | str]:
    figures = head.run.held_out()
    if figures is None:
        return {}
    return {
        "ece": round(figures["calibration_error"], 4),
        "measured_on": figures.get("measured_on", LEFT_OUT),
    }


def _unnamed_classes(count: int) -> tuple[MapClass, ...]:
    """Classes for unnamed clusters."""
    if count > MAX_CLASSES:
        raise UsageError(
            f"The run has {count} clusters, but a map holds at most {MAX_CLASSES}; train with fewer, or name them "
            "with `labels`."
        )
    return tuple(MapClass(f"cluster {label}", colour) for label, colour in enumerate(distinct_colours(count)))


def _package_versions() -> dict[str, str]:
    """Versions of the packages that a model is made with."""
    versions = {}
    for package in RECORDED_PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return versions


def _trained_gsd_range(head: TrainedHead) -> tuple[float, float] | None:
    gsd_range = head.run.data.get("gsd_range")
    return None if gsd_range is None else (gsd_range[0], gsd_range[1])


def _data_name(head: TrainedHead) -> str:
    data = head.config.data
    return ", ".join(Path(scene).name for scene in data.scenes) if data.scenes else data.name
