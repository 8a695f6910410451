"""`iic-map assess MAP SAMPLES`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from iic_geotools.cli import (
    AsJson,
    Overwrite,
    ProgressJson,
    Quiet,
    Traceback,
    Verbose,
    shell,
    show_progress,
)
from iic_geotools.cli.map.options import MapFile
from iic_geotools.cli.options import LabelField
from iic_geotools.cli.tables import print_table

if TYPE_CHECKING:
    from iic_geotools.products.assessment.draw import Draw
    from iic_geotools.products.assessment.figures import Assessment


def assess(
    map: MapFile,
    samples: Annotated[
        Path,
        typer.Argument(
            help="Points with a class field, in any CRS. With --draw, the file to write, .gpkg.",
            show_default=False,
        ),
    ],
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
    label_field: LabelField = None,
    design: Annotated[
        Literal["stratified", "simple"],
        typer.Option(
            help="How the samples were drawn: stratified fits samples of --draw and places drawn anywhere at random; "
            "simple is for the latter only."
        ),
    ] = "stratified",
    reports: Annotated[
        list[Path] | None,
        typer.Option(
            "--report",
            help="Also write a report as .html, .json or .csv; may be repeated.",
            show_default=False,
        ),
    ] = None,
    as_json: AsJson = False,
    overwrite: Overwrite = False,
    progress_json: ProgressJson = False,
    verbose: Verbose = False,
    quiet: Quiet = False,
    traceback: Traceback = False,
) -> None:
    """Say how good a map is from labelled random places, or draw such places."""
    with shell(verbose, quiet, traceback):
        from iic_geotools.products.assessment.assess import assess_map
        from iic_geotools.products.assessment.draw import draw_samples
        from iic_geotools.products.assessment.tables import assessment_json

        if draw is not None:
            with show_progress(quiet=quiet, as_json=progress_json) as progress:
                drawn = draw_samples(map, samples, draw, seed=seed, overwrite=overwrite, progress=progress)
            if not quiet:
                _print_draw(drawn, err=progress_json)
            return
        assessment = assess_map(
            map, samples, label_field=label_field, design=design, reports=reports or (), overwrite=overwrite
        )
        if as_json:
            typer.echo(assessment_json(assessment), nl=False)
        elif not quiet:
            _print_assessment(assessment, err=progress_json)


def _print_draw(drawn: "Draw", *, err: bool) -> None:
    rows = [["class", "share, %", "samples"]]
    rows += [[entry.name, f"{100 * entry.share:.2f}", str(entry.samples)] for entry in drawn.strata]
    print_table(rows, err=err)
    for sentence in drawn.advice:
        typer.echo(sentence, err=err)


def _print_assessment(assessment: "Assessment", *, err: bool) -> None:
    from iic_geotools.products.assessment.tables import class_rows, matrix_rows

    print_table(matrix_rows(assessment), err=err)
    typer.echo("", err=err)
    print_table(class_rows(assessment), err=err)
    typer.echo("", err=err)
    kappa = "-" if assessment.kappa is None else f"{assessment.kappa:.3f}"
    mean_iou = "-" if assessment.mean_iou is None else f"{assessment.mean_iou:.3f}"
    typer.echo(f"{assessment.sentence()}; kappa {kappa}, mean IoU {mean_iou}", err=err)
