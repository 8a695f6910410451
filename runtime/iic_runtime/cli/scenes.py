"""`iic-scenes search`."""

from pathlib import Path
from typing import Annotated

import typer

from iic_geotools.cli import App, Shell, Version
from iic_geotools.options import SearchSettings

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
    settings: SearchSettings,
    shell: Shell,
) -> None:
    """List the scenes of a place and time that a STAC API knows."""
    from iic_geotools.scene.search import search_scenes

    scenes = search_scenes(api, out, **settings.values())
    if not shell.quiet:
        for scene in scenes:
            typer.echo(scene.sentence())
        typer.echo(f"{out}: scenes listed: {len(scenes)}")
