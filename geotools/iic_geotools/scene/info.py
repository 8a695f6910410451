"""Metadata of a raster, before any pixel is read: bands, grid and masks."""

import math
import os
import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Literal
from warnings import catch_warnings, simplefilter

import numpy as np
import rasterio
from numpy.typing import NDArray
from rasterio.enums import MaskFlags
from rasterio.errors import NotGeoreferencedWarning, RasterioError
from rasterio.windows import Window

from iic_geotools.errors import SceneError
from iic_geotools.files import check_no_stream, is_utf8
from iic_geotools.gdal import (
    network_options,
)
from iic_geotools.geobox import GeoBox, places_pixels
from iic_geotools.scene.bands import BandNames, colour_interpretations, identify_bands
from iic_geotools.scene.radiometry import Radiometry, read_radiometry
from iic_geotools.scene.source_files import identify_sources
from iic_geotools.settings import PathLike, checked

_NAME_KEYS = ("eo:common_name", "common_name", "bandname", "band_name", "long_name", "standard_name", "name")
_LENGTH_KEYS = re.compile(r"^(?:central?_?)?wavelength(?:_um|_nm)?$|^center_wavelength$", re.IGNORECASE)
_PRODUCT_KEYS = re.compile(
    r"PRODUCT|SPACECRAFT|SATELLITE|SENSOR|PLATFORM|INSTRUMENT|IMAGEDESCRIPTION|DOCUMENTNAME|LANDSAT|(?:^|_)ID$",
    re.IGNORECASE,
)
_SHORTEST_NM = 100.0
"""Smaller numbers are wavelengths in micrometres."""
_MOST_TEXT = 2000
_XMP_WAVELENGTHS = re.compile(r"CentralWavelength(?:=\"|>)(.*?)(?:\"|</\w+:CentralWavelength>)", re.DOTALL)
_XMP_NAMES = re.compile(r"BandName(?:=\"|>)(.*?)(?:\"|</\w+:BandName>)", re.DOTALL)


MaskKind = Literal["dataset", "band", "alpha"] | None
"""What masks a band: the mask of the dataset, one of its own, an alpha band, or nothing."""


@dataclass(frozen=True)
class SceneInfo:
    """The description of a raster; bands are counted from 1.

    Attributes:
        path: Path or address of the raster, as it was given, or the text of a virtual raster.
        grid: Its pixels and their place on the ground.
        descriptions: Descriptions of the bands, as far as they have any.
        interpretations: Colour interpretations of the bands, e.g. "red" or "undefined".
        dtypes: Data types of the bands.
        nodatavals: Nodata values of the bands, as far as they have any.
        masks: What masks each of the bands, apart from nodata.
        files: The files that the raster consists of.
        block: Height and width of the blocks of the first band.
        radiometry: How it says that its values become reflectance, if it says so.
        name: What it is called, if not by its path.
        mask_given: Whether its mask is one that the user gave, which counts whatever the nodata value is.
        wavelengths: Central wavelengths of the bands in nm, as far as they are known; empty if none is.
        product: Texts that may name its product or sensor.
        driver: GDAL's name of its format.
    """

    path: str
    grid: GeoBox
    descriptions: tuple[str | None, ...]
    interpretations: tuple[str, ...]
    dtypes: tuple[str, ...]
    nodatavals: tuple[float | None, ...]
    masks: tuple[MaskKind, ...]
    files: tuple[str, ...]
    block: tuple[int, int]
    radiometry: Radiometry | None = None
    name: str = ""
    mask_given: bool = False
    wavelengths: tuple[float | None, ...] = ()
    product: str = ""
    driver: str = ""

    @property
    def title(self) -> str:
        """What messages call it."""
        return self.name or self.path

    @property
    def bands(self) -> BandNames:
        """What its bands are, by all metadata about them."""
        return identify_bands(
            self.descriptions, self.interpretations, self.wavelengths, self.product, self.driver
        )

    @property
    def nodata(self) -> float | None:
        """The nodata value of the first band."""
        return self.nodatavals[0]

    def nodata_of(self, bidx: tuple[int, ...]) -> float | None:
        """The nodata value that some bands share."""
        values = {value for band in bidx if (value := self.nodatavals[band - 1]) is not None}
        if len({"nan" if math.isnan(value) else value for value in values}) > 1:
            raise SceneError(
                f"The bands of {self.title} have different nodata values "
                f"({', '.join(f'{value:g}' for value in sorted(values))}): give the right one as `nodata`."
            )
        return values.pop() if values else None

    def dtype_of(self, bidx: tuple[int, ...]) -> str:
        """The data type that some bands share."""
        dtypes = {self.dtypes[band - 1] for band in bidx}
        if len(dtypes) > 1:
            raise SceneError(
                f"The bands of {self.title} have different types ({', '.join(sorted(dtypes))}): "
                "convert them to one type."
            )
        return dtypes.pop()

    def has_mask(self, bidx: tuple[int, ...]) -> bool:
        """Whether a mask or alpha band says where some bands hold data; an alpha band among them does not."""
        alphas = {index for index, name in enumerate(self.interpretations, 1) if name == "alpha"}
        return bool(mask_sources(self.masks, alphas, bidx))


