"""Commands that train: a preset per data set of the paper, any rasters, a named recipe, and resuming."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from iic_geotools.classmap.classes import MAX_CLASSES
from iic_geotools.cli import Display, Given
from iic_train.cli.evaluation import describe, echo_end
from iic_train.cli.finetuning import finish_learning
from iic_train.cli.options import RUNS, DatasetSettings, DownloadSettings, ImageSetSettings, RunFolder, Runs
from iic_train.config import (
    Augmentation,
    DataConfig,
    Device,
    Execution,
    HeadSettings,
    NetworkSettings,
    TrainConfig,
)
from iic_train.recipes.presets import OVERCLUSTERED, UNSUPERVISED
from iic_train.recipes.rasters import FINE, NETWORK, choose_settings, train_rasters
from iic_train.recipes.registry import RECIPES, train_preset, train_recipe

if TYPE_CHECKING:
    from iic_train.runs import Run

MIN_CLASSES = 2
_ALWAYS = {"entropy_weight": "1", "seed": "0", "amp": "auto", "margin": "0"}
"""Defaults that presets and rules leave as they are."""


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
    from iic_train.runs import find_run
    from iic_train.trainer import resume as resume_run

    with display.show_progress() as progress:
        folder = find_run(run, runs).path
        resumed = resume_run(folder, device=device, workers=workers, progress=progress, **training)
        _finish(resumed, device, display.quiet)


def _finish(run: "Run", device: str, quiet: bool) -> None:
    """Evaluate a finished run on its device if it has labels, write its page, and print where it is."""
    if os.environ.get("RANK", "0") != "0":
        return
    if run.config.finetune is not None:
        finish_learning(run, quiet)
        return
    from iic_train.distributed import choose_device
    from iic_train.evaluation.evaluate import evaluate as evaluate_run
    from iic_train.evaluation.report import write_report

    dataset = run.dataset()
    if dataset.classes:
        evaluation = evaluate_run(run, dataset, device=choose_device(device))
        if not quiet:
            typer.echo(describe(evaluation))
    page = write_report(run, dataset)
    if not quiet:
        echo_end(run, page)
