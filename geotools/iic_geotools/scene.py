"""A scene as a model wants it: the right bands, one dtype, and which pixels hold data.

`describe` looks at a file once; `SceneSource` says how it is to be read and can be sent to another process;
`Scene` is an open handle for one thread.
"""

import logging
import math
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast
from warnings import catch_warnings, simplefilter
from xml.sax.saxutils import escape

import numpy as np
import rasterio
from numpy.typing import NDArray
from rasterio.dtypes import _gdal_typename
from rasterio.enums import ColorInterp, MaskFlags, Resampling
from rasterio.errors import NotGeoreferencedWarning, RasterioError
from rasterio.vrt import WarpedVRT
from rasterio.windows import Window

from iic_geotools.coverage import Coverage
from iic_geotools.errors import SceneError
from iic_geotools.grid import Rect
from iic_geotools.rescale import Pair, Rescale, robust_ranges
from iic_geotools.vrt import MapGrid

_LOG = logging.getLogger(__name__)
BORDER = 0.005  # share of pixels that are 0 in every band, from which on they look like an empty border


@dataclass(frozen=True)
class SceneInfo:
    """What a look at a raster tells, before any pixel is read."""

    path: str
    grid: MapGrid
    descriptions: tuple[str | None, ...]
    interpretations: tuple[str, ...]
    dtypes: tuple[str, ...]
    nodatavals: tuple[float | None, ...]
    masked: bool
    files: tuple[str, ...]
    block: tuple[int, int]

    @property
    def nodata(self) -> float | None:
        """The first band's value for "no data"."""
        return self.nodatavals[0]

    def nodata_of(self, bidx: tuple[int, ...]) -> float | None:
        """The one value for "no data" of some bands.

        Raises:
            SceneError: they have several.
        """
        named = {value for band in bidx if (value := self.nodatavals[band - 1]) is not None}
        if len({"nan" if math.isnan(value) else value for value in named}) > 1:
            raise SceneError(
                f"The bands of {self.path} have different nodata values "
                f"({', '.join(f'{value:g}' for value in sorted(named))}); give them one, or say it with --nodata."
            )
        return named.pop() if named else None

    def dtype_of(self, bidx: tuple[int, ...]) -> str:
        """The one type of some bands' values.

        Raises:
            SceneError: they have several.
        """
        kinds = {self.dtypes[band - 1] for band in bidx}
        if len(kinds) > 1:
            raise SceneError(
                f"The bands of {self.path} are of different types ({', '.join(sorted(kinds))}); make them one."
            )
        return kinds.pop()


@dataclass(frozen=True)
class SceneSource:
    """How to read a scene: plain data, so that threads and other machines can open handles of their own.

    Attributes:
        path: anything GDAL opens.
        bidx: the bands to read, counted from 1, in the model's order.
        dtype: what the model takes.
        nodata: the value that means "no data", if one does.
        masked: whether a mask or alpha band says where data is.
        fill: one value a band that stands in for pixels without data, so that they cannot leak into others.
        rescale: how to bring the scene's values into the range the model was trained on; None = as they are.
        grid: another grid of the same CRS to read on, through a warped VRT; None = the scene's own.
    """

    path: str
    bidx: tuple[int, ...]
    dtype: str
    nodata: float | None
    masked: bool
    fill: tuple[float, ...]
    rescale: Rescale | None = None
    grid: MapGrid | None = None

    def pixels(self, values: NDArray[Any], mask: NDArray[np.uint8] | None = None) -> "Pixels":
        """Raw values of the bands and where the mask is 0 as the model takes them; `values` may be changed."""
        valid = valid_pixels(values, self.nodata, mask)
        if self.rescale is not None:
            values = self.rescale.apply(values, self.dtype)
        with np.errstate(over="ignore", invalid="ignore"):  # of holes that the model's type cannot hold
            values = np.ascontiguousarray(values, dtype=self.dtype)
        if valid is not None:
            fill_holes(values, valid, self.fill)
        return Pixels(values, valid)

    @contextmanager
    def open(self) -> Iterator["Scene"]:
        """Open a handle for the calling thread."""
        with open_raster(self.path) as dataset:
            coverage = Coverage(dataset, self.bidx, self.nodata, self.masked)
            if self.grid is None:
                yield Scene(self, dataset, self.bidx, coverage)
            else:
                with _regridded(dataset, self) as warped:
                    bidx = tuple(range(1, len(self.bidx) + 1))
                    yield Scene(self, warped, bidx, coverage.scaled(dataset.shape, warped.shape))


@dataclass(frozen=True)
class Pixels:
    """What was read: `values` [bands, H, W] and `valid` [H, W]; None where every pixel holds data."""

    values: NDArray[Any]
    valid: NDArray[np.bool_] | None


