"""Which pixels hold data, and what stands in for those that do not."""

from collections.abc import Collection, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from rasterio.enums import MaskFlags
from rasterio.windows import Window

from iic_geotools.scene.bands import colour_interpretations

MaskKind = Literal["dataset", "band", "alpha"] | None
"""What masks a band: the mask of the dataset, one of its own, an alpha band, or nothing."""


def valid_pixels(
    values: NDArray[Any], nodata: float | None, mask: NDArray[Any] | None
) -> NDArray[np.bool_] | None:
    """Which pixels hold data; None if all do.

    A pixel holds no data where every band has the nodata value, any band is not finite, or the mask is 0.

    Args:
        values: Raw values [bands, H, W].
        nodata: The nodata value, if there is one.
        mask: Mask or alpha band [H, W], if there is one.
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
        values: Values [bands, H, W].
        valid: Which pixels [H, W] hold data.
        fill: One value per band; it is clipped to the range of the values' type.
    """
    holes = ~valid
    limits = np.iinfo(values.dtype) if np.issubdtype(values.dtype, np.integer) else None
    for band, value in zip(values, fill, strict=True):
        band[holes] = value if limits is None else min(max(value, limits.min), limits.max)


def mask_kinds(dataset: Any) -> tuple[MaskKind, ...]:
    """What says where each band of an open dataset holds data, apart from nodata values.

    An alpha band counts for all bands, also where GDAL does not see it as their mask.
    """
    alpha = "alpha" in colour_interpretations(dataset)
    return tuple(_mask_kind(set(flags), alpha) for flags in dataset.mask_flag_enums)


def _mask_kind(flags: set[MaskFlags], alpha: bool) -> MaskKind:
    if not flags:
        return "band"
    if MaskFlags.per_dataset in flags and MaskFlags.alpha not in flags:
        return "dataset"
    return "alpha" if alpha else None


def mask_sources(
    kinds: Sequence[MaskKind], alphas: Collection[int], bidx: Sequence[int]
) -> tuple[int | str, ...]:
    """What masks some bands: numbers of alpha bands, and "mask,N" for the mask of band N, as virtual rasters write it.

    An alpha band that is read as data masks nothing; GDAL's mask of the dataset, or of a single band, always counts.

    Args:
        kinds: What masks each band of the dataset.
        alphas: The alpha bands of the dataset.
        bidx: The bands that are read, counted from 1.
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
