"""Rasters on another grid, through virtual rasters."""

import math
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import numpy as np
from affine import Affine
from rasterio.enums import Resampling
from rasterio.vrt import WarpedVRT

from iic_geotools.classmap.vrt import combination, virtual_band, virtual_raster, whole_source
from iic_geotools.gdal import vsi_name
from iic_geotools.geobox import GeoBox
from iic_geotools.scene.info import BandMasks, open_raster

# In pixels: an approximated transform would make pixels depend on their tile; rasterio refuses an exact 0.
TOLERANCE = 1e-9


def nearest_on(dataset: Any, grid: GeoBox, **options: Any) -> WarpedVRT:
    """An open raster on another grid: each pixel takes the value under its centre. The caller closes it."""
    return WarpedVRT(
        dataset,
        crs=grid.crs,
        transform=grid.transform,
        width=grid.width,
        height=grid.height,
        resampling=Resampling.nearest,
        tolerance=TOLERANCE,
        **options,
    )


@contextmanager
def warp_bands(
    dataset: Any, grid: GeoBox, bidx: tuple[int, ...], nodata: float | None, masks: BandMasks | None
) -> Iterator[tuple[Any, tuple[int, ...]]]:
    """Yield some bands of an open dataset on another grid of its CRS, holes kept as holes, and the bands' new numbers.

    Args:
        grid: The grid to resample to: bilinearly to pixels that are smaller along both axes, by averaging to others.
        masks: The masks of the bands, if they say where data is.
    """
    # Between pixels of other proportions, bilinear resampling would look past those whose label it decides.
    finer = all(new < old for new, old in zip(_sides(grid.transform), _sides(dataset.transform), strict=True))
    selection_text, has_alpha = _select_bands(dataset, bidx, nodata, masks)
    declared = None if has_alpha else nodata
    with open_raster(selection_text) as selection:
        warped = WarpedVRT(
            selection,
            crs=dataset.crs,
            transform=grid.transform,
            width=grid.width,
            height=grid.height,
            resampling=Resampling.bilinear if finer else Resampling.average,
            tolerance=TOLERANCE,
            src_nodata=declared,
            nodata=declared,
            # A pixel holds no data only where every band says so, as in `valid_pixels`.
            warp_extras={"UNIFIED_SRC_NODATA": "YES"},
        )
        with closing(warped):
            yield warped, tuple(range(1, len(bidx) + 1))


def _sides(transform: Affine) -> tuple[float, float]:
    """Return the lengths of the sides of a pixel."""
    return math.hypot(transform.a, transform.d), math.hypot(transform.b, transform.e)


def _select_bands(
    dataset: Any, bidx: tuple[int, ...], nodata: float | None, masks: BandMasks | None
) -> tuple[str, bool]:
    """A virtual raster, as text, of some bands, and whether an alpha band follows them that says where data is.

    GDAL's warper takes any band marked as alpha for a mask, even an infrared one, ignores real masks, looks for the
    nodata value in every band, whether it is read or not, but not at all if there is an alpha band, and averages what
    is not finite. So an alpha band holds all that `valid_pixels` knows, unless nodata is all there is to know.
    """
    grid = GeoBox(dataset.width, dataset.height, dataset.transform, dataset.crs)

    def source(band: int | str, lookup: str = "", name: str = vsi_name(dataset.name)) -> str:
        return whole_source(name, band, grid, lookup=lookup)

    dtypes = {band: dataset.dtypes[band - 1] for band in bidx}
    bands = [virtual_band(number, dtypes[band], source(band)) for number, band in enumerate(bidx, 1)]
    sources = [] if masks is None else [source(band) for band in masks.sources]
    sources += [source(band, _lookup(dtypes[band])) for band in bidx if np.dtype(dtypes[band]).kind == "f"]
    if sources and nodata is not None and not np.isnan(nodata):
        differing = [source(band, _lookup(dtypes[band], nodata)) for band in bidx]
        sources.append(source(1, name=virtual_raster(grid, combination("max", 1, differing))))
    if sources:
        bands.append(combination("min", len(bands) + 1, sources))
    return virtual_raster(grid, *bands), bool(sources)


def _lookup(dtype: str, nodata: float | None = None) -> str:
    """A table of a virtual raster that turns finite numbers other than `nodata` into 255, and all else into 0."""
    # GDAL interpolates between the entries, and takes the first and last of them beyond their ends.
    kind = np.dtype(dtype)
    largest = 1.7e308 if kind == np.float64 else 3.403e38
    entries = {-1.01 * largest: 0, -largest: 255, 0.0: 255, largest: 255, 1.01 * largest: 0}
    if nodata is not None:
        number = float(kind.type(nodata)) if kind.kind == "f" else nodata
        step = float(np.spacing(kind.type(abs(number)))) if kind.kind == "f" else 1.0
        entries |= {number - step: 255, number: 0, number + step: 255}
    table = ",".join(f"{key!r}:{value}" for key, value in sorted(entries.items()))
    return f"<LUT>nan:0,{table}</LUT>"
