"""Settings of the functions and commands that run models, each declared once. Importing this imports nothing heavy.

Groups are what stages take; `SegmentSettings` are those of a map. A new setting is a field here and the line that uses
it: argument, option, documentation and QGIS parameter follow (`iic_geotools.settings`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from iic_geotools.errors import UsageError
from iic_geotools.files import MAP_SUFFIXES
from iic_geotools.option_texts import (
    AssetArgument,
    Bounds,
    MaskArgument,
    keep_text,
    parse_bounds,
    parse_mask,
    parse_names,
    parse_reflectance,
    parse_size,
)
from iic_geotools.options import (
    CleaningSettings,
    CreationSettings,
    LabelSettings,
    OutputSettings,
    PictureSettings,
    PolygonSettings,
    WorkSettings,
)
from iic_geotools.settings import PathLike, Settings, setting
from iic_runtime.naming import (
    CERTAIN,
    COARSE_METRES,
    FINE_SMOOTHING,
    SMOOTHED_METRES,
    SMOOTHING,
    SUGGESTED_PLACES,
)

if TYPE_CHECKING:
    from iic_runtime.raster.cluster import Cluster

MIN_TILE = 64
"""The smallest tile in pixels that a TensorRT engine is built for."""
Device = Literal["auto", "cpu", "openvino", "cuda", "tensorrt"]

BENCHMARK_SECONDS = 2.0
"""How long a benchmark runs each setting, at least."""


@dataclass(frozen=True, kw_only=True)
class DeviceSettings(Settings, group="Running"):
    """The device that computes."""

    device: Device = setting("auto", "The device to compute on; openvino runs on the CPU.", first=True)
    threads: int | None = setting(None, "Number of threads of the engine. By default all cores.")


@dataclass(frozen=True, kw_only=True)
class EngineSettings(DeviceSettings, group="Running"):
    """How a model is run."""

    tile: int | None = setting(
        None,
        "Side in pixels of the squares that are labelled at once. By default what is fast within `max_memory`.",
        metavar="PX",
        least=1,
    )
    batch: int | None = setting(
        None, "Number of tiles run at once. By default 1 on a CPU; on a GPU by its memory.", least=1
    )
    max_memory: int | None = setting(
        None,
        "Choose tile size and batch to stay below this, e.g. 800M or 2G. By default 1G, with a GPU 4G apart from its "
        "own, but not more than half of the machine's memory.",
        details="In Python a number of bytes.",
        metavar="SIZE",
        parse=parse_size,
    )


@dataclass(frozen=True, kw_only=True)
class PixelSettings(Settings, group="Reading"):
    """How the values of an image become the model's input."""

    bands: Sequence[str | int] | None = setting(
        None,
        "The scene's bands for those of the model, in the model's order, by name or number, e.g. 4,1,2. By default "
        "matched by name.",
        metavar="LIST",
        parse=parse_names,
        first=True,
    )
    nodata: float | None = setting(None, "The scene's nodata value. By default the one in the file.")
    rescale: str | None = setting(
        None,
        "The scene's values that become the ends of the model's range; auto: each band's 2nd and 98th percentile; "
        "off: take the values as they are. By default as the model's card says.",
        metavar="MIN,MAX|auto|off",
    )
    reflectance: tuple[float, float] | None = setting(
        None,
        "For models that take reflectance: scale and offset that turn values into it, e.g. 0.0001,-0.1. By default "
        "from the scene's metadata or recognised from its values, otherwise estimated; the log says which.",
        metavar="SCALE,OFFSET",
        parse=parse_reflectance,
    )


@dataclass(frozen=True, kw_only=True)
class ReadingSettings(PixelSettings, group="Reading"):
    """How a scene becomes the model's input."""

    match_gsd: bool | None = setting(
        None,
        "Read the scene at the model's ground sample distance, or never. By default only where the scene is finer.",
        details="The map has the scene's grid either way.",
    )


