"""`iic-map stats MAP ZONES OUT`."""

import logging
from pathlib import Path
from typing import Annotated, Literal

import typer

from iic_geotools.cli import Overwrite, ProgressJson, Quiet, Traceback, Verbose, shell, show_progress
from iic_geotools.cli.map.options import MapFile

_LOG = logging.getLogger(__name__)


def stats(
    map: MapFile,
    zones: Annotated[
        Path,
        typer.Argument(help="Polygons, e.g. parcels, in a vector file in any CRS.", show_default=False),
    ],
    out: Annotated[
        Path,
        typer.Argument(
            help="A row per polygon with the hectares of each class, .csv or .gpkg.", show_default=False
        ),
    ],
    partial_pixels: Annotated[
        Literal["share", "centre"],
        typer.Option(help="Count pixels on the border of a polygon by the share inside, or by their centre."),
    ] = "share",
    overwrite: Overwrite = False,
    progress_json: ProgressJson = False,
    verbose: Verbose = False,
    quiet: Quiet = False,
    traceback: Traceback = False,
) -> None:
    """Measure the area of each class of a map in each polygon of a file."""
    with shell(verbose, quiet, traceback):
        from iic_geotools.products.zones import zone_statistics

        with show_progress(quiet=quiet, as_json=progress_json) as progress:
            areas = zone_statistics(
                map, zones, out, partial_pixels=partial_pixels, overwrite=overwrite, progress=progress
            )
        _LOG.info(
            "%s: %d polygons, %d classes (%s)", out, len(areas.fids), len(areas.names), areas.description
        )
