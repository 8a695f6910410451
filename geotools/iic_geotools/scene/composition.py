"""Scenes that are composed of bands of several rasters, and scenes under a mask, as virtual rasters.

The virtual raster is text that GDAL opens like a file: it travels with the plan of a run, and the files behind it are
followed like those of any other. Rasters of one size and place are read as they are; others are brought onto the grid
of the finest, bilinearly and block by block, so that a pixel does not depend on the tile that it is read in.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import rasterio

from iic_geotools.classmap.vrt import combination, virtual_band, virtual_raster, whole_source, xml_text
from iic_geotools.errors import SceneError, assume
from iic_geotools.gdal import absolute_name, network_options
from iic_geotools.geobox import GeoBox
from iic_geotools.scene.info import BandMasks, SceneInfo, describe, open_raster
from iic_geotools.scene.placement import SAME_PLACE, can_lie_on, reach_beyond, same_pixels
from iic_geotools.scene.radiometry import Radiometry
from iic_geotools.scene.valuemask import ValueMask
from iic_geotools.scene.warp import warp_bands

FEW_COLOURS = 40
"""A palette of no more colours may be the legend of a map."""


@dataclass(frozen=True)
class RasterBand:
    """A band of a raster.

    Attributes:
        raster: What is known about the raster.
        number: Number of the band, counted from 1.
        name: What the band is called in a scene that it is a part of.
        nodata: Its nodata value, if it has one.
    """

    raster: SceneInfo
    number: int
    name: str | None
    nodata: float | None


@dataclass(frozen=True)
class _Layer:
    """A band of a composed scene as XML: where its pixels come from, and what masks them."""

    band: RasterBand
    source: str
    masks: tuple[str, ...]


def bands_of(info: SceneInfo) -> tuple[RasterBand, ...]:
    """All bands of a raster."""
    return tuple(
        RasterBand(info, number, name, nodata)
        for number, (name, nodata) in enumerate(zip(info.descriptions, info.nodatavals, strict=True), 1)
    )


def apply_mask(info: SceneInfo, mask: ValueMask) -> SceneInfo:
    """Mask a scene: pixels that the mask excludes are nodata.

    Raises:
        SceneError: The mask cannot be opened, or does not cover the scene.
        UsageError: The mask cannot hold one of its values.
    """
    return replace(compose(info.title, bands_of(info), mask), radiometry=info.radiometry)


def compose(name: str, bands: Sequence[RasterBand], mask: ValueMask | None = None) -> SceneInfo:
    """A scene of bands of one or more rasters, on the grid of the finest, under a mask if one is given.

    Args:
        mask: Where the scene holds no data.

    Raises:
        SceneError: A band does not lie on the others, or the mask cannot be opened or does not cover the scene.
        UsageError: The mask cannot hold one of its values.
    """
    finest = min((band.raster for band in bands), key=lambda raster: abs(raster.grid.transform.determinant))
    grid = finest.grid
    extra = () if mask is None else (mask.on_grid(grid, name),)
    layers = [layer for group in _by_raster(bands) for layer in _layers(group, bands, grid, name)]
    masks = {layer.masks + extra for layer in layers}
    shared = masks.pop() if len(masks) == 1 else None
    content = [
        _write_band(number, layer, () if shared is not None else layer.masks + extra, finest.block)
        for number, layer in enumerate(layers, 1)
    ]
    info = describe(virtual_raster(grid, *content, _write_mask(shared or ())), name)
    return replace(info, grid=grid, radiometry=_radiometry(bands), mask_given=mask is not None)


def expand_palette(info: SceneInfo) -> SceneInfo:
    """The picture that a paletted image shows, as a scene of red, green and blue."""
    grid, name = info.grid, absolute_name(info.path)
    bands = [
        virtual_band(
            number,
            "uint8",
            whole_source(name, 1, grid, lookup=f"<ColorTableComponent>{number}</ColorTableComponent>"),
            colour=colour,
            attributes=f' blockXSize="{info.block[1]}" blockYSize="{info.block[0]}"',
        )
        for number, colour in enumerate(("red", "green", "blue"), 1)
    ]
    masked = info.has_mask((1,)) or info.nodatavals[0] is not None
    mask = _write_mask([whole_source(name, "mask,1", grid)] if masked else [])
    with rasterio.Env(**network_options(info.path)), open_raster(info.path, info.title) as dataset:
        colours = len(set(dataset.colormap(1).values()))
    few = "" if colours > FEW_COLOURS else f" They are only {colours}, as those of a map: it may be no image."
    assume(f"{info.title} is a paletted image: its colours are taken as red, green and blue.{few}")
    return replace(describe(virtual_raster(grid, *bands, mask), info.title), grid=grid)


def _by_raster(bands: Sequence[RasterBand]) -> Iterator[tuple[RasterBand, ...]]:
    """Successive bands of one raster and nodata value."""
    return (
        tuple(group) for _, group in groupby(bands, key=lambda band: (band.raster.path, repr(band.nodata)))
    )


def _layers(
    group: Sequence[RasterBand], bands: Sequence[RasterBand], grid: GeoBox, scene: str
) -> Iterator[_Layer]:
    """Bands of one raster as bands of a scene."""
    raster = group[0].raster
    if same_pixels(raster.grid, grid):
        composed = {band.number for band in bands if band.raster.path == raster.path}
        for band in group:
            yield _layer(band, absolute_name(raster.path), band.number, _own_masks(band, composed), grid)
    else:
        _check_place(raster, grid, scene)
        name, masks = _warp(raster, tuple(band.number for band in group), group[0].nodata, grid)
        for number, band in enumerate(group, 1):
            yield _layer(band, name, number, masks, grid)


def _layer(band: RasterBand, name: str, number: int, masks: Sequence[int | str], grid: GeoBox) -> _Layer:
    source = whole_source(name, number, grid)
    return _Layer(band, source, tuple(whole_source(name, mask, grid) for mask in masks))


def _own_masks(band: RasterBand, composed: Collection[int]) -> tuple[int | str, ...]:
    """What masks a band of a raster; an alpha band that is itself part of the scene needs no mention."""
    masks, kind = band.raster.masks, band.raster.masks[band.number - 1]
    colours = enumerate(band.raster.interpretations, 1)
    alphas = [number for number, colour in colours if colour == "alpha" and number not in composed]
    if kind == "dataset":
        return (*alphas[:1], f"mask,{masks.index('dataset') + 1}")
    return (*alphas[:1], f"mask,{band.number}") if kind == "band" else tuple(alphas[:1])


def _warp(
    raster: SceneInfo, bidx: tuple[int, ...], nodata: float | None, grid: GeoBox
) -> tuple[str, tuple[int | str, ...]]:
    """Bands of a raster on another grid, as the text of a virtual raster, and what masks them there."""
    with (
        rasterio.Env(**network_options(raster.path)),
        open_raster(absolute_name(raster.path)) as dataset,
        warp_bands(dataset, grid, bidx, nodata, BandMasks(dataset, bidx)) as (warped, numbers),
    ):
        return str(warped.tags(ns="xml:VRT")["xml:VRT"]), BandMasks(warped, numbers).sources


def _check_place(raster: SceneInfo, grid: GeoBox, scene: str) -> None:
    """Refuse a raster that cannot be brought onto a grid, or would leave a part of it blank."""
    if not can_lie_on(raster.grid, grid):
        raise SceneError(
            f"The bands of {scene} have different sizes, and not all of them have a CRS and a transform by which "
            "they could be aligned; give bands of one size."
        )
    if raster.grid.crs != grid.crs:
        raise SceneError(
            f"The bands of {scene} have different CRSs, and that of {raster.title} is not that of the finest; give "
            "bands of one CRS."
        )
    if reach_beyond(raster.grid, grid) > SAME_PLACE:
        raise SceneError(
            f"The bands of {scene} lie in different places, and {raster.title} does not cover the finest of them; give "
            "bands of one extent."
        )


def _write_band(number: int, layer: _Layer, masks: Sequence[str], block: tuple[int, int]) -> str:
    band = layer.band
    raster = band.raster
    pieces = [
        "" if band.name is None else f"<Description>{xml_text(band.name)}</Description>",
        "" if band.nodata is None else f"<NoDataValue>{band.nodata!r}</NoDataValue>",
        layer.source,
        _write_mask(masks),
    ]
    return virtual_band(
        number,
        raster.dtypes[band.number - 1],
        "".join(pieces),
        colour=raster.interpretations[band.number - 1],
        attributes=f' blockXSize="{block[1]}" blockYSize="{block[0]}"',
    )


def _write_mask(sources: Sequence[str]) -> str:
    """A mask that is 0 where any of its sources is; nothing without a source."""
    if not sources:
        return ""
    # GDAL's functions are slower than a plain band.
    several = combination("min", None, sources, colour="undefined")
    return f"<MaskBand>{several if len(sources) > 1 else virtual_band(None, 'uint8', sources[0])}</MaskBand>"


def _radiometry(bands: Sequence[RasterBand]) -> Radiometry | None:
    """What the rasters say about reflectance, if all of them say something."""
    said = [
        None if band.raster.radiometry is None else band.raster.radiometry.of_bands([band.number])
        for band in bands
    ]
    known = [radiometry for radiometry in said if radiometry is not None]
    if len(known) < len(bands):
        return None
    return Radiometry(
        tuple(radiometry.scales[0] for radiometry in known),
        tuple(radiometry.offsets[0] for radiometry in known),
        known[0].source,
    )
