"""What commands show: their version, tables, and progress as bars on a terminal, plain lines elsewhere, or JSON."""

import json
import math
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, TextIO, cast

import typer

from iic_geotools import __version__
from iic_geotools.cli.app import Shell, Unfailing, write
from iic_geotools.settings import setting
from iic_geotools.work import OnProgress, Progress, format_speed, silent

if TYPE_CHECKING:
    from rich.console import Console

SHORT = 2.0
"""Seconds at the beginning in which no lines are written: work that ends by then needs none."""
LINES_PER_STAGE = 20
LINE_EVERY = 60.0
"""Where there is no terminal, a line is written at every twentieth of a stage and at least once per minute."""


def _is_terminal(stream: TextIO | None) -> bool:
    with suppress(ValueError):
        return stream is not None and stream.isatty()
    return False


@contextmanager
def show_progress(*, quiet: bool = False, as_json: bool = False) -> Iterator[OnProgress]:
    """Yield a function that displays reports of progress on standard error.

    On a terminal there is a bar per stage; elsewhere a line at every twentieth of a stage and at least once per minute,
    and none in the first two seconds.
    Sentences go through `logging`: the shell prints them above the bars.

    Args:
        as_json: Print every report as a JSON line on standard output instead, with stage, done and total, and with
            the note if there is one.
    """
    if as_json:
        yield _write_json
    elif quiet:
        yield silent
    elif _is_terminal(sys.stderr):
        with _bars() as show:
            yield show
    else:
        yield _Lines()


def _write_json(progress: Progress) -> None:
    report: dict[str, Any] = {"stage": progress.stage, "done": progress.done, "total": progress.total}
    if progress.note:
        report["note"] = progress.note
    write(sys.stdout, json.dumps(report) + "\n")


class _Pace:
    """When and where a stage began, to say how fast it goes. A resumed stage does not begin at 0."""

    def __init__(self, first: Progress) -> None:
        self.last = first
        self._first_done = first.done
        self._began = time.monotonic()

    def continues_with(self, progress: Progress) -> bool:
        """Whether a report is of the same stage, not of the same stage of the next scene."""
        return progress.stage == self.last.stage and progress.done >= self.last.done

    def speed(self, progress: Progress) -> str:
        """The speed so far, or nothing if it is not known yet."""
        self.last = progress
        seconds = time.monotonic() - self._began
        done = progress.done - self._first_done
        if not progress.unit or seconds < 1 or not done:
            return ""
        per_second = done / seconds
        return (
            f"{per_second / 1e6:.2f} Mpx/s"
            if progress.unit == "px"
            else f"{format_speed(per_second)} {progress.unit}/s"
        )


class _Lines:
    """Plain lines for logs: at every twentieth of a stage, at least once per minute, at most once per second."""

    def __init__(self) -> None:
        self._pace: _Pace | None = None
        self._twentieth = -1
        self._written = -math.inf
        self._began = time.monotonic()

    def __call__(self, progress: Progress) -> None:
        now = time.monotonic()
        if self._pace is None or not self._pace.continues_with(progress):
            self._pace, self._twentieth, self._written = _Pace(progress), -1, -math.inf
        speed = self._pace.speed(progress)
        share = progress.done / progress.total if progress.total else 1.0
        twentieth = int(share * LINES_PER_STAGE)
        pause = now - self._written
        due = twentieth != self._twentieth and (pause >= 1 or progress.done >= progress.total)
        if (due or pause >= LINE_EVERY) and now - self._began >= SHORT:
            self._twentieth, self._written = twentieth, now
            figures = ", ".join(filter(None, (f"{int(share * 100)} %", progress.note, speed)))
            write(sys.stderr, f"{progress.stage}: {figures}\n")


@contextmanager
def _bars() -> Iterator[OnProgress]:
    from rich.console import Console
    from rich.progress import BarColumn, TaskID, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    columns = (
        TextColumn("{task.description:>8}", markup=False),
        BarColumn(bar_width=24),
        TextColumn("{task.percentage:3.0f} %"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[figures]}", markup=False),
    )
    console = Console(file=cast(TextIO, Unfailing(sys.stderr)))
    # Standard output may be a file: only messages on standard error are printed above the bars.
    with Bars(*columns, console=console, redirect_stdout=False) as bars:
        tasks: dict[str, tuple[TaskID, _Pace]] = {}

        def show(progress: Progress) -> None:
            task, pace = tasks.get(progress.stage, (None, None))
            if task is None:
                task = bars.add_task(progress.stage, total=progress.total, figures="")
            if pace is None or not pace.continues_with(progress):
                pace = _Pace(progress)
                bars.reset(task)
            tasks[progress.stage] = task, pace
            figures = ", ".join(filter(None, (progress.note, pace.speed(progress))))
            bars.update(task, completed=progress.done, total=progress.total, figures=figures)

        yield show


def open_console(*, err: bool = False) -> "Console":
    """Return a console on standard output or standard error that never ends a run."""
    from rich.console import Console

    console = Console(file=cast(TextIO, Unfailing(sys.stderr if err else sys.stdout)), highlight=False)
    if not console.is_terminal:
        console.width = 400  # a log has no width: names are not folded
    return console


def print_table(rows: Sequence[Sequence[str]], *, err: bool = False) -> None:
    """Print a header and rows of texts; all but the first column are numbers.

    Args:
        err: Print on standard error instead of standard output, which may be taken by progress as JSON.
    """
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for index, name in enumerate(rows[0]):
        table.add_column(Text(name), justify="right" if index else "left")
    for row in rows[1:]:
        table.add_row(*map(Text, row))
    open_console(err=err).print(table)


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


Version = Annotated[
    bool,
    typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
LabelField = Annotated[
    str | None,
    typer.Option(
        metavar="FIELD",
        help="The field that holds the class. By default the only one, or one named class.",
        show_default=False,
    ),
]
