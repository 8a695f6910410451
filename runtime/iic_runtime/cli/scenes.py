"""`iic-scenes search` and `iic-scenes look`."""

from pathlib import Path
from typing import Annotated

import typer

from iic_geotools.cli import App, AsJson, Shell, Version, as_options
from iic_geotools.options import SearchSettings

app = App(no_args_is_help=True)
main = app


@app.callback()
def iic_scenes(version: Version = False) -> None:
    """Find scenes in catalogues, and see how one is understood."""


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


@app.command("look")
def look_at(
    scene: Annotated[
        str, typer.Argument(help="The scene, as iic-segment-raster takes it.", show_default=False)
    ],
    shell: Shell,
    model: Annotated[
        str | None,
        typer.Option(
            "--model", "-m", metavar="FILE", help="The model that would map it.", show_default=False
        ),
    ] = None,
    sheet: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Write the scene in true colour and infrared, .png.", show_default=False
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Tell what is understood of a scene: bands, values, resolution, masks, and the model that would be taken."""
    import json

    from iic_runtime.raster.look import look

    result = look(scene, model, sheet)
    if as_json:
        typer.echo(json.dumps(result.to_dict(), ensure_ascii=False))
    else:
        for line in result.lines():
            typer.echo(as_options(line))