@checked
def describe(path: PathLike, name: str = "") -> SceneInfo:
    """Describe a raster without reading its pixels."""
    path = os.fspath(path)
    title = name or path
    with open_foreign(path, name) as dataset:
        if dataset.count == 0:
            raise SceneError(
                f"{title} holds no raster band: give the name of one of its sub-datasets (see gdalinfo)."
            )
        if any(dtype.startswith("complex") for dtype in dataset.dtypes):
            raise SceneError(f"{title} holds complex numbers ({dataset.dtypes[0]}): give real-valued bands.")
        grid = GeoBox.of(dataset)
        _check_grid(title, grid)
        return SceneInfo(
            path=path,
            grid=grid,
            descriptions=read_descriptions(dataset),
            interpretations=colour_interpretations(dataset),
            dtypes=tuple(dataset.dtypes),
            nodatavals=tuple(dataset.nodatavals),
            masks=mask_kinds(dataset),
            files=tuple(dataset.files),
            block=dataset.block_shapes[0],
            radiometry=read_radiometry(dataset, title),
            name="" if name == path else name,
            wavelengths=read_wavelengths(dataset),
            product=read_product(dataset, title),
            driver=str(dataset.driver),
        )


def _check_grid(path: str, grid: GeoBox) -> None:
    """Refuse a grid without pixels, or whose pixels have no place or no size."""
    if grid.width < 1 or grid.height < 1:
        raise SceneError(f"{path} is {grid.width} x {grid.height} pixels, and has none to map.")
    if not places_pixels(grid.transform):
        numbers = tuple(grid.transform)[:6]
        raise SceneError(
            f"{path} has a transform ({', '.join(f'{number:g}' for number in numbers)}) that gives its pixels no place "
            "or no size; set the right one, or remove it, e.g. with gdal_edit.py -unsetgt."
        )


@contextmanager
def open_raster(path: str, name: str = "") -> Iterator[Any]:
    """Open a raster for reading, with errors that say what is wrong."""
    if not path.strip():
        raise SceneError("The name of the scene is empty: give the path of a raster.")
    if not is_utf8(path):
        raise SceneError(f"The name {path!r} is not valid UTF-8: rename the file.")
    check_no_stream(Path(path))
    try:
        with catch_warnings():
            # A missing georeference is reported once, by the code that plans the run.
            simplefilter("ignore", NotGeoreferencedWarning)
            dataset = rasterio.open(path)
    except (RasterioError, OSError) as error:
        if "://" not in path and not path.startswith(("/vsi", "<")) and not _exists(path):
            raise SceneError(f"There is no file {path}: check the path.") from error
        raise SceneError(f"{name or path} is not a raster that GDAL can open ({cause(error)}).") from error
    except ValueError as error:  # e.g. a null character in the name
        raise SceneError(f"{path!r} cannot be the name of a raster ({error}): check the path.") from error
    # Not `with dataset`, which ties it to this thread's GDAL environment: other threads close handles too.
    with closing(dataset):
        yield dataset


