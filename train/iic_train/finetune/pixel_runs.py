"""Runs that learn from labelled pixels: the paper's semi-supervised setting for segmentation.

First, places are left out in turn: a linear head on frozen features and the whole network, or the one that was asked
for, are trained on the other places and scored on these. That chooses between them and finds the temperature that
makes confidence mean what it says. Then the chosen one is trained on all places. The figures of the run are those of
the places left out.
"""

import json
import logging
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from iic_geotools.classmap.classes import MAX_CLASSES
from iic_geotools.errors import DataError, UsageError
from iic_geotools.files import absolute_path, write_atomically
from iic_geotools.scene.info import describe
from iic_geotools.scene.labels import NOT_LABELLED, open_labels
from iic_geotools.settings import checked, names
from iic_geotools.tiling import Rect
from iic_geotools.work import OnProgress, Progress, silent
from iic_train.config import Execution, TrainConfig, check_names, reading, take
from iic_train.data.loader import Source
from iic_train.data.training_data import open_training_data
from iic_train.distributed import choose_device
from iic_train.finetune.chips import LabelledChips, read_chips, scene_classes
from iic_train.finetune.heldout import HeldOut, describe_choice, score_fold
from iic_train.finetune.land_cover import train_land_cover
from iic_train.finetune.learner import Learner
from iic_train.finetune.linear_head import correct_logits, fit_head
from iic_train.finetune.settings import (
    SCENES_CHANGES,
    FinetuneConfig,
    LabelSource,
    Mode,
    class_names,
    parse_meanings,
    without_temperature,
)
from iic_train.models.networks import Network
from iic_train.runs import HELD_OUT, START_AGAIN, STATE, Checkpoint, Choice, Run, create_run, load_run

_LOG = logging.getLogger(__name__)

TILE = 2048
"""Side of the pieces in which labels are looked through."""
LEARNING = ("mode", "folds", "penalty", "balance", "smoothing", "iic_weight", "light", "zoom", "dropout")
"""Settings of `FinetuneConfig` that fine-tuning with labels on scenes takes."""


@checked
def learn(
    config: TrainConfig,
    *,
    facts: Mapping[str, Any] | None = None,
    runs: Path = Path("runs"),
    name: str | None = None,
    device: str = "auto",
    progress: OnProgress = silent,
) -> Run:
    """Learn from labels as a config says, in a new run folder.

    Args:
        config: All settings; `finetune` says what is learnt from.
        facts: More facts for the record of the run, such as `attribution` and `licence` of its data.
        runs: Folder of the run folders.
        name: Name of the new run folder; by default preset and time.
        device: `auto`, `cpu` or `cuda`.
        progress: Function that takes reports of progress.

    Raises:
        SceneError: A scene or its labels cannot be read.
        DataError: Nothing is labelled, or only one class is.
        TrainingError: The loss is not finite.
    """
    settings = _settings(config)
    data = read_chips(settings, config.network)
    learnt = [source for source in settings.sources if source.weight > 0]
    record = {
        **(facts or {}),
        "fingerprint": data.fingerprint,
        "scenes": [scene for source in learnt for scene in source.scenes],
        "labels": [label for source in learnt for label in source.labels],
        "dtype": settings.dtype,
        "gsd": data.gsd,
        "gsd_range": config.data.gsd,
    }
    run = create_run(config, record, runs, name)
    return _train(run, data, choose_device(device), progress)


def resume_learning(
    run: Run, *, epochs: int | None = None, device: str = "auto", progress: OnProgress = silent
) -> Run:
    """Resume a run that learns from labels from its last finished epoch."""
    if epochs is not None and epochs != run.config.epochs:
        raise UsageError(
            "`epochs` cannot change in a run that learns from labels, whose learning rate falls to zero over them."
        )
    data = read_chips(_settings(run.config), run.config.network)
    if data.fingerprint != run.data.get("fingerprint"):
        raise DataError(f"The data is not what {run.path} was trained on: restore it, or start a new run.")
    return _train(run, data, choose_device(device), progress)


