"""What can go wrong, as types: one root, and each class is also the builtin that a caller would expect.

A message is one sentence that says what is wrong and what to do about it. It names arguments in backticks: commands
print those as their options. What was understood or assumed about a scene is a note: reported to the user, and kept
for the map and the summary of a run.
"""

import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Self

_END = r"""(?=[).,;:]*(?:[\s"'<>]|$))"""
_SCHEME = r"\w{2,}:/+"  # one slash is what pathlib leaves of two
_QUERY = re.compile(rf"""((?:{_SCHEME}|/vsi\w+/)[^\s"'<>?]*\?)[^\s"'<>]*?{_END}""")
_ENCODED_QUERY = re.compile(rf"""((?:%3A%2F%2F|{_SCHEME})[^\s"'<>]*?%3F)[^\s"'<>]*?{_END}""", re.IGNORECASE)
_USER = re.compile(rf"({_SCHEME})[^\s/?#@]*@")
_ENCODED_USER = re.compile(r"(%3A%2F%2F)[^\s/]*?%40", re.IGNORECASE)
_NAMED = re.compile(
    r"""\b(authorization|password|passwd|pwd|token|secret|sig|signature)=[^\s&;'"]+""", re.IGNORECASE
)
_HIDDEN = "***"

_notes: ContextVar[list[str] | None] = ContextVar("_notes", default=None)


def redact(text: str) -> str:
    """Hide what may be secret in the addresses of a text: queries, which hold tokens, and users with passwords."""
    for user in (_USER, _ENCODED_USER):
        text = user.sub(rf"\1{_HIDDEN}@", text)
    for query in (_QUERY, _ENCODED_QUERY):
        text = query.sub(rf"\1{_HIDDEN}", text)
    return _NAMED.sub(rf"\1={_HIDDEN}", text)


class IICError(Exception):
    """Root of all errors that this project raises deliberately. Messages hide secrets in addresses."""

    def __str__(self) -> str:
        return redact(super().__str__())


class UsageError(IICError, ValueError):
    """An invalid argument, whatever the files contain; commands exit with code 2."""


class SceneError(IICError, OSError):
    """A raster or vector file that cannot be read as requested."""


class NetworkError(SceneError):
    """A local file that refers to addresses while the network is not allowed."""


class OutputError(IICError, OSError):
    """A result that cannot be written to the given path."""


class ModelError(IICError, ValueError):
    """A model file that is damaged, incomplete, or does not fit the scene."""


class DeviceError(IICError, RuntimeError):
    """A device or engine that was asked for and is not available."""


class MissingPackageError(IICError, ImportError):
    """An optional package that is not installed; the message names the extra that brings it."""

    @classmethod
    def for_extra(cls, package: str, extra: str) -> Self:
        """The error about a package that an extra of this project brings.

        Args:
            package: Name of the package that could not be imported.
            extra: Name of the extra. Several are separated by commas, e.g. "train,cpu".
        """
        return cls(
            f'This needs the package {package}: run `pip install ".[{extra}]"` in your clone of iic-edge.'
        )


class DataError(IICError, OSError):
    """Training data that is missing or not laid out as its format says."""


class TrainingError(IICError, RuntimeError):
    """Training that cannot continue: a collapsed objective, a loss that is not finite, a broken run folder."""


class UnexpectedError(IICError, RuntimeError):
    """An unexpected error, as a sentence with the type of its cause."""

    @classmethod
    def of(cls, error: BaseException) -> Self:
        """The sentence about an error of another class."""
        if isinstance(error, MemoryError):
            return cls("There is not enough memory; give a smaller `tile`, `batch` or `max_memory`.")
        lines = str(error).strip().splitlines()
        reason = f": {lines[0][:300].rstrip('.')}" if lines else ""
        return cls(f"Unexpected error, {type(error).__name__}{reason}.")


class AssumptionWarning(UserWarning):
    """An assumption about something that a file does not state; commands print it as a message."""

    def __str__(self) -> str:
        return redact(super().__str__())


class DoubtWarning(AssumptionWarning):
    """A finished map that does not look right."""


def last_line(error: Exception) -> str:
    """Return the last line of what a library says about an error: the cause, after where it was noticed."""
    lines = str(error).strip().splitlines()
    return lines[-1].strip() if lines else type(error).__name__


def assume(text: str) -> None:
    """Warn of an assumption that may be wrong, in one or two sentences."""
    remember(text)
    warnings.warn(text, AssumptionWarning, stacklevel=3)


def remember(text: str) -> None:
    """Record what was understood about a scene, for `collect_notes`."""
    notes = _notes.get()
    if notes is not None and text not in notes:
        notes.append(text)


@contextmanager
def collect_notes() -> Iterator[list[str]]:
    """Collect what is assumed or remembered within the block."""
    notes: list[str] = []
    token = _notes.set(notes)
    try:
        yield notes
    finally:
        _notes.reset(token)
