"""`iic-train`: train, resume, evaluate, compare, fine-tune and report."""

import json
import os
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

import iic_train  # whose names are imported when they are used: help needs no PyTorch
from iic_geotools.classmap.classes import MAX_CLASSES
from iic_geotools.cli import App, AsJson, Display, Given, Shell, Version
from iic_geotools.cli.display import LabelField
from iic_geotools.errors import DataError, UsageError
from iic_geotools.settings import PathLike, Settings, setting
from iic_train.config import (
    BASELINES,
    Augmentation,
    Baseline,
    DataConfig,
    Device,
    Execution,
    HeadSettings,
    NetworkSettings,
    TrainConfig,
)
from iic_train.finetune.settings import FinetuneConfig, Mode
from iic_train.recipes.presets import OVERCLUSTERED, PRESETS, UNSUPERVISED
from iic_train.recipes.rasters import FINE, NETWORK, choose_settings, train_rasters
from iic_train.recipes.registry import RECIPES, train_preset, train_recipe

RUNS = Path("runs")

RunFolder = Annotated[
    Path | None,
    typer.Argument(help="A run folder, or its name under --runs.", show_default="the newest under --runs"),
]
Runs = Annotated[Path, typer.Option(help="Folder of the run folders.")]
Checkpoint = Annotated[
    Literal["best", "last"], typer.Option(help="The epoch with the lowest loss, or the last one.")
]
OVERCLUSTER = "Semi-supervised overclustering: one head, many to one."

DeviceName = Annotated[Device, typer.Option(help="Device to compute on.")]

MIN_CLASSES = 2
_ALWAYS = {"entropy_weight": "1", "seed": "0", "amp": "auto", "margin": "0"}
"""Defaults that presets and rules leave as they are."""


@dataclass(frozen=True, kw_only=True)
class DataFolder(Settings, group="Data"):
    """Where the data is."""

    data: PathLike = setting(
        "data", "Folder that holds the data set or the scenes.", envvar="IIC_DATA", first=True
    )


@dataclass(frozen=True, kw_only=True)
class DownloadSettings(DataFolder, group="Data"):
    """Where the data is, or is downloaded to."""

    download: bool = setting(False, "Download the data set if it is missing.")


@dataclass(frozen=True, kw_only=True)
class BaselineSettings(DownloadSettings, group="Training"):
    """How a baseline is scored."""

    overcluster: bool = setting(False, OVERCLUSTER)
    standardise: bool | None = setting(
        None,
        "Scale every value to unit deviation for kmeans, or none; by default pixels but not images.",
        flags=("--standardise/--raw",),
    )
    sample: int | None = setting(
        None, "Number of images or pixels that are clustered before all get a cluster."
    )
    device: Device = setting("auto", "Device to compute on.")

    def __post_init__(self) -> None:
        if self.sample is not None and self.sample < 1:
            raise UsageError(f"`sample` must be at least 1, not {self.sample}.")


@dataclass(frozen=True, kw_only=True)
class DatasetSettings(DataFolder, group="Data"):
    """Which images of a data set of the paper are trained on."""

    overcluster: bool = setting(False, OVERCLUSTER)
    unlabelled: bool = setting(True, "Train on images without labels too.")


@dataclass(frozen=True, kw_only=True)
class ImageSetSettings(DatasetSettings, DownloadSettings, group="Data"):
    """The same for a data set that can be downloaded."""


def evaluate(
    shell: Shell,
    run: RunFolder = None,
    runs: Runs = RUNS,
    checkpoint: Checkpoint = "best",
    baseline: Annotated[
        Baseline | None,
        typer.Option(help="Score this baseline instead, on the data and trunk of the run."),
    ] = None,
    device: DeviceName = "auto",
    as_json: AsJson = False,
) -> None:
    """Accuracy, mean IoU, NMI and ARI of a run against labels that training never saw."""
    from iic_research.baselines import score_baseline

    opened = iic_train.find_run(run, runs)
    if opened.config.finetune is not None:
        figures = opened.held_out()
        if figures is None:
            raise DataError(
                f"The run {opened.id} learnt from all of its labels and left no place out, so its quality was not "
                "measured: train it again with `folds` above 1 and labels in places apart from each other."
            )
        typer.echo(json.dumps(figures, indent=1) if as_json else figures["sentence"])
        return
    dataset = opened.dataset()
    if baseline is not None:
        evaluation = score_baseline(baseline, opened.config, dataset, device=device)
    else:
        evaluation = iic_train.evaluate(opened, dataset, checkpoint=checkpoint, device=device)
        iic_train.write_report(opened, dataset, checkpoint=checkpoint)
    typer.echo(json.dumps(evaluation.to_json(), indent=1) if as_json else evaluation.describe())


