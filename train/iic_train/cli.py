"""`iic-train`: train, go on, evaluate, fine-tune and report."""

import json
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from iic_geotools.shell import Quiet, Traceback, number_range, shell

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Unsupervised clustering and segmentation with Invariant Information Clustering.",
)
main = app

DATASETS = {
    "mnist": "MNIST digits, clustered.",
    "cifar10": "CIFAR-10, clustered.",
    "cifar100-20": "CIFAR-100 in its 20 superclasses, clustered.",
    "stl10": "STL10, clustered.",
    "coco-stuff": "COCO-Stuff 164k in 15 coarse stuff classes, segmented.",
    "coco-stuff-3": "COCO-Stuff 164k in sky, plants and ground, segmented.",
    "potsdam": "ISPRS Potsdam in six classes, segmented.",
    "potsdam-3": "ISPRS Potsdam in three classes, segmented.",
}

Runs = Annotated[Path, typer.Option(help="Folder of the run folders.")]
Name = Annotated[str | None, typer.Option(help="Name of the run folder; by default preset and time.")]
Device = Annotated[Literal["auto", "cpu", "cuda"], typer.Option(help="What to compute on.")]
Workers = Annotated[int, typer.Option(min=0, help="Processes that read ahead; 0 reads in between.")]
Seed = Annotated[int, typer.Option(min=0, help="Of everything random.")]
Epochs = Annotated[int | None, typer.Option(min=1, help="Epochs to train.")]
Steps = Annotated[int | None, typer.Option(min=1, help="Most steps a pass takes.")]
BatchSize = Annotated[int | None, typer.Option(min=2, help="Pairs a step, over all processes.")]
Rate = Annotated[float | None, typer.Option(help="Learning rate.")]
Schedule = Annotated[
    Literal["constant", "cosine"] | None, typer.Option(help="Keep the learning rate, or let it fall to zero.")
]
Passes = Annotated[
    str | None, typer.Option(help="Heads that the passes of an epoch train, e.g. a,b or ab.", metavar="HEADS")
]
Lamb = Annotated[float | None, typer.Option(help="Entropy weight of head B; above 1 favours equal clusters.")]
NetworkName = Annotated[str | None, typer.Option(help="Another network of the same kind.")]
ClustersA = Annotated[int | None, typer.Option(min=2, help="Clusters of the overclustering head.")]
SubHeads = Annotated[int | None, typer.Option(min=1, help="Sub-heads of each head.")]
Amp = Annotated[Literal["off", "bf16", "fp16"], typer.Option(help="Precision of the network on CUDA.")]
Compile = Annotated[bool, typer.Option("--compile", help="Compile the network.")]
Weights = Annotated[
    Literal["best", "last"], typer.Option("--weights", help="Epoch of lowest loss, or the last one.")
]
RunFolder = Annotated[
    Path | None, typer.Argument(help="A run folder; by default the newest under --runs.", show_default=False)
]


def _add_preset(preset_name: str, summary: str) -> None:
    @app.command(preset_name, help=f"{summary} Published settings unless options say otherwise.")
    def command(
        data: Annotated[
            Path | None,
            typer.Option(envvar="IIC_DATA", help="Folder that holds the data set; ./data by default."),
        ] = None,
        overcluster: Annotated[
            bool, typer.Option("--overcluster", help="Semi-supervised overclustering: one head, many to one.")
        ] = False,
        unlabelled: Annotated[bool, typer.Option(help="Train on images without labels too.")] = True,
        network: NetworkName = None,
        clusters: Annotated[int | None, typer.Option(min=2, help="Clusters of head B.")] = None,
        clusters_a: ClustersA = None,
        sub_heads: SubHeads = None,
        repeats: Annotated[int | None, typer.Option(min=1, help="Second views for each first one.")] = None,
        epochs: Epochs = None,
        steps: Steps = None,
        batch: BatchSize = None,
        lr: Rate = None,
        schedule: Schedule = None,
        passes: Passes = None,
        lamb: Lamb = None,
        seed: Seed = 0,
        amp: Amp = "off",
        compile: Compile = False,
        runs: Runs = Path("runs"),
        name: Name = None,
        device: Device = "auto",
        workers: Workers = 0,
        resume: Annotated[
            bool, typer.Option("--resume", help="Go on with the run named by --name, or the newest one.")
        ] = False,
        quiet: Quiet = False,
        traceback: Traceback = False,
    ) -> None:
        arguments = dict(locals())
        options = {
            option: arguments[option] for option in arguments.keys() - {"preset_name", "resume", "traceback"}
        }
        options["passes"] = passes.split(",") if passes else None
        with shell(quiet=quiet, traceback=traceback):
            if resume:
                _resume(runs / name if name else None, runs, epochs, device, workers, quiet)
                return
            from iic_train.presets import train_preset

            _finish(train_preset(preset_name, **options), quiet)