@contextmanager
def open_foreign(path: str, name: str = "", **options: Any) -> Iterator[Any]:
    """Open an untrusted raster: a local file may not access the network unless the user allows it.

    GDAL keeps to these rules in the whole block, so that no other raster is to be read there.

    Raises:
        NetworkError: A local file refers to an address.
        SceneError: The raster is missing or GDAL cannot open it.
    """
    identify_sources(path)  # refuses addresses in local files before GDAL looks at them
    with rasterio.Env(**options, **network_options(path)), open_raster(path, name) as dataset:
        yield dataset


def _exists(path: str) -> bool:
    try:
        return Path(path).exists()
    except OSError:  # a name that is too long
        return False


def cause(error: BaseException) -> str:
    """The message of rasterio or GDAL, to be quoted within a sentence."""
    return str(error.__cause__ or error).strip().rstrip(".")


def read_descriptions(dataset: Any) -> tuple[str | None, ...]:
    """The descriptions of the bands of an open raster, or else their names in tags."""
    descriptions = tuple(text or None for text in dataset.descriptions)
    if all(descriptions):
        return descriptions
    listed = _listed(dataset, "band_names", _XMP_NAMES)
    return tuple(
        text or _tag_name(dataset, band) or (listed[band - 1] if listed else None)
        for band, text in enumerate(descriptions, 1)
    )


def read_wavelengths(dataset: Any) -> tuple[float | None, ...]:
    """The central wavelengths of the bands of an open raster in nm, as far as tags state them; empty if none is."""
    listed = _listed(dataset, "wavelength", _XMP_WAVELENGTHS)
    lengths = tuple(
        _nanometres(_tag_length(dataset, band) or (listed[band - 1] if listed else ""))
        for band in range(1, int(dataset.count) + 1)
    )
    return lengths if any(lengths) else ()


def read_product(dataset: Any, path: str) -> str:
    """Texts that may name the product or sensor of an open raster: the name of its file, and tags."""
    tags = {**dataset.tags(ns="IMD"), **dataset.tags(ns="IMAGERY"), **dataset.tags()}
    texts = [value for key, value in tags.items() if _PRODUCT_KEYS.search(key)]
    # The name of a virtual raster that is text is its whole content.
    names = [] if path.lstrip().startswith("<") else list(PurePosixPath(path.partition("?")[0]).parts[-3:])
    return "\n".join(names + texts)[:_MOST_TEXT]


def _tag_name(dataset: Any, band: int) -> str | None:
    tags = {key.lower(): value for key, value in dataset.tags(band).items()}
    name = next((tags[key] for key in _NAME_KEYS if tags.get(key)), None)
    return name if name and name.isprintable() else None


def _tag_length(dataset: Any, band: int) -> str:
    tags = {**dataset.tags(band, ns="IMAGERY"), **dataset.tags(band)}
    return next((str(value) for key, value in tags.items() if _LENGTH_KEYS.match(key)), "")


def _listed(dataset: Any, key: str, xmp: re.Pattern[str]) -> list[str] | None:
    """Entries for the bands in an ENVI header or a camera's XMP; None unless there is one per band."""
    text = dataset.tags(ns="ENVI").get(key, "")
    entries = [entry.strip() for entry in text.strip("{} \n").split(",")] if text else []
    if not entries:
        match = xmp.search(dataset.tags(ns="xml:XMP").get("xml:XMP", ""))
        if match:
            items = re.findall(r"<rdf:li>(.*?)</rdf:li>", match[1]) or [match[1]]
            entries = [item.strip() for item in items]
    return entries if len(entries) == dataset.count else None


