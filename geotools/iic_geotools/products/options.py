"""Settings of what is made from a map, each declared once. Importing this imports nothing heavy."""

from dataclasses import dataclass

from iic_geotools.settings import Settings, setting


@dataclass(frozen=True, kw_only=True)
class CleaningSettings(Settings, group="Cleaning"):
    """How a map is cleaned."""

    sieve: float = setting(
        0.0,
        "Minimum mapping unit: patches below this many square metres take the class of their longest border.",
        metavar="M2",
        first=True,
    )
    majority: int = setting(
        0,
        "Give each pixel the most common class of the square of this radius around it, before sieving.",
        metavar="PX",
    )