@dataclass(frozen=True, kw_only=True)
class SceneSettings(ReadingSettings, group="Reading"):
    """What a scene is made of, and how it becomes the model's input."""

    asset: AssetArgument | None = setting(
        None,
        "STAC items: the asset that is the scene, or those that are its bands, by name or common name, e.g. "
        "red,green,blue,nir. By default the only one with the role data.",
        details="Bands of different resolution are brought onto the finest grid.",
        metavar="NAMES",
        parse=parse_names,
    )
    mask: MaskArgument | None = setting(
        None,
        "Where this raster, or asset of STAC items, has one of the values, the scene holds no data, e.g. "
        "scl.tif:3,8,9,10; auto for the cloud mask that comes with a product.",
        details='In Python `("scl.tif", [3, 8, 9, 10])`. It may have another resolution or CRS, but must cover the '
        "scene.",
        metavar="FILE:VALUES",
        parse=parse_mask,
    )


@dataclass(frozen=True, kw_only=True)
class RegionSettings(Settings, group="Region"):
    """Which pixels of a scene are mapped."""

    bounds: Bounds | None = setting(
        None,
        "Map only this region, in the scene's CRS.",
        metavar='"LEFT BOTTOM RIGHT TOP"',
        parse=parse_bounds,
        first=True,
    )
    aoi: PathLike | None = setting(
        None, "Map only the inside of the polygons in this vector file.", first=True
    )


@dataclass(frozen=True, kw_only=True)
class UnsureSettings(Settings, group="Cleaning"):
    """What becomes of pixels with low confidence."""

    min_confidence: float = setting(
        0.0,
        "Pixels whose label has a lower probability than this, 0 to 1, become nodata in the map.",
        metavar="P",
        least=0,
        most=1,
        first=True,
    )
    unsure_class: bool = setting(
        False, "With `min_confidence`: such pixels get a class of their own, unsure, instead of nodata."
    )


@dataclass(frozen=True, kw_only=True)
class ProductSettings(PictureSettings, PolygonSettings, CreationSettings, group="Products"):
    """Which files are written next to the map, and how."""

    confidence: PathLike | None = setting(
        None,
        "Also write the confidence, 0 to 254, as .tif.",
        details="It is 255 x the probability of each label before cleaning.",
        writes=MAP_SUFFIXES,
        first=True,
    )
    novelty: PathLike | None = setting(
        None,
        "Also write how foreign each pixel is to models of reflectance, 0 to 254, as .tif.",
        details="It is 255 x the probability that its spectrum is unlike those that the model knows; from 128 on, it "
        "is called foreign.",
        writes=MAP_SUFFIXES,
    )
    polygons: PathLike | None = setting(
        None,
        "Also write polygons as .gpkg, .fgb, .parquet, .geojson or .pmtiles.",
        writes=(".gpkg", ".fgb", ".parquet", ".geojson", ".json", ".pmtiles"),
        first=True,
    )
    stats: PathLike | None = setting(
        None, "Also write the area of each class as .json or .csv.", writes=(".json", ".csv"), first=True
    )
    stats_by: PathLike | None = setting(
        None,
        "Zonal statistics: with `stats` as .csv or .gpkg, write a row per polygon of this vector file; a pixel on a "
        "border counts by its share inside.",
        metavar="ZONES",
    )
    stac: PathLike | None = setting(
        None, "Also write a STAC item of the map and the other files as .json.", writes=(".json",)
    )


@dataclass(frozen=True, kw_only=True)
class RunSettings(EngineSettings, WorkSettings, group="Running"):
    """How a map is computed."""

    resume: bool = setting(True, "Use the finished parts of an interrupted run.")
    workers: int | None = setting(
        None,
        "Label with this many processes, each on its share of the cores.",
        details="`max_memory` then applies to each of them.",
    )
    scheduler: "str | Cluster | None" = setting(
        None,
        "Label with the workers of this Dask scheduler.",
        details="Scene and map must be on a disk that they share. In Python also a connected Cluster.",
        metavar="ADDRESS",
        parse=keep_text,
    )


@dataclass(frozen=True, kw_only=True)
class SegmentSettings(
    SceneSettings, RegionSettings, UnsureSettings, CleaningSettings, ProductSettings, RunSettings
):
    """Settings of a map."""


