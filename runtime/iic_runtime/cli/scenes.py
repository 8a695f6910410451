"""`iic-scenes search | look | change`."""

import json
from pathlib import Path
from typing import Annotated

import typer

import iic_geotools  # whose names, as those of iic_runtime, are imported when they are used
import iic_runtime
from iic_geotools.cli import App, AsJson, Display, Shell, Version, as_options
from iic_geotools.options import SearchSettings
from iic_geotools.settings import names
from iic_runtime.options import SceneChangeSettings, SegmentSettings

app = App(no_args_is_help=True)
main = app


@app.callback()
def iic_scenes(version: Version = False) -> None:
    """Find scenes in catalogues, see how one is understood, and compare two dates."""


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
    scenes = iic_geotools.search_scenes(api, out, **settings.values())
    if not shell.quiet:
        for scene in scenes:
            typer.echo(scene.sentence())
        typer.echo(f"{out}: scenes listed: {len(scenes)}")


# What a sentence cures is given to iic-segment-raster.
@app.command("look", context_settings={"obj": tuple(names(SegmentSettings))})
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
            metavar="FILE",
            help="Write the scene in true colour and infrared, .png, in each likely reading.",
            show_default=False,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Report how a scene is understood: bands, values, resolution, masks, and the model that would be used."""
    result = iic_runtime.look(scene, model, sheet)
    if as_json:
        typer.echo(json.dumps(result.to_dict(), ensure_ascii=False))
    else:
        for line in result.lines():
            typer.echo(as_options(line))


@app.command()
def change(
    before: Annotated[
        str, typer.Argument(help="The earlier scene, as iic-segment-raster takes it.", show_default=False)
    ],
    after: Annotated[
        str, typer.Argument(help="The later scene: the same bands on the same grid.", show_default=False)
    ],
    out: Annotated[Path, typer.Argument(help="The probability of change, .tif.", show_default=False)],
    settings: SceneChangeSettings,
    display: Display,
) -> None:
    """Write how probable it is that the ground has changed between two dates, without labels."""
    from iic_runtime.naming.scene_change import change_probability

    with display.show_progress() as progress:
        changed = change_probability(before, after, out, **{**settings.values(), "progress": progress})
    typer.echo(changed.sentence(), err=display.progress_json)
