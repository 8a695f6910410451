"""`iic-segment-raster SCENE OUT` and `iic-segment-raster SCENES... FOLDER`."""

import logging
import os
from pathlib import Path
from typing import Annotated

import typer

import iic_runtime  # whose names are imported when they are used, so that --help answers at once
from iic_geotools.cli import App, Display, Version
from iic_geotools.errors import UsageError
from iic_runtime import cli
from iic_runtime.options import SegmentSettings

_LOG = logging.getLogger(__name__)
app = App()
main = app
Scenes = Annotated[
    list[str],
    typer.Argument(
        help="The scene: anything that GDAL opens, or a STAC item. Or several scenes, or lists of them: .txt, STAC "
        ".json.",
        show_default=False,
    ),
]
Out = Annotated[
    Path,
    typer.Argument(
        help="The map, a Cloud-Optimised GeoTIFF; a folder if there are several scenes.", show_default=False
    ),
]
ModelName = Annotated[
    str | None,
    typer.Option(
        envvar="IIC_MODEL",
        metavar="FILE|NAME|URL",
        help="A model file, its https:// address, or the name of a bundled model (see iic-model list). "
        "By default the bundled one made for the scene's ground resolution.",
        show_default=False,
    ),
]
Mosaic = Annotated[
    Path | None,
    typer.Option(
        help="Several scenes: also write a virtual mosaic of the maps as .vrt.",
        show_default=False,
        rich_help_panel="Products",
    ),
]


@app.command()
def segment_raster(
    scenes: Scenes,
    out: Out,
    *,
    model: ModelName = None,
    settings: SegmentSettings,
    mosaic: Mosaic = None,
    display: Display,
    version: Version = False,
) -> None:
    """Map the land cover of a scene with one model and write it to OUT.

    With several scenes, or a list of them, OUT is a folder; {name} in other outputs is the name of each scene.
    """
    # Dask logs each connection that it makes; it reads this variable when it is imported.
    os.environ.setdefault("DASK_LOGGING__DISTRIBUTED", "warning")
    # Unlike Path.is_dir, this answers in a folder that may not be entered, which is refused later in one sentence.
    if len(scenes) > 1 or os.path.isdir(out) or not out.suffix:  # noqa: PTH112
        _segment_many(scenes, out, model, mosaic, settings, display)
    elif mosaic is not None:
        raise UsageError("`mosaic` is for several scenes; give a folder as the last argument.")
    else:
        with display.show_progress() as progress:
            options = {**settings.values(), "progress": progress}
            summary = iic_runtime.segment_raster(scenes[0], out, model, **options)
        if not display.progress_json:
            _LOG.info("%s", summary.sentence())


def _segment_many(
    scenes: list[str],
    folder: Path,
    model: str | None,
    mosaic: Path | None,
    settings: SegmentSettings,
    display: Display,
) -> None:
    with display.show_progress() as progress:
        options = {**settings.values(), "progress": progress}
        outcomes = iic_runtime.segment_rasters(scenes, folder, model, mosaic=mosaic, **options)
    cli.tables.report_outcomes(outcomes, table=not (display.quiet or display.progress_json))
