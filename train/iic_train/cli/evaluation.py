"""Commands for trained runs, and what they are compared with: evaluate, report, baseline."""

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from iic_geotools.cli import AsJson, Display, Given, Shell
from iic_train.cli.options import OVERCLUSTER, RUNS, Checkpoint, DownloadSettings, RunFolder, Runs
from iic_train.config import BASELINES, Baseline, Device, HeadSettings, TrainConfig

if TYPE_CHECKING:
    from iic_train.evaluation.evaluate import Evaluation
    from iic_train.runs import Run

DeviceName = Annotated[Device, typer.Option(help="Device to compute on.")]


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
    from iic_train.distributed import choose_device
    from iic_train.evaluation.evaluate import evaluate as evaluate_run
    from iic_train.evaluation.report import write_report
    from iic_train.finetune.heldout_figures import read_held_out
    from iic_train.research.baselines.score import score_baseline
    from iic_train.runs import find_run

    opened = find_run(run, runs)
    if opened.config.finetune is not None:
        figures = read_held_out(opened)
        typer.echo(json.dumps(figures, indent=1) if as_json else figures["sentence"])
        return
    dataset = opened.dataset()
    if baseline is not None:
        evaluation = score_baseline(baseline, opened.config, dataset, device=choose_device(device))
    else:
        evaluation = evaluate_run(opened, dataset, checkpoint=checkpoint, device=choose_device(device))
        write_report(opened, dataset, checkpoint=checkpoint)
    typer.echo(json.dumps(evaluation.to_json(), indent=1) if as_json else describe(evaluation))


def report(shell: Shell, run: RunFolder = None, runs: Runs = RUNS) -> None:
    """Write the page of a run, report.html, again."""
    from iic_train.evaluation.report import write_report
    from iic_train.runs import find_run

    typer.echo(write_report(find_run(run, runs)))


def baseline(
    data: DownloadSettings,
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
    overcluster: Annotated[bool, typer.Option("--overcluster", help=OVERCLUSTER)] = False,
    standardise: Annotated[
        bool | None,
        typer.Option(
            "--standardise/--raw",
            help="Scale every value to unit deviation for kmeans, or none.",
            show_default="pixels but not images",
        ),
    ] = None,
    sample: Annotated[
        int | None,
        typer.Option(min=1, help="Number of images or pixels that are clustered before all get a cluster."),
    ] = None,
    device: DeviceName = "auto",
    as_json: AsJson = False,
) -> None:
    """Score what the paper compares with, on the same data, trunk and protocol."""
    if baseline is None:
        for listed, summary in BASELINES.items():
            typer.echo(f"{listed:<14}{summary}")
        return
    from iic_train.research.baselines.score import run_baseline

    with display.show_progress() as progress:
        evaluation = run_baseline(
            baseline,
            preset,
            {"epochs": 10, **heads, **training},
            data=Path(data.data),
            overcluster=overcluster,
            download=data.download,
            standardise=standardise,
            sample=sample,
            device=device,
            progress=progress,
        )
    typer.echo(json.dumps(evaluation.to_json(), indent=1) if as_json else describe(evaluation))


def describe(evaluation: "Evaluation") -> str:
    """Return an evaluation in a few lines."""
    accuracies = evaluation.accuracies
    mean = sum(accuracies) / len(accuracies)
    deviation = (sum((value - mean) ** 2 for value in accuracies) / len(accuracies)) ** 0.5
    chosen = evaluation.sub_heads[evaluation.chosen]
    matching = evaluation.protocol.replace("_", "-")
    lines = [
        f"accuracy {evaluation.accuracy:.2%} ({matching}, sub-head {evaluation.chosen}, chosen by loss), "
        f"mean IoU {evaluation.scores(evaluation.chosen).mean_iou:.2%}, NMI {chosen.nmi:.3f}, ARI {chosen.ari:.3f}",
        f"sub-heads {', '.join(f'{value:.2%}' for value in accuracies)}: mean {mean:.2%}, deviation {deviation:.2%}",
        f"picked by labels: sub-head {evaluation.label_picked}, {max(accuracies):.2%}",
    ]
    if matching == "one-to-one":
        lines.append(f"many-to-one instead: {chosen.many_to_one.accuracy:.2%}")
    lines += [
        f"with {share.fraction:.0%} of the labels: {share.accuracy:.2%} +- {share.deviation:.2%}"
        for share in evaluation.fewer_labels
        if share.fraction < 1
    ]
    return "\n".join(lines)


def echo_end(run: "Run", page: Path) -> None:
    """Print where a finished run is, and the command that exports it."""
    from iic_train.runs import newest_run

    typer.echo(f"{run.path}: weights, metrics and {page.name}")
    newest = run.path.parent == RUNS and newest_run(RUNS).path == run.path
    typer.echo(f"Next: iic-export --best-subhead{'' if newest else ' ' + shlex.quote(str(run.path))}")
