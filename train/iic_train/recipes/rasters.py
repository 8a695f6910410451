"""Training on any rasters: settings, the rules that fill in those that are left out, and a config from both."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from iic_geotools.classmap.classes import MAX_CLASSES
from iic_geotools.errors import UsageError
from iic_geotools.files import absolute_path
from iic_geotools.progress import OnProgress, silent
from iic_train.config import Amp, DataConfig, TrainConfig
from iic_train.finetune.settings import Rescaling
from iic_train.models.registry import NetworkConfig
from iic_train.views.settings import DensePairs, Photometry

if TYPE_CHECKING:
    from iic_train.data.survey import Survey
    from iic_train.runs import Run

_LOG = logging.getLogger(__name__)
Value = TypeVar("Value")
NETWORK = "bank"
"""The network that needs no expert: it starts at k-means centres of a multi-scale bank, and learns features."""
OVERCLUSTERING = 4
"""Number of clusters of head A per class, where it is trained beside head B."""
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
and the state of plants change, because what light and season change does not tell materials apart."""


@dataclass(frozen=True)
class RasterSettings:
    """How to train on rasters; what is None follows from the network and the scenes.

    Attributes:
        bands: Bands to use, by name or number, in order; by default all that are not alpha.
        nodata: Value that means no data, instead of what the files say.
        reduce: Factor by which the resolution is coarser than that of the scenes; by default scenes finer than 0.8 m
            are brought to about that.
        gsd: Range of ground resolutions in metres to train at, instead of `reduce`: all that whole numbers of pixels
            make.
        pixel_size: Side of a pixel in metres, for scenes that do not say it.
        rescale: "auto" brings every scene to one range by the percentiles of each of its bands, "reflectance" to
            reflectance.
        network: Name of a segmentation network.
        clusters_a: Number of clusters of the overclustering head; 0 leaves it out.
        sub_heads: Number of sub-heads of each head.
        size: Side of the windows in pixels.
        epochs: Number of epochs to train.
        steps: Largest number of steps per pass.
        batch: Number of pairs per step, over all processes.
        micro_batch: Number of pairs that a process puts through the network at once; by default all of its share.
        lr: Learning rate at the start; it falls to zero along a cosine.
        entropy_weight: Weight of the entropy in the loss of head B; above 1 it favours clusters of equal size.
        entropy_warmup: Part of training over which the weight moves from 1 to `entropy_weight`.
        colour_jitter: Strength of the changes of light and colour between views.
        vegetation_jitter: How much drier or greener plants may be in a view.
        radius: Largest displacement between paired pixels, in cells of the trunk.
        margin: Number of pixels along the edges of a window that are left out of the loss.
        cells: Whether the loss is taken on the coarser grid of the trunk.
        seed: Seed of everything that is random.
        amp: Precision on CUDA.
        compile: Whether the network is compiled.
    """

    bands: tuple[str, ...] = ()
    nodata: float | None = None
    reduce: int | None = None
    gsd: tuple[float, float] | None = None
    pixel_size: float | None = None
    rescale: Rescaling | None = None
    network: str = NETWORK
    clusters_a: int | None = None
    sub_heads: int | None = None
    size: int | None = None
    epochs: int | None = None
    steps: int | None = None
    batch: int | None = None
    micro_batch: int | None = None
    lr: float | None = None
    entropy_weight: float = 1.0
    entropy_warmup: float = 0.0
    colour_jitter: float | None = None
    vegetation_jitter: float | None = None
    radius: int | None = None
    margin: int = 0
    cells: bool = True
    seed: int = 0
    amp: Amp = "off"
    compile: bool = False


@dataclass(frozen=True)
class RasterRecipe:
    """How a named model is trained.

    Attributes:
        name: Name of the recipe, which the run folder starts with.
        summary: What it trains, in a sentence.
        scenes: Patterns of the scenes under the data folder.
        classes: Number of clusters to find.
        settings: How to train.
        labels: Pattern of the label rasters under the data folder, one per scene, for evaluation only.
        label_class: Classes of the label rasters as NAME=VALUE,VALUE....
    """

    name: str
    summary: str
    scenes: tuple[str, ...]
    classes: int
    settings: RasterSettings
    labels: str = ""
    label_class: tuple[str, ...] = ()


DEFAULTS = RasterSettings()


def choose_settings(settings: RasterSettings, classes: int, gsd: float | None) -> RasterSettings:
    """Fill in what settings leave open.

    The rules were found by measurement (docs/own-scene-log.md). A `bank` network learns its features in a minute,
    whatever the size of the scene; other networks are trained from random weights for as long as the paper's.

    Args:
        settings: Settings, None where a rule decides.
        classes: Number of clusters to find.
        gsd: Side of a pixel in metres at which the scenes are read, or None if it is unknown.
    """
    bank = settings.network == NETWORK
    fine = not bank or (gsd is not None and gsd < FINE)
    rules = RasterSettings(
        reduce=1,
        clusters_a=MATERIALS if bank else OVERCLUSTERING * classes,
        sub_heads=1 if bank else 3,
        size=48 if bank else 96,
        epochs=4 if bank else 20,
        steps=75 if bank else 100,
        batch=16 if bank else 32,
        lr=4e-3 if bank else 1e-3,
        # Where pixels are large, brightness tells materials apart and must not be changed away.
        colour_jitter=1.0 if fine else 0.3,
        vegetation_jitter=PAIRS.photometry.vegetation_jitter if fine else 0.0,
        radius=1 if bank else 5,
    )
    open_names = [field.name for field in fields(settings) if getattr(settings, field.name) is None]
    filled = {name: getattr(rules, name) for name in open_names if getattr(rules, name) is not None}
    return replace(settings, **filled)