def _nanometres(text: str) -> float | None:
    match = re.search(r"\d+(?:\.\d+)?", text)
    if match is None:
        return None
    length = float(match[0])
    if not 0 < length < 1e5:
        return None
    return length * 1000 if length < _SHORTEST_NM else length


def valid_pixels(
    values: NDArray[Any], nodata: float | None, mask: NDArray[Any] | None
) -> NDArray[np.bool_] | None:
    """Which pixels hold data; None if all do.

    A pixel holds no data where every band has the nodata value, any band is not finite, or the mask is 0.
    """
    holes: NDArray[np.bool_] | None = None
    if nodata is not None and not np.isnan(nodata):
        with np.errstate(over="ignore"):  # a nodata value may lie beyond the range of the scene's type
            holes = (values == nodata).all(axis=0)
    if np.issubdtype(values.dtype, np.floating):
        not_finite = ~np.isfinite(values).all(axis=0)
        holes = not_finite if holes is None else holes | not_finite
    if mask is not None:
        holes = (mask == 0) if holes is None else holes | (mask == 0)
    return ~holes if holes is not None and holes.any() else None


def fill_holes(values: NDArray[Any], valid: NDArray[np.bool_], fill: Sequence[float]) -> None:
    """Put one value per band where there is no data, in place.

    Args:
        fill: One value per band; it is clipped to the range of the values' type.
    """
    holes = ~valid
    limits = np.iinfo(values.dtype) if np.issubdtype(values.dtype, np.integer) else None
    for band, value in zip(values, fill, strict=True):
        band[holes] = value if limits is None else min(max(value, limits.min), limits.max)


def mask_kinds(dataset: Any) -> tuple[MaskKind, ...]:
    """What masks each band of an open dataset, apart from nodata values.

    An alpha band counts for all bands, also where GDAL does not see it as their mask.
    """
    alpha = "alpha" in colour_interpretations(dataset)
    kinds: list[MaskKind] = []
    for flags in dataset.mask_flag_enums:
        if not flags:
            kinds.append("band")
        elif MaskFlags.per_dataset in flags and MaskFlags.alpha not in flags:
            kinds.append("dataset")
        else:
            kinds.append("alpha" if alpha else None)
    return tuple(kinds)


def mask_sources(
    kinds: Sequence[MaskKind], alphas: Collection[int], bidx: Sequence[int]
) -> tuple[int | str, ...]:
    """What masks some bands: numbers of alpha bands, and "mask,N" for the mask of band N, as virtual rasters write it.

    An alpha band that is read as data masks nothing; GDAL's mask of the dataset, or of a single band, always counts.

    Args:
        kinds: What masks each band of the dataset.
    """
    alpha = sorted(set(alphas) - set(bidx))[:1]
    shared = [band for band in bidx if kinds[band - 1] == "dataset"][:1]
    own = [band for band in bidx if kinds[band - 1] == "band"]
    return (*alpha, *(f"mask,{band}" for band in (*shared, *own)))


class BandMasks:
    """The masks of some bands of an open dataset.

    Attributes:
        sources: As returned by `mask_sources`.
    """

    def __init__(self, dataset: Any, bidx: tuple[int, ...]) -> None:
        names = colour_interpretations(dataset)
        alphas = [band for band, name in enumerate(names, 1) if name == "alpha"]
        self.sources = mask_sources(mask_kinds(dataset), alphas, bidx)
        self._dataset = dataset

    def read(self, window: Window) -> NDArray[Any] | None:
        """Read the masks as one: 0 where any of them says that there is no data; None if there is no mask."""
        masks = [self._read(source, window) for source in self.sources]
        return np.minimum.reduce(masks) if masks else None

    def _read(self, source: int | str, window: Window) -> NDArray[Any]:
        if isinstance(source, int):
            return np.asarray(self._dataset.read(source, window=window))
        return np.asarray(self._dataset.read_masks(int(source.partition(",")[2]), window=window))
