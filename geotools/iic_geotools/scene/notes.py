"""What was understood or assumed about a scene: told to the user, and kept for the map and the summary of a run."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from iic_geotools.errors import AssumptionWarning

_notes: ContextVar[list[str] | None] = ContextVar("_notes", default=None)


def assume(text: str) -> None:
    """Warn of something that a file does not state and that may be wrong, in one or two sentences."""
    remember(text)
    warnings.warn(text, AssumptionWarning, stacklevel=3)


def remember(text: str) -> None:
    """Keep what was understood about a scene, for whoever collects it."""
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
