"""Arrays with coordinates to maps with coordinates: `segment` for rioxarray, at once or lazily with Dask."""

import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from iic_geotools.classmap import NODATA
from iic_geotools.errors import MissingPackageError, SceneError
from iic_geotools.grid import Grid, Rect, Tile
from iic_geotools.rescale import Pair, robust_ranges
from iic_geotools.scene import SceneInfo, SceneSource
from iic_geotools.vrt import MapGrid
from iic_runtime.card import Card
from iic_runtime.choosing import Models
from iic_runtime.engines import Device, Labels
from iic_runtime.modelfile import ModelFile
from iic_runtime.opened import Opening, keep_open, opened
from iic_runtime.pipeline import confidence_layer
from iic_runtime.planning import choose_rescale
from iic_runtime.resolution import mismatch, pixel_size
from iic_runtime.scenebands import scene_bands
from iic_runtime.segmenter import Segmenter

try:
    import rioxarray
    import xarray as xr
except ImportError as error:
    raise MissingPackageError("xarray is not installed: pip install 'iic-edge[xarray]'.") from error

_LOG = logging.getLogger(__name__)
PathLike = str | os.PathLike[str]
# The engine uses every core by itself: two chunks at once would only take twice the memory.
_running = Lock()


def segment(
    da: xr.DataArray,
    model: PathLike | Segmenter | None = None,
    *,
    bands: Sequence[str] | None = None,
    nodata: float | None = None,
    rescale: str | None = None,
    confidence: bool = False,
    device: Device = "auto",
    tile: int | None = None,
    batch: int | None = None,
    threads: int | None = None,
    max_memory: int | None = None,
) -> xr.DataArray | xr.Dataset:
    """Label an image; the labels are the same for any chunks, and those of `segment_raster`.

    Args:
        da: an image with a band and two spatial dimensions that rioxarray knows. If it is chunked the result is lazy,
            in the same chunks; chunks smaller than the model's reach are fine.
        model: a model file or the name of a bundled model; by default the one in the environment's `IIC_MODEL`, else
            the bundled one made for the array's ground resolution. Or a Segmenter, which has its own tile, batch and
            so on.
        bands: the image's bands for the model's, in the model's order, by name or number counted from 1; by default
            matched by name with `long_name` or the coordinates of the band dimension.
        nodata: the value for "no data", over what the array says. Pixels that are not finite never hold data.
        rescale: "MIN,MAX" or "auto", each band's own 2nd and 98th percentile: the values that become the ends of the
            model's range; "off": values as they are; by default as the model's card says. "auto" looks at samples of a
            lazy array at once.
        confidence: also give 255 x the probability of each label (254 at most; 255 = no data).
        device: "auto", "cpu", "cuda" or "tensorrt".
        tile: side in pixels of what is labelled at once.
        batch: tiles run at once.
        threads: of the engine.
        max_memory: bytes; tile and batch are chosen to stay below.

    Returns:
        Labels [y, x], uint8, 255 = no data, with the image's coordinates and CRS, and the classes in `attrs`:
        `flag_values` and `flag_meanings` as CF has them, `categories` and `colours` as lists. With `confidence` a
        dataset of `labels` and `confidence`.

    Raises:
        IICError: the array cannot be labelled; the message says why, and what to do.
    """
    models = Models(model, device=device, threads=threads, tile=tile, batch=batch, max_memory=max_memory)
    image = _image(da)
    info = _info(image)
    segmenter = models.fitting(info)
    if told := mismatch(segmenter.card, pixel_size(info.grid)):
        _LOG.warning("%s.", told)
    opening = Opening.of(segmenter, threads)
    keep_open(segmenter, opening)
    source = _source(image, info, segmenter.card, bands, nodata, rescale)
    labelling = _Labelling(source, opening, confidence)
    planes = _planes(image, segmenter, labelling)
    labels = _georeferenced(planes[0], image, "labels").assign_attrs(_classes(segmenter))
    if not confidence:
        return labels
    return xr.Dataset({"labels": labels, "confidence": _georeferenced(planes[1], image, "confidence")})


@dataclass(frozen=True)
class _Labelling:
    """What is done to every block; plain data for other processes."""

    source: SceneSource
    opening: Opening
    confidence: bool

    def __call__(self, values: NDArray[Any], core: tuple[slice, slice], model: ModelFile) -> Labels:
        """Layers [1 or 2, H, W] of the `core` of a block of all bands."""
        chosen = np.array(values[[band - 1 for band in self.source.bidx]])
        pixels = self.source.pixels(chosen)
        with _running:
            segmenter = opened(model.digest, self.opening, lambda: model)
            result = segmenter(pixels.values, pixels.valid, rescale="off")
        layers = (result.labels, confidence_layer(result)) if self.confidence else (result.labels,)
        return np.stack([layer[core] for layer in layers])


