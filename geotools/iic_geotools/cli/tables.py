"""Tables that commands print."""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, TextIO, cast

from iic_geotools.cli.streams import Unfailing

if TYPE_CHECKING:
    from rich.console import Console


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
        rows: The header and the rows.
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
