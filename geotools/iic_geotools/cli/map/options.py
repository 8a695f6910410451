"""Arguments that the commands of `iic-map` share."""

from pathlib import Path
from typing import Annotated

import typer

MapFile = Annotated[
    Path,
    typer.Argument(help="The map: one band of classes, e.g. of iic-segment-raster.", show_default=False),
]
