"""Commands that train: a preset per data set of the paper, any rasters, a named recipe, and resuming."""

import os
from collections.abc import Callable
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, get_args

import typer

from iic_geotools.classmap.classes import MAX_CLASSES
from iic_geotools.cli import NumberRange, Quiet, Traceback, parse_number_range, shell, show_progress
from iic_train.cli.evaluation import describe, echo_end, open_run
from iic_train.cli.finetuning import finish_learning
from iic_train.cli.options import (
    DATA,
    RUNS,
    ClustersA,
    Compile,
    DataFolder,
    Device,
    Download,
    EntropyWeight,
    MicroBatch,
    Name,
    Network,
    OptionalBatch,
    OptionalEntropyWeight,
    OptionalEpochs,
    OptionalNetwork,
    OptionalRate,
    OptionalSteps,
    OptionalSubHeads,
    Patience,
    Precision,
    RunFolder,
    Runs,
    Seed,
    Workers,
)
from iic_train.config import Schedule
from iic_train.finetune.settings import Rescaling
from iic_train.recipes.changes import Changes
from iic_train.recipes.named import RECIPES, train_recipe
from iic_train.recipes.presets import OVERCLUSTERED, UNSUPERVISED, Published, train_preset
from iic_train.recipes.rasters import DEFAULTS, FINE, RasterSettings, choose_settings, train_rasters

if TYPE_CHECKING:
    from iic_train.runs import Run


MIN_CLASSES = 2


def add_preset(app: typer.Typer, preset_name: str, summary: str) -> None:
    """Add the command of a data set, whose help shows its published settings."""

    def command(
        data: DataFolder = DATA,
        download: Download = False,
        overcluster: Annotated[
            bool, typer.Option("--overcluster", help="Semi-supervised overclustering: one head, many to one.")
        ] = False,
        unlabelled: Annotated[bool, typer.Option(help="Train on images without labels too.")] = True,
        network: OptionalNetwork = None,
        clusters: Annotated[
            int | None, typer.Option(min=2, help="Number of clusters of the main head.")
        ] = None,
        clusters_a: ClustersA = None,
        sub_heads: OptionalSubHeads = None,
        repeats: Annotated[
            int | None, typer.Option(min=1, help="Number of second views for each first one.")
        ] = None,
        epochs: OptionalEpochs = None,
        steps: OptionalSteps = None,
        patience: Patience = None,
        batch: OptionalBatch = None,
        micro_batch: MicroBatch = None,
        lr: OptionalRate = None,
        schedule: Annotated[
            Schedule | None, typer.Option(help="Keep the learning rate, or let it fall to zero.")
        ] = None,
        passes: Annotated[
            str | None,
            typer.Option(metavar="HEADS", help="Heads that each pass of an epoch trains, e.g. a,b or ab."),
        ] = None,
        entropy_weight: OptionalEntropyWeight = None,
        seed: Seed = 0,
        amp: Precision = "off",
        compile: Compile = False,
        runs: Runs = RUNS,
        name: Name = None,
        device: Device = "auto",
        workers: Workers = None,
        quiet: Quiet = False,
        traceback: Traceback = False,
    ) -> None:
        changes = Changes(
            network=network,
            clusters=clusters,
            clusters_a=clusters_a,
            sub_heads=sub_heads,
            repeats=repeats,
            epochs=epochs,
            steps=steps,
            patience=patience,
            batch=batch,
            micro_batch=micro_batch,
            lr=lr,
            schedule=schedule,
            passes=tuple(passes.split(",")) if passes else None,
            entropy_weight=entropy_weight,
            seed=seed,
            amp=amp,
            compile=compile,
        )
        with shell(quiet=quiet, traceback=traceback), show_progress(quiet=quiet) as progress:
            run = train_preset(
                preset_name,
                changes,
                data=data,
                overcluster=overcluster,
                unlabelled=unlabelled,
                download=download,
                runs=runs,
                name=name,
                device=device,
                workers=workers,
                progress=progress,
            )
            _finish(run, device, quiet)

    _show_defaults(command, UNSUPERVISED[preset_name], OVERCLUSTERED[preset_name])
    app.command(preset_name, help=_preset_help(preset_name, summary))(command)