class Scene:
    """An open scene; not for use by two threads at once."""

    def __init__(self, source: SceneSource, dataset: Any, bidx: tuple[int, ...], coverage: Coverage) -> None:
        self.source = source
        self._dataset = dataset
        self._bidx = bidx
        self._coverage = coverage

    def may_hold_data(self, rect: Rect) -> bool:
        """False where the file itself says that nothing is stored there; True tells nothing."""
        return self._coverage.touches(rect)

    def read(self, rect: Rect) -> Pixels:
        """Read a rectangle. A read that fails raises: no pixel is ever silently blank."""
        window = Window(rect.col, rect.row, rect.width, rect.height)
        source = self.source
        try:
            values = self._dataset.read(self._bidx, window=window)
            mask = self._read_mask(window) if source.masked else None
        except (RasterioError, OSError) as error:
            raise SceneError(
                f"Cannot read rows {rect.row}-{rect.bottom - 1}, columns {rect.col}-{rect.right - 1} of "
                f"{source.path} ({_cause(error)}); check that the file is whole and readable."
            ) from error
        return source.pixels(values, mask)

    def _read_mask(self, window: Window) -> NDArray[np.uint8]:
        # GDAL takes an alpha band for a mask only behind one or three others.
        alpha = _alpha_bands(self._dataset) - set(self._bidx)
        mask = (
            self._dataset.read(min(alpha), window=window)
            if alpha
            else self._dataset.read_masks(1, window=window)
        )
        return np.asarray(mask)


def value_ranges(source: SceneSource, info: SceneInfo) -> tuple[Pair, ...]:
    """The 2nd and 98th percentile of each band that is read, over the whole scene at its own resolution.

    Warns of what looks like an empty border that nothing declares to be one: it would count as the darkest data.
    """
    kind = info.dtype_of(source.bidx)
    raw = replace(source, dtype=kind, fill=(0.0,) * len(source.bidx), rescale=None, grid=None)
    empty = seen = 0
    with raw.open() as scene:

        def look(rect: Rect) -> tuple[NDArray[Any], NDArray[np.bool_] | None]:
            nonlocal empty, seen
            if not scene.may_hold_data(rect):
                return np.empty((len(raw.bidx), 0, 0), kind), None
            pixels = scene.read(rect)
            empty, seen = empty + int((pixels.values == 0).all(0).sum()), seen + rect.area
            return pixels.values, pixels.valid

        found = robust_ranges(look, info.grid.width, info.grid.height)
    if source.nodata is None and not source.masked and empty > BORDER * seen:
        _LOG.warning(
            "%.1f %% of %s is 0 in every band and counts as data; if it is an empty border, give --nodata 0.",
            100 * empty / seen,
            info.path,
        )
    return found


def valid_pixels(
    values: NDArray[Any], nodata: float | None, mask: NDArray[np.uint8] | None
) -> NDArray[np.bool_] | None:
    """Which pixels hold data; None if all do.

    A pixel is without data where every band has the nodata value, any band is not a number, or the mask is 0.
    """
    holes: NDArray[np.bool_] | None = None
    if nodata is not None and not np.isnan(nodata):
        with np.errstate(over="ignore"):  # a nodata value may be beyond the scene's own type
            holes = (values == nodata).all(axis=0)
    if np.issubdtype(values.dtype, np.floating):
        unreal = ~np.isfinite(values).all(axis=0)
        holes = unreal if holes is None else holes | unreal
    if mask is not None:
        holes = (mask == 0) if holes is None else holes | (mask == 0)
    return ~holes if holes is not None and holes.any() else None


def fill_holes(values: NDArray[Any], valid: NDArray[np.bool_], fill: Sequence[float]) -> None:
    """Put one value a band, as near to it as the type allows, where there is no data."""
    holes = ~valid
    limits = np.iinfo(values.dtype) if np.issubdtype(values.dtype, np.integer) else None
    for band, value in zip(values, fill, strict=True):
        band[holes] = value if limits is None else min(max(value, limits.min), limits.max)


@contextmanager
def open_raster(path: str) -> Iterator[Any]:
    """Open a raster for reading with errors that say what is wrong."""
    try:
        with catch_warnings():
            # A scene without georeferencing is told about once, by whoever plans the run.
            simplefilter("ignore", NotGeoreferencedWarning)
            dataset = rasterio.open(path)
    except (RasterioError, OSError) as error:
        if "://" not in path and not path.startswith("/vsi") and not Path(path).exists():
            raise SceneError(f"There is no file {path}; check the path.") from error
        raise SceneError(f"{path} is not a raster that GDAL can open ({_cause(error)}).") from error
    # Not `with dataset`, which ties it to this thread's GDAL environment: handles are closed by other threads too.
    with closing(dataset):
        yield dataset


