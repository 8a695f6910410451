"""Arguments and printed tables that the commands of `iic-map` share."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, TextIO, cast

import typer

from iic_geotools.cli.streams import Unfailing

MapFile = Annotated[
    Path,
    typer.Argument(help="The map: one band of classes, e.g. of iic-segment-raster.", show_default=False),
]


def print_table(rows: Sequence[Sequence[str]], *, err: bool = False) -> None:
    """Print a header and rows of texts; all but the first column are numbers.

    Args:
        rows: The header and the rows.
        err: Print on standard error instead of standard output, which may be taken by progress as JSON.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(file=cast(TextIO, Unfailing(sys.stderr if err else sys.stdout)), highlight=False)
    if not console.is_terminal:
        console.width = 400  # a log has no width, so that names are never folded
    table = Table(box=None, pad_edge=False)
    for index, name in enumerate(rows[0]):
        table.add_column(Text(name), justify="right" if index else "left")
    for row in rows[1:]:
        table.add_row(*map(Text, row))
    console.print(table)
