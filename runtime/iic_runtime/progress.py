"""How far the work is: a bar on a terminal, plain lines elsewhere, JSON lines for programs."""

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol, TextIO

STEPS = 20


@dataclass(frozen=True)
class Progress:
    """A moment of a run: `done` of `total` pixels of a stage ("segment", "regrid", "write")."""

    stage: str
    done: int
    total: int


class OnProgress(Protocol):
    """Whoever wants to know."""

    def __call__(self, progress: Progress) -> None:
        """Take note of the moment."""


def silent(progress: Progress) -> None:
    """Nobody wants to know."""


@contextmanager
def reporter(*, quiet: bool = False, as_json: bool = False) -> Iterator[OnProgress]:
    """What suits the place: JSON lines on standard output, a bar on a terminal, else now and then a line."""
    if as_json:
        yield lambda progress: _write_json(progress, sys.stdout)
    elif quiet:
        yield silent
    elif sys.stderr.isatty():
        with _bar() as show:
            yield show
    else:
        yield _Lines(sys.stderr)


def _write_json(progress: Progress, stream: TextIO) -> None:
    stream.write(json.dumps({"stage": progress.stage, "done": progress.done, "total": progress.total}) + "\n")
    stream.flush()


class _Lines:
    """A line at the start of a stage and at every twentieth of it, but not more than one a second."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._stage = ""
        self._step = -1
        self._begun = self._last = 0.0

    def __call__(self, progress: Progress) -> None:
        now = time.monotonic()
        if progress.stage != self._stage:
            self._stage, self._step, self._begun, self._last = progress.stage, -1, now, 0.0
        step = STEPS if progress.total == 0 else progress.done * STEPS // progress.total
        finished = progress.done >= progress.total
        if step == self._step or (now - self._last < 1 and not finished):
            return
        self._step, self._last = step, now
        seconds = now - self._begun
        speed = f", {progress.done / 1e6 / seconds:.2f} Mpx/s" if seconds > 1 and progress.done > 1 else ""
        self._stream.write(f"{progress.stage}: {step * 100 // STEPS} %{speed}\n")
        self._stream.flush()


@contextmanager
def _bar() -> Iterator[OnProgress]:
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description:>8}"), BarColumn(), TextColumn("{task.percentage:3.0f} %"))
    with Bar(*columns, TimeRemainingColumn(), console=Console(stderr=True)) as bar:
        tasks = {}

        def show(progress: Progress) -> None:
            if progress.stage not in tasks:
                tasks[progress.stage] = bar.add_task(progress.stage, total=progress.total)
            bar.update(tasks[progress.stage], completed=progress.done, total=progress.total)

        yield show
