"""The command that fine-tunes a run with labels."""

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from iic_geotools.cli import Display, Given
from iic_geotools.cli.options import LabelField
from iic_geotools.errors import UsageError
from iic_train.cli.evaluation import DeviceName, echo_end
from iic_train.cli.options import RUNS, Checkpoint, RunFolder, Runs
from iic_train.config import TrainConfig
from iic_train.finetune.settings import SCENES_DEFAULTS, Mode

if TYPE_CHECKING:
    from iic_train.runs import Run


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
            show_default=SCENES_DEFAULTS.mode,
        ),
    ] = None,
    folds: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Number of parts in which places are left out; 0 leaves none out. For STL10: number of its folds "
            "to learn from one at a time.",
            show_default=f"{SCENES_DEFAULTS.folds} with --labels",
        ),
    ] = None,
    checkpoint: Checkpoint = "best",
    name: Annotated[
        str | None, typer.Option(help="Name of the run folder.", show_default="preset and time")
    ] = None,
    device: DeviceName = "auto",
) -> None:
    """Fine-tune a run with labels: of pixels (--labels), or of the images of its data set, as for STL10."""
    from iic_train.runs import find_run

    scene_options = {"scenes": scenes, "label_class": label_class, "label_field": label_field, "name": name}
    settings = {"mode": mode, "folds": folds, **training}
    settings = {option: value for option, value in settings.items() if value is not None}
    with display.show_progress() as progress:
        if labels:
            from iic_train.finetune.scene_runs import finetune_scenes

            tuned = finetune_scenes(
                find_run(run, runs),
                labels,
                replace(SCENES_DEFAULTS, **settings),
                scenes=scenes or (),
                label_class=label_class or (),
                label_field=label_field,
                checkpoint=checkpoint,
                runs=runs,
                name=name,
                device=device,
                progress=progress,
            )
            finish_learning(tuned, display.quiet)
            return
        of_pixels = {**scene_options, **{option: settings.get(option) for option in ("steps", "lr", "mode")}}
        if given := [f"`{option}`" for option, value in of_pixels.items() if value is not None]:
            raise UsageError(f"Without `labels` there is no use for {', '.join(given)}.")
        from iic_train.distributed import choose_device
        from iic_train.finetune.image_runs import finetune_folds, finetune_run
        from iic_train.finetune.images import FinetuneSettings

        image_settings = FinetuneSettings(**training)
        opened, chosen = find_run(run, runs), choose_device(device)
        if folds:
            result = finetune_folds(
                opened, image_settings, folds=folds, checkpoint=checkpoint, device=chosen, progress=progress
            )
            typer.echo(
                f"accuracy {result.mean:.2%} +- {result.deviation:.2%} over {len(result.accuracies)} folds"
            )
            return
        finetuned = finetune_run(
            opened, image_settings, checkpoint=checkpoint, device=chosen, progress=progress
        )
        typer.echo(f"accuracy {finetuned.accuracy:.2%} after the last epoch")


def finish_learning(run: "Run", quiet: bool) -> None:
    """Write the page of a run that learnt from labels, and print how good it is and where."""
    from iic_train.evaluation.report import write_report
    from iic_train.finetune.heldout_figures import held_out_figures

    page = write_report(run)
    figures = held_out_figures(run)
    if not quiet:
        if figures is not None:
            typer.echo(figures["sentence"])
        echo_end(run, page)