def report(shell: Shell, run: RunFolder = None, runs: Runs = RUNS) -> None:
    """Write the page of a run, report.html, again."""
    typer.echo(iic_train.write_report(iic_train.find_run(run, runs)))


def baseline(
    settings: BaselineSettings,
    heads: Annotated[dict[str, Any], Given(HeadSettings, only=("network", "clusters"))],
    training: Annotated[
        dict[str, Any],
        Given(TrainConfig, only=("epochs", "steps", "batch", "lr", "seed"), shown={"epochs": "10"}),
    ],
    display: Display,
    baseline: Annotated[
        Baseline | None,
        typer.Argument(help="Name of a baseline; without it, all are listed.", show_default=False),
    ] = None,
    preset: Annotated[
        str, typer.Argument(help="A data set of the paper, or a recipe on images.")
    ] = "mnist-small",
    as_json: AsJson = False,
) -> None:
    """Score what the paper compares with, on the same data, trunk and protocol."""
    if baseline is None:
        for listed, summary in BASELINES.items():
            typer.echo(f"{listed:<14}{summary}")
        return
    from iic_research.baselines import run_baseline

    with display.show_progress() as progress:
        evaluation = run_baseline(
            baseline,
            preset,
            {"epochs": 10, **heads, **training},
            **{**settings.values(), "data": Path(settings.data), "progress": progress},
        )
    typer.echo(json.dumps(evaluation.to_json(), indent=1) if as_json else evaluation.describe())


def echo_end(run: "iic_train.Run", page: Path) -> None:
    """Print where a finished run is, and the command that exports it."""
    typer.echo(f"{run.path}: weights, metrics and {page.name}")
    newest = run.path.parent == RUNS and iic_train.find_run(None, RUNS).path == run.path
    typer.echo(f"Next: iic-export --best-subhead{'' if newest else ' ' + shlex.quote(str(run.path))}")


def finetune(
    training: Annotated[dict[str, Any], Given(TrainConfig, only=("epochs", "steps", "lr", "seed"))],
    display: Display,
    run: RunFolder = None,
    runs: Runs = RUNS,
    labels: Annotated[
        list[str] | None,
        typer.Option(help="Labels of pixels: a raster, points or polygons; one per scene, or one for all."),
    ] = None,
    scenes: Annotated[
        list[str] | None, typer.Option(help="Scene under the labels; by default those of the run.")
    ] = None,
    label_class: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE,...", help="Class of these values; a value of two classes is either."
        ),
    ] = None,
    label_field: LabelField = None,
    mode: Annotated[
        Mode | None,
        typer.Option(
            help="A head on frozen features, the whole network, or the better one.",
            show_default=FinetuneConfig.mode,
        ),
    ] = None,
    folds: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Number of parts in which places are left out; 0 leaves none out. For STL10: number of its folds "
            "to learn from one at a time.",
            show_default=f"{FinetuneConfig.folds} with --labels",
        ),
    ] = None,
    checkpoint: Checkpoint = "best",
    name: Annotated[
        str | None, typer.Option(help="Name of the run folder.", show_default="preset and time")
    ] = None,
    device: DeviceName = "auto",
) -> None:
    """Fine-tune a run with labels: of pixels (--labels), or of the images of its data set, as for STL10."""
    scene_options = {"scenes": scenes, "label_class": label_class, "label_field": label_field, "name": name}
    settings = {"mode": mode, "folds": folds, **training}
    settings = {option: value for option, value in settings.items() if value is not None}
    with display.show_progress() as progress:
        if labels:
            tuned = iic_train.finetune_scenes(
                iic_train.find_run(run, runs),
                labels,
                scenes=scenes or (),
                label_class=label_class or (),
                label_field=label_field,
                checkpoint=checkpoint,
                runs=runs,
                name=name,
                device=device,
                progress=progress,
                **settings,
            )
            finish_learning(tuned, display.quiet)
            return
        of_pixels = {**scene_options, **{option: settings.get(option) for option in ("steps", "lr", "mode")}}
        if given := [f"`{option}`" for option, value in of_pixels.items() if value is not None]:
            raise UsageError(f"{', '.join(given)} apply only to `labels`: give that too.")
        from iic_train.finetune.image_runs import FinetuneSettings, finetune_folds, finetune_run

        image_settings = FinetuneSettings(**training)
        opened = iic_train.find_run(run, runs)
        if folds:
            result = finetune_folds(
                opened, image_settings, folds=folds, checkpoint=checkpoint, device=device, progress=progress
            )
            typer.echo(
                f"accuracy {result.mean:.2%} +- {result.deviation:.2%} over {len(result.accuracies)} folds"
            )
            return
        finetuned = finetune_run(
            opened, image_settings, checkpoint=checkpoint, device=device, progress=progress
        )
        typer.echo(f"accuracy {finetuned.accuracy:.2%} after the last epoch")


