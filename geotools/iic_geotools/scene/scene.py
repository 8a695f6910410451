"""A scene as a model takes it: the right bands, one data type, and which pixels hold data.

`SceneSource` says how a scene is read and can be sent to another process; `Scene` is an open handle for one thread.
Where a sparse file stores nothing at all, nothing has to be read to know it (`Coverage`).
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, Self
from xml.etree import ElementTree

import numpy as np
from numpy.typing import NDArray
from rasterio.errors import RasterioError
from rasterio.windows import Window

from iic_geotools.errors import SceneError, assume
from iic_geotools.geobox import GeoBox
from iic_geotools.scene.bands import OptionalBand, mark_missing
from iic_geotools.scene.info import BandMasks, SceneInfo, cause, fill_holes, open_raster, valid_pixels
from iic_geotools.scene.radiometry import WINDOWS_PER_SIDE, Rescale, sample_values
from iic_geotools.scene.warp import warp_bands
from iic_geotools.tiling import Rect
from iic_geotools.work import interruptible

_PLAIN_BANDS = (None, "VRTSourcedRasterBand")

_LOG = logging.getLogger(__name__)
BORDER = 0.005
"""If a larger share of pixels is 0 in every band, they look like an empty border."""
COLLAR, CORNER = 0.02, 32
"""Share of zeros from which they are an empty border, if a corner of the scene of so many pixels a side is one."""
WHITE = 255.0
LOOKED_AT = 4
"""Bands by which undeclared nodata is recognised."""
HOLES = (-9999.0, -32768.0, -32767.0, -99999.0, -3.4028234663852886e38, -3.4e38, -1e20)
"""Values that writers put where there is no data, and that no sensor measures."""


@dataclass(frozen=True, eq=False)
class Coverage:
    """Which rectangles of an open dataset may hold data.

    VRT mosaics are known by the rectangles of their sources and sparse GeoTIFFs by the blocks that were never
    written, if a hole is known to read as nodata; anything else may hold data everywhere.

    Attributes:
        dataset: The open dataset.
        bidx: The bands that are read, counted from 1.
        sources: Left, top, right and bottom of the sources of a VRT, if these are all that holds data.
        blocks: Whether the file can be asked which blocks are stored.
        scale: Pixels of the dataset per pixel of the rectangles asked about, horizontally and vertically.
        margin: Pixels of the dataset by which rectangles grow, for the reach of resampling.
    """

    dataset: Any
    bidx: tuple[int, ...]
    sources: tuple[np.ndarray[Any, Any], ...] | None
    blocks: bool
    scale: tuple[float, float] = (1.0, 1.0)
    margin: int = 0

    @classmethod
    def of(cls, dataset: Any, bidx: tuple[int, ...], nodata: float | None, masked: bool) -> Self:
        """The coverage of some bands of an open dataset.

        Args:
            nodata: The value that is taken for nodata.
            masked: Whether a mask or alpha band says where data is.
        """
        holes_are_nodata = (
            not masked and nodata is not None and all(dataset.nodatavals[band - 1] == nodata for band in bidx)
        )
        sources = _vrt_sources(dataset, bidx) if holes_are_nodata and dataset.driver == "VRT" else None
        return cls(dataset, bidx, sources, blocks=holes_are_nodata and dataset.driver == "GTiff")

    def scaled(self, shape: tuple[int, int]) -> "Coverage":
        """The same coverage for rectangles on a resampled grid of this height and width."""
        scale = (self.dataset.width / shape[1], self.dataset.height / shape[0])
        return replace(self, scale=scale, margin=4 + int(2 * max(scale)))

    def touches(self, rect: Rect) -> bool:
        """Whether `rect` may hold data."""
        if self.sources is None and not self.blocks:
            return True
        rect = self._in_dataset(rect)
        if self.sources is not None:
            left, top, right, bottom = self.sources
            return bool(
                ((left < rect.right) & (right > rect.col) & (top < rect.bottom) & (bottom > rect.row)).any()
            )
        return any(self._is_stored(band, rect) for band in self.bidx)

    def _in_dataset(self, rect: Rect) -> Rect:
        if self.scale == (1.0, 1.0):
            return rect
        x, y = self.scale
        col, row = int(rect.col * x) - self.margin, int(rect.row * y) - self.margin
        right, bottom = int(rect.right * x) + self.margin, int(rect.bottom * y) + self.margin
        whole = Rect(0, 0, self.dataset.width, self.dataset.height)
        return Rect(col, row, right - col, bottom - row).intersection(whole)

    def _is_stored(self, band: int, rect: Rect) -> bool:
        """Whether any block that `rect` touches is in the file."""
        height, width = self.dataset.block_shapes[band - 1]
        return any(
            self.dataset.get_tag_item(f"BLOCK_OFFSET_{column}_{row}", "TIFF", band) is not None
            for row in range(rect.row // height, -(-rect.bottom // height))
            for column in range(rect.col // width, -(-rect.right // width))
        )


def _vrt_sources(dataset: Any, bidx: tuple[int, ...]) -> tuple[np.ndarray[Any, Any], ...] | None:
    """Left, top, right and bottom of every source of the bands; None if they cannot be known."""
    try:
        root = ElementTree.fromstring(dataset.tags(ns="xml:VRT")["xml:VRT"])
    except (
        ElementTree.ParseError
    ):  # e.g. a control character in the name of a source, which GDAL does not mind
        return None
    if root.get("subClass") is not None:
        return None
    rects = []
    for band in root.findall("VRTRasterBand"):
        if int(band.get("band", 0)) not in bidx:
            continue
        if band.get("subClass") not in _PLAIN_BANDS:
            return None
        for source in band:
            if not source.tag.endswith("Source"):
                continue
            target = source.find("DstRect")
            if target is None:
                return None
            rects.append([float(target.get(key, "nan")) for key in ("xOff", "yOff", "xSize", "ySize")])
    if not rects or np.isnan(rects).any():
        return None
    left, top, width, height = np.array(rects).T
    return left, top, left + width, top + height


@dataclass(frozen=True)
class Pixels:
    """Pixels as a model takes them.

    Attributes:
        values: Values [bands, H, W].
        valid: Which pixels [H, W] hold data; None if all do.
    """

    values: NDArray[Any]
    valid: NDArray[np.bool_] | None


@dataclass(frozen=True)
class SceneSource:
    """How to read a scene: plain data, so that threads and other machines can open handles of their own.

    Attributes:
        path: Path or address of the scene; anything GDAL opens.
        bidx: The bands to read, counted from 1, in the model's order.
        dtype: The data type that the model takes.
        nodata: The nodata value, if there is one.
        masked: Whether a mask or alpha band says where data is.
        fill: One value per band of the model that stands in for pixels without data, so that they cannot leak into
            others.
        rescale: How to bring the values into the range that the model was trained on; None leaves them as they are.
        grid: Another grid in the same CRS to read on, through a warped VRT; None for the scene's own.
        name: What messages call the scene, if not by its path.
        optional: The bands that the model can do without; those that the scene lacks are not among `bidx`.
        notes: What was understood and assumed about the scene, in sentences.
    """

    path: str
    bidx: tuple[int, ...]
    dtype: str
    nodata: float | None
    masked: bool
    fill: tuple[float, ...]
    rescale: Rescale | None = None
    grid: GeoBox | None = None
    name: str = ""
    optional: tuple[OptionalBand, ...] = ()
    notes: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        info: SceneInfo,
        bidx: tuple[int, ...],
        dtype: str | None = None,
        nodata: float | None = None,
        **about: Any,
    ) -> Self:
        """How some bands of a scene are read.

        Args:
            dtype: The data type of the model; by default that of the bands.
            nodata: The nodata value, instead of what the file declares; then only a mask that the user gave counts.
        """
        return cls(
            info.path,
            bidx,
            dtype or info.dtype_of(bidx),
            info.nodata_of(bidx) if nodata is None else nodata,
            info.has_mask(bidx) and (nodata is None or info.mask_given),
            **{"fill": (0.0,) * len(bidx), "name": info.name, **about},
        )

    @property
    def positions(self) -> tuple[int, ...]:
        """The positions of the bands that are read among those of the model, counted from 0."""
        absent = {band.position for band in self.optional if band.absent}
        return tuple(position for position in range(len(self.fill)) if position not in absent)

    def pixels(self, values: NDArray[Any], mask: NDArray[Any] | None = None) -> Pixels:
        """Turn raw values into pixels as the model takes them.

        Args:
            values: Raw values of the bands [bands, H, W]; they may be changed.
            mask: Mask or alpha band [H, W], 0 where there is no data.
        """
        valid = valid_pixels(values, self.nodata, mask)
        if self.rescale is not None:
            values = self.rescale.apply(values, self.dtype)
        with np.errstate(over="ignore", invalid="ignore"):  # holes may not fit into the model's type
            values = np.ascontiguousarray(values, dtype=self.dtype)
        values = mark_missing(values, self.optional)
        if valid is not None:
            fill_holes(values, valid, self.fill)
        return Pixels(values, valid)

    @contextmanager
    def open(self) -> Iterator["Scene"]:
        """Open a handle for the calling thread."""
        with open_raster(self.path, self.name) as dataset:
            coverage = Coverage.of(dataset, self.bidx, self.nodata, self.masked)
            masks = BandMasks(dataset, self.bidx) if self.masked else None
            if self.grid is None:
                yield Scene(self, dataset, self.bidx, masks, coverage)
                return
            virtual = warp_bands(dataset, self.grid, self.bidx, self.nodata, masks)
            with virtual as (warped, bidx):
                yield Scene(self, warped, bidx, BandMasks(warped, bidx), coverage.scaled(warped.shape))


class Scene:
    """An open scene; not for use by two threads at once."""

    def __init__(
        self,
        source: SceneSource,
        dataset: Any,
        bidx: tuple[int, ...],
        masks: BandMasks | None,
        coverage: Coverage,
    ) -> None:
        self.source = source
        self._dataset = dataset
        self._bidx = bidx
        self._masks = masks
        self._coverage = coverage

    def may_hold_data(self, rect: Rect) -> bool:
        """False if the file itself says that nothing is stored there; True if there may be data."""
        return self._coverage.touches(rect)

    def read(self, rect: Rect) -> Pixels:
        """Read a rectangle.

        Raises:
            SceneError: The pixels cannot be read; they are never silently blank.
        """
        window = Window(rect.col, rect.row, rect.width, rect.height)
        source = self.source
        try:
            values = self._dataset.read(self._bidx, window=window)
            mask = None if self._masks is None else self._masks.read(window)
        except (RasterioError, OSError) as error:
            raise SceneError(
                f"Cannot read rows {rect.row}-{rect.bottom - 1}, columns {rect.col}-{rect.right - 1} of "
                f"{source.name or source.path} ({cause(error)}): check that the file is whole and readable."
            ) from error
        if values.shape[1:] != (rect.height, rect.width):
            raise SceneError(
                f"{source.name or source.path} has become smaller since it was opened; start again with the new file."
            )
        return source.pixels(values, mask)


def assume_nodata(info: SceneInfo) -> float | None:
    """Return the nodata value of a scene that declares none but clearly has one, and warn of it; None if it has none.

    These are -9999 and its like in all bands at once, and an empty border, black or in 8 bits white.
    """
    alphas = info.interpretations
    bidx = tuple(number for number, kind in enumerate(alphas, 1) if kind != "alpha")[:LOOKED_AT]
    if not bidx or info.has_mask(bidx) or any(value is not None for value in info.nodatavals):
        return None
    if len({info.dtypes[band - 1] for band in bidx}) > 1:
        return None
    dtype = np.dtype(info.dtype_of(bidx))
    source = SceneSource.of(info, bidx)
    signed = np.issubdtype(dtype, np.floating) or np.issubdtype(dtype, np.signedinteger)
    collar = None if signed else _corner_value(source, info)
    if not signed and collar is None:
        return None
    values, blank = _sample(source, info, skip_empty=False)
    for value in HOLES if signed else ():
        share = float((values == value).all(0).mean()) if values.size else 0.0
        if share > 0:
            return _assume_nodata(info, value, share)
    if collar:
        blank = float((values == collar).all(0).mean())
    elif signed and blank > COLLAR:
        collar = _corner_value(source, info)
    return None if collar is None or blank <= COLLAR else _assume_nodata(info, collar, blank)


def _assume_nodata(info: SceneInfo, value: float, share: float) -> float:
    assume(
        f"{100 * share:.1f} % of {info.title} is {value:g} in every band: taken as nodata, which the file does not "
        "declare. Override with `nodata`, e.g. nan for none."
    )
    return value


@interruptible
def _corner_value(source: SceneSource, info: SceneInfo) -> float | None:
    """Return the value of every band in a whole corner of the scene: 0, or in 8 bits 255; None if there is none."""
    width, height = info.grid.width, info.grid.height
    side = min(CORNER, width, height)
    with source.open() as scene:
        for col, row in product((0, width - side), (0, height - side)):
            values = scene.read(Rect(col, row, side, side)).values
            for blank in (0.0, WHITE) if values.dtype == np.uint8 and len(values) > 1 else (0.0,):
                if values.size and (values == blank).all():
                    return blank
    return None


def value_sample(
    source: SceneSource, info: SceneInfo, *, skip_empty: bool = False, per_side: int = WINDOWS_PER_SIDE
) -> NDArray[Any]:
    """Values [bands, N] of the bands that are read, of pixels spread over the whole scene at its own resolution.

    Warns of what looks like an empty border that is not declared as nodata: it would count as the darkest data.

    Args:
        skip_empty: Whether pixels that are 0 in every band are left out, even if they count as data.
        per_side: Number of windows along each side of a large scene.
    """
    values, blank = _sample(source, info, skip_empty, per_side)
    if source.nodata is None and not source.masked and blank > BORDER:
        _LOG.warning(
            "%.1f %% of %s is 0 in every band and counts as data; if it is an empty border, give `nodata` 0.",
            100 * blank,
            info.title,
        )
    return values


@interruptible
def _sample(
    source: SceneSource, info: SceneInfo, skip_empty: bool, per_side: int = WINDOWS_PER_SIDE
) -> tuple[NDArray[Any], float]:
    """Values as in `value_sample`, and the share of pixels that are 0 in every band."""
    dtype = info.dtype_of(source.bidx)
    raw = replace(source, dtype=dtype, fill=(0.0,) * len(source.bidx), rescale=None, grid=None, optional=())
    zeros = total = 0
    with raw.open() as scene:

        def read(rect: Rect) -> tuple[NDArray[Any], NDArray[np.bool_] | None]:
            nonlocal zeros, total
            if not scene.may_hold_data(rect):
                return np.empty((len(raw.bidx), 0, 0), dtype), None
            pixels = scene.read(rect)
            blank = (pixels.values == 0).all(0)
            if pixels.valid is not None:
                blank &= pixels.valid
            zeros, total = zeros + int(blank.sum()), total + rect.area
            return pixels.values, pixels.valid

        values = sample_values(
            read, info.grid.width, info.grid.height, skip_empty=skip_empty, per_side=per_side
        )
    return values, zeros / total if total else 0.0
