"""How far a piece of work has come, as a value: library functions report it, commands display it."""

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Progress:
    """One report of how far a stage has come.

    Attributes:
        stage: Name of the stage, e.g. "segment", "write" or "train". A display keeps one bar per stage.
        done: Amount of work done so far.
        total: Amount of work of the whole stage.
        unit: What `done` counts, e.g. "px" or "images". Speed is shown only if it is given.
        note: Figures to show next to the percentage, e.g. "epoch 3/10, loss -1.234".
    """

    stage: str
    done: int
    total: int
    unit: str = ""
    note: str = ""


class OnProgress(Protocol):
    """A function that takes reports of progress."""

    def __call__(self, progress: Progress) -> None:
        """Take one report."""


def silent(progress: Progress) -> None:
    """Ignore a report: the default of library functions."""