def _train(run: Run, data: LabelledChips, device: torch.device, progress: OnProgress) -> Run:
    config, settings = run.config, _settings(run.config)
    figures = _cross_validated(run, data, device, progress)
    mode: Mode = figures.get("mode", "network" if settings.mode == "auto" else settings.mode)
    temperature = settings.temperature or float(figures.get("temperature", 1.0))
    settings = replace(settings, temperature=temperature)
    config = replace(config, finetune=settings)
    if mode == "head":
        started = time.perf_counter()
        network = first_network(config).to("cpu")
        fit_head(network, data, settings, None)
        correct_logits(network, settings.bias, temperature)
        _save(run, network, config.epochs, 0.0, time.perf_counter() - started, config)
        return run
    if config.network.family == "land-cover":
        started = time.perf_counter()
        network = train_land_cover(config, data, None)
        _save(run, network, config.epochs, 0.0, time.perf_counter() - started, config)
        return run
    learner = Learner(first_network(config).to(device), data, config, None, _unlabelled(config))
    state = run.load_state()
    epoch = 0
    if state is not None:
        with reading(run.path / STATE, START_AGAIN):
            learner.restore(state)
            epoch = int(state["epoch"])
        run.forget_metrics_after(epoch)
    while epoch < config.epochs:
        started, epoch = time.perf_counter(), epoch + 1
        loss = learner.train_epoch(epoch)
        _save(run, learner.averaged(), epoch, loss, time.perf_counter() - started, config)
        run.save_state({"epoch": epoch, **learner.state()})
        _LOG.info("epoch %d/%d  loss %.4f", epoch, config.epochs, loss)
        progress(Progress("train", epoch, config.epochs, note=f"loss {loss:.3f}"))
    return run


def _save(run: Run, network: Network, epoch: int, loss: float, seconds: float, config: TrainConfig) -> None:
    """Write weights and a line of metrics; the last epoch is the best one, as the learning rate falls to zero."""
    choice = Choice(epoch, 0, loss)
    for checkpoint in ("best", "last"):
        run.save_weights(network, checkpoint, choice)
    images = (config.steps or 1) * config.batch
    run.append_metrics(
        {
            "epoch": epoch,
            "lr": config.lr,
            "seconds": round(seconds, 3),
            "images_per_second": round(images / max(seconds, 1e-6), 2),
            "train": {},
            "sub_head": 0,
            "loss": loss,
            "best": True,
        }
    )


def _cross_validated(
    run: Run, data: LabelledChips, device: torch.device, progress: OnProgress
) -> dict[str, Any]:
    """Return the figures of the places left out, which an interrupted run finds in its folder."""
    config, settings = run.config, _settings(run.config)
    if (measured := run.held_out()) is not None:
        return measured
    if not settings.folds:
        return {}
    folds = data.folds()
    if len(folds) < 2:
        _LOG.warning(
            "All labels lie in one place, so nothing can be left out: how good the result is remains unknown. "
            "Label places apart from each other."
        )
        return {}
    modes: list[Mode] = ["head", "network"] if settings.mode == "auto" else [settings.mode]
    if settings.start is None and settings.mode == "auto":
        modes = ["network"]  # nothing was learnt before that a head could be put on
    results = {}
    for number, mode in enumerate(modes):
        held_out = HeldOut(settings.classes)
        for index, fold in enumerate(folds):
            score_fold(train_fold(config, data, fold, mode, device), data, fold, held_out)
            done, total = number * len(folds) + index + 1, len(modes) * len(folds)
            progress(Progress("cross-validation", done, total, note=f"{mode} {held_out.accuracy():.1%}"))
        results[mode] = held_out
    chosen = max(modes, key=lambda mode: results[mode].mean_iou())
    figures: dict[str, Any] = {
        "mode": chosen,
        "folds": len(folds),
        **results[chosen].to_json(),
        "modes": {mode: held_out.to_json() for mode, held_out in results.items()},
    }
    figures["sentence"] = describe_choice(figures)
    _LOG.info(figures["sentence"])
    write_atomically(run.path / HELD_OUT, json.dumps(figures, indent=1).encode())
    return figures


def train_fold(
    config: TrainConfig, data: LabelledChips, fold: int, mode: Mode, device: torch.device | str = "cpu"
) -> Network:
    """Return a network that has not seen the labels of a fold, without a temperature."""
    settings = without_temperature(_settings(config))
    config = replace(config, finetune=settings)
    if mode == "head":
        network = first_network(config)
        fit_head(network, data, settings, fold)
        return network
    if config.network.family == "land-cover":
        return train_land_cover(config, data, fold)
    learner = Learner(first_network(config).to(device), data, config, fold, _unlabelled(config))
    for epoch in range(1, config.epochs + 1):
        learner.train_epoch(epoch)
    return learner.averaged()


