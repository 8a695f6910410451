"""`segment` for xarray: arrays with coordinates to maps with coordinates, at once or lazily with Dask."""

from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from iic_geotools.classmap.classes import NODATA
from iic_geotools.errors import MissingPackageError, SceneError
from iic_geotools.geobox import GeoBox, places_pixels
from iic_geotools.scene.info import SceneInfo
from iic_geotools.scene.radiometry import make_radiometry, sample_values
from iic_geotools.scene.scene import SceneSource
from iic_geotools.settings import PathLike, setting, takes
from iic_geotools.tiling import Rect, Tile, TileGrid
from iic_runtime.engine.base import EngineSpec, LabelArray
from iic_runtime.model.card import Card
from iic_runtime.model.file import ModelFile
from iic_runtime.options import EngineSettings, PixelSettings
from iic_runtime.raster.model_input import choose_bands, choose_rescale, describe_input, warn_about_misfit
from iic_runtime.raster.stages import confidence_layer
from iic_runtime.segmenter import Segmenter, SegmenterPool, get_segmenter, keep_segmenter

try:
    import rioxarray
    import xarray as xr
except ImportError as error:
    raise MissingPackageError.for_extra("rioxarray", "xarray") from error

# The engine uses every core by itself; two chunks at once would only take twice the memory.
_running = Lock()


@dataclass(frozen=True)
class SegmentArrayArguments(PixelSettings, EngineSettings):
    """Arguments of `segment`."""

    da: xr.DataArray
    model: PathLike | Segmenter | None = None
    _: KW_ONLY
    confidence: bool = setting(
        False, "Whether to return 255 x the probability of each label, too (254 at most; 255 is nodata)."
    )


@takes(SegmentArrayArguments)
def segment(arguments: SegmentArrayArguments) -> xr.DataArray | xr.Dataset:
    """Label an image; the labels are those of `segment_raster` with `match_gsd=False`, whatever the chunks.

    An array is labelled as it is. By default `segment_raster` reads a scene that is finer than what the model is made
    for at the model's resolution, and its map is another one then; a warning says to resample such an array first.

    Bands are matched by name with `long_name` or the coordinates of the band dimension, reflectance by the attributes
    `scale_factor` and `add_offset`; pixels that are not finite never count as data. With `rescale="auto"`, samples of a
    lazy array are read at once.

    Args:
        da: An image with a band dimension and two spatial dimensions that rioxarray knows. If it is chunked, the
            result is lazy and has the same chunks, which may be smaller than the model's halo.
        model: A model file or the name of a bundled model; by default the one that the environment variable
            `IIC_MODEL` names, or else the bundled one made for the array's ground resolution. Or a Segmenter, which
            has its own device, tile, batch, threads and memory.

    Returns:
        Labels [y, x], uint8, 255 for nodata, with the image's coordinates and CRS, and the classes in `attrs`:
        `flag_values` and `flag_meanings` as in the CF conventions, `categories` and `colours` as lists. With
        `confidence`, a dataset of `labels` and `confidence`.

    Raises:
        IICError: The array cannot be labelled; the message says why, and what to do.
    """
    confidence = arguments.confidence
    pool = SegmenterPool(arguments.model, arguments.part(EngineSettings))
    image = _as_image(arguments.da)
    info = _describe(image)
    segmenter = pool.for_scene(info)
    cure = "resample it to {:.3g} m first, e.g. with da.rio.reproject"
    warn_about_misfit(info.grid, segmenter.card, cure)
    keep_segmenter(segmenter)
    reading = _choose_reading(image, info, segmenter.card, arguments)
    label = _LabelBlock(reading, segmenter.spec, confidence)
    planes = _label_image(image, segmenter, label)
    labels = _georeference(planes[0], image, "labels").assign_attrs(_describe_classes(segmenter))
    if not confidence:
        return labels
    return xr.Dataset({"labels": labels, "confidence": _georeference(planes[1], image, "confidence")})


@dataclass(frozen=True)
class _LabelBlock:
    """Labels a block of the image; plain data, so that it can be sent to other processes."""

    reading: SceneSource
    spec: EngineSpec
    confidence: bool

    def __call__(self, values: NDArray[Any], core: tuple[slice, slice], model: ModelFile) -> LabelArray:
        """Return the layers [1 or 2, H, W] of the `core` of a block, given the values of all its bands."""
        pixels = self.reading.pixels(np.array(values[[band - 1 for band in self.reading.bidx]]))
        with _running:
            segmenter = get_segmenter(model.digest, self.spec, lambda: model)
            result = segmenter.label_pixels(pixels)
        layers = (result.labels, confidence_layer(result)) if self.confidence else (result.labels,)
        return np.stack([layer[core] for layer in layers])


def _label_image(image: xr.DataArray, segmenter: Segmenter, label: _LabelBlock) -> Any:
    """Return the layers of the whole image; lazily, block by block, if the image is lazy."""
    image_height, image_width = image.shape[1:]
    if image.chunks is None:
        return label(image.values, (slice(None), slice(None)), segmenter.model)
    import dask.array
    from dask.delayed import delayed

    model = delayed(segmenter.model, name=f"iic-model-{segmenter.model.digest}", traverse=False)
    delayed_label = delayed(label, pure=True)
    layers = 2 if label.confidence else 1

    def block(row: int, col: int, height: int, width: int) -> Any:
        tile = _add_context(Rect(col, row, width, height), image_width, image_height, segmenter.card)
        result = delayed_label(image.data[:, *tile.read.slices], tile.crop, model)
        return dask.array.from_delayed(result, (layers, height, width), np.uint8)

    _, heights, widths = image.chunks
    rows = [
        [block(row, col, height, width) for col, width in _starts(widths)] for row, height in _starts(heights)
    ]
    return dask.array.block(rows)


