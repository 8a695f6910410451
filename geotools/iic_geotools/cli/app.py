"""The command line itself: typer's, with settings as options, and errors as sentences with exit codes.

A parameter that is a settings class becomes an option per setting:

    @app.command()
    def clip(scene: Scene, settings: Region, shell: Shell) -> None:
        function(scene, **settings.values())

The body runs in the shell, which prints errors as sentences, and so do the functions that read the texts of
options. A parameter `Annotated[dict[str, Any], Given(Region)]` gets only the settings that the user gives, for
commands that change a preset.

Library errors name arguments in backticks, and the shell prints those that the running command knows as options:
"`min_area` needs `polygons`." becomes "--min-area needs --polygons.". What cannot be written to standard output or
standard error never ends a run.
"""

import inspect
import logging
import os
import re
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import wraps
from typing import Annotated, Any, TextIO, get_args, get_type_hints

import click  # rio's; typer may bring one of its own
import typer
from typer.core import TyperCommand, TyperGroup

from iic_geotools.errors import (
    AssumptionWarning,
    IICError,
    MissingPackageError,
    UnexpectedError,
    UsageError,
    redact,
)
from iic_geotools.settings import Described, Settings, describe, setting

CONTEXT = "context_"
"""The parameter through which the shell learns the names of the command's options."""
_BRACES = re.compile(r"\{(\w+)\}(\.\.\.)?")
_ARGUMENT = re.compile(r"`([a-z][a-z0-9_]*)`")
_running: ContextVar[typer.Context | None] = ContextVar("_running", default=None)


INTERRUPTED = 130
"""Exit code of a command that the user interrupted."""

# Packages that commands import only when they run, and the extra that brings each of them.
_EXTRAS = {
    "torch": "train",
    "torchvision": "datasets",
    "safetensors": "train",
    "scipy": "train",
    "pyogrio": "vector",
    "shapely": "vector",
}


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
    """Print an error on standard error, as every command does: on one line, without control characters or secrets."""
    write(sys.stderr, f"Error: {printable(redact(' '.join(sentence.split())))}\n")


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


@contextmanager
def naming_options(context: typer.Context | None) -> Iterator[None]:
    """Let errors and messages in the block name the options of a command."""
    token = _running.set(context)
    try:
        yield
    finally:
        _running.reset(token)


@contextmanager
def shell(verbose: bool = False, quiet: bool = False, traceback: bool = False) -> Iterator[None]:
    """Run the body of a command: print errors as sentences and turn them into exit codes.

    The exit code is 2 for wrong usage, 130 if the user interrupts the command, and 1 for other errors, including
    unexpected ones. Log messages of this project are printed on standard error, above a progress bar if there is one.
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
    context: Any = click.get_current_context(silent=True) or _running.get()
    if context is None:
        return message
    # A command that speaks of the options of another one has their names as the `obj` of its context.
    others = context.obj if isinstance(context.obj, tuple) else ()
    options = {name: option_name(name) for name in others}
    for parameter in context.command.params:
        positional = parameter.param_type_name == "argument"
        options[parameter.name] = parameter.name.upper() if positional else max(parameter.opts, key=len)
    return _ARGUMENT.sub(lambda match: options.get(match[1], match[0]), message)


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


@dataclass(frozen=True, kw_only=True)
class Shell(Settings, group="Running"):
    """How much a command prints."""

    verbose: bool = setting(False, "Print more about what is done.", flags=("--verbose", "-v"))
    quiet: bool = setting(False, "Print only warnings and errors.", flags=("--quiet", "-q"))
    traceback: bool = setting(False, "Show where in the code an error comes from.")


class _SentenceCommand(TyperCommand):
    """A command whose usage errors are sentences, as all other errors are."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the parts of the usage line, arguments as `SCENE... OUT` where typer has `{scenes}... {out}`."""
        return [_BRACES.sub(_upper, piece) for piece in super().collect_usage_pieces(ctx)]

    def main(self, *arguments: Any, standalone_mode: bool = True, **settings: Any) -> Any:
        """Run the command and exit."""
        return _exit_with_sentence(super().main, *arguments, standalone_mode=standalone_mode, **settings)


class SentenceGroup(TyperGroup):
    """A group of such commands."""

    def main(self, *arguments: Any, standalone_mode: bool = True, **settings: Any) -> Any:
        """Run one of the commands and exit."""
        return _exit_with_sentence(super().main, *arguments, standalone_mode=standalone_mode, **settings)


class App(typer.Typer):
    """A command line of this project: usage errors are sentences on standard error, without boxes and colours."""

    def __init__(self, **settings: Any) -> None:
        defaults = {"cls": SentenceGroup, "add_completion": False, "pretty_exceptions_enable": False}
        super().__init__(**{**defaults, **settings})

    def command(self, name: str | None = None, **settings: Any) -> Callable[..., Any]:
        """Return a decorator that makes a command of a function; settings classes become options."""
        add = super().command(name, **{"cls": _SentenceCommand, **settings})

        def decorate(function: Callable[..., None]) -> Callable[..., None]:
            add(expand(function))
            return function

        return decorate


def _upper(argument: re.Match[str]) -> str:
    """Write an argument as usage lines have it; of one that may be repeated, the singular."""
    name, repeated = argument[1].upper(), argument[2] or ""
    return (name.removesuffix("S") if repeated else name) + repeated


