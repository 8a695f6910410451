"""`iic-segment-raster SCENE OUT` and `iic-segment-raster SCENES... FOLDER`."""

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING

from iic_geotools.cli import (
    App,
    Overwrite,
    ProgressJson,
    Quiet,
    Traceback,
    Verbose,
    Version,
    shell,
    show_progress,
)
from iic_geotools.cli.options import CreationOptions, MajorityRadius, SieveArea, parse_creation_options
from iic_runtime.cli import options

if TYPE_CHECKING:
    from iic_runtime.raster.arguments import SegmentArguments

_LOG = logging.getLogger(__name__)
app = App()
main = app


@app.command()
def segment_raster(
    scenes: options.Scenes,
    out: options.Out,
    model: options.ModelName = None,
    asset: options.Asset = None,
    mask: options.MaskText = None,
    bands: options.Bands = None,
    device: options.DeviceName = "auto",
    tile: options.Tile = None,
    batch: options.Batch = None,
    threads: options.Threads = None,
    max_memory: options.MaxMemory = None,
    rescale: options.RescaleMode = None,
    reflectance: options.ReflectanceText = None,
    match_gsd: options.MatchGsd = None,
    bounds: options.BoundsText = None,
    aoi: options.Aoi = None,
    nodata: options.Nodata = None,
    co: CreationOptions = None,
    min_confidence: options.MinConfidence = 0.0,
    unsure_class: options.UnsureClass = False,
    majority: MajorityRadius = 0,
    sieve: SieveArea = 0.0,
    overwrite: Overwrite = False,
    resume: options.Resume = True,
    confidence: options.Confidence = None,
    polygons: options.Polygons = None,
    min_area: options.MinArea = 0.0,
    simplify: options.Simplify = 0.0,
    stats: options.Stats = None,
    stats_by: options.StatsBy = None,
    preview: options.Preview = None,
    web: options.Web = None,
    workers: options.Workers = None,
    scheduler: options.Scheduler = None,
    mosaic: options.Mosaic = None,
    verbose: Verbose = False,
    quiet: Quiet = False,
    progress_json: ProgressJson = False,
    traceback: Traceback = False,
    version: Version = False,
) -> None:
    """Map the land cover of a scene with one model and write it to OUT.

    With several scenes, or a list of them, OUT is a folder, and {name} in the names of other outputs stands for the
    name of each scene.
    """
    with shell(verbose, quiet, traceback):
        # Dask logs each connection that it makes; it reads this variable when it is imported.
        os.environ.setdefault("DASK_LOGGING__DISTRIBUTED", "warning")
        from iic_geotools.errors import UsageError
        from iic_geotools.scene.reflectance import parse_reflectance
        from iic_geotools.scene.region import parse_bounds
        from iic_geotools.scene.valuemask import parse_mask
        from iic_runtime.raster.arguments import SegmentArguments

        arguments = SegmentArguments(
            asset=None if asset is None else [name.strip() for name in asset.split(",")],
            mask=None if mask is None else parse_mask(mask),
            bands=options.parse_bands(bands),
            device=device,
            tile=tile,
            batch=batch,
            threads=threads,
            max_memory=None if max_memory is None else options.parse_size(max_memory),
            rescale=rescale,
            reflectance=None if reflectance is None else parse_reflectance(reflectance),
            match_gsd=match_gsd,
            bounds=None if bounds is None else parse_bounds(bounds),
            aoi=aoi,
            nodata=nodata,
            co=parse_creation_options(co or []),
            min_confidence=min_confidence,
            unsure_class=unsure_class,
            majority=majority,
            sieve=sieve,
            overwrite=overwrite,
            resume=resume,
            confidence=confidence,
            polygons=polygons,
            min_area=min_area,
            simplify=simplify,
            stats=stats,
            stats_by=stats_by,
            preview=preview,
            web=web,
            workers=workers,
            scheduler=scheduler,
        )
        if len(scenes) > 1 or out.is_dir() or not out.suffix:
            _segment_many(scenes, out, model, mosaic, arguments, quiet, progress_json)
        elif mosaic is not None:
            raise UsageError("--mosaic is for several scenes; give a folder as the last argument.")
        else:
            _segment_one(scenes[0], out, model, arguments, quiet, progress_json)


def _segment_one(
    scene: str,
    out: Path,
    model: str | None,
    arguments: "SegmentArguments",
    quiet: bool,
    progress_json: bool,
) -> None:
    from iic_runtime.raster.segment import segment_raster as function

    with show_progress(quiet=quiet, as_json=progress_json) as progress:
        summary = function(scene, out, model, progress=progress, **arguments)
    if not progress_json:
        _LOG.info("%s", summary.sentence())


def _segment_many(
    scenes: list[str],
    folder: Path,
    model: str | None,
    mosaic: Path | None,
    arguments: "SegmentArguments",
    quiet: bool,
    progress_json: bool,
) -> None:
    from iic_runtime.cli.tables import report_outcomes
    from iic_runtime.raster.many_scenes import segment_rasters

    with show_progress(quiet=quiet, as_json=progress_json) as progress:
        outcomes = segment_rasters(scenes, folder, model, mosaic=mosaic, progress=progress, **arguments)
    report_outcomes(outcomes, table=not (quiet or progress_json))
