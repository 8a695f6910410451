"""`iic-segment-raster SCENE OUT` and `iic-segment-raster SCENES... FOLDER`."""

import os
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from iic_geotools.shell import Quiet, Traceback, Verbose, shell

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
main = app


@app.command()
def segment_raster(
    scenes: Annotated[
        list[str],
        typer.Argument(
            help="The scene: anything GDAL opens. Or several, or a list of them: .txt, STAC .json.",
            show_default=False,
        ),
    ],
    out: Annotated[
        Path,
        typer.Argument(
            help="The map, a Cloud-Optimised GeoTIFF; of several scenes a folder.", show_default=False
        ),
    ],
    model: Annotated[
        str | None,
        typer.Option(
            envvar="IIC_MODEL",
            metavar="FILE|NAME",
            help="A model file, or else a bundled model by name (see iic-model list). "
            "By default the bundled one made for the scene's ground resolution.",
            show_default=False,
        ),
    ] = None,
    bands: Annotated[
        str | None,
        typer.Option(help="The scene's bands for the model's, in its order: names or numbers, e.g. 4,1,2."),
    ] = None,
    device: Annotated[
        Literal["auto", "cpu", "cuda", "tensorrt"], typer.Option(help="What to compute on.")
    ] = "auto",
    tile: Annotated[int | None, typer.Option(help="Pixels a side labelled at once.")] = None,
    batch: Annotated[int | None, typer.Option(help="Tiles run at once.")] = None,
    threads: Annotated[int | None, typer.Option(help="Threads of the engine; all cores by default.")] = None,
    max_memory: Annotated[
        str | None,
        typer.Option(
            help="Choose tile and batch to stay below, e.g. 800M or 2G; by default 1G; 512 px tiles on CPUs."
        ),
    ] = None,
    rescale: Annotated[
        str | None,
        typer.Option(
            help="MIN,MAX or auto (each band's 2nd and 98th percentile): values that become the ends of the model's "
            "range; off: as they are. By default as the model says."
        ),
    ] = None,
    match_gsd: Annotated[
        bool, typer.Option("--match-gsd", help="Run at the model's ground resolution.")
    ] = False,
    bounds: Annotated[
        str | None, typer.Option(help='Map only "LEFT BOTTOM RIGHT TOP", in the scene\'s CRS.')
    ] = None,
    aoi: Annotated[
        Path | None, typer.Option(help="Map only inside the polygons of this vector file.")
    ] = None,
    nodata: Annotated[
        float | None, typer.Option(help="The scene's value for no data, over the file's.")
    ] = None,
    co: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VAL", help="Creation option of the COG driver.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace outputs that exist.")] = False,
    resume: Annotated[bool, typer.Option(help="Go on with the parts of an interrupted run.")] = True,
    confidence: Annotated[
        Path | None, typer.Option(help="Also write the confidence, 0 to 254, as .tif.")
    ] = None,
    polygons: Annotated[
        Path | None, typer.Option(help="Also write polygons: .gpkg, .fgb or .geojson.")
    ] = None,
    min_area: Annotated[float, typer.Option(help="Leave out polygons below this many square metres.")] = 0.0,
    stats: Annotated[
        Path | None, typer.Option(help="Also write the area of each class: .json or .csv.")
    ] = None,
    preview: Annotated[Path | None, typer.Option(help="Also write a picture of scene and map: .png.")] = None,
    workers: Annotated[
        int | None, typer.Option(help="Label with so many processes, each on its share of the cores.")
    ] = None,
    scheduler: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Label with the workers of this Dask scheduler.")
    ] = None,
    mosaic: Annotated[
        Path | None, typer.Option(help="Of several scenes: also write a virtual mosaic of the maps: .vrt.")
    ] = None,
    asset: Annotated[
        str | None, typer.Option(help="Of STAC items: which asset is the scene, if there are several.")
    ] = None,
    verbose: Verbose = False,
    quiet: Quiet = False,
    progress_json: Annotated[
        bool, typer.Option("--progress-json", help="Print progress as JSON lines, for programs.")
    ] = False,
    traceback: Traceback = False,
) -> None:
    """Map the land cover of a scene with one model and write it to OUT.

    With several scenes, or a list of them, OUT is a folder, and {name} in the names of other outputs stands for the
    name of each scene.
    """
    with shell(verbose, quiet, traceback):
        # Dask tells of each connection it makes; it looks here when it is imported.
        os.environ.setdefault("DASK_LOGGING__DISTRIBUTED", "warning")
        from iic_geotools.regions import parse_bounds
        from iic_runtime.outputs import parse_creation_options, parse_size

        options: dict[str, Any] = {
            "bands": None if bands is None else bands.split(","),
            "device": device,
            "tile": tile,
            "batch": batch,
            "threads": threads,
            "max_memory": None if max_memory is None else parse_size(max_memory),
            "rescale": rescale,
            "match_gsd": match_gsd,
            "bounds": None if bounds is None else parse_bounds(bounds),
            "aoi": aoi,
            "nodata": nodata,
            "co": parse_creation_options(co or []),
            "overwrite": overwrite,
            "resume": resume,
            "confidence": confidence,
            "polygons": polygons,
            "min_area": min_area,
            "stats": stats,
            "preview": preview,
            "workers": workers,
            "scheduler": scheduler,
        }
        for_several = {"mosaic": mosaic, "asset": asset}
        _map(scenes, out, model, options, for_several, quiet, progress_json)


def _map(
    scenes: list[str],
    out: Path,
    model: str | None,
    options: dict[str, Any],
    for_several: dict[str, Any],
    quiet: bool,
    progress_json: bool,
) -> None:
    """Map one scene to a file or several into a folder, and say what was done."""
    from iic_geotools.errors import UsageError
    from iic_runtime.progress import reporter

    several = len(scenes) > 1 or out.is_dir() or not out.suffix
    with reporter(quiet=quiet, as_json=progress_json) as progress:
        if several:
            from iic_runtime.many import segment_rasters

            outcomes = segment_rasters(scenes, out, model, progress=progress, **for_several, **options)
        elif any(for_several.values()):
            raise UsageError(
                "--mosaic and --asset are for several scenes; give a folder as the last argument."
            )
        else:
            from iic_runtime.segment import segment_raster as function

            summary = function(scenes[0], out, model, progress=progress, **options)
    if several:
        from iic_runtime.cli.tables import report

        report(outcomes, table=not (quiet or progress_json))
    elif not (quiet or progress_json):
        typer.echo(summary.sentence(), err=True)