@dataclass(frozen=True, kw_only=True)
class NameSettings(LabelSettings, ReadingSettings, DeviceSettings, WorkSettings):
    """How labels name the classes of a model."""

    smoothing: int | None = setting(
        None,
        "Average class probabilities over this many pixels in each direction.",
        details=f"The map has fewer specks then; 0 for none. By default {SMOOTHING}, or up to {FINE_SMOOTHING} where "
        f"pixels are so small that this is {SMOOTHED_METRES} m, or 0 where they are of {COARSE_METRES:g} m or more and "
        f"{100 * CERTAIN:g} % of the labels are recognised.",
        metavar="PX",
    )
    suggestions: PathLike | None = setting(
        None,
        "Also write the places to click next, as points in .gpkg.",
        flags=("--suggest",),
        writes=(".gpkg",),
    )


@dataclass(frozen=True, kw_only=True)
class ClusterSettings(SceneSettings, DeviceSettings, WorkSettings):
    """How clusters of a scene are found."""

    pair: Sequence[PathLike] = setting(
        (),
        "Another date of the same place, on the same grid; may be repeated. Clusters then mean the same on all dates.",
        details="Each date is then read by the 2nd and 98th percentiles of its own bands, unless `rescale` says "
        "otherwise.",
        metavar="SCENE",
        repeat=True,
        first=True,
    )
    seed: int = setting(0, "Seed of the sampling and of the first centres.")


@dataclass(frozen=True, kw_only=True)
class SceneChangeSettings(SceneSettings, DeviceSettings, WorkSettings):
    """How change between two scenes is found."""

    seed: int = setting(0, "Seed of the sampling.")


@dataclass(frozen=True, kw_only=True)
class SuggestSettings(ReadingSettings, DeviceSettings, WorkSettings):
    """Which places are suggested for labels."""

    count: int = setting(SUGGESTED_PLACES, "Number of places.")


@dataclass(frozen=True, kw_only=True)
class PageSettings(OutputSettings):
    """What a page is made of."""

    example: PathLike | None = setting(
        None, "A scene, .tif, that the page maps when it is opened.", metavar="SCENE"
    )
    webgpu: bool = setting(
        True, "Offer to compute on the graphics card: 27 MB more, loaded only by those who choose it."
    )
    runtime: PathLike | None = setting(
        None,
        "A folder with onnxruntime-web and geotiff as `npm pack` or `npm install` leaves them. By default npm is asked "
        "once, and they are kept in the cache.",
        metavar="FOLDER",
    )


@dataclass(frozen=True)
class EngineOptions(Settings, group="TensorRT"):
    """What a TensorRT engine is built for."""

    tile: int = setting(1024, "Side of the largest tile without its halo; the engine is optimised for it.")
    batch: int = setting(4, "Largest number of tiles run at once.")
    workspace: int = setting(
        2 << 30,
        "GPU memory that the build may use to try tactics; by default 2G.",
        metavar="SIZE",
        parse=parse_size,
    )
    portable: bool = setting(
        False, "Let later versions and other GPUs since Ampere run the engine, at some cost in speed."
    )

    def __post_init__(self) -> None:
        if self.tile < MIN_TILE or self.batch < 1 or self.workspace < 1:
            raise UsageError(
                f"An engine needs a `tile` of {MIN_TILE} or more, a `batch` of 1 or more and some `workspace`, "
                f"not {self.tile}, {self.batch} and {self.workspace}."
            )


@dataclass(frozen=True, kw_only=True)
class ConvertSettings(OutputSettings, group="Conversion"):
    """How a model file is written for another engine."""

    precision: Literal["fp32", "fp16", "int8"] | None = setting(
        None,
        "Precision of the convolutions; by default fp16 as .onnx, else that of the model.",
        first=True,
    )
    format: Literal["onnx", "tensorrt", "triton"] = setting(
        "onnx",
        "An ONNX file, a TensorRT engine for the GPU of this machine, or the model repository of a Triton server.",
        first=True,
    )
    scene: PathLike | None = setting(
        None,
        "A scene to compare on, and to calibrate int8 on. By default an image of noise and patches.",
        metavar="SCENE",
    )
    min_agreement: float = setting(0.99, "Share of labels that must be those of the model.")
