"""`iic-map assess | change | clean | polygons | stats`: what is made from a map."""

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import iic_geotools  # whose names are imported when they are used, so that --help answers at once
from iic_geotools.cli import App, AsJson, Display, Version
from iic_geotools.cli.display import print_table
from iic_geotools.options import (
    AssessSettings,
    ChangeSettings,
    CleaningSettings,
    CreationSettings,
    PolygonSettings,
    WorkSettings,
    ZoneSettings,
)

if TYPE_CHECKING:
    from iic_geotools.products.transitions import Transitions

_LOG = logging.getLogger(__name__)
app = App(no_args_is_help=True)
main = app
MapFile = Annotated[
    Path,
    typer.Argument(help="The map: one band of classes, e.g. of iic-segment-raster.", show_default=False),
]


@app.callback()
def iic_map(version: Version = False) -> None:
    """Assess, compare, clean, polygonise and measure maps of classes."""


@app.command()
def assess(
    map: MapFile,
    samples: Annotated[
        Path,
        typer.Argument(
            help="Points with a class field, in any CRS. With --draw, the file to write, .gpkg.",
            show_default=False,
        ),
    ],
    *,
    draw: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Write SAMPLES: N random places, stratified by the classes of the map, to be labelled.",
            show_default=False,
        ),
    ] = None,
    seed: Annotated[
        int, typer.Option(help="With --draw: the number that decides which places are drawn.")
    ] = 0,
    settings: AssessSettings,
    as_json: AsJson = False,
    display: Display,
) -> None:
    """Assess a map by labelled random places, or draw such places."""
    if draw is not None:
        with display.show_progress() as progress:
            drawn = iic_geotools.draw_samples(
                map, samples, draw, seed=seed, overwrite=settings.overwrite, progress=progress
            )
        if not display.quiet:
            _print_draw(drawn, err=display.progress_json)
        return
    assessment = iic_geotools.assess_map(map, samples, **settings.values())
    if as_json:
        typer.echo(assessment.to_json(), nl=False)
    elif not display.quiet:
        _print_assessment(assessment, err=display.progress_json)


@app.command()
def change(
    before: Annotated[Path, typer.Argument(help="The earlier map.", show_default=False)],
    after: Annotated[Path, typer.Argument(help="The later map, with the same classes.", show_default=False)],
    out: Annotated[
        Path, typer.Argument(help="The map of changes, a Cloud-Optimised GeoTIFF.", show_default=False)
    ],
    settings: ChangeSettings,
    display: Display,
) -> None:
    """Compare two maps: what became what, as a map and as areas in hectares."""
    with display.show_progress() as progress:
        result = iic_geotools.change_map(before, after, out, **{**settings.values(), "progress": progress})
    if not display.quiet:
        _print_balance(result.transitions, err=display.progress_json)
    _LOG.info("%s", result.sentence())


@app.command()
def clean(
    map: Annotated[
        Path, typer.Argument(help="The map: one band of bytes, 255 is nodata.", show_default=False)
    ],
    out: Annotated[
        Path, typer.Argument(help="The clean map, a Cloud-Optimised GeoTIFF.", show_default=False)
    ],
    cleaning: CleaningSettings,
    creation: CreationSettings,
    work: WorkSettings,
    display: Display,
) -> None:
    """Smooth a map and absorb patches that are too small, exactly as on the whole map, with little memory."""
    with display.show_progress() as progress:
        options = {**cleaning.values(), **creation.values(), **work.values(), "progress": progress}
        cleaned = iic_geotools.clean_map(map, out, **options)
    _LOG.info("%s", cleaned.sentence())


@app.command()
def polygons(
    map: MapFile,
    out: Annotated[
        Path,
        typer.Argument(help="Polygons, .gpkg, .fgb, .parquet, .geojson or .pmtiles.", show_default=False),
    ],
    settings: PolygonSettings,
    work: WorkSettings,
    display: Display,
) -> None:
    """Write the regions of a map as polygons with their class and area."""
    with display.show_progress() as progress:
        options = {**settings.values(), **work.values(), "progress": progress}
        count = iic_geotools.polygonise_map(map, out, **options)
    _LOG.info("%s: %d polygons", out, count)


@app.command()
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
    settings: ZoneSettings,
    display: Display,
) -> None:
    """Zonal statistics: measure the area of each class of a map in each polygon of a file."""
    with display.show_progress() as progress:
        areas = iic_geotools.zone_statistics(map, zones, out, **{**settings.values(), "progress": progress})
    _LOG.info("%s: %d polygons, %d classes (%s)", out, len(areas.fids), len(areas.names), areas.description)


def _print_draw(drawn: "iic_geotools.Draw", *, err: bool) -> None:
    rows = [["class", "share, %", "samples"]]
    rows += [[entry.name, f"{100 * entry.share:.2f}", str(entry.samples)] for entry in drawn.strata]
    print_table(rows, err=err)
    for sentence in drawn.advice:
        typer.echo(sentence, err=err)


def _print_assessment(assessment: "iic_geotools.Assessment", *, err: bool) -> None:
    print_table(assessment.matrix_rows(), err=err)
    typer.echo("", err=err)
    print_table(assessment.class_rows(), err=err)
    typer.echo("", err=err)
    kappa = "-" if assessment.kappa is None else f"{assessment.kappa:.3f}"
    mean_iou = "-" if assessment.mean_iou is None else f"{assessment.mean_iou:.3f}"
    typer.echo(f"{assessment.sentence()}; kappa {kappa}, mean IoU {mean_iou}", err=err)


def _print_balance(transitions: "Transitions", *, err: bool) -> None:
    from iic_geotools.products.assessment.report import amount

    rows = [["class", "before, ha", "after, ha", "gain, ha", "loss, ha"]]
    columns = (transitions.before, transitions.after, transitions.gains, transitions.losses)
    for name, *figures in zip(transitions.names, *columns, strict=True):
        rows.append([name, *(amount(float(figure)) for figure in figures)])
    print_table(rows, err=err)
