"""Settings of what is made from a map and of searches, each declared once. Importing this imports nothing heavy."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from iic_geotools.option_texts import Bounds, parse_creation_options, parse_degrees
from iic_geotools.settings import REQUIRED, PathLike, Settings, setting
from iic_geotools.work import OnProgress, silent

Design = Literal["stratified", "simple"]
PartialPixels = Literal["share", "centre"]
MOST_SCENES = 100
"""The most scenes that a search lists by default."""


@dataclass(frozen=True, kw_only=True)
class OutputSettings(Settings):
    """How outputs are written."""

    overwrite: bool = setting(False, "Replace outputs that exist.", first=True)


@dataclass(frozen=True, kw_only=True)
class WorkSettings(OutputSettings):
    """How outputs are written, and where progress is reported."""

    progress: OnProgress = setting(silent, "Called with reports of progress.", option=False)


@dataclass(frozen=True, kw_only=True)
class CreationSettings(Settings, group="Products"):
    """How a map is written."""

    co: Mapping[str, str] | None = setting(
        None,
        "Creation option of GDAL's COG driver; may be repeated.",
        metavar="KEY=VALUE",
        repeat=True,
        parse=parse_creation_options,
    )


@dataclass(frozen=True, kw_only=True)
class PictureSettings(Settings, group="Products"):
    """Which pictures are made of a map."""

    preview: PathLike | None = setting(
        None, "Also write a picture of scene and map as .png.", writes=(".png",), first=True
    )
    web: PathLike | None = setting(
        None,
        "Also write a page that shows scene and map in a browser as .html.",
        writes=(".html", ".htm"),
        first=True,
    )


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


@dataclass(frozen=True, kw_only=True)
class PolygonSettings(Settings, group="Products"):
    """How the regions of a map become polygons."""

    min_area: float = setting(
        0.0,
        "Polygons: merge those smaller than this many square metres into their neighbours.",
        metavar="M2",
    )
    simplify: float = setting(
        0.0,
        "Polygons: simplify borders by about this many metres; neighbours keep sharing them.",
        metavar="M",
    )


@dataclass(frozen=True, kw_only=True)
class ChangeSettings(PictureSettings, WorkSettings):
    """How two maps are compared."""

    tables: Sequence[PathLike] = setting(
        (),
        "Also write the area of each change, gains and losses as .csv or .json; may be repeated.",
        flags=("--table",),
        repeat=True,
    )
    like: PathLike | None = setting(
        None,
        "Compare on the grid of this raster. By default on that of the map with the smaller pixels.",
        metavar="RASTER",
    )
    skip_unsure: bool = setting(False, "Leave out pixels of the class unsure in either map.")
    before_confidence: PathLike | None = setting(None, "The confidence map of the earlier map.")
    after_confidence: PathLike | None = setting(None, "The confidence map of the later map.")
    min_confidence: float = setting(
        0.0, "Leave out pixels whose confidence is below this probability, 0 to 1.", metavar="P"
    )
    probability: PathLike | None = setting(
        None,
        "The probability of change, as iic-scenes change writes it: where it is below `min_probability`, a pixel keeps "
        "the class of the earlier map.",
    )
    min_probability: float = setting(
        0.5, "With `probability`: the least that counts as change, 0 to 1.", metavar="P"
    )


@dataclass(frozen=True, kw_only=True)
class ZoneSettings(WorkSettings):
    """How areas are measured in polygons."""

    partial_pixels: PartialPixels = setting(
        "share", "Count pixels on the border of a polygon by the share inside, or by their centre."
    )


@dataclass(frozen=True, kw_only=True)
class LabelSettings(Settings):
    """Where labels hold their class."""

    label_field: str | None = setting(
        None,
        "The field that holds the class. By default the only one, or one named class.",
        metavar="FIELD",
    )


@dataclass(frozen=True, kw_only=True)
class AssessSettings(LabelSettings, OutputSettings):
    """How a map is assessed."""

    design: Design = setting(
        "stratified",
        "How the samples were drawn: stratified fits samples of `draw` and places drawn anywhere at random; simple is "
        "for the latter only.",
    )
    reports: Sequence[PathLike] = setting(
        (), "Also write a report as .html, .json or .csv; may be repeated.", flags=("--report",), repeat=True
    )


@dataclass(frozen=True, kw_only=True)
class SearchSettings(OutputSettings):
    """Which scenes of a catalogue are listed."""

    collection: str = setting(REQUIRED, "The collection, e.g. sentinel-2-l2a.", metavar="NAME", first=True)
    bbox: Bounds = setting(
        REQUIRED,
        "The place, in degrees, e.g. 5.9,43.1,6.1,43.2.",
        metavar='"LEFT BOTTOM RIGHT TOP"',
        parse=parse_degrees,
        first=True,
    )
    dates: str = setting(
        REQUIRED,
        "A day, month or year, or the first and the last one, e.g. 2024-06-01/2024-08-31.",
        details='One end may be open: "2024-06/..".',
        metavar="FIRST/LAST",
        first=True,
    )
    max_cloud: float | None = setting(
        None,
        "Leave out scenes with more clouds than this.",
        details="Scenes whose cloud cover is not known are left out then.",
        metavar="PERCENT",
        least=0,
        most=100,
    )
    limit: int = setting(MOST_SCENES, "The most scenes to list.")
