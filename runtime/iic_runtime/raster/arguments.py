"""Arguments of `segment_raster`, grouped by what they are about: the command and the path of many scenes share them."""

import os
from collections.abc import Mapping, Sequence
from typing import TypedDict

from iic_geotools.scene.listing import AssetArgument
from iic_geotools.scene.region import Bounds
from iic_geotools.scene.valuemask import MaskArgument
from iic_runtime.adapters.dask import Cluster
from iic_runtime.engine.base import EngineArguments

PathLike = str | os.PathLike[str]


class SceneArguments(TypedDict, total=False):
    """Arguments of `segment_raster` that say what a scene is made of."""

    asset: AssetArgument | None
    mask: MaskArgument | None


class ReadingArguments(TypedDict, total=False):
    """Arguments of `segment_raster` that `segment_rasters` hands on as they are."""

    bands: Sequence[str | int] | None
    rescale: str | None
    reflectance: tuple[float, float] | None
    match_gsd: bool | None
    bounds: Bounds | None
    aoi: PathLike | None
    nodata: float | None
    co: Mapping[str, str] | None
    min_area: float
    simplify: float
    stats_by: PathLike | None
    min_confidence: float
    unsure_class: bool
    majority: int
    sieve: float


class ProductArguments(TypedDict, total=False):
    """Arguments of `segment_raster` that name files other than the map."""

    confidence: PathLike | None
    polygons: PathLike | None
    stats: PathLike | None
    preview: PathLike | None
    web: PathLike | None


class SegmentArguments(EngineArguments, SceneArguments, ReadingArguments, ProductArguments, total=False):
    """Arguments that `segment_raster` and `segment_rasters` share."""

    overwrite: bool
    resume: bool
    workers: int | None
    scheduler: str | Cluster | None