def finish_learning(run: "iic_train.Run", quiet: bool) -> None:
    """Write the page of a run that learnt from labels, and print how good it is and where."""
    page = iic_train.write_report(run)
    figures = run.held_out()
    if not quiet:
        if figures is not None:
            typer.echo(figures["sentence"])
        echo_end(run, page)


def add_preset(app: typer.Typer, preset_name: str, summary: str) -> None:
    """Add the command of a data set, whose help shows its published settings."""
    shown = _published_defaults(preset_name)
    can_download = "image_size" in UNSUPERVISED[preset_name]

    def command(
        dataset: ImageSetSettings if can_download else DatasetSettings,  # type: ignore[valid-type]
        heads: Annotated[dict[str, Any], Given(HeadSettings, shown=shown)],
        training: Annotated[dict[str, Any], Given(TrainConfig, shown=shown)],
        execution: Execution,
        display: Display,
    ) -> None:
        with display.show_progress() as progress:
            place = {**execution.values(), "progress": progress}
            run = train_preset(preset_name, **dataset.values(), **heads, **training, **place)
            _finish(run, execution.device, display.quiet)

    app.command(preset_name, help=f"{summary} {_size_of_images(preset_name)}")(command)


def _size_of_images(preset_name: str) -> str:
    sizes = [
        table[preset_name].get("size") or table[preset_name]["image_size"]
        for table in (UNSUPERVISED, OVERCLUSTERED)
    ]
    other = "" if sizes[0] == sizes[1] else f", or {sizes[1]} with --overcluster"
    return f"Published settings unless options change them; images of {sizes[0]} pixels{other}."


def _published_defaults(preset_name: str) -> dict[str, str]:
    """Return what help shows as the defaults of a preset, which depend on --overcluster."""
    plain, overclustered = UNSUPERVISED[preset_name], OVERCLUSTERED[preset_name]
    shown = {**_ALWAYS, "schedule": "constant"}
    for name, first in plain.items():
        second = overclustered.get(name)
        texts = [
            ",".join(value) if isinstance(value, tuple) else str(value or "none") for value in (first, second)
        ]
        shown[name] = texts[0] if first == second else f"{texts[0]}; with --overcluster {texts[1]}"
    return shown


def _rules_defaults() -> dict[str, str]:
    """Return what help shows as the defaults for rasters: by network, and for coarse and fine pixels."""
    coarse, fine = (choose_settings(NETWORK, MIN_CLASSES, gsd) for gsd in (10.0, 0.8))
    other = choose_settings("edge-8", MIN_CLASSES, None)
    other["clusters_a"] = "4 per class"
    shown = {**_ALWAYS, "network": NETWORK, "schedule": "cosine"}
    for option in ("clusters_a", "sub_heads", "size", "epochs", "steps", "batch", "lr", "radius"):
        shown[option] = f"{coarse[option]}; {other[option]} with other networks"
    for option in ("colour_jitter", "vegetation_jitter"):
        shown[option] = f"{coarse[option]:g}; {fine[option]:g} on pixels below {FINE:g} m"
    return shown


