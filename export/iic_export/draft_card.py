"""The card of an exported model, as far as it follows from the run: classes, origin, accuracy on places left out."""

from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from iic_export.name_clusters import NamedClusters, list_files
from iic_export.settings import CardSettings
from iic_export.trained_head import TrainedHead
from iic_geotools.classmap.classes import MAX_CLASSES, MapClass, distinct_colours
from iic_geotools.classmap.provenance import NAMED_BY
from iic_geotools.errors import UsageError
from iic_runtime.model.card import Card, FeatureGroup, Origin
from iic_train.finetune.heldout_figures import held_out_figures

RECORDED_PACKAGES = ("iic-edge", "torch", "onnx", "onnxscript", "onnxruntime", "numpy")
"""Packages whose versions the card records."""
LEFT_OUT = "places left out in turn"
"""Where a run that learnt from labels measures how good it is."""


def draft_card(head: TrainedHead, settings: CardSettings, named: NamedClusters | None = None) -> Card:
    """Draft the card of a head: all but what only the finished graph can state.

    Args:
        head: The head to export.
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
        return tuple(map(MapClass, head.classes, distinct_colours(len(head.classes))))
    learnt = head.config.finetune
    if learnt is None:
        return _unnamed_classes(head.network.config.clusters_b)
    return tuple(map(MapClass, learnt.classes, learnt.colours or distinct_colours(len(learnt.classes))))


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
    """What the run measured on places that it left out in turn; nothing if it measured nothing."""
    figures = held_out_figures(head.run)
    if figures is None:
        return {}
    where = figures.get("measured_on", LEFT_OUT)
    return {where: {name: round(figures[name], 4) for name in ("accuracy", "mean_iou")}}


def _reliability(head: TrainedHead) -> dict[str, float | str]:
    figures = held_out_figures(head.run)
    if figures is None:
        return {}
    return {
        "ece": round(figures["calibration_error"], 4),
        "measured_on": figures.get("measured_on", LEFT_OUT),
    }


def _unnamed_classes(count: int) -> tuple[MapClass, ...]:
    """Classes for unnamed clusters.

    Raises:
        UsageError: There are more clusters than a map can hold.
    """
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