def _preset_help(preset_name: str, summary: str) -> str:
    plain, overclustered = UNSUPERVISED[preset_name].size, OVERCLUSTERED[preset_name].size
    other = "" if plain == overclustered else f", or {overclustered} with --overcluster"
    return f"{summary} Published settings unless options change them; images of {plain} pixels{other}."


def _show_defaults(command: Callable[..., None], plain: Published, overclustered: Published) -> None:
    """Let the help of a preset's command show the published settings, which depend on --overcluster."""
    for option in (
        "network",
        "clusters",
        "clusters_a",
        "sub_heads",
        "repeats",
        "epochs",
        "patience",
        "batch",
        "lr",
    ):
        first, second = getattr(plain, option), getattr(overclustered, option)
        text = f"{first}" if first == second else f"{first}; with --overcluster {second or 'none'}"
        _show_default(command, option, text)
    for option, text in (
        ("entropy_weight", f"{plain.entropy_weight:g}"),
        ("passes", ",".join(plain.passes)),
        ("schedule", "constant"),
        ("steps", "all of the data"),
    ):
        _show_default(command, option, text)


def _show_default(command: Callable[..., None], option: str, text: str) -> None:
    kind, declaration = get_args(command.__annotations__[option])
    declaration = copy(declaration)
    declaration.show_default = text
    command.__annotations__[option] = Annotated[kind, declaration]


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
    bands: Annotated[
        str | None,
        typer.Option(help="Bands to use, by name or number, e.g. red,green,blue,nir; all by default."),
    ] = None,
    nodata: Annotated[
        float | None, typer.Option(help="Value that means no data, instead of what the files say.")
    ] = None,
    reduce: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Train at a resolution that is coarser by this factor.",
            show_default="1, or what brings finer scenes to about 0.8 m",
        ),
    ] = None,
    gsd: Annotated[
        NumberRange | None,
        typer.Option(
            parser=parse_number_range,
            metavar="MIN,MAX",
            help="Train at all ground resolutions in this range, in metres.",
        ),
    ] = None,
    pixel_size: Annotated[
        float | None, typer.Option(min=0, help="Side of a pixel in metres, for scenes that do not say it.")
    ] = None,
    rescale: Annotated[
        Rescaling | None,
        typer.Option(
            help="Bring every scene to one range by the percentiles of its bands, or to reflectance."
        ),
    ] = None,
    labels: Annotated[
        list[str] | None, typer.Option(help="Label raster, one per scene in order; for evaluation only.")
    ] = None,
    label_class: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE,...", help="Class made of these label values.")
    ] = None,
    network: Network = DEFAULTS.network,
    clusters_a: ClustersA = None,
    sub_heads: OptionalSubHeads = None,
    size: Annotated[int | None, typer.Option(min=8, help="Side of the windows in pixels.")] = None,
    epochs: OptionalEpochs = None,
    steps: OptionalSteps = None,
    batch: OptionalBatch = None,
    micro_batch: MicroBatch = DEFAULTS.micro_batch,
    lr: OptionalRate = None,
    entropy_weight: EntropyWeight = DEFAULTS.entropy_weight,
    entropy_warmup: Annotated[
        float,
        typer.Option(min=0, max=1, help="Part of training over which the entropy weight is reached from 1."),
    ] = DEFAULTS.entropy_warmup,
    colour_jitter: Annotated[
        float | None, typer.Option(min=0, help="Strength of the changes of light and colour between views.")
    ] = None,
    vegetation_jitter: Annotated[
        float | None, typer.Option(min=0, help="How much drier or greener plants may be in a view.")
    ] = None,
    radius: Annotated[int | None, typer.Option(min=0, help="Largest displacement of paired pixels.")] = None,
    margin: Annotated[
        int, typer.Option(min=0, help="Pixels along the edges of a window that do not count.")
    ] = DEFAULTS.margin,
    seed: Seed = DEFAULTS.seed,
    amp: Precision = DEFAULTS.amp,
    compile: Compile = DEFAULTS.compile,
    runs: Runs = RUNS,
    name: Name = None,
    device: Device = "auto",
    workers: Workers = None,
    quiet: Quiet = False,
    traceback: Traceback = False,
) -> None:
    """Your own rasters, of any size and type, without labels."""
    settings = RasterSettings(
        bands=tuple(bands.split(",")) if bands else (),
        nodata=nodata,
        reduce=reduce,
        gsd=gsd,
        pixel_size=pixel_size,
        rescale=rescale,
        network=network,
        clusters_a=clusters_a,
        sub_heads=sub_heads,
        size=size,
        epochs=epochs,
        steps=steps,
        batch=batch,
        micro_batch=micro_batch,
        lr=lr,
        entropy_weight=entropy_weight,
        entropy_warmup=entropy_warmup,
        colour_jitter=colour_jitter,
        vegetation_jitter=vegetation_jitter,
        radius=radius,
        margin=margin,
        seed=seed,
        amp=amp,
        compile=compile,
    )
    with shell(quiet=quiet, traceback=traceback), show_progress(quiet=quiet) as progress:
        run = train_rasters(
            scenes,
            classes,
            settings,
            labels=labels or (),
            label_class=label_class or (),
            runs=runs,
            name=name,
            device=device,
            workers=workers,
            progress=progress,
        )
        _finish(run, device, quiet)


