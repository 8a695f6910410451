"""The command line itself: typer's, with usage errors as sentences."""

import os
import sys
import threading
from collections.abc import Callable
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from iic_geotools.cli.signature import expand
from iic_geotools.cli.streams import INTERRUPTED, print_error, print_unexpected, write


class _SentenceCommand(TyperCommand):
    """A command whose usage errors are sentences, as all other errors are."""

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


def _exit_with_sentence(
    main: Callable[..., Any], *arguments: Any, standalone_mode: bool, **settings: Any
) -> Any:
    """Run typer's `main`, and print a usage error in our words."""
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
        if type(error).__name__ == "NoArgsIsHelpError":
            write(sys.stderr, f"{message}\n")
        else:
            print_error(message)
        sys.exit(error.exit_code)
    if code == INTERRUPTED and _has_threads():
        # The interpreter would wait for threads that wait for a server; all that had to be cleared up has been.
        os._exit(INTERRUPTED)
    sys.exit(code if isinstance(code, int) else 0)


def _last_resort(error: Exception) -> int:
    """Say in a sentence what went wrong outside of the command itself, e.g. while its help was printed."""
    if type(error).__name__ == "Abort":
        write(sys.stderr, "Interrupted.\n")
        return INTERRUPTED
    if not isinstance(error, BrokenPipeError):  # whoever read the output has closed it
        print_unexpected(error)
    write(sys.stdout, "")  # what it still holds cannot be written either
    return 1


def _has_threads() -> bool:
    return any(
        thread is not threading.main_thread() and not thread.daemon for thread in threading.enumerate()
    )
