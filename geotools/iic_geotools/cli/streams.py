"""Standard error and output: what cannot be written never ends a run."""

import os
import sys
from contextlib import suppress
from typing import Any, TextIO

from iic_geotools.errors import UnexpectedError

INTERRUPTED = 130
"""Exit code of a command that the user interrupted."""


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
    """Print an error that nobody has foreseen, and how to see where it comes from."""
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
