"""Options that commands of several rooms share, each declared once. Importing this imports nothing heavy."""

import math
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Annotated

import typer

from iic_geotools import __version__
from iic_geotools.cli.display import show_progress
from iic_geotools.cli.error_shell import remember_command
from iic_geotools.option_texts import NumberRange
from iic_geotools.progress import OnProgress
from iic_geotools.settings import Settings, setting


@dataclass(frozen=True, kw_only=True)
class Shell(Settings, group="Running"):
    """How much a command prints."""

    verbose: bool = setting(False, "Print more about what is done.", flags=("--verbose", "-v"))
    quiet: bool = setting(False, "Print only warnings and errors.", flags=("--quiet", "-q"))
    traceback: bool = setting(False, "Show where in the code an error comes from.")


@dataclass(frozen=True, kw_only=True)
class Display(Shell, group="Running"):
    """How much a command prints, and how it shows progress."""

    progress_json: bool = setting(False, "Print progress as JSON lines on standard output.")

    def show_progress(self) -> AbstractContextManager[OnProgress]:
        """Yield a function that displays reports of progress."""
        return show_progress(quiet=self.quiet, as_json=self.progress_json)


def _print_version(context: typer.Context, value: bool) -> None:
    if value:
        typer.echo(f"{context.find_root().info_name} {__version__}")
        raise typer.Exit


Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Print more about what is done.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print only warnings and errors.")]
Traceback = Annotated[
    bool,
    typer.Option(
        "--traceback", callback=remember_command, help="Show where in the code an error comes from."
    ),
]
Version = Annotated[
    bool,
    typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit."),
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace outputs that exist.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
ProgressJson = Annotated[
    bool, typer.Option("--progress-json", help="Print progress as JSON lines on standard output.")
]
LabelField = Annotated[
    str | None,
    typer.Option(
        metavar="FIELD",
        help="The field that holds the class. By default the only one, or one named class.",
        show_default=False,
    ),
]


def parse_number_range(text: str) -> NumberRange:
    """Read the value of an option MIN,MAX.

    Declare such an option as
    `Annotated[NumberRange | None, typer.Option(parser=parse_number_range, metavar="MIN,MAX", help=...)]`.

    Raises:
        typer.BadParameter: The text is not two positive finite numbers, the lower one first.
    """
    try:
        low, high = (float(number) for number in text.split(","))
    except ValueError:
        raise typer.BadParameter(f'"{text}" is not two numbers MIN,MAX, e.g. 0.2,1.') from None
    if not 0 < low <= high < math.inf:
        raise typer.BadParameter(f"MIN and MAX must be above 0 and MIN not above MAX, not {text}.")
    return NumberRange(low, high)