_SHOWN = _rules_defaults()


def rasters(
    scenes: Annotated[
        list[str], typer.Argument(help="Rasters, anything that GDAL opens.", show_default=False)
    ],
    classes: Annotated[
        int,
        typer.Option(
            min=MIN_CLASSES, max=MAX_CLASSES, help="Number of clusters to find.", show_default=False
        ),
    ],
    reading: Annotated[dict[str, Any], Given(DataConfig)],
    network: Annotated[dict[str, Any], Given(NetworkSettings, shown=_SHOWN)],
    augmentation: Annotated[dict[str, Any], Given(Augmentation, shown=_SHOWN)],
    training: Annotated[dict[str, Any], Given(TrainConfig, shown=_SHOWN)],
    execution: Execution,
    display: Display,
    labels: Annotated[
        list[str] | None, typer.Option(help="Label raster, one per scene in order; for evaluation only.")
    ] = None,
    label_class: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE,...", help="Class made of these label values.")
    ] = None,
) -> None:
    """Your own rasters, of any size and type, without labels."""
    with display.show_progress() as progress:
        settings = {**reading, **network, **augmentation, **training, **execution.values()}
        settings["progress"] = progress
        run = train_rasters(scenes, classes, labels=labels or (), label_class=label_class or (), **settings)
        _finish(run, execution.device, display.quiet)


def recipe(
    data: DownloadSettings,
    training: Annotated[dict[str, Any], Given(TrainConfig, only=("epochs", "seed"))],
    execution: Execution,
    display: Display,
    recipe: Annotated[
        str | None, typer.Argument(help="Name of a recipe; without it, all are listed.", show_default=False)
    ] = None,
) -> None:
    """Train with a named recipe."""
    if recipe is None:
        for name, listed in RECIPES.items():
            typer.echo(f"{name:<22}{listed.summary}")
        return
    with display.show_progress() as progress:
        settings = {**training, **execution.values(), "progress": progress}
        run = train_recipe(recipe, data=Path(data.data), download=data.download, **settings)
        _finish(run, execution.device, display.quiet)


def resume(
    training: Annotated[dict[str, Any], Given(TrainConfig, only=("epochs", "micro_batch"))],
    display: Display,
    run: RunFolder = None,
    runs: Runs = RUNS,
    device: Annotated[Device, typer.Option(help="Device to compute on.")] = "auto",
    workers: Annotated[int | None, typer.Option(min=0, help="Number of processes that read ahead.")] = None,
) -> None:
    """Resume an interrupted run from where it was last saved, as if it had not stopped."""
    with display.show_progress() as progress:
        folder = iic_train.find_run(run, runs).path
        resumed = iic_train.resume(folder, device=device, workers=workers, progress=progress, **training)
        _finish(resumed, device, display.quiet)


def _finish(run: "iic_train.Run", device: str, quiet: bool) -> None:
    """Evaluate a finished run on its device if it has labels, write its page, and print where it is."""
    if os.environ.get("RANK", "0") != "0":
        return
    if run.config.finetune is not None:
        finish_learning(run, quiet)
        return

    dataset = run.dataset()
    if dataset.classes:
        evaluation = iic_train.evaluate(run, dataset, device=device)
        if not quiet:
            typer.echo(evaluation.describe())
    page = iic_train.write_report(run, dataset)
    if not quiet:
        echo_end(run, page)


app = App(no_args_is_help=True)


@app.callback()
def describe_app(version: Version = False) -> None:
    """Unsupervised clustering and segmentation with Invariant Information Clustering."""


for _preset, _summary in PRESETS.items():
    add_preset(app, _preset, _summary)
for _command in (rasters, recipe, resume, evaluate, baseline, finetune, report):
    app.command()(_command)

main = app