for _name, _summary in DATASETS.items():
    _add_preset(_name, _summary)


@app.command()
def rasters(
    scenes: Annotated[list[str], typer.Argument(help="Rasters: anything GDAL opens.", show_default=False)],
    classes: Annotated[int, typer.Option(min=2, max=254, help="Clusters to find.", show_default=False)],
    bands: Annotated[
        str | None,
        typer.Option(help="Bands to use, by name or number, e.g. red,green,blue,nir; all by default."),
    ] = None,
    nodata: Annotated[float | None, typer.Option(help="Value that means no data, over the files'.")] = None,
    reduce: Annotated[int, typer.Option(min=1, help="Train at a resolution so many times coarser.")] = 1,
    gsd: Annotated[
        str | None,
        typer.Option(metavar="MIN,MAX", help="Train at all ground resolutions in this range, in metres."),
    ] = None,
    pixel_size: Annotated[
        float | None, typer.Option(min=0, help="Metres a pixel, where a scene does not say.")
    ] = None,
    rescale: Annotated[
        Literal["auto"] | None,
        typer.Option(help="auto: bring every scene into one range by each band's own percentiles."),
    ] = None,
    labels: Annotated[
        list[str] | None, typer.Option(help="Label raster, one a scene in order; for evaluation only.")
    ] = None,
    label_class: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE,...", help="Class made of these label values.")
    ] = None,
    network: NetworkName = None,
    clusters_a: Annotated[
        int | None, typer.Option(min=0, help="Clusters of the overclustering head; 0: none.")
    ] = None,
    sub_heads: SubHeads = None,
    size: Annotated[int | None, typer.Option(min=8, help="Side of the windows in pixels.")] = None,
    epochs: Epochs = None,
    steps: Steps = None,
    batch: BatchSize = None,
    lr: Rate = None,
    lamb: Lamb = None,
    settling: Annotated[
        float | None, typer.Option(min=0, max=1, help="Part of training over which --lamb is reached from 1.")
    ] = None,
    jitter: Annotated[
        float | None, typer.Option(min=0, help="Strength of the changes of light and colour, 1 by default.")
    ] = None,
    vigour: Annotated[
        float | None, typer.Option(min=0, help="How much plants may be drier or greener in a view.")
    ] = None,
    radius: Annotated[int | None, typer.Option(min=0, help="Largest displacement of paired pixels.")] = None,
    margin: Annotated[
        int | None, typer.Option(min=0, help="Pixels along a window's edges that do not count.")
    ] = None,
    seed: Seed = 0,
    amp: Amp = "off",
    compile: Compile = False,
    runs: Runs = Path("runs"),
    name: Name = None,
    device: Device = "auto",
    workers: Workers = 0,
    quiet: Quiet = False,
    traceback: Traceback = False,
) -> None:
    """Your own rasters, of any size and type, without labels."""
    settings: dict[str, Any] = {
        "bands": bands.split(",") if bands else None,
        "labels": labels,
        "label_classes": label_class,
        "network": network,
        "clusters_a": clusters_a,
        "sub_heads": sub_heads,
        "size": size,
        "epochs": epochs,
        "steps": steps,
        "batch": batch,
        "lr": lr,
        "lamb": lamb,
        "settling": settling,
        "jitter": jitter,
        "vigour": vigour,
        "radius": radius,
        "margin": margin,
        "nodata": nodata,
        "gsd": number_range(gsd, "--gsd"),
        "pixel_size": pixel_size,
        "rescale": rescale,
    }
    with shell(quiet=quiet, traceback=traceback):
        from iic_train.rasters import train_rasters

        run = train_rasters(
            scenes,
            classes,
            reduce=reduce,
            seed=seed,
            amp=amp,
            compile=compile,
            runs=runs,
            name=name,
            device=device,
            workers=workers,
            quiet=quiet,
            **{key: value for key, value in settings.items() if value is not None},
        )
        _finish(run, quiet)


@app.command()
def resume(
    run: RunFolder = None,
    runs: Runs = Path("runs"),
    epochs: Annotated[int | None, typer.Option(min=1, help="Train to this epoch instead.")] = None,
    device: Device = "auto",
    workers: Workers = 0,
    quiet: Quiet = False,
    traceback: Traceback = False,
) -> None:
    """Go on with an interrupted run from its last finished epoch, as if it had not stopped."""
    with shell(quiet=quiet, traceback=traceback):
        _resume(run, runs, epochs, device, workers, quiet)


