"""`iic-export [RUN] -o model.onnx`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from iic_geotools.shell import Quiet, Traceback, Verbose, number_range, shell

if TYPE_CHECKING:
    from iic_export.naming import Naming
    from iic_export.trtbuild import EngineOptions

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
main = app


@app.command()
def export(
    run: Annotated[
        Path | None, typer.Argument(help="Run folder, or its name under --runs; the newest by default.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", help="The model file; model.onnx or model.engine by default.", show_default=False
        ),
    ] = None,
    best_subhead: Annotated[
        bool, typer.Option("--best-subhead", help="The sub-head of the lowest IIC loss: the default.")
    ] = False,
    subhead: Annotated[int | None, typer.Option(help="Another sub-head, by its number.")] = None,
    which: Annotated[
        Literal["best", "last"], typer.Option(help="Weights of the best or of the last epoch.")
    ] = "best",
    precision: Annotated[
        Literal["fp32", "fp16", "int8"], typer.Option(help="Of the model's arithmetic.")
    ] = "fp32",
    min_agreement: Annotated[
        float | None,
        typer.Option(
            help="Share of labels that must equal the trained network's; 0.9999 in fp32, else 0.99."
        ),
    ] = None,
    probabilities: Annotated[
        bool, typer.Option("--probabilities", help="A third output: the probability of each class.")
    ] = False,
    format: Annotated[
        Literal["onnx", "tensorrt"],
        typer.Option(help="An ONNX file for every machine, or a TensorRT engine for this one's GPU."),
    ] = "onnx",
    tile: Annotated[int, typer.Option(help="TensorRT: the largest tile, which it is made fast for.")] = 1024,
    batch: Annotated[int, typer.Option(help="TensorRT: the most tiles at once.")] = 4,
    workspace: Annotated[str, typer.Option(help="TensorRT: memory of the GPU for building.")] = "2G",
    portable: Annotated[
        bool,
        typer.Option("--portable", help="TensorRT: let later versions and other GPUs since Ampere run it."),
    ] = False,
    labels: Annotated[
        list[Path] | None,
        typer.Option(
            help="Name clusters by a label raster, or points or polygons with a class field; one for all scenes or "
            "one for each, in order."
        ),
    ] = None,
    own_labels: Annotated[
        bool, typer.Option("--own-labels", help="Name clusters by the labels the run was evaluated with.")
    ] = False,
    label_field: Annotated[
        str | None, typer.Option(help="The field of --labels that holds the class.")
    ] = None,
    label_class: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE,...[:#COLOUR]", help="A class of label rasters; every value by default."
        ),
    ] = None,
    balance: Annotated[
        float,
        typer.Option(
            min=0,
            max=1,
            help="Even out how much of each class is labelled: 0 counts pixels, 1 makes classes equal.",
        ),
    ] = 0.0,
    scene: Annotated[
        list[Path] | None, typer.Option(help="A scene under --labels; the run's own scenes by default.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="What to call the model; as its run by default.")] = None,
    attribution: Annotated[str, typer.Option(help="Whose data the run was trained on.")] = "",
    licence: Annotated[str, typer.Option(help="Licence of that data, e.g. CC-BY-4.0.")] = "",
    gsd_range: Annotated[
        str | None, typer.Option(help="MIN,MAX metres a pixel that the model is meant for.")
    ] = None,
    stac: Annotated[
        Path | None, typer.Option(help="Also write the card as a STAC item (MLM), .json.")
    ] = None,
    runs: Annotated[Path, typer.Option(help="Folder of the run folders.")] = Path("runs"),
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace files that exist.")] = False,
    verbose: Verbose = False,
    quiet: Quiet = False,
    traceback: Traceback = False,
) -> None:
    """Write a trained run as one model file, proven equal to the trained network."""
    with shell(verbose, quiet, traceback):
        from iic_geotools.errors import MissingPackageError, UsageError

        if best_subhead and subhead is not None:
            raise UsageError("--best-subhead and --subhead exclude each other; give one of them.")
        try:
            from iic_export.exporting import export as function
        except ImportError as error:
            raise MissingPackageError(
                f"Exporting needs the package {error.name}: pip install 'iic-edge[train,cpu]'."
            ) from error

        made = function(
            run,
            out or Path("model.engine" if format == "tensorrt" else "model.onnx"),
            subhead=subhead,
            which=which,
            precision=precision,
            min_agreement=min_agreement,
            probabilities=probabilities,
            format=format,
            engine=_engine(tile, batch, workspace, portable) if format == "tensorrt" else None,
            naming=_naming(labels or [], label_field, label_class or [], scene or [], own_labels, balance),
            name=name,
            attribution=attribution,
            licence=licence,
            gsd_range=number_range(gsd_range, "--gsd-range"),
            stac=stac,
            runs=runs,
            overwrite=overwrite,
        )
        if not quiet:
            typer.echo(made.sentence(), err=True)


def _engine(tile: int, batch: int, workspace: str, portable: bool) -> "EngineOptions":
    from iic_export.trtbuild import EngineOptions
    from iic_runtime.outputs import parse_size

    return EngineOptions(tile, batch, parse_size(workspace), portable)


def _naming(
    labels: list[Path], field: str | None, classes: list[str], scenes: list[Path], own: bool, balance: float
) -> "Naming | None":
    from iic_geotools.errors import UsageError

    if not labels and (field is not None or scenes):
        raise UsageError("--label-field and --scene are about --labels; give that too.")
    if not labels and not own:
        if classes or balance:
            raise UsageError(
                "--label-class and --balance are about --labels or --own-labels; give one of them."
            )
        return None
    from iic_export.naming import Naming

    return Naming(labels, field, classes, scenes, own, balance)
