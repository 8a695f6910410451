"""How much ground each class covers in each polygon of a file: the function behind `iic-map stats`."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from iic_geotools.classmap.class_map import ClassMap, open_map
from iic_geotools.classmap.classes import NODATA
from iic_geotools.errors import UsageError
from iic_geotools.files import check_absent, check_apart, check_folder, check_name, check_suffix
from iic_geotools.geobox import AreaMethod
from iic_geotools.options import PartialPixels
from iic_geotools.packages import shapely
from iic_geotools.products.areas import ZONE_SUFFIXES, PixelAreas
from iic_geotools.products.covered_shares import Polygons, covered_centres, covered_shares
from iic_geotools.products.zone_files import (
    BORDERS,
    COVERED,
    NODATA_HA,
    Zones,
    check_areas,
    read_zones,
    write_zones,
)
from iic_geotools.progress import OnProgress, Progress, silent
from iic_geotools.settings import PathLike
from iic_geotools.tiling import Rect, TileGrid

"""How pixels on the border of a polygon count: by the share that lies inside, or whole if their centre does."""
_TILE = 1024
_COVERED = {"share": covered_shares, "centre": covered_centres}


@dataclass(frozen=True, eq=False)
class ZoneAreas:
    """Areas of the classes in each polygon.

    Attributes:
        names: Names of the classes.
        fids: Numbers of the polygons in their file `[Z]`.
        hectares: Area of each class in each polygon `[Z, K]`.
        nodata_ha: Area of pixels without data in each polygon `[Z]`.
        covered: Share of each polygon that lies on pixels with data `[Z]`.
        method: How areas were measured.
        partial_pixels: How pixels on the border of a polygon count.
    """

    names: tuple[str, ...]
    fids: NDArray[np.int64]
    hectares: NDArray[np.float64]
    nodata_ha: NDArray[np.float64]
    covered: NDArray[np.float64]
    method: AreaMethod
    partial_pixels: PartialPixels

    @property
    def description(self) -> str:
        """How areas were measured and pixels counted, in a few words."""
        return f"{self.method}, {BORDERS} {self.partial_pixels}"


def zone_statistics(
    map: PathLike,
    zones: PathLike,
    out: PathLike,
    *,
    partial_pixels: PartialPixels = "share",
    overwrite: bool = False,
    progress: OnProgress = silent,
) -> ZoneAreas:
    """Measure how much ground each class of a map covers in each polygon of a file.

    The map is read window by window, and only where polygons lie. Polygons may overlap; each is measured by itself.

    Args:
        map: The map.
        zones: Polygons in a vector file, in any CRS.
        out: The file to write, .csv or .gpkg: a row per polygon with its fields and the hectares of each class.
        partial_pixels: "share" counts a pixel on the border of a polygon by the share of it that lies inside; "centre"
            counts it whole if its centre lies inside.
        overwrite: Whether to replace a file that exists.
        progress: Called with reports of how far the work is.

    Raises:
        IICError: Something is wrong; the message says what, and what to do. No file is written.
    """
    target = Path(out)
    check_name(target)
    check_suffix(target, ZONE_SUFFIXES, "out")
    if partial_pixels not in get_args(PartialPixels):
        raise UsageError(
            f"`partial_pixels` must be {' or '.join(get_args(PartialPixels))}, not {partial_pixels}."
        )
    check_apart([target], [Path(map), Path(zones)])
    check_folder(target)
    if not overwrite:
        check_absent(target)
    return measure_zones(
        Path(map), Path(zones), target, target.stem, partial_pixels=partial_pixels, progress=progress
    )


def measure_zones(
    map: Path,
    zones: Path,
    out: Path,
    layer: str,
    *,
    partial_pixels: PartialPixels = "share",
    progress: OnProgress = silent,
) -> ZoneAreas:
    """Do the work of `zone_statistics`, whatever stands under the name of the file.

    Args:
        map: The map.
        zones: The polygons.
        out: The file to write.
        layer: Name of the layer of a GeoPackage.
        partial_pixels: As in `zone_statistics`.
        progress: Called with reports of how far the work is.

    Raises:
        IICError: Something is wrong; the message says what, and what to do. No file is written.
    """
    with open_map(map) as class_map:
        check_areas(class_map.grid)
        places = read_zones(zones, class_map.grid)
        areas = _measure(class_map, places, partial_pixels, progress)
    columns = {f"{name}_ha": areas.hectares[:, index] for index, name in enumerate(areas.names)}
    columns |= {NODATA_HA: areas.nodata_ha, COVERED: areas.covered}
    write_zones(out, places, columns, areas.description, layer)
    return areas


def _measure(
    class_map: ClassMap, zones: Zones, partial_pixels: PartialPixels, progress: OnProgress
) -> ZoneAreas:
    count = len(class_map.classes)
    totals = np.zeros((len(zones), count + 1))
    on_data = np.zeros(len(zones))
    measure = PixelAreas(class_map.grid)
    covered = _COVERED[partial_pixels]
    for rect, pieces, owners in _windows(class_map, zones, progress):
        values = class_map.read(rect)
        columns = np.where(values == NODATA, count, values)
        areas = np.broadcast_to(measure.of(rect), values.shape)
        for owner, own in _group(pieces, owners):
            part = _bounding_rect(own).intersection(rect)
            if part.empty:
                continue
            inside = part.relative_to(rect).slices
            shares = covered(own, part)
            weights = (shares * areas[inside]).ravel()
            totals[owner] += np.bincount(columns[inside].ravel(), weights, count + 1)
            on_data[owner] += float(shares[values[inside] != NODATA].sum())
    # Of maps of other programs, which do not name their classes, only those that occur are listed.
    listed = np.arange(count) if class_map.has_names else np.flatnonzero(totals[:, :count].any(0))
    share = np.divide(on_data, zones.pixels, out=np.zeros_like(on_data), where=zones.pixels > 0)
    return ZoneAreas(
        tuple(class_map.names[index] for index in listed),
        zones.shapes.numbers,
        totals[:, listed] / 10_000,
        totals[:, count] / 10_000,
        np.clip(share, 0.0, 1.0),
        measure.method,
        partial_pixels,
    )


def _windows(
    class_map: ClassMap, zones: Zones, progress: OnProgress
) -> Iterator[tuple[Rect, Polygons, NDArray[np.int64]]]:
    """Windows of the map that polygons touch, with these polygons and the zone that each belongs to."""
    grid = class_map.grid
    region = _bounding_rect(zones.pieces).intersection(Rect(0, 0, grid.width, grid.height))
    tiles = TileGrid(grid.width, grid.height, _TILE, halo=0, stride=1, region=region)
    tree = shapely.STRtree(zones.pieces)
    for done, tile in enumerate(tiles):
        progress(Progress("measure", done, len(tiles)))
        core = tile.core
        near = np.sort(tree.query(shapely.box(core.col, core.row, core.right, core.bottom)))
        if len(near):
            yield core, zones.pieces[near], zones.owners[near]
    progress(Progress("measure", len(tiles), len(tiles)))


def _group(pieces: Polygons, owners: NDArray[np.int64]) -> Iterator[tuple[int, Polygons]]:
    """The pieces of each zone; pieces of one zone follow one another."""
    starts = np.flatnonzero(np.append(True, owners[1:] != owners[:-1]))
    for start, stop in zip(starts, [*starts[1:], len(owners)], strict=True):
        yield int(owners[start]), pieces[start:stop]


def _bounding_rect(pieces: Polygons) -> Rect:
    """The pixels that the bounding box of polygons touches."""
    bounds = shapely.total_bounds(pieces).tolist()
    # Far beyond any raster, but not beyond what an integer holds.
    left, top, right, bottom = (min(max(number, -1e15), 1e15) for number in bounds)
    column, row = math.floor(left), math.floor(top)
    return Rect(column, row, math.ceil(right) - column, math.ceil(bottom) - row)