def first_network(config: TrainConfig) -> Network:
    """Return the network that learning starts from: random weights, or the trunk of a trained run."""
    torch.manual_seed(config.seed)
    settings, network = _settings(config), Network(config.network)
    if settings.start is None:
        return network
    trained = load_run(settings.start).network(settings.checkpoint)
    state = {
        name: value
        for name, value in trained.state_dict().items()
        if not name.startswith("heads.") and not name.startswith("front.")
    }
    missing, unexpected = network.load_state_dict(state, strict=False)
    if unexpected or any(name.startswith("trunk.") for name in missing):
        raise UsageError(f"The weights of {settings.start} do not fit network {config.network.name}.")
    return network


def _unlabelled(config: TrainConfig) -> Source | None:
    """Open windows of the scenes for the IIC objective next to the labels."""
    if not _settings(config).iic_weight or not config.data.scenes:
        return None
    return open_training_data(config).train_b


def _settings(config: TrainConfig) -> FinetuneConfig:
    if config.finetune is None:
        raise UsageError("The config does not say what to learn from.")
    return config.finetune


@checked
def finetune_scenes(
    run: Run,
    labels: Sequence[str | os.PathLike[str]],
    *,
    scenes: Sequence[str | os.PathLike[str]] = (),
    label_class: Sequence[str] = (),
    label_field: str | None = None,
    checkpoint: Checkpoint = "best",
    **settings: Any,
) -> Run:
    """Fine-tune a segmentation run with labels, in a new run folder.

    Args:
        run: A segmentation run that finished an epoch.
        labels: Rasters of classes, or points and polygons with a class field: one for each scene, or one for all.
        scenes: The scenes that the labels lie over; by default those of the run.
        label_class: Classes as NAME=VALUE,VALUE...; a value under two classes may be either of them. By default every
            value is a class.
        label_field: The field of points and polygons that holds the class.
        checkpoint: Start from the epoch with the lowest loss, or from the last one.
        settings: Settings that replace the defaults (`SCENES_CHANGES`): how to learn from labels (`FinetuneConfig`:
            `mode`, `folds`, `penalty`, `balance`, ...), training (`TrainConfig`), and where the run is written
            (`Execution`).

    Raises:
        UsageError: The run labels whole images, there is no such setting, or settings do not go together.
        SceneError: A scene or its labels cannot be read.
        DataError: Nothing is labelled, or only one class is.
    """
    execution = take(Execution, settings)
    execution.pop("workers", None)  # labelled places are held in memory
    config = finetune_config(
        run,
        labels,
        scenes=scenes,
        label_class=label_class,
        label_field=label_field,
        checkpoint=checkpoint,
        **settings,
    )
    return learn(config, **execution)


def finetune_config(
    run: Run,
    labels: Sequence[str | os.PathLike[str]],
    *,
    scenes: Sequence[str | os.PathLike[str]] = (),
    label_class: Sequence[str] = (),
    label_field: str | None = None,
    checkpoint: Checkpoint = "best",
    **settings: Any,
) -> TrainConfig:
    """Return the config of a run that fine-tunes another one with labels on scenes."""
    if not run.config.dense:
        raise UsageError(
            f"The run {run.id} labels whole images: leave out `labels` to fine-tune it with those of its data set."
        )
    check_names(settings, (*names(TrainConfig), *LEARNING))
    settings = {**SCENES_CHANGES, **settings}
    learning = {name: settings.pop(name) for name in LEARNING if name in settings}
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
    finetune = FinetuneConfig(
        class_names(label_class) or _find_classes(source),
        (source,),
        dtype=str(run.data.get("dtype", "uint8")),
        start=str(run.path.absolute()),
        checkpoint=checkpoint,
        **learning,
    )
    network = run.config.network
    with_iic = finetune.iic_weight > 0 and finetune.mode != "head" and bool(data.scenes)
    return replace(
        run.config,
        preset="finetune",
        data=replace(data, labels=(), label_classes=()),
        network=replace(
            network,
            clusters_b=len(finetune.classes),
            clusters_a=(network.clusters_a or network.clusters_b) if with_iic else None,
            sub_heads=1,
            bias=True,
        ),
        finetune=finetune if with_iic else replace(finetune, iic_weight=0.0),
        **settings,
    )


def _find_classes(source: LabelSource) -> tuple[str, ...]:
    """Return the names of all classes of the labels, in alphabetical order."""
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
