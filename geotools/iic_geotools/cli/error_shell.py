"""The shell around every command: errors as sentences and exit codes, verbosity.

Library errors name arguments in backticks, and the shell prints those that the running command knows as options:
"`min_area` needs `polygons`." becomes "--min-area needs --polygons.". What cannot be written to standard output or
standard error never ends a run.
"""

import logging
import os
import re
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any, TextIO

import click  # rio's; typer may bring one of its own
import typer

from iic_geotools.errors import (
    AssumptionWarning,
    IICError,
    MissingPackageError,
    UnexpectedError,
    UsageError,
    redact,
)

INTERRUPTED = 130
"""Exit code of a command that the user interrupted."""

# Packages that commands import only when they run, and the extra that brings each of them.
_EXTRAS = {"torch": "train", "torchvision": "datasets", "safetensors": "train", "scipy": "train"}


def printable(text: str) -> str:
    """The text with control characters, which a terminal would obey, and broken letters as escapes.

    Names of files, bands and classes are written by others.
    """
    return "".join(
        letter if letter.isprintable() or letter == "\n" else letter.encode("unicode_escape").decode()
        for letter in text
    )


def open_standard_streams() -> None:
    """Open the standard streams that the caller closed (`2>&-`) on the null device.

    Otherwise the next file that is opened takes the number of the closed one, and what a library prints there ends up
    in that file.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            with suppress(OSError):
                os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free


def write(stream: TextIO | None, text: str) -> None:
    """Write and flush; a missing, closed or full stream never ends a run."""
    if stream is None:  # as Python starts with a closed descriptor
        return
    encoding = getattr(stream, "encoding", None) or "utf-8"
    try:
        stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
        stream.flush()
    except OSError:
        # What could not be written stays in the buffer, and the interpreter would fail with it at its end.
        with suppress(OSError, ValueError):
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, stream.fileno())
            os.close(null)
    except (ValueError, LookupError):
        return


def print_error(sentence: str) -> None:
    """Print an error on standard error, as every command does: on one line, and without control characters."""
    write(sys.stderr, f"Error: {printable(' '.join(sentence.split()))}\n")


def print_unexpected(error: Exception) -> None:
    """Print an unexpected error, and how to see where it comes from."""
    print_error(f"{str(UnexpectedError.of(error)).rstrip('.')} (--traceback shows more).")


class Unfailing:
    """A text stream that loses what cannot be written instead of ending the run."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write if that is possible."""
        write(self._stream, text)
        return len(text)

    def flush(self) -> None:
        """Do nothing: every write is flushed."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


_EXTRAS |= {"pyogrio": "vector", "shapely": "vector"}
_ARGUMENT = re.compile(r"`([a-z][a-z0-9_]*)`")
_running: ContextVar[typer.Context | None] = ContextVar("_running", default=None)


@contextmanager
def naming_options(context: typer.Context | None) -> Iterator[None]:
    """Let errors and messages in the block name the options of a command."""
    token = _running.set(context)
    try:
        yield
    finally:
        _running.reset(token)


def remember_command(context: typer.Context, value: bool) -> bool:
    """Keep the running command's context for the shell, which names options in errors."""
    _running.set(context)
    return value


@contextmanager
def shell(verbose: bool = False, quiet: bool = False, traceback: bool = False) -> Iterator[None]:
    """Run the body of a command: print errors as sentences and turn them into exit codes.

    The exit code is 2 for wrong usage, 130 if the user interrupts the command, and 1 for other errors, including
    unexpected ones. Log messages of this project are printed on standard error, above a progress bar if there is one.

    Args:
        verbose: Print debug messages too.
        quiet: Print only warnings and errors.
        traceback: Raise errors instead of printing them.
    """
    open_standard_streams()
    _set_up_logging(logging.DEBUG if verbose else logging.WARNING if quiet else logging.INFO)
    try:
        with _assumptions_as_messages():
            yield
    except IICError as error:
        if traceback:
            raise
        print_error(as_options(str(error)))
        raise typer.Exit(2 if isinstance(error, UsageError) else 1) from error
    except ModuleNotFoundError as error:
        extra = _EXTRAS.get((error.name or "").partition(".")[0])
        if traceback:
            raise
        if extra is None:
            print_unexpected(error)
        else:
            print_error(str(MissingPackageError.for_extra(error.name or "", extra)))
        raise typer.Exit(1) from error
    except KeyboardInterrupt as error:
        write(sys.stderr, "Interrupted.\n")
        raise typer.Exit(INTERRUPTED) from error
    except Exception as error:
        # How typer and click end a command, not an error of it.
        if traceback or hasattr(error, "exit_code") or isinstance(error, typer.Abort):
            raise
        print_unexpected(error)
        raise typer.Exit(1) from error
    finally:
        _running.set(None)


@contextmanager
def _assumptions_as_messages() -> Iterator[None]:
    """Print what is assumed about a scene as a message, without the line of code that a Python warning shows."""
    with warnings.catch_warnings():
        warnings.simplefilter("always", AssumptionWarning)
        show = warnings.showwarning

        def show_message(
            message: Warning | str, category: type[Warning], *place: Any, **arguments: Any
        ) -> None:
            if issubclass(category, AssumptionWarning):
                logging.getLogger("iic_geotools").warning("%s", message)
            else:
                show(message, category, *place, **arguments)

        warnings.showwarning = show_message
        yield


def as_options(message: str) -> str:
    """Replace backticked arguments of the running command by its options; leave other backticked words alone."""
    options = _option_names()
    return _ARGUMENT.sub(lambda match: options.get(match[1], match[0]), message)


def _option_names() -> dict[str, str]:
    """How the parameters of the running command are written on the command line."""
    context: Any = click.get_current_context(silent=True) or _running.get()
    if context is None:
        return {}
    names = {}
    for parameter in context.command.params:
        positional = parameter.param_type_name == "argument"
        names[parameter.name] = parameter.name.upper() if positional else max(parameter.opts, key=len)
    return names


class _CurrentStderr(logging.StreamHandler[TextIO]):
    """Writes to what standard error is at the moment: a progress bar replaces it to print above itself."""

    def emit(self, record: logging.LogRecord) -> None:
        write(sys.stderr, printable(as_options(redact(self.format(record)))) + "\n")


def _set_up_logging(level: int) -> None:
    logging.basicConfig(level=logging.WARNING, format="%(message)s", handlers=[_CurrentStderr()], force=True)
    for room in ("iic_geotools", "iic_runtime", "iic_train", "iic_export"):
        logging.getLogger(room).setLevel(level)
    # These warnings of rasterio point into its own code; our messages say where a missing georeference matters.
    for message in ("Dataset has no geotransform", "The given matrix is equal to Affine.identity"):
        warnings.filterwarnings("ignore", message=message)