@app.command()
def evaluate(
    run: RunFolder = None,
    runs: Runs = Path("runs"),
    weights: Weights = "best",
    baseline: Annotated[
        Literal["kmeans", "random"] | None, typer.Option(help="Score this instead, in the run's protocol.")
    ] = None,
    device: Device = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
    traceback: Traceback = False,
) -> None:
    """Accuracy, mean IoU, NMI and ARI of a run against labels that training never saw."""
    with shell(traceback=traceback):
        from iic_train.distributed import choose_device
        from iic_train.evaluate import evaluate as evaluate_run
        from iic_train.evaluate import run_dataset
        from iic_train.report import write_report

        opened = _open(run, runs)
        if baseline is not None:
            from iic_train.baselines import baseline as score_baseline

            found = score_baseline(baseline, opened.config, run_dataset(opened))
        else:
            found = evaluate_run(opened, which=weights, device=choose_device(device))
            write_report(opened, which=weights)
        typer.echo(json.dumps(found.to_json(), indent=1) if as_json else describe(found))


@app.command()
def finetune(
    run: RunFolder = None,
    runs: Runs = Path("runs"),
    weights: Weights = "best",
    epochs: Epochs = None,
    seed: Seed = 0,
    device: Device = "auto",
    traceback: Traceback = False,
) -> None:
    """Fine-tune the trunk of a clustering run with labels (STL10's comparison)."""
    with shell(traceback=traceback):
        from iic_train.distributed import choose_device
        from iic_train.finetune import FinetuneSettings, finetune_run

        settings = (
            FinetuneSettings(seed=seed) if epochs is None else FinetuneSettings(seed=seed, epochs=epochs)
        )
        found = finetune_run(
            _open(run, runs),
            settings,
            which=weights,
            device=choose_device(device),
            progress=lambda e: typer.echo(
                f"epoch {e.epoch}  loss {e.loss:.4f}  accuracy {e.accuracy:.2%}", err=True
            ),
        )
        typer.echo(f"accuracy {found.accuracy:.2%} after the last epoch")


@app.command()
def report(run: RunFolder = None, runs: Runs = Path("runs"), traceback: Traceback = False) -> None:
    """Write the run's page, report.html, anew."""
    with shell(traceback=traceback):
        from iic_train.report import write_report

        typer.echo(write_report(_open(run, runs)))


def describe(found: Any) -> str:
    """An evaluation in a few lines."""
    accuracies = found.accuracies
    mean = sum(accuracies) / len(accuracies)
    deviation = (sum((value - mean) ** 2 for value in accuracies) / len(accuracies)) ** 0.5
    chosen = found.sub_heads[found.chosen]
    matching = found.protocol.replace("_", "-")
    lines = [
        f"accuracy {found.accuracy:.2%} ({matching}, sub-head {found.chosen}, chosen by loss), "
        f"mean IoU {found.scores(found.chosen).mean_iou:.2%}, NMI {chosen.nmi:.3f}, ARI {chosen.ari:.3f}",
        f"sub-heads {', '.join(f'{value:.2%}' for value in accuracies)}: mean {mean:.2%}, deviation {deviation:.2%}",
        f"picked by labels: sub-head {found.label_picked}, {max(accuracies):.2%}",
    ]
    if matching == "one-to-one":
        lines.append(f"many-to-one instead: {chosen.many_to_one.accuracy:.2%}")
    lines += [
        f"with {share.fraction:.0%} of the labels: {share.accuracy:.2%} +- {share.deviation:.2%}"
        for share in found.fewer_labels
        if share.fraction < 1
    ]
    return "\n".join(lines)


def _open(run: Path | None, runs: Path) -> Any:
    from iic_train.runs import load_run, newest_run

    return newest_run(runs) if run is None else load_run(run)


def _resume(run: Path | None, runs: Path, epochs: int | None, device: str, workers: int, quiet: bool) -> None:
    from iic_train.loop import resume as go_on

    _finish(go_on(_open(run, runs).path, epochs=epochs, device=device, workers=workers, quiet=quiet), quiet)


def _finish(run: Any, quiet: bool) -> None:
    """Evaluate a finished run if it has labels, write its page, and say where it is."""
    import os

    if os.environ.get("RANK", "0") != "0":
        return
    from iic_train.evaluate import evaluate as evaluate_run
    from iic_train.evaluate import run_dataset
    from iic_train.report import write_report

    dataset = run_dataset(run)
    if dataset.classes:
        found = evaluate_run(run, dataset)
        if not quiet:
            typer.echo(describe(found))
    page = write_report(run, dataset)
    if not quiet:
        typer.echo(f"{run.path}: weights, metrics and {page.name}")