def _starts(lengths: Sequence[int]) -> Iterator[tuple[int, int]]:
    start = 0
    for length in lengths:
        yield start, length
        start += length


def _add_context(core: Rect, width: int, height: int, card: Card) -> Tile:
    """Return the tile of a core, with all pixels that decide about it, from an origin that the stride allows."""
    side = max(core.width, core.height)
    return TileGrid(width, height, side, card.halo, card.stride, region=core).at(0, 0)


def _as_image(da: xr.DataArray) -> xr.DataArray:
    """Return the array as [band, y, x]."""
    if not isinstance(da, xr.DataArray) or da.dtype.kind not in "uif" or not da.size:
        what = f"{da.dtype} of shape {da.shape}" if isinstance(da, xr.DataArray) else type(da).__name__
        raise SceneError(f"Only DataArrays with pixels that are real numbers can be labelled, not {what}.")
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


def _choose_reading(image: xr.DataArray, info: SceneInfo, card: Card, settings: PixelSettings) -> SceneSource:
    def sample(per_side: int) -> NDArray[Any]:
        def read_all(rect: Rect) -> tuple[NDArray[Any], None]:
            return np.array(image.data[:, *rect.slices]), None

        return sample_values(read_all, info.grid.width, info.grid.height, skip_empty=True, per_side=per_side)

    chosen = choose_bands(info, card, settings.bands, sample)
    bidx = tuple(chosen.values())
    source = SceneSource.of(
        info,
        bidx,
        card.dtype,
        settings.nodata,
        fill=card.fill_for(chosen),
        optional=card.optional_bands(chosen),
    )
    raw = SceneSource.of(info, bidx, nodata=settings.nodata)

    def read(rect: Rect) -> tuple[NDArray[Any], NDArray[np.bool_] | None]:
        values = np.array(image.data[:, *rect.slices])[[band - 1 for band in bidx]]
        pixels = raw.pixels(values)
        return pixels.values, pixels.valid

    def measure(skip_empty: bool) -> NDArray[Any]:
        return sample_values(read, info.grid.width, info.grid.height, skip_empty=skip_empty)

    function = choose_rescale(
        card, describe_input(info, chosen, measure), settings.rescale, settings.reflectance
    )
    return replace(source, rescale=function)


def _grid(image: xr.DataArray) -> GeoBox:
    """Return the pixels of an image and their place, by its coordinates."""
    _, height, width = image.shape
    try:
        transform = image.rio.transform()
    except (rioxarray.exceptions.RioXarrayError, ValueError, TypeError, ArithmeticError) as error:
        raise SceneError(f"The coordinates of the array do not place its pixels ({error}).") from error
    if not places_pixels(transform):
        raise SceneError(
            "The coordinates of the array do not place its pixels: give x and y finite, even steps."
        )
    return GeoBox(width, height, transform, image.rio.crs)


def _describe(image: xr.DataArray) -> SceneInfo:
    """Describe an array as a file is described."""
    count, height, width = image.shape
    grid = _grid(image)
    return SceneInfo(
        path=str(image.name or "The array"),
        grid=grid,
        descriptions=_band_names(image, count),
        interpretations=("undefined",) * count,
        dtypes=(str(_value_type(image)),) * count,
        nodatavals=(image.rio.nodata,) * count,
        masks=(None,) * count,
        files=(),
        block=(height, width),
        radiometry=make_radiometry(
            [image.attrs.get("scale_factor")] * count,
            [image.attrs.get("add_offset")] * count,
            "its attributes scale_factor and add_offset",
        ),
    )


def _value_type(image: xr.DataArray) -> np.dtype[Any]:
    """Return the data type of the values: that of the file, as long as they are those of the file."""
    encoding = image.encoding
    # Only decoding by scale and offset puts these here, and what it has made are other numbers than the file's.
    scaled = encoding.get("scale_factor") not in (None, 1) or encoding.get("add_offset") not in (None, 0)
    if scaled or not np.issubdtype(image.dtype, np.floating):
        return image.dtype
    # rioxarray turns integers into floats to mark pixels without data as NaN, and keeps the original type here.
    return np.dtype(encoding.get("rasterio_dtype") or encoding.get("dtype") or image.dtype)


def _band_names(image: xr.DataArray, count: int) -> tuple[str | None, ...]:
    names = image.attrs.get("long_name")
    if isinstance(names, str):
        names = [names]
    if names is None or len(names) != count:
        dimension = image.dims[0]
        names = image.coords[dimension].values if dimension in image.coords else []
    texts = [name if isinstance(name, str) else None for name in names]
    return tuple(texts) if texts else (None,) * count


def _georeference(plane: Any, image: xr.DataArray, name: str) -> xr.DataArray:
    spatial = image.dims[1:]
    kept = {
        key: coordinate for key, coordinate in image.coords.items() if image.dims[0] not in coordinate.dims
    }
    result = xr.DataArray(plane, kept, spatial, name)
    if image.rio.crs is not None:
        result = result.rio.write_crs(image.rio.crs)
    with_nodata: xr.DataArray = result.rio.write_nodata(NODATA)
    return with_nodata


def _describe_classes(segmenter: Segmenter) -> dict[str, Any]:
    classes = segmenter.card.classes
    return {
        "flag_values": np.arange(len(classes), dtype=np.uint8),
        "flag_meanings": " ".join("_".join(map_class.name.split()) for map_class in classes),
        "categories": [map_class.name for map_class in classes],
        "colours": [map_class.colour for map_class in classes],
        "model": segmenter.card.name,
        "model_sha256": segmenter.model.digest,
    }
