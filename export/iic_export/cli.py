"""`iic-export [RUN] -o model.onnx`."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from iic_runtime.cli.shell import Quiet, Traceback, Verbose, shell

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
main = app


@app.command()
def export(
    run: Annotated[
        Path | None, typer.Argument(help="Run folder, or its name under --runs; the newest by default.")
    ] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="The model file.")] = Path("model.onnx"),
    best_subhead: Annotated[
        bool, typer.Option("--best-subhead", help="The sub-head of the lowest IIC loss: the default.")
    ] = False,
    subhead: Annotated[int | None, typer.Option(help="Another sub-head, by its number.")] = None,
    which: Annotated[
        Literal["best", "last"], typer.Option(help="Weights of the best or of the last epoch.")
    ] = "best",
    probabilities: Annotated[
        bool, typer.Option("--probabilities", help="A third output: the probability of each class.")
    ] = False,
    name: Annotated[str | None, typer.Option(help="What to call the model; as its run by default.")] = None,
    attribution: Annotated[str, typer.Option(help="Whose data the run was trained on.")] = "",
    licence: Annotated[str, typer.Option(help="Licence of that data, e.g. CC-BY-4.0.")] = "",
    gsd_range: Annotated[
        str | None, typer.Option(help="MIN,MAX metres a pixel that the model is meant for.")
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
            out,
            subhead=subhead,
            which=which,
            probabilities=probabilities,
            name=name,
            attribution=attribution,
            licence=licence,
            gsd_range=_pair(gsd_range),
            runs=runs,
            overwrite=overwrite,
        )
        if not quiet:
            typer.echo(made.sentence(), err=True)


def _pair(text: str | None) -> tuple[float, float] | None:
    from iic_geotools.errors import UsageError

    if text is None:
        return None
    try:
        low, high = (float(number) for number in text.split(","))
    except ValueError:
        raise UsageError(f'--gsd-range takes MIN,MAX, e.g. 0.1,0.5, not "{text}".') from None
    if not 0 < low <= high:
        raise UsageError(f"--gsd-range takes MIN,MAX above 0 with MIN below MAX, not {text}.")
    return low, high
