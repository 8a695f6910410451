"""`iic-studio SCENE`: teach a map with clicks, in a browser."""

from pathlib import Path
from typing import Annotated

import typer

from iic_geotools.cli import App, Shell, Version
from iic_geotools.errors import UsageError
from iic_runtime.options import DeviceSettings, ReadingSettings

app = App()
main = app


@app.command()
def studio(
    scenes: Annotated[
        list[str],
        typer.Argument(
            metavar="SCENE...", help="The scene: anything that GDAL opens. Or several.", show_default=False
        ),
    ],
    *,
    folder: Annotated[
        Path | None,
        typer.Option(
            "--folder",
            "-o",
            help="Keep clicks, model and map in this folder. By default next to the scene: scene.studio for scene.tif.",
            show_default=False,
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|NAME",
            help="Use the features of this model. By default multi-scale features of the scene, and those of the "
            "bundled model that suits it.",
            show_default=False,
        ),
    ] = None,
    reading: ReadingSettings,
    compute: DeviceSettings,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Serve the page on this port; 0: any.")] = 0,
    browser: Annotated[bool, typer.Option(help="Open the page in the browser.")] = True,
    shell: Shell,
    version: Version = False,
) -> None:
    """Teach a map with clicks: open a page in the browser that shows the scene and its map.

    The page is served to this machine only. Every click is saved at once; Ctrl-C ends it.
    """
    from iic_runtime.studio.server import serve
    from iic_runtime.studio.session import Session

    if folder is not None and len(scenes) > 1:
        raise UsageError("`folder` is for one scene; leave it out to keep each scene's clicks next to it.")
    sessions = [
        Session(scene, folder, model=model, **reading.values(), **compute.values()) for scene in scenes
    ]
    serve(
        sessions,
        port=port,
        browser=browser,
        on_ready=lambda address: typer.echo(f"{address}  (Ctrl-C ends)"),
    )
