"""`iic-map change BEFORE AFTER OUT`."""

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from iic_geotools.cli import Overwrite, ProgressJson, Quiet, Traceback, Verbose, shell, show_progress
from iic_geotools.cli.tables import print_table

if TYPE_CHECKING:
    from iic_geotools.products.transitions import Transitions

_LOG = logging.getLogger(__name__)


def change(
    before: Annotated[Path, typer.Argument(help="The earlier map.", show_default=False)],
    after: Annotated[Path, typer.Argument(help="The later map, with the same classes.", show_default=False)],
    out: Annotated[
        Path, typer.Argument(help="The map of changes, a Cloud-Optimised GeoTIFF.", show_default=False)
    ],
    tables: Annotated[
        list[Path] | None,
        typer.Option(
            "--table",
            help="Also write the area of each change, gains and losses as .csv or .json; may be repeated.",
            show_default=False,
        ),
    ] = None,
    like: Annotated[
        Path | None,
        typer.Option(
            metavar="RASTER",
            help="Compare on the grid of this raster. By default on that of the map with the smaller pixels.",
            show_default=False,
        ),
    ] = None,
    skip_unsure: Annotated[
        bool, typer.Option("--skip-unsure", help="Leave out pixels of the class unsure in either map.")
    ] = False,
    before_confidence: Annotated[
        Path | None, typer.Option(help="The confidence map of BEFORE.", show_default=False)
    ] = None,
    after_confidence: Annotated[
        Path | None, typer.Option(help="The confidence map of AFTER.", show_default=False)
    ] = None,
    min_confidence: Annotated[
        float,
        typer.Option(
            metavar="P", help="Leave out pixels whose confidence is below this probability, 0 to 1."
        ),
    ] = 0.0,
    overwrite: Overwrite = False,
    progress_json: ProgressJson = False,
    verbose: Verbose = False,
    quiet: Quiet = False,
    traceback: Traceback = False,
) -> None:
    """Compare two maps: what became what, as a map and as areas in hectares."""
    with shell(verbose, quiet, traceback):
        from iic_geotools.products.change import change_map

        with show_progress(quiet=quiet, as_json=progress_json) as progress:
            result = change_map(
                before,
                after,
                out,
                tables=tables or (),
                like=like,
                skip_unsure=skip_unsure,
                before_confidence=before_confidence,
                after_confidence=after_confidence,
                min_confidence=min_confidence,
                overwrite=overwrite,
                progress=progress,
            )
        if not quiet:
            _print_balance(result.transitions, err=progress_json)
        _LOG.info("%s", result.sentence())


def _print_balance(transitions: "Transitions", *, err: bool) -> None:
    from iic_geotools.products.assessment.tables import amount

    rows = [["class", "before, ha", "after, ha", "gain, ha", "loss, ha"]]
    columns = (transitions.before, transitions.after, transitions.gains, transitions.losses)
    for name, *figures in zip(transitions.names, *columns, strict=True):
        rows.append([name, *(amount(float(figure)) for figure in figures)])
    print_table(rows, err=err)
