"""`iic-model list | show | validate | rename`."""

from pathlib import Path
from typing import Annotated

import typer

from iic_geotools.shell import Traceback, shell

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    help="Look into models, bundled ones and files, and name their classes.",
)
main = app
Model = Annotated[
    str, typer.Argument(help="The model file, or the name of a bundled model.", show_default=False)
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command(name="list")
def list_models(as_json: AsJson = False, traceback: Traceback = False) -> None:
    """Print the models that come with the package."""
    with shell(traceback=traceback):
        from iic_runtime.bundled import bundled_models
        from iic_runtime.cli.tables import models_json, print_models

        if as_json:
            typer.echo(models_json(bundled_models()))
        else:
            print_models(bundled_models())


@app.command()
def show(
    model: Model,
    as_json: Annotated[bool, typer.Option("--json", help="Print the card as it stands in the file.")] = False,
    traceback: Traceback = False,
) -> None:
    """Print a model's card as a table."""
    with shell(traceback=traceback):
        from iic_runtime.bundled import find_model

        found = find_model(model)
        if as_json:
            typer.echo(found.card.to_json())
        else:
            from iic_runtime.cli.tables import print_card

            print_card(found)


@app.command()
def validate(model: Model, traceback: Traceback = False) -> None:
    """Check that graph and card keep their promises, by running the model; exit code 1 if they do not."""
    with shell(traceback=traceback):
        from iic_runtime.validate import validate_model

        checks = validate_model(model)
        for check in checks:
            found = f" ({check.found})" if check.found else ""
            typer.echo(f"{'ok  ' if check.kept else 'FAIL'} {check.promise}{found}")
        if not all(check.kept for check in checks):
            raise typer.Exit(1)


@app.command()
def rename(
    model: Model,
    changes: Annotated[
        list[str],
        typer.Argument(
            metavar="OLD=NEW[:#rrggbb]...",
            help='Class by name or number, e.g. "cluster 0=water:#0000ff"; OLD=:#rrggbb changes the colour only.',
            show_default=False,
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Write a changed copy here; by default the file itself is changed."),
    ] = None,
    traceback: Traceback = False,
) -> None:
    """Change names and colours of a model's classes; graph and weights stay as they are."""
    with shell(traceback=traceback):
        from iic_runtime.renaming import rename as function

        for label, each in enumerate(function(model, changes, out).classes):
            typer.echo(f"{label} {each.name} {each.colour}")