def _show_rules(command: Callable[..., None]) -> None:
    """Let the help show what the rules choose: for the default network on coarse and fine pixels, and for others."""
    coarse, fine = (choose_settings(DEFAULTS, MIN_CLASSES, gsd) for gsd in (10.0, 0.8))
    other = choose_settings(replace(DEFAULTS, network="edge-8"), MIN_CLASSES, None)
    for option in ("clusters_a", "sub_heads", "size", "epochs", "steps", "batch", "lr", "radius"):
        default, others = getattr(coarse, option), getattr(other, option)
        shown = "4 per class" if option == "clusters_a" else others
        _show_default(command, option, f"{default}; {shown} with other networks")
    for option in ("colour_jitter", "vegetation_jitter"):
        text = f"{getattr(coarse, option):g}; {getattr(fine, option):g} on pixels below {FINE:g} m"
        _show_default(command, option, text)


_show_rules(rasters)


def recipe(
    recipe: Annotated[
        str | None, typer.Argument(help="Name of a recipe; without it, all are listed.", show_default=False)
    ] = None,
    data: DataFolder = DATA,
    download: Download = False,
    epochs: OptionalEpochs = None,
    seed: Seed = 0,
    runs: Runs = RUNS,
    name: Name = None,
    device: Device = "auto",
    workers: Workers = None,
    quiet: Quiet = False,
    traceback: Traceback = False,
) -> None:
    """Train with a named recipe, or list the recipes."""
    if recipe is None:
        for listed, summary in RECIPES.items():
            typer.echo(f"{listed:<22}{summary}")
        return
    with shell(quiet=quiet, traceback=traceback), show_progress(quiet=quiet) as progress:
        run = train_recipe(
            recipe,
            data=data,
            epochs=epochs,
            seed=seed,
            download=download,
            runs=runs,
            name=name,
            device=device,
            workers=workers,
            progress=progress,
        )
        _finish(run, device, quiet)


def resume(
    run: RunFolder = None,
    runs: Runs = RUNS,
    epochs: OptionalEpochs = None,
    micro_batch: MicroBatch = None,
    device: Device = "auto",
    workers: Workers = None,
    quiet: Quiet = False,
    traceback: Traceback = False,
) -> None:
    """Resume an interrupted run from where it was last saved, as if it had not stopped."""
    with shell(quiet=quiet, traceback=traceback), show_progress(quiet=quiet) as progress:
        from iic_train.trainer import resume as resume_run

        folder = open_run(run, runs).path
        resumed = resume_run(
            folder,
            epochs=epochs,
            micro_batch=micro_batch,
            device=device,
            workers=workers,
            progress=progress,
        )
        _finish(resumed, device, quiet)


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
