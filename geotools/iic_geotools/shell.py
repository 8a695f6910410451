"""What every command shares: logging, errors as one sentence, exit codes."""

import logging
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from iic_geotools.errors import IICError, UsageError

Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Say more about what is done.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Say only what is wrong.")]
Traceback = Annotated[bool, typer.Option("--traceback", help="Show where in the code an error comes from.")]

INTERRUPTED = 130
# What commands import only when they run, and the extra that brings it.
_EXTRAS = {"torch": "train", "safetensors": "train", "scipy": "train"}


def number_range(text: str | None, option: str) -> tuple[float, float] | None:
    """The two numbers of an option MIN,MAX; None if it was not given.

    Raises:
        UsageError: It is anything else.
    """
    if text is None:
        return None
    try:
        low, high = (float(number) for number in text.split(","))
    except ValueError:
        raise UsageError(f'{option} takes MIN,MAX, e.g. 0.2,1, not "{text}".') from None
    if not 0 < low <= high < float("inf"):
        raise UsageError(f"{option} takes MIN,MAX above 0 with MIN below MAX, not {text}.")
    return low, high


@contextmanager
def shell(verbose: bool = False, quiet: bool = False, traceback: bool = False) -> Iterator[None]:
    """Run a command's body: exit code 2 for wrong usage, 1 for other errors, 130 when interrupted."""
    level = logging.DEBUG if verbose else logging.ERROR if quiet else logging.INFO
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr, force=True)
    for name in ("iic_geotools", "iic_runtime", "iic_train", "iic_export"):
        logging.getLogger(name).setLevel(level)
    # rasterio's, with a path into its own code; what a scene lacks is told in a sentence where it matters
    for message in ("Dataset has no geotransform", "The given matrix is equal to Affine.identity"):
        warnings.filterwarnings("ignore", message=message)
    try:
        yield
    except IICError as error:
        if traceback:
            raise
        typer.echo(f"Error: {error}", err=True)
        raise typer.Exit(2 if isinstance(error, UsageError) else 1) from error
    except ModuleNotFoundError as error:
        extra = _EXTRAS.get((error.name or "").partition(".")[0])
        if traceback or extra is None:
            raise
        typer.echo(f"Error: This needs the package {error.name}: pip install 'iic-edge[{extra}]'.", err=True)
        raise typer.Exit(1) from error
    except KeyboardInterrupt as error:
        typer.echo("Interrupted.", err=True)
        raise typer.Exit(INTERRUPTED) from error
