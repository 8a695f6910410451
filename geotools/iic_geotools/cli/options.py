"""Options that commands of several rooms share, each declared once. Importing this imports nothing heavy."""

from collections.abc import Sequence
from typing import Annotated

import typer

from iic_geotools.errors import UsageError

SieveArea = Annotated[
    float,
    typer.Option(
        "--sieve",
        metavar="M2",
        help="Minimum mapping unit: patches below this many square metres take the class of their longest border.",
    ),
]
MajorityRadius = Annotated[
    int,
    typer.Option(
        "--majority",
        metavar="PX",
        help="Give each pixel the most common class of the square of this radius around it, before sieving.",
    ),
]
CreationOptions = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KEY=VALUE", help="Creation option of GDAL's COG driver; may be repeated.", show_default=False
    ),
]


def parse_creation_options(pairs: Sequence[str]) -> dict[str, str]:
    """Read the values of `--co`: KEY=VALUE pairs."""
    options = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key.strip():
            raise UsageError(f'--co takes KEY=VALUE, e.g. --co COMPRESS=ZSTD, not "{pair}".')
        options[key.strip().upper()] = value.strip()
    return options