def _planes(image: xr.DataArray, segmenter: Segmenter, labelling: _Labelling) -> Any:
    """The layers of the whole image; lazy, block by block, if it is."""
    height, width = image.shape[1:]
    if image.chunks is None:
        return labelling(image.values, (slice(None), slice(None)), segmenter.model)
    import dask.array
    from dask.delayed import delayed

    model = delayed(segmenter.model, name=f"iic-model-{segmenter.model.digest}", traverse=False)
    label = delayed(labelling, pure=True)
    layers = 2 if labelling.confidence else 1

    def block(row: int, col: int, height_: int, width_: int) -> Any:
        tile = _surrounded(Rect(col, row, width_, height_), width, height, segmenter)
        pixels = image.data[:, *tile.read.slices]
        made = label(pixels, tile.crop, model)
        return dask.array.from_delayed(made, (layers, height_, width_), np.uint8)

    _, heights, widths = image.chunks
    rows = [[block(row, col, tall, wide) for col, wide in _starts(widths)] for row, tall in _starts(heights)]
    return dask.array.block(rows)


def _starts(lengths: Sequence[int]) -> Iterator[tuple[int, int]]:
    start = 0
    for length in lengths:
        yield start, length
        start += length


def _surrounded(core: Rect, width: int, height: int, segmenter: Segmenter) -> Tile:
    """The core with all that decides about it, its origin where the model's stride needs it."""
    card = segmenter.card
    side = max(core.width, core.height)
    return Grid(width, height, side, card.halo, card.stride, region=core).at(0, 0)


def _image(da: xr.DataArray) -> xr.DataArray:
    """The array as [band, y, x]."""
    try:
        y, x = da.rio.y_dim, da.rio.x_dim
    except rioxarray.exceptions.MissingSpatialDimensionError as error:
        raise SceneError(f"The array has no spatial dimensions ({error}); name them x and y.") from error
    others = [dim for dim in da.dims if dim not in (y, x)]
    if len(others) > 1:
        raise SceneError(
            f"The array has the dimensions {', '.join(map(str, da.dims))}; choose one image, e.g. da.isel(time=0)."
        )
    return da.transpose(*others, y, x) if others else da.expand_dims("band")


def _source(
    image: xr.DataArray,
    info: SceneInfo,
    card: Card,
    bands: Sequence[str] | None,
    nodata: float | None,
    rescale: str | None,
) -> SceneSource:
    bidx = scene_bands(info, card, bands)
    source = SceneSource(
        path=info.path,
        bidx=bidx,
        dtype=card.dtype,
        nodata=info.nodata_of(bidx) if nodata is None else nodata,
        masked=False,
        fill=card.offset,
    )

    raw = replace(source, dtype=info.dtype_of(bidx), fill=(0.0,) * len(bidx))

    def look(rect: Rect) -> tuple[NDArray[Any], NDArray[np.bool_] | None]:
        values = np.array(image.data[:, *rect.slices])[[band - 1 for band in bidx]]
        pixels = raw.pixels(values)
        return pixels.values, pixels.valid

    def ranges() -> tuple[Pair, ...]:
        return robust_ranges(look, info.grid.width, info.grid.height)

    return replace(source, rescale=choose_rescale(info, bidx, card, rescale, ranges))


def _info(image: xr.DataArray) -> SceneInfo:
    """The array described as a file is."""
    count, height, width = image.shape
    # rioxarray turns integers into floats to mark holes with NaN, and remembers what they were.
    kind = np.dtype(image.encoding.get("rasterio_dtype") or image.encoding.get("dtype") or image.dtype)
    dtype = kind if np.issubdtype(image.dtype, np.floating) else image.dtype
    return SceneInfo(
        path=str(image.name or "The array"),
        grid=MapGrid(width, height, image.rio.transform(), image.rio.crs),
        descriptions=_band_names(image, count),
        interpretations=("undefined",) * count,
        dtypes=(str(dtype),) * count,
        nodatavals=(image.rio.nodata,) * count,
        masked=False,
        files=(),
        block=(height, width),
    )


def _band_names(image: xr.DataArray, count: int) -> tuple[str | None, ...]:
    names = image.attrs.get("long_name")
    if isinstance(names, str):
        names = [names]
    if names is None or len(names) != count:
        dimension = image.dims[0]
        names = image.coords[dimension].values if dimension in image.coords else []
    texts = [name if isinstance(name, str) else None for name in names]
    return tuple(texts) if texts else (None,) * count


def _georeferenced(plane: Any, image: xr.DataArray, name: str) -> xr.DataArray:
    spatial = image.dims[1:]
    kept = {
        key: coordinate for key, coordinate in image.coords.items() if image.dims[0] not in coordinate.dims
    }
    result = xr.DataArray(plane, kept, spatial, name)
    if image.rio.crs is not None:
        result = result.rio.write_crs(image.rio.crs)
    marked: xr.DataArray = result.rio.write_nodata(NODATA)
    return marked


def _classes(segmenter: Segmenter) -> dict[str, Any]:
    classes = segmenter.card.classes
    return {
        "flag_values": np.arange(len(classes), dtype=np.uint8),
        "flag_meanings": " ".join("_".join(each.name.split()) for each in classes),
        "categories": [each.name for each in classes],
        "colours": [each.colour for each in classes],
        "model": segmenter.card.name,
        "model_sha256": segmenter.model.digest,
    }
