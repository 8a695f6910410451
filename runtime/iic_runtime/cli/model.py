"""`iic-model show | validate | rename`."""

from pathlib import Path
from typing import Annotated

import typer

from iic_geotools.shell import Traceback, shell

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    help="Look into model files and name their classes.",
)
main = app
File = Annotated[Path, typer.Argument(help="The model file.", show_default=False)]


@app.command()
def show(
    file: File,
    as_json: Annotated[bool, typer.Option("--json", help="Print the card as it stands in the file.")] = False,
    traceback: Traceback = False,
) -> None:
    """Print a model's card as a table."""
    with shell(traceback=traceback):
        from iic_runtime.modelfile import ModelFile

        model = ModelFile.read(file)
        if as_json:
            typer.echo(model.card.to_json())
        else:
            from iic_runtime.cli.tables import print_card

            print_card(model)


@app.command()
def validate(file: File, traceback: Traceback = False) -> None:
    """Check that graph and card keep their promises, by running the model; exit code 1 if they do not."""
    with shell(traceback=traceback):
        from iic_runtime.validate import validate_model

        checks = validate_model(file)
        for check in checks:
            found = f" ({check.found})" if check.found else ""
            typer.echo(f"{'ok  ' if check.kept else 'FAIL'} {check.promise}{found}")
        if not all(check.kept for check in checks):
            raise typer.Exit(1)


@app.command()
def rename(
    file: File,
    changes: Annotated[
        list[str],
        typer.Argument(
            metavar="OLD=NEW[:#rrggbb]...",
            help='Class by name or number, e.g. "cluster 0=water:#0000ff"; OLD=:#rrggbb changes the colour only.',
            show_default=False,
        ),
    ],
    traceback: Traceback = False,
) -> None:
    """Change names and colours of a model's classes; graph and weights stay as they are."""
    with shell(traceback=traceback):
        from iic_runtime.renaming import rename as function

        for label, each in enumerate(function(file, changes).classes):
            typer.echo(f"{label} {each.name} {each.colour}")
