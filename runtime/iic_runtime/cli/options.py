"""The options of the commands that map scenes, each declared once. Importing this imports nothing heavy."""

import re
from pathlib import Path
from typing import Annotated, Literal

import typer

from iic_geotools.errors import UsageError

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
        "By default the one that iic-export wrote to the working directory, or else the bundled one made for the "
        "scene's ground resolution.",
        show_default=False,
    ),
]
Bands = Annotated[
    str | None,
    typer.Option(
        metavar="LIST",
        help="The scene's bands for those of the model, in the model's order, by name or number, e.g. 4,1,2. "
        "By default matched by name.",
        show_default=False,
    ),
]
DeviceName = Annotated[
    Literal["auto", "cpu", "openvino", "cuda", "tensorrt"],
    typer.Option(help="The device to compute on; openvino runs on the CPU."),
]
Tile = Annotated[
    int | None,
    typer.Option(
        help="Side in pixels of the squares that are labelled at once. By default what is fast within --max-memory.",
        show_default=False,
    ),
]
Batch = Annotated[
    int | None,
    typer.Option(
        help="Number of tiles that are run at once. By default 1 on a CPU and 4 on a GPU.", show_default=False
    ),
]
Threads = Annotated[
    int | None,
    typer.Option(help="Number of threads of the engine. By default all cores.", show_default=False),
]
MaxMemory = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE",
        help="Choose how large tiles are and how many are run at once to stay below this, e.g. 800M or 2G. "
        "By default 1G, but not more than half of the machine's memory.",
        show_default=False,
    ),
]
RescaleMode = Annotated[
    str | None,
    typer.Option(
        metavar="MIN,MAX|auto|off",
        help="The scene's values that become the ends of the model's range; auto: each band's 2nd and 98th "
        "percentile; off: take the values as they are. By default as the model says.",
        show_default=False,
    ),
]
ReflectanceText = Annotated[
    str | None,
    typer.Option(
        "--reflectance",
        metavar="SCALE,OFFSET",
        help="Models that take reflectance: it is the scene's value x SCALE + OFFSET, e.g. 0.0001,-0.1. By default as "
        "the scene says, as its values look, or else estimated.",
        show_default=False,
    ),
]
MatchGsd = Annotated[
    bool | None,
    typer.Option(
        "--match-gsd/--no-match-gsd",
        help="Read the scene at the model's ground resolution, or never. By default only where the scene is finer.",
        show_default=False,
    ),
]
BoundsText = Annotated[
    str | None,
    typer.Option(
        metavar='"LEFT BOTTOM RIGHT TOP"',
        help="Map only this region, in the scene's CRS.",
        show_default=False,
    ),
]
Aoi = Annotated[
    Path | None,
    typer.Option(help="Map only the inside of the polygons in this vector file.", show_default=False),
]
Nodata = Annotated[
    float | None,
    typer.Option(help="The scene's nodata value. By default the one in the file.", show_default=False),
]
MinConfidence = Annotated[
    float,
    typer.Option(
        metavar="P",
        help="Pixels whose label has a lower probability than this, 0 to 1, become nodata in the map.",
    ),
]
UnsureClass = Annotated[
    bool,
    typer.Option(
        "--unsure-class",
        help="With --min-confidence: such pixels get a class of their own, unsure, instead of nodata.",
    ),
]
Resume = Annotated[bool, typer.Option(help="Use the finished parts of an interrupted run.")]
Confidence = Annotated[
    Path | None, typer.Option(help="Also write the confidence, 0 to 254, as .tif.", show_default=False)
]
Polygons = Annotated[
    Path | None,
    typer.Option(help="Also write polygons as .gpkg, .fgb, .parquet or .geojson.", show_default=False),
]
MinArea = Annotated[
    float,
    typer.Option(
        metavar="M2",
        help="Polygons: merge those that are smaller than this many square metres into their neighbours.",
    ),
]
Simplify = Annotated[
    float,
    typer.Option(
        metavar="M",
        help="Polygons: simplify borders by about this many metres; neighbours keep sharing them.",
    ),
]
Stats = Annotated[
    Path | None, typer.Option(help="Also write the area of each class as .json or .csv.", show_default=False)
]
StatsBy = Annotated[
    Path | None,
    typer.Option(
        metavar="ZONES",
        help="With --stats as .csv or .gpkg: write a row per polygon of this vector file; a pixel on a border counts "
        "by its share inside.",
        show_default=False,
    ),
]
Preview = Annotated[
    Path | None, typer.Option(help="Also write a picture of scene and map as .png.", show_default=False)
]
Web = Annotated[
    Path | None,
    typer.Option(
        help="Also write a page that shows scene and map in a browser as .html.", show_default=False
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(help="Label with this many processes, each on its share of the cores.", show_default=False),
]
Scheduler = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS", help="Label with the workers of this Dask scheduler.", show_default=False
    ),
]
Mosaic = Annotated[
    Path | None,
    typer.Option(help="Several scenes: also write a virtual mosaic of the maps as .vrt.", show_default=False),
]
Asset = Annotated[
    str | None,
    typer.Option(
        metavar="NAMES",
        help="STAC items: the asset that is the scene, or those that are its bands, by name or common name, e.g. "
        "red,green,blue,nir. By default the only one with the role data.",
        show_default=False,
    ),
]
MaskText = Annotated[
    str | None,
    typer.Option(
        "--mask",
        metavar="FILE:VALUES",
        help="Where this raster, or asset of STAC items, has one of the values, the scene holds no data, e.g. "
        "scl.tif:3,8,9,10.",
        show_default=False,
    ),
]


def parse_bands(text: str | None) -> list[str] | None:
    """Read the value of `--bands`: names or numbers, separated by commas."""
    return None if text is None else text.split(",")


def parse_size(text: str, option: str = "--max-memory") -> int:
    """Read the value of an option that takes a number of bytes, such as 800M or 1.5G."""
    units = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
    match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*([kmgt]?)i?b?\s*", text.lower())
    if not match:
        raise UsageError(f'{option} takes a size such as 800M or 2G, not "{text}".')
    return int(float(match[1]) * units[match[2]])
