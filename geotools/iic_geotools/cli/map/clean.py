"""`iic-map clean MAP OUT`."""

import logging
from pathlib import Path
from typing import Annotated

import typer

from iic_geotools.cli import Overwrite, ProgressJson, Quiet, Traceback, Verbose, shell, show_progress
from iic_geotools.cli.options import CreationOptions, MajorityRadius, SieveArea, parse_creation_options

_LOG = logging.getLogger(__name__)


def clean(
    map: Annotated[
        Path, typer.Argument(help="The map: one band of bytes, 255 is nodata.", show_default=False)
    ],
    out: Annotated[
        Path, typer.Argument(help="The clean map, a Cloud-Optimised GeoTIFF.", show_default=False)
    ],
    sieve: SieveArea = 0.0,
    majority: MajorityRadius = 0,
    co: CreationOptions = None,
    overwrite: Overwrite = False,
    verbose: Verbose = False,
    quiet: Quiet = False,
    progress_json: ProgressJson = False,
    traceback: Traceback = False,
) -> None:
    """Smooth a map and absorb patches that are too small, exactly as on the whole map, with little memory."""
    with shell(verbose, quiet, traceback):
        from iic_geotools.products.cleaning import clean_map

        with show_progress(quiet=quiet, as_json=progress_json) as progress:
            cleaned = clean_map(
                map,
                out,
                sieve=sieve,
                majority=majority,
                co=parse_creation_options(co or []),
                overwrite=overwrite,
                progress=progress,
            )
        _LOG.info("%s", cleaned.sentence())