def describe(path: str) -> SceneInfo:
    """Look at a raster.

    Raises:
        SceneError: it is missing, is not a raster, or holds values no model takes.
    """
    with open_raster(path) as dataset:
        if dataset.count == 0:
            raise SceneError(
                f"{path} holds no raster band; name one of its sub-datasets instead (see gdalinfo)."
            )
        if any(dtype.startswith("complex") for dtype in dataset.dtypes):
            raise SceneError(
                f"{path} holds complex numbers ({dataset.dtypes[0]}); give real-valued bands instead."
            )
        return SceneInfo(
            path=path,
            grid=MapGrid.of(dataset),
            descriptions=tuple(dataset.descriptions),
            interpretations=tuple(_interpretation(dataset, band) for band in range(1, dataset.count + 1)),
            dtypes=tuple(dataset.dtypes),
            nodatavals=tuple(dataset.nodatavals),
            masked=MaskFlags.per_dataset in dataset.mask_flag_enums[0] or bool(_alpha_bands(dataset)),
            files=tuple(dataset.files),
            block=dataset.block_shapes[0],
        )


def has_mask(info: SceneInfo, bidx: tuple[int, ...]) -> bool:
    """Whether a mask or alpha band says where data is; an alpha band read as infrared does not."""
    alphas = {index for index, name in enumerate(info.interpretations, 1) if name == "alpha"}
    return info.masked and not (alphas and alphas <= set(bidx))


def _alpha_bands(dataset: Any) -> set[int]:
    return {index for index, kind in enumerate(dataset.colorinterp, 1) if kind == ColorInterp.alpha}


def _interpretation(dataset: Any, band: int) -> str:
    try:
        return str(ColorInterp(dataset.colorinterp[band - 1]).name)
    except ValueError:
        return "undefined"


@contextmanager
def _regridded(dataset: Any, source: SceneSource) -> Iterator[Any]:
    """The wanted bands of the scene on another grid, its holes kept as holes."""
    grid = cast(MapGrid, source.grid)
    finer = abs(grid.transform.determinant) < abs(dataset.transform.determinant)
    with open_raster(_wanted_bands(dataset, source)) as wanted:
        warped = WarpedVRT(
            wanted,
            crs=dataset.crs,
            transform=grid.transform,
            width=grid.width,
            height=grid.height,
            resampling=Resampling.bilinear if finer else Resampling.average,
            # An approximated transform would make pixels depend on their tile; rasterio refuses an exact 0.
            tolerance=1e-9,
            src_nodata=source.nodata,
            nodata=source.nodata,
            # No data is where every band says so, as in `valid_pixels`.
            warp_extras={"UNIFIED_SRC_NODATA": "YES"},
        )
        with closing(warped):
            yield warped


def _wanted_bands(dataset: Any, source: SceneSource) -> str:
    """A virtual raster, as text, of the bands that are read, and what masks them as alpha.

    The warper honours any band that is marked as alpha, be it infrared, and no mask; the nodata value it looks
    for in every band, wanted or not.
    """
    whole = f'xOff="0" yOff="0" xSize="{dataset.width}" ySize="{dataset.height}"'

    def band(number: int, origin: int | str, kind: str, colour: str) -> str:
        return (
            f'<VRTRasterBand dataType="{kind}" band="{number}"><ColorInterp>{colour}</ColorInterp><SimpleSource>'
            f"<SourceFilename>{escape(dataset.name)}</SourceFilename><SourceBand>{origin}</SourceBand>"
            f"<SrcRect {whole}/><DstRect {whole}/></SimpleSource></VRTRasterBand>"
        )

    bands = [
        band(number, origin, _gdal_typename(dataset.dtypes[origin - 1]), "Undefined")
        for number, origin in enumerate(source.bidx, 1)
    ]
    if source.masked:
        alphas = _alpha_bands(dataset) - set(source.bidx)
        mask: int | str = min(alphas) if alphas else "mask,1"
        kind = _gdal_typename(dataset.dtypes[mask - 1]) if isinstance(mask, int) else "Byte"
        bands.append(band(len(bands) + 1, mask, kind, "Alpha"))
    placed = ", ".join(repr(float(number)) for number in dataset.transform.to_gdal())
    return (
        f'<VRTDataset rasterXSize="{dataset.width}" rasterYSize="{dataset.height}">'
        f"<SRS>{escape(dataset.crs.to_wkt())}</SRS><GeoTransform>{placed}</GeoTransform>{''.join(bands)}</VRTDataset>"
    )


def _cause(error: BaseException) -> str:
    return str(error.__cause__ or error).strip().rstrip(".")