def choose_reduction(pixel_size: float | None) -> int:
    """Return how many pixels to average, on each axis, so that a scene is read at no less than about 0.8 m."""
    return 1 if not pixel_size else max(1, round(WORKING_RESOLUTION / pixel_size))


def raster_config(survey: "Survey", data: DataConfig, classes: int, settings: RasterSettings) -> TrainConfig:
    """Return the config of a run from what its scenes hold and how to train on them.

    Raises:
        UsageError: Settings cannot be right.
    """
    settings = choose_settings(settings, classes, survey.scenes.gsd)
    bank = settings.network == NETWORK
    if bank and not settings.clusters_a:
        raise UsageError(
            f"The network {NETWORK} learns its features with head A: `clusters_a` must be 2 or more."
        )
    network = NetworkConfig(
        settings.network,
        survey.scenes.channels,
        classes,
        settings.clusters_a or None,
        _filled_in(settings.sub_heads),
        offset=survey.offset,
        scale=survey.scale,
        bias=bank,
    )
    return TrainConfig(
        preset=data.name,
        data=replace(data, bands=survey.scenes.bands),
        network=network,
        pairs=jittered_pairs(_filled_in(settings.colour_jitter), _filled_in(settings.vegetation_jitter)),
        size=settings.size,
        start="kmeans" if bank else "random",
        passes=("a",) if bank else ("ab",) if settings.clusters_a else ("b",),
        epochs=_filled_in(settings.epochs),
        steps=settings.steps,
        batch=_filled_in(settings.batch),
        micro_batch=settings.micro_batch,
        lr=_filled_in(settings.lr),
        schedule="cosine",
        entropy_weight=settings.entropy_weight,
        entropy_warmup=settings.entropy_warmup,
        radius=_filled_in(settings.radius),
        margin=settings.margin,
        cells=settings.cells,
        evaluation_images=16,
        seed=settings.seed,
        amp=settings.amp,
        compile=settings.compile,
    )


def describe_settings(config: TrainConfig, gsd: float | None) -> str:
    """Say in a sentence what was chosen or given, so that nobody has to open the config to know it."""
    light = config.pairs.photometry
    size = "pixels of unknown size" if gsd is None else f"pixels of {gsd:.3g} m"
    clusters = f"{config.network.clusters_b} clusters"
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


def _filled_in(value: Value | None) -> Value:
    if value is None:
        raise TypeError("a setting that no rule fills in")
    return value


def train_rasters(
    scenes: Sequence[str],
    classes: int,
    settings: RasterSettings = DEFAULTS,
    *,
    labels: Sequence[str] = (),
    label_class: Sequence[str] = (),
    preset: str = "rasters",
    runs: Path = Path("runs"),
    name: str | None = None,
    device: str = "auto",
    workers: int | None = None,
    progress: OnProgress = silent,
) -> "Run":
    """Train on rasters of any size and type, without labels.

    Args:
        scenes: Rasters, anything that GDAL opens.
        classes: Number of clusters to find.
        settings: How to train.
        labels: Label rasters, one per scene in order, for evaluation only.
        label_class: Classes of the label rasters as NAME=VALUE,VALUE...; by default every value is a class.
        preset: Name that the run folder starts with.
        runs: Folder of the run folders.
        name: Name of the new run folder; by default preset and time.
        device: `auto`, `cpu` or `cuda`.
        workers: Number of processes that read ahead; 0 reads between the steps. By default none on a CPU, and all
            cores but one for a GPU.
        progress: Function that takes reports of progress.

    Raises:
        SceneError: A scene cannot be read.
        DataError: The scenes do not go together, or hold no data.
    """
    from iic_geotools.scene.info import describe
    from iic_train.data.survey import survey_scenes
    from iic_train.trainer import train

    if not 2 <= classes <= MAX_CLASSES:
        raise UsageError(f"`classes` must be 2 to {MAX_CLASSES}, not {classes}.")
    reduce = settings.reduce
    if reduce is None:
        by_rule = settings.network == NETWORK and settings.gsd is None and bool(scenes)
        reduce = (
            choose_reduction(settings.pixel_size or describe(scenes[0]).grid.pixel_side) if by_rule else 1
        )
        if reduce > 1:
            _LOG.info("The scene is read at a resolution %d times coarser, of about 0.8 m.", reduce)
    data = DataConfig(
        "rasters",
        scenes=tuple(map(absolute_path, scenes)),
        labels=tuple(str(Path(label).absolute()) for label in labels),
        label_classes=tuple(label_class),
        bands=settings.bands,
        nodata=settings.nodata,
        reduce=reduce,
        gsd=settings.gsd,
        pixel_size=settings.pixel_size,
        rescale=settings.rescale,
    )
    survey = survey_scenes(data)
    config = replace(raster_config(survey, data, classes, settings), preset=preset)
    _LOG.info(describe_settings(config, survey.scenes.gsd))
    return train(
        config, runs=runs, name=name, device=device, workers=workers, survey=survey, progress=progress
    )
