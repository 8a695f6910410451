"""Where a sparse file stores nothing at all, so that nothing has to be read to know it."""

from dataclasses import dataclass, replace
from typing import Any, Self
from xml.etree import ElementTree

import numpy as np

from iic_geotools.tiling import Rect

_PLAIN_BANDS = (None, "VRTSourcedRasterBand")


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
            dataset: The open dataset.
            bidx: The bands that are read, counted from 1.
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
