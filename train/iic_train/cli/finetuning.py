"""The command that fine-tunes a run with labels."""

from typing import TYPE_CHECKING, Annotated

import typer

from iic_geotools.cli import Quiet, Traceback, shell, show_progress
from iic_geotools.cli.options import LabelField
from iic_geotools.errors import UsageError
from iic_train.cli.evaluation import echo_end, open_run
from iic_train.cli.options import (
    RUNS,
    Checkpoint,
    Device,
    Name,
    OptionalEpochs,
    OptionalRate,
    OptionalSteps,
    RunFolder,
    Runs,
    Seed,
)
from iic_train.finetune.settings import SCENES_DEFAULTS, Mode, ScenesSettings

if TYPE_CHECKING:
    from iic_train.runs import Run


def finetune(
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
        Mode, typer.Option(help="A head on frozen features, the whole network, or the better one.")
    ] = SCENES_DEFAULTS.mode,
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
    epochs: OptionalEpochs = None,
    steps: OptionalSteps = None,
    lr: OptionalRate = None,
    seed: Seed = 0,
    name: Name = None,
    device: Device = "auto",
    quiet: Quiet = False,
    traceback: Traceback = False,
) -> None:
    """Fine-tune a run with labels: of pixels (--labels), or of the images of its data set, as for STL10."""
    with shell(quiet=quiet, traceback=traceback), show_progress(quiet=quiet) as progress:
        if labels:
            from iic_train.finetune.scene_runs import finetune_scenes

            tuned = finetune_scenes(
                open_run(run, runs),
                labels,
                ScenesSettings(
                    mode=mode,
                    folds=SCENES_DEFAULTS.folds if folds is None else folds,
                    epochs=SCENES_DEFAULTS.epochs if epochs is None else epochs,
                    steps=SCENES_DEFAULTS.steps if steps is None else steps,
                    lr=SCENES_DEFAULTS.lr if lr is None else lr,
                    seed=seed,
                ),
                scenes=scenes or (),
                label_class=label_class or (),
                label_field=label_field,
                checkpoint=checkpoint,
                runs=runs,
                name=name,
                device=device,
                progress=progress,
            )
            finish_learning(tuned, quiet)
            return
        of_pixels = {
            "scenes": scenes,
            "label_class": label_class,
            "label_field": label_field,
            "steps": steps,
            "lr": lr,
            "name": name,
            "mode": None if mode == SCENES_DEFAULTS.mode else mode,
        }
        if given := [f"`{option}`" for option, value in of_pixels.items() if value is not None]:
            raise UsageError(f"Without `labels` there is no use for {', '.join(given)}.")
        from iic_train.distributed import choose_device
        from iic_train.finetune.image_runs import finetune_folds, finetune_run
        from iic_train.finetune.images import FinetuneSettings

        settings = FinetuneSettings(seed=seed)
        if epochs is not None:
            settings = FinetuneSettings(seed=seed, epochs=epochs)
        opened, chosen = open_run(run, runs), choose_device(device)
        if folds:
            result = finetune_folds(
                opened, settings, folds=folds, checkpoint=checkpoint, device=chosen, progress=progress
            )
            typer.echo(
                f"accuracy {result.mean:.2%} +- {result.deviation:.2%} over {len(result.accuracies)} folds"
            )
            return
        finetuned = finetune_run(opened, settings, checkpoint=checkpoint, device=chosen, progress=progress)
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
