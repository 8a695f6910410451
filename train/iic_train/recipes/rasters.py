"""Training on any rasters: the rules that choose settings for a network and a scene, and a config from them."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import iic_geotools  # whose names, as those of iic_train, are imported when they are used
import iic_train
from iic_geotools.classmap.classes import MAX_CLASSES
from iic_geotools.errors import SceneError, UsageError
from iic_geotools.files import absolute_path
from iic_geotools.scene.placement import same_pixels
from iic_geotools.settings import PathLike, check_values, checked, names
from iic_train.config import (
    Augmentation,
    DataConfig,
    Execution,
    HeadSettings,
    NetworkSettings,
    TrainConfig,
    change,
    check_names,
    take,
)
from iic_train.models.registry import NetworkConfig
from iic_train.views.settings import DensePairs, Photometry

if TYPE_CHECKING:
    from iic_train.data.survey import Survey

_LOG = logging.getLogger(__name__)
NETWORK = "bank"
"""The network that needs no expert: it starts at k-means centres of a multi-scale bank, and learns features."""
OVERCLUSTERING = 4
"""Number of clusters of head A per class, where it is trained together with head B."""
MATERIALS = 64
"""Number of clusters of head A of a `bank` network, which learns features: about as many materials as scenes hold."""
WORKING_RESOLUTION = 0.8
"""Metres per pixel to which finer scenes are averaged: texture averages out, materials and buildings remain."""
FINE = 2.0
"""Metres per pixel below which light, shadow and the state of plants vary within a material more than between."""
PAIRS = DensePairs(
    Photometry(all_brightness=0.5, all_contrast=0.4, saturation=0.5, vegetation_jitter=1.0),
    both=True,
    flip_vertical=0.5,
    turn=0.5,
)
"""All eight flips and turns. In both views brightness and contrast of all bands together, infrared included, colours
and the state of plants change, because what light and season change does not distinguish materials."""
PAIRED = {
    "network": "local",
    "clusters_a": 0,
    "size": 48,
    "radius": 1,
    "batch": 32,
    "lr": 4e-3,
    "epochs": 12,
    "steps": 25,
    "colour_jitter": 0.3,
    "vegetation_jitter": 0.0,
}
"""What replaces the rules where the views are two dates: a small network learns, in about a minute."""


SETTINGS = (
    *(
        name
        for kind in (DataConfig, NetworkSettings, Augmentation, TrainConfig, Execution)
        for name in names(kind)
    ),
    "preset",
)
"""The settings that `train_rasters` takes."""
LEAST_LIMIT = 256
"""Side in pixels of the windows that may be cut from any scene, however small."""


def choose_settings(network: str, classes: int, gsd: float | None) -> dict[str, Any]:
    """Return the settings for a network and the pixels of a scene.

    The rules were found by measurement (docs/own-scene-log.md). A `bank` network has its clusters before training, and
    one step is all that it is trained for by default, as training does not change them; other networks are trained from
    random initialisation for as long as the paper's.

    Args:
        gsd: Ground sample distance in metres at which the scenes are read, or None if it is unknown.
    """
    bank = network == NETWORK
    fine = not bank or (gsd is not None and gsd < FINE)
    return {
        "clusters_a": MATERIALS if bank else OVERCLUSTERING * classes,
        "sub_heads": 1 if bank else 3,
        "passes": ("a",) if bank else ("ab",),
        "start": "kmeans" if bank else "random",
        "size": 48 if bank else 96,
        "epochs": 1 if bank else 20,
        "steps": 1 if bank else 100,
        "batch": 16 if bank else 32,
        "lr": 4e-3 if bank else 1e-3,
        "schedule": "cosine",
        # Where pixels are large, brightness distinguishes materials and must not be augmented away.
        "colour_jitter": 1.0 if fine else 0.3,
        "vegetation_jitter": PAIRS.photometry.vegetation_jitter if fine else 0.0,
        "radius": 1 if bank else 5,
        "cells": True,
        "evaluation_images": 16,
    }


def choose_reduction(pixel_size: float | None) -> int:
    """Return how many pixels to average, on each axis, so that a scene is read at no less than about 0.8 m."""
    return 1 if not pixel_size else max(1, round(WORKING_RESOLUTION / pixel_size))


def raster_config(
    survey: "Survey", data: DataConfig, classes: int, settings: Mapping[str, Any]
) -> TrainConfig:
    """Return the config of a run from what its scenes hold and how to train on them.

    Args:
        settings: Settings that replace those of the rules (`choose_settings`).
    """
    name = settings.get("network", NETWORK)
    if name == NETWORK and settings.get("clusters_a") == 0:
        raise UsageError(
            f"The network {NETWORK} learns its features with head A: `clusters_a` must be 2 or more."
        )
    chosen = {**choose_settings(name, classes, survey.scenes.gsd), **settings}
    jitter, start = take(Augmentation, chosen), chosen["start"]
    if chosen["clusters_a"] == 0:
        chosen["passes"] = settings.get("passes", ("b",))
    network = NetworkConfig(
        name,
        survey.scenes.channels,
        classes,
        MATERIALS,
        offset=survey.offset,
        scale=survey.scale,
        bias=name == NETWORK,
    )
    data = replace(data, bands=survey.scenes.bands)
    config = TrainConfig(data.name, data, network, jittered_pairs(**jitter), 96, passes=("ab",), start=start)
    return change(config, {key: value for key, value in chosen.items() if key != "network"})


def describe_settings(config: TrainConfig, gsd: float | None) -> str:
    """Summarise the settings of a run in a sentence."""
    light = config.pairs.photometry
    size = "pixels of unknown size" if gsd is None else f"pixels of {gsd:.3g} m"
    clusters = f"{config.network.clusters_b} clusters"
    if config.only_starts:
        return f"Settings for {size}: network {config.network.name}, {clusters}."
    if config.network.clusters_a:
        clusters += f" and {config.network.clusters_a} of head A"
    steps = f"{config.epochs} x {config.steps} steps" if config.steps else f"{config.epochs} epochs"
    return (
        f"Settings for {size}: network {config.network.name}, {clusters}; {steps} of {config.batch} windows of "
        f"{config.size} px, learning rate {config.lr:g}, pairs up to {config.radius} apart; brightness changes by up "
        f"to {light.all_brightness:.0%}, vegetation by {light.vegetation_jitter:g}, entropy weighs "
        f"{config.entropy_weight:g}."
    )


def jittered_pairs(colour_jitter: float, vegetation_jitter: float) -> DensePairs:
    """Return `PAIRS` with its changes of light and colour `colour_jitter` times as strong."""
    photometry = replace(
        PAIRS.photometry,
        all_brightness=colour_jitter * PAIRS.photometry.all_brightness,
        all_contrast=colour_jitter * PAIRS.photometry.all_contrast,
        saturation=colour_jitter * PAIRS.photometry.saturation,
        vegetation_jitter=vegetation_jitter,
    )
    return replace(PAIRS, photometry=photometry)


def check_pairs(scenes: Sequence[PathLike], pair: Sequence[PathLike]) -> None:
    """Refuse dates that do not show the same pixels."""
    if len(pair) != len(scenes):
        raise UsageError(f"`pair` takes one date for each of the {len(scenes)} scenes, not {len(pair)}.")
    for scene, other in zip(scenes, pair, strict=True):
        if not same_pixels(*(iic_geotools.describe(date).grid for date in (scene, other))):
            raise SceneError(
                f"{other} does not have the pixels of {scene}; bring both onto one grid first, e.g. with gdalwarp "
                "-t_srs, -te and -tr."
            )


@checked
def train_rasters(
    scenes: Sequence[PathLike],
    classes: int,
    *,
    labels: Sequence[PathLike] = (),
    label_class: Sequence[str] = (),
    **settings: Any,
) -> "iic_train.Run":
    """Train on rasters of any size and type, without labels.

    Args:
        scenes: Rasters, anything that GDAL opens.
        classes: Number of clusters to find.
        labels: Label rasters, one per scene in order, for evaluation only.
        label_class: Classes of the label rasters as NAME=VALUE,VALUE...; by default every value is a class.
        settings: Settings that replace those chosen for the scenes: how they are read (`bands`, `nodata`, `reduce`,
            `gsd`, `pixel_size`, `rescale`), `network` and heads (`NetworkSettings`), `Augmentation`, training
            (`TrainConfig`), and where the run is written (`Execution`).

    Example:
        >>> train_rasters(["scene.tif"], classes=12, epochs=2, device="cpu")

    Raises:
        SceneError: A scene cannot be read.
        DataError: The scenes do not go together, or hold no data.
        UsageError: There is no such setting, or settings do not go together.
    """
    from iic_train.data.survey import survey_scenes

    if not 2 <= classes <= MAX_CLASSES:
        raise UsageError(f"`classes` must be 2 to {MAX_CLASSES}, not {classes}.")
    check_names(settings, SETTINGS)
    for kind in (DataConfig, HeadSettings, Augmentation, TrainConfig, Execution):
        check_values(kind, {name: settings[name] for name in names(kind) if name in settings})
    execution, reading = take(Execution, settings), take(DataConfig, settings)
    by_rule = settings.get("network", NETWORK) == NETWORK and not {"reduce", "gsd"} & set(reading)
    if by_rule and scenes:
        pixel = reading.get("pixel_size") or iic_geotools.describe(scenes[0]).grid.pixel_side
        reading["reduce"] = choose_reduction(pixel)
        if reading["reduce"] > 1:
            _LOG.info(
                "The scene is read at a resolution %d times coarser, of about 0.8 m.", reading["reduce"]
            )
    if pair := tuple(map(absolute_path, reading.pop("pair", ()))):
        check_pairs(scenes, pair)
        reading["rescale"] = reading.get("rescale") or "auto"
        settings = settings if "network" in settings else {**PAIRED, **settings}
    data = DataConfig(
        "rasters",
        scenes=tuple(map(absolute_path, scenes)),
        pair=pair,
        labels=tuple(str(Path(label).absolute()) for label in labels),
        label_classes=tuple(label_class),
        **reading,
    )
    survey = survey_scenes(data)
    config = raster_config(survey, data, classes, settings)
    most = max(LEAST_LIMIT, 2 * max(max(shape) for shape in survey.scenes.shapes))
    if (config.size or 0) > most:
        raise UsageError(
            f"`size` must be at most {most} for these scenes, not {config.size}: the rest would be empty."
        )
    _LOG.info(describe_settings(config, survey.scenes.gsd))
    return iic_train.train(config, survey=survey, **execution)
