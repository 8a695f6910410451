"""Fine-tuning of a segmentation run with labels on scenes: from files to the config of a run that learns."""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from iic_geotools.classmap.classes import MAX_CLASSES
from iic_geotools.errors import DataError, UsageError
from iic_geotools.files import absolute_path
from iic_geotools.progress import OnProgress, silent
from iic_geotools.scene.info import describe
from iic_geotools.scene.labels import NOT_LABELLED, open_labels
from iic_geotools.tiling import Rect
from iic_train.config import DataConfig, TrainConfig
from iic_train.finetune.chips import scene_classes
from iic_train.finetune.pixel_runs import learn
from iic_train.finetune.settings import (
    SCENES_DEFAULTS,
    FinetuneConfig,
    LabelSource,
    ScenesSettings,
    class_names,
    parse_meanings,
)
from iic_train.runs import Checkpoint, Run
from iic_train.views.settings import Light

TILE = 2048
"""Side of the pieces in which labels are looked through."""
LIGHT = Light(plain=0.4, varied=True, gain=0.1, band_gain=0.04, gamma=0.06, offset=0.01, noise=0.01)
"""Changes of light that hold for imagery of any kind."""


def finetune_scenes(
    run: Run,
    labels: Sequence[str | os.PathLike[str]],
    settings: ScenesSettings = SCENES_DEFAULTS,
    *,
    scenes: Sequence[str | os.PathLike[str]] = (),
    label_class: Sequence[str] = (),
    label_field: str | None = None,
    checkpoint: Checkpoint = "best",
    runs: Path = Path("runs"),
    name: str | None = None,
    device: str = "auto",
    progress: OnProgress = silent,
) -> Run:
    """Fine-tune a segmentation run with labels, in a new run folder.

    Args:
        run: A segmentation run that finished an epoch.
        labels: Rasters of classes, or points and polygons with a class field: one for each scene, or one for all.
        settings: How to fine-tune.
        scenes: The scenes that the labels lie over; by default those of the run.
        label_class: Classes as NAME=VALUE,VALUE...; a value under two classes may be either of them. By default every
            value is a class.
        label_field: The field of points and polygons that holds the class.
        checkpoint: Start from the epoch with the lowest loss, or from the last one.
        runs: Folder of the run folders.
        name: Name of the new run folder; by default `finetune` and time.
        device: `auto`, `cpu` or `cuda`.
        progress: Function that takes reports of progress.

    Raises:
        UsageError: The run labels whole images, or the arguments do not go together.
        SceneError: A scene or its labels cannot be read.
        DataError: Nothing is labelled, or only one class is.
    """
    config = finetune_config(run, labels, settings, scenes, label_class, label_field, checkpoint)
    return learn(config, runs=runs, name=name, device=device, progress=progress)


def finetune_config(
    run: Run,
    labels: Sequence[str | os.PathLike[str]],
    settings: ScenesSettings,
    scenes: Sequence[str | os.PathLike[str]] = (),
    label_class: Sequence[str] = (),
    label_field: str | None = None,
    checkpoint: Checkpoint = "best",
) -> TrainConfig:
    """Return the config of a run that fine-tunes another one with labels on scenes."""
    if not run.config.dense:
        raise UsageError(
            f"The run {run.id} labels whole images: leave out `labels` to fine-tune it with those of its data set."
        )
    data = run.config.data
    paths = tuple(absolute_path(scene) for scene in scenes) or data.scenes
    if not paths:
        raise UsageError("The run was not trained on rasters: name the scene under the labels as `scenes`.")
    source = LabelSource(
        "labels",
        paths,
        tuple(absolute_path(label) for label in labels),
        parse_meanings(label_class),
        label_field,
        bands=data.bands,
        nodata=data.nodata,
        rescale=data.rescale,
        factors=(data.reduce,),
        gsd=data.gsd,
        pixel_size=data.pixel_size,
    )
    classes = class_names(label_class) or _find_classes(source)
    finetune = FinetuneConfig(
        classes,
        (source,),
        dtype=str(run.data.get("dtype", "uint8")),
        start=str(run.path.absolute()),
        checkpoint=checkpoint,
        mode=settings.mode,
        folds=settings.folds,
        penalty=settings.penalty,
        balance=settings.balance,
        smoothing=settings.smoothing,
        iic_weight=settings.iic_weight,
        light=LIGHT,
    )
    return _train_config(run, finetune, data, settings)


def _train_config(
    run: Run, finetune: FinetuneConfig, data: DataConfig, settings: ScenesSettings
) -> TrainConfig:
    network = run.config.network
    beside = settings.iic_weight > 0 and settings.mode != "head" and bool(data.scenes)
    network = replace(
        network,
        clusters_b=len(finetune.classes),
        clusters_a=(network.clusters_a or network.clusters_b) if beside else None,
        sub_heads=1,
        bias=True,
    )
    return replace(
        run.config,
        preset="finetune",
        data=replace(data, labels=(), label_classes=()),
        network=network,
        passes=("b",),
        size=settings.size,
        epochs=settings.epochs,
        steps=settings.steps,
        batch=settings.batch,
        lr=settings.lr,
        schedule="cosine",
        seed=settings.seed,
        finetune=finetune if beside else replace(finetune, iic_weight=0.0),
    )


def _find_classes(source: LabelSource) -> tuple[str, ...]:
    """Return the names of all classes of the labels, in alphabetical order.

    Raises:
        DataError: There are more of them than a map can hold.
    """
    names = set(scene_classes(source).values())
    if names:
        return tuple(sorted(names))
    for position, path in enumerate(source.scenes):
        grid = describe(path).grid
        label = source.labels[position % len(source.labels)]
        elsewhere = len(source.labels) < len(source.scenes)
        with open_labels(label, grid, source.label_field, elsewhere=elsewhere) as labels:
            for row in range(0, grid.height, TILE):
                for col in range(0, grid.width, TILE):
                    rect = Rect(col, row, min(TILE, grid.width - col), min(TILE, grid.height - row))
                    values = np.unique(labels.read(rect)).tolist()
                    names.update(labels.name(value) for value in values if value != NOT_LABELLED)
    if len(names) > MAX_CLASSES:
        raise DataError(
            f"The labels hold {len(names)} classes and a map at most {MAX_CLASSES}: group their values with "
            "`label_class`."
        )
    if not names:
        raise DataError(
            "No pixel of the scenes is labelled: check that scenes and labels cover the same place, and name others "
            "with `scenes`."
        )
    return tuple(sorted(names))
