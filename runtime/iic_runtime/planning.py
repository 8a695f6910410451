"""From a scene, a card and the user's words to how the scene is read and which of its pixels are labelled."""

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from affine import Affine

from iic_geotools.areas import ground_sample_distance
from iic_geotools.errors import ModelError, SceneError, UsageError
from iic_geotools.grid import Rect
from iic_geotools.regions import Area, Bounds, pixels_within
from iic_geotools.rescale import Pair, Rescale, parse_rescale
from iic_geotools.scene import SceneInfo, SceneSource, has_mask, value_ranges
from iic_geotools.vrt import MapGrid
from iic_runtime.card import Card
from iic_runtime.resolution import matched_size, mismatch, pixel_size
from iic_runtime.scenebands import scene_bands

_LOG = logging.getLogger(__name__)
# Values that mean the same in another type: nothing to rescale.
_SAME_MEANING = {("float64", "float32"), ("float16", "float32")}


@dataclass(frozen=True)
class Target:
    """What is to be labelled: the scene, how it is read, and which of its pixels, on its own grid."""

    info: SceneInfo
    source: SceneSource
    region: Rect
    area: Area | None

    @property
    def map_grid(self) -> MapGrid:
        """The grid of the map: the scene's, cut to the region."""
        return self.info.grid.crop(self.region)

    def manifest(self) -> dict[str, Any]:
        """What parts on the scene's own grid must have been cut to."""
        return {"region": asdict(self.region), "area": self.area and self.area.digest}

    @property
    def working_region(self) -> Rect:
        """The region in pixels of the grid that is really read."""
        if self.source.grid is None:
            return self.region
        x = self.source.grid.width / self.info.grid.width
        y = self.source.grid.height / self.info.grid.height
        col, row = math.floor(self.region.col * x), math.floor(self.region.row * y)
        right, bottom = math.ceil(self.region.right * x), math.ceil(self.region.bottom * y)
        whole = Rect(0, 0, self.source.grid.width, self.source.grid.height)
        return Rect(col, row, right - col, bottom - row).intersection(whole)


def plan_target(
    info: SceneInfo,
    card: Card,
    *,
    bands: Sequence[str] | None = None,
    nodata: float | None = None,
    rescale: str | None = None,
    match_gsd: bool = False,
    bounds: Bounds | None = None,
    aoi: Path | None = None,
) -> Target:
    """Settle everything that can be wrong about the scene before the first pixel is labelled."""
    bidx = scene_bands(info, card, bands)
    if any(info.interpretations[band - 1] == "palette" for band in bidx):
        raise SceneError(
            f"{info.path} holds numbers of colours in a table, not colours; expand it first, "
            "e.g. gdal_translate -expand rgb."
        )
    source = SceneSource(
        path=info.path,
        bidx=bidx,
        dtype=card.dtype,
        nodata=info.nodata_of(bidx) if nodata is None else nodata,
        masked=has_mask(info, bidx) and nodata is None,
        fill=card.offset,
    )
    rescaled = choose_rescale(info, bidx, card, rescale, lambda: value_ranges(source, info))
    source = replace(source, rescale=rescaled)
    source = replace(source, grid=_working_grid(info, card, match_gsd))
    region, area = _region(info.grid, bounds, aoi)
    return Target(info, source, region, area)


def choose_rescale(
    info: SceneInfo,
    bidx: tuple[int, ...],
    card: Card,
    wanted: str | None,
    ranges: Callable[[], tuple[Pair, ...]],
) -> Rescale | None:
    """How the scene's values become the model's; None if they are as they must be.

    Args:
        info: the scene.
        bidx: the bands that are read.
        card: the model's.
        wanted: "MIN,MAX", "auto" or "off"; None: as the card says.
        ranges: finds, for "auto" only, the percentiles of each band.
    """
    kind = info.dtype_of(bidx)
    wanted = wanted or card.rescale or "off"
    if wanted == "off":
        if kind == card.dtype or (kind, card.dtype) in _SAME_MEANING:
            return None
        raise ModelError(
            f"{info.path} is {kind}, but the model was made for {card.dtype}; give --rescale MIN,MAX "
            "(the scene's values for black and white) or --rescale auto."
        )
    if wanted != "auto":
        return Rescale((parse_rescale(wanted),) * len(card.bands), card.value_range)
    found = ranges()
    told = (f"{band} {low:g} to {high:g}" for band, (low, high) in zip(card.bands, found, strict=True))
    _LOG.info("Values: each band from its 2nd to its 98th percentile (%s)", ", ".join(told))
    return Rescale(found, card.value_range)


def _working_grid(info: SceneInfo, card: Card, match: bool) -> MapGrid | None:
    grid = info.grid
    if not match:
        _warn_of_mismatch(grid, card)
        return None
    wanted = matched_size(card, pixel_size(grid))
    if wanted is None:
        raise ModelError(
            "--match-gsd needs a model whose card names a ground sample distance; this one's does not."
        )
    distance = ground_sample_distance(grid.crs, grid.transform, grid.width, grid.height)
    if distance is None:
        raise SceneError(
            f"--match-gsd needs a scene with a CRS, so that its pixels have a size; {info.path} has none."
        )
    width = max(1, round(grid.width * distance[0] / wanted))
    height = max(1, round(grid.height * distance[1] / wanted))
    if (width, height) == (grid.width, grid.height):
        return None
    scaled = grid.transform @ Affine.scale(grid.width / width, grid.height / height)
    _LOG.info("--match-gsd: reading the scene as %d x %d px of %.3g m", width, height, wanted)
    return MapGrid(width, height, scaled, grid.crs)


def _warn_of_mismatch(grid: MapGrid, card: Card) -> None:
    size = pixel_size(grid)
    told, wanted = mismatch(card, size), matched_size(card, size)
    if told is not None:
        # Larger pixels have lost what a model for smaller ones looks for: reading them finer brings nothing back.
        finer = size is not None and wanted is not None and size < wanted
        way = (
            f"; --match-gsd reads the scene at {wanted:.3g} m" if finer else "; train a model on such scenes"
        )
        _LOG.warning("%s%s.", told, way)


def _region(grid: MapGrid, bounds: Bounds | None, aoi: Path | None) -> tuple[Rect, Area | None]:
    whole = Rect(0, 0, grid.width, grid.height)
    if grid.gcps and (bounds or aoi):
        raise UsageError(
            "--bounds and --aoi need a scene with a transform; this one has ground control points, warp it first."
        )
    region = whole if bounds is None else pixels_within(bounds, grid.transform, grid.width, grid.height)
    if aoi is None:
        return region, None
    from iic_geotools.vectors import read_aoi  # brings pandas along where that is installed

    area = Area.of(read_aoi(aoi, grid.crs, grid.extent), grid.transform)
    region = region.intersection(area.rect(grid.width, grid.height))
    if region.empty:
        raise SceneError("The area of interest and the bounds do not meet.")
    return region, area