def _exit_with_sentence(
    main: Callable[..., Any], *arguments: Any, standalone_mode: bool, **settings: Any
) -> Any:
    """Run typer's `main`, and print usage errors as sentences."""
    if not standalone_mode:
        return main(*arguments, standalone_mode=False, **settings)
    try:
        code = main(*arguments, standalone_mode=False, **settings)
    except Exception as error:
        # typer may bring its own copy of click, so its exceptions are recognised by their attributes.
        if not (hasattr(error, "format_message") and hasattr(error, "exit_code")):
            if "--traceback" in (settings.get("args") or sys.argv):
                raise
            sys.exit(_last_resort(error))
        message = str(error.format_message())
        context = getattr(error, "ctx", None)
        if type(error).__name__ == "MissingParameter" and context is not None:
            usage = " ".join([context.command_path, *context.command.collect_usage_pieces(context)])
            message = f"{message.rstrip('.')} of {usage}; --help says more."
        if type(error).__name__ == "NoArgsIsHelpError":
            write(sys.stderr, f"{message}\n")
        else:
            print_error(message)
        sys.exit(error.exit_code)
    if code == INTERRUPTED and any(
        thread is not threading.main_thread() and not thread.daemon for thread in threading.enumerate()
    ):
        # The interpreter would wait for threads that wait for a server; all that had to be cleared up has been.
        os._exit(INTERRUPTED)
    sys.exit(code if isinstance(code, int) else 0)


def _last_resort(error: Exception) -> int:
    """Print an error from outside the command itself, e.g. from printing its help, and return the exit code."""
    if type(error).__name__ == "Abort":
        write(sys.stderr, "Interrupted.\n")
        return INTERRUPTED
    if not isinstance(error, BrokenPipeError):  # the reader has closed the pipe
        print_unexpected(error)
    write(sys.stdout, "")  # what it still holds cannot be written either
    return 1


@dataclass(frozen=True)
class Given:
    """Marks a parameter that takes those settings of a class that the user gives, as a dictionary.

    Attributes:
        kind: The class.
        only: The settings that are options; by default all.
        shown: What help shows as the default of a setting.
    """

    kind: type[Settings]
    only: tuple[str, ...] = ()
    shown: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class _Expanded:
    """A parameter that stands for the settings of a class."""

    name: str
    kind: type[Settings]
    only_given: bool
    entries: tuple[Described, ...]
    shown: Mapping[str, str] = field(default_factory=dict)

    def collect(self, values: dict[str, Any]) -> Any:
        """Take this parameter's options out of `values` and return its own value."""
        given = {
            entry.name: value if entry.about.parse is None else entry.about.parse(value, entry.name)
            for entry in self.entries
            if (value := values.pop(entry.name)) is not None and value != []
        }
        return given if self.only_given else self.kind(**given)


def expand(function: Callable[..., None]) -> Callable[..., None]:
    """Return a function with an option for each setting of its parameters that are settings classes."""
    hints = get_type_hints(function, include_extras=True)
    parameters: list[inspect.Parameter] = []
    expanded: list[_Expanded] = []
    for parameter in inspect.signature(function).parameters.values():
        match = _expanded(parameter.name, hints.get(parameter.name))
        if match is None:
            hint = hints.get(parameter.name, parameter.annotation)
            parameters.append(parameter.replace(annotation=hint, kind=inspect.Parameter.KEYWORD_ONLY))
        else:
            expanded.append(match)
            parameters += [
                _parameter(entry, match.only_given, match.shown.get(entry.name)) for entry in match.entries
            ]
    if not expanded:
        return function

    @wraps(function)
    def run(**values: Any) -> None:
        context = values.pop(CONTEXT, None)
        # The shell comes first: it prints what is wrong with the text of another option.
        shells = [parameter for parameter in expanded if issubclass(parameter.kind, Shell)]
        collected = {parameter.name: parameter.collect(values) for parameter in shells}
        levels = {
            name: any(getattr(entry, name) for entry in collected.values())
            for name in ("verbose", "quiet", "traceback")
        }
        with naming_options(context), shell(**levels) if shells else nullcontext():
            for parameter in expanded:
                if parameter not in shells:
                    collected[parameter.name] = parameter.collect(values)
            function(**values, **collected)

    context = inspect.Parameter(CONTEXT, inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
    parameters.append(context)
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def _expanded(name: str, hint: Any) -> _Expanded | None:
    if isinstance(hint, type) and issubclass(hint, Settings):
        return _Expanded(name, hint, False, tuple(entry for entry in describe(hint) if entry.about.option))
    for mark in get_args(hint)[1:]:
        if isinstance(mark, Given):
            known = (entry for entry in describe(mark.kind) if entry.about.option)
            entries = tuple(entry for entry in known if not mark.only or entry.name in mark.only)
            return _Expanded(name, mark.kind, True, entries, mark.shown)
    return None


def option_name(name: str) -> str:
    """Return how a setting is written on the command line."""
    return "--" + name.replace("_", "-")


def _parameter(entry: Described, only_given: bool, text: str | None = None) -> inspect.Parameter:
    about = entry.about
    shown = None if only_given or about.parse or about.repeat else entry.default
    optional = shown is None and (only_given or not entry.required)
    kind = list[entry.kind] if about.repeat else entry.kind  # type: ignore[name-defined]
    flags = about.flags
    if not flags and entry.kind is bool:
        name = option_name(entry.name)
        flags = (name,) if entry.default is False else (f"{name}/--no-{name[2:]}",)
    option = typer.Option(
        *flags,
        help=_ARGUMENT.sub(lambda match: option_name(match[1]), about.help),
        metavar=about.metavar,
        envvar=about.envvar,
        show_default=text or bool(shown),
        rich_help_panel=None if about.first else entry.group,
    )
    return inspect.Parameter(
        entry.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=inspect.Parameter.empty if entry.required and not only_given else shown,
        annotation=Annotated[kind | None if optional else kind, option],
    )
