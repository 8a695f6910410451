"""`iic-export [RUN] -o model.onnx`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from iic_export.packages import missing_extra
from iic_geotools.cli import (
    App,
    NumberRange,
    Overwrite,
    Quiet,
    Traceback,
    Verbose,
    Version,
    parse_number_range,
    shell,
)
from iic_geotools.cli.options import LabelField
from iic_geotools.errors import MissingPackageError, UsageError

if TYPE_CHECKING:
    from iic_export.name_clusters import Naming
    from iic_export.tensorrt_build import EngineOptions

app = App()
main = app

RunFolder = Annotated[
    Path | None,
    typer.Argument(help="Run folder, or its name under --runs.", show_default="the newest"),
]
Out = Annotated[
    Path | None,
    typer.Option("--out", "-o", help="Model file.", show_default="model.onnx or model.engine"),
]
BestSubhead = Annotated[
    bool,
    typer.Option("--best-subhead", help="Take the sub-head with the lowest IIC loss; this is the default."),
]
SubHead = Annotated[int | None, typer.Option(help="Take this sub-head instead, by its number.")]
Checkpoint = Annotated[
    Literal["best", "last", "finetuned"],
    typer.Option(help="Take the weights of the best or the last epoch, or a fine-tuned clustering network."),
]
PrecisionName = Annotated[
    Literal["fp32", "fp16", "int8"], typer.Option(help="Precision of the model's arithmetic.")
]
MinAgreement = Annotated[
    float | None,
    typer.Option(
        help="Share of labels that must equal the trained network's.",
        show_default="in fp32 all that rounding cannot change, else 0.99",
    ),
]
Probabilities = Annotated[
    bool, typer.Option("--probabilities", help="Add a third output, the probability of each class.")
]
FormatName = Annotated[
    Literal["onnx", "tensorrt"],
    typer.Option(help="Write an ONNX file for every machine, or a TensorRT engine for the GPU of this one."),
]
Tile = Annotated[
    int, typer.Option(help="TensorRT: side of the largest tile, which the engine is optimised for.")
]
Batch = Annotated[int, typer.Option(help="TensorRT: largest number of tiles run at once.")]
Workspace = Annotated[str, typer.Option(help="TensorRT: GPU memory for the build, e.g. 512M or 2G.")]
Portable = Annotated[
    bool,
    typer.Option(
        "--portable", help="TensorRT: let later versions and other GPUs since Ampere run the engine."
    ),
]
Labels = Annotated[
    list[Path] | None,
    typer.Option(
        help="Name the clusters by a label raster, or by points or polygons with a class field. "
        "Give one for all scenes, or one for each in order."
    ),
]
OwnLabels = Annotated[
    bool,
    typer.Option("--own-labels", help="Name the clusters by the labels that the run was evaluated with."),
]
LabelClasses = Annotated[
    list[str] | None,
    typer.Option(
        "--label-class",
        metavar="NAME=VALUE,...[:#COLOUR]",
        help="Group values of label rasters into a class.",
        show_default="every value is a class",
    ),
]
Balance = Annotated[
    float,
    typer.Option(
        min=0,
        max=1,
        help="Weight classes by how much of each is labelled: 0 counts pixels, 1 gives every class the same weight.",
    ),
]
Scenes = Annotated[
    list[Path] | None,
    typer.Option("--scene", help="Scene under --labels.", show_default="the run's own scenes"),
]
ModelName = Annotated[str | None, typer.Option(help="Name of the model.", show_default="that of the run")]
Attribution = Annotated[str, typer.Option(help="Whose data the run was trained on.", show_default=False)]
Licence = Annotated[str, typer.Option(help="Licence of that data, e.g. CC-BY-4.0.", show_default=False)]
GsdRange = Annotated[
    NumberRange | None,
    typer.Option(
        parser=parse_number_range,
        metavar="MIN,MAX",
        help="Ground resolutions in metres per pixel that the model is meant for.",
        show_default="those that it was trained at",
    ),
]
Stac = Annotated[Path | None, typer.Option(help="Also write the card as a STAC item (.json).")]
Runs = Annotated[Path, typer.Option(help="Folder of the run folders.")]


@app.command()
def export(
    run: RunFolder = None,
    out: Out = None,
    best_subhead: BestSubhead = False,
    sub_head: SubHead = None,
    checkpoint: Checkpoint = "best",
    precision: PrecisionName = "fp32",
    min_agreement: MinAgreement = None,
    probabilities: Probabilities = False,
    format: FormatName = "onnx",
    tile: Tile = 1024,
    batch: Batch = 4,
    workspace: Workspace = "2G",
    portable: Portable = False,
    labels: Labels = None,
    own_labels: OwnLabels = False,
    label_field: LabelField = None,
    label_class: LabelClasses = None,
    balance: Balance = 0.0,
    scenes: Scenes = None,
    name: ModelName = None,
    attribution: Attribution = "",
    licence: Licence = "",
    gsd_range: GsdRange = None,
    stac: Stac = None,
    runs: Runs = Path("runs"),
    overwrite: Overwrite = False,
    verbose: Verbose = False,
    quiet: Quiet = False,
    traceback: Traceback = False,
    version: Version = False,
) -> None:
    """Write a trained run as one model file, proven equal to the trained network."""
    with shell(verbose, quiet, traceback):
        if best_subhead and sub_head is not None:
            raise UsageError("--best-subhead and --sub-head exclude each other; give one of them.")
        naming = _naming(labels or [], label_field, label_class or [], scenes or [], own_labels, balance)
        try:
            from iic_export.exporter import export as export_run
        except ModuleNotFoundError as error:
            raise MissingPackageError.for_extra(error.name or "", missing_extra()) from error

        exported = export_run(
            run,
            out or Path("model.engine" if format == "tensorrt" else "model.onnx"),
            sub_head=sub_head,
            checkpoint=checkpoint,
            precision=precision,
            min_agreement=min_agreement,
            probabilities=probabilities,
            format=format,
            engine=_engine_options(tile, batch, workspace, portable) if format == "tensorrt" else None,
            naming=naming,
            name=name,
            attribution=attribution,
            licence=licence,
            gsd_range=gsd_range,
            stac=stac,
            runs=runs,
            overwrite=overwrite,
        )
        if not quiet:
            typer.echo(exported.sentence(), err=True)
            typer.echo(f"Next: {exported.next_command()}", err=True)


def _engine_options(tile: int, batch: int, workspace: str, portable: bool) -> "EngineOptions":
    from iic_export.tensorrt_build import EngineOptions
    from iic_geotools.option_texts import parse_size

    return EngineOptions(tile, batch, parse_size(workspace, "workspace"), portable)


def _naming(
    labels: list[Path],
    label_field: str | None,
    label_class: list[str],
    scenes: list[Path],
    own_labels: bool,
    balance: float,
) -> "Naming | None":
    if not labels and (label_field is not None or scenes):
        raise UsageError("--label-field and --scene apply only to --labels; give that too.")
    if not labels and not own_labels:
        if label_class or balance:
            raise UsageError(
                "--label-class and --balance apply only to --labels or --own-labels; give one of them."
            )
        return None
    from iic_export.name_clusters import Naming

    return Naming(labels, label_field, label_class, scenes, own_labels, balance)
