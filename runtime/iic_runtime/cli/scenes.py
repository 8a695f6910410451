"""`iic-scenes search`."""

from pathlib import Path
from typing import Annotated

import typer

from iic_geotools.cli import App, Overwrite, Quiet, Traceback, Verbose, Version, shell
from iic_geotools.scene import MOST_SCENES

app = App(no_args_is_help=True)
main = app


@app.callback()
def iic_scenes(version: Version = False) -> None:
    """Find scenes in catalogues."""


@app.command()
def search(
    out: Annotated[
        Path,
        typer.Argument(
            help="The list, a STAC item collection, .json, which iic-segment-raster takes.",
            show_default=False,
        ),
    ],
    api: Annotated[
        str,
        typer.Option(
            envvar="IIC_STAC_API", metavar="URL", help="The address of a STAC API.", show_default=False
        ),
    ],
    collection: Annotated[
        str,
        typer.Option(metavar="NAME", help="The collection, e.g. sentinel-2-l2a.", show_default=False),
    ],
    bbox: Annotated[
        str,
        typer.Option(
            metavar='"LEFT BOTTOM RIGHT TOP"',
            help="The place, in degrees, e.g. 5.9,43.1,6.1,43.2.",
            show_default=False,
        ),
    ],
    dates: Annotated[
        str,
        typer.Option(
            metavar="FIRST/LAST",
            help="A day, month or year, or the first and the last one, e.g. 2024-06-01/2024-08-31.",
            show_default=False,
        ),
    ],
    max_cloud: Annotated[
        float | None,
        typer.Option(
            metavar="PERCENT", help="Leave out scenes with more clouds than this.", show_default=False
        ),
    ] = None,
    limit: Annotated[int, typer.Option(help="The most scenes to list.")] = MOST_SCENES,
    overwrite: Overwrite = False,
    verbose: Verbose = False,
    quiet: Quiet = False,
    traceback: Traceback = False,
) -> None:
    """List the scenes of a place and time that a STAC API knows."""
    with shell(verbose, quiet, traceback):
        from iic_geotools.scene.region import parse_bounds
        from iic_geotools.scene.search import search_scenes

        scenes = search_scenes(
            api,
            out,
            collection=collection,
            bbox=parse_bounds(bbox, "bbox", "degrees"),
            dates=dates,
            max_cloud=max_cloud,
            limit=limit,
            overwrite=overwrite,
        )
        if not quiet:
            for scene in scenes:
                typer.echo(scene.sentence())
            typer.echo(f"{out}: scenes listed: {len(scenes)}")
