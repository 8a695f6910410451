"""Where a sparse file stores nothing at all, so that nothing has to be read to know it."""

from typing import Any
from xml.etree import ElementTree

import numpy as np

from iic_geotools.grid import Rect

_PLAIN_BANDS = (None, "VRTSourcedRasterBand")


class Coverage:
    """Asks a dataset which rectangles may hold data.

    Understands VRT mosaics (the rectangles of their sources) and sparse GeoTIFFs (blocks that were never
    written), where a hole is known to read as "no data"; anything else may hold data everywhere.
    """

    def __init__(self, dataset: Any, bidx: tuple[int, ...], nodata: float | None, masked: bool) -> None:
        self._dataset = dataset
        self._bidx = bidx
        self._scale = (1.0, 1.0)
        self._margin = 0
        holes_are_nodata = (
            not masked and nodata is not None and all(dataset.nodatavals[band - 1] == nodata for band in bidx)
        )
        self._sources = _vrt_sources(dataset, bidx) if holes_are_nodata and dataset.driver == "VRT" else None
        self._blocks = holes_are_nodata and dataset.driver == "GTiff"

    def scaled(self, own: tuple[int, int], other: tuple[int, int]) -> "Coverage":
        """The same coverage asked in pixels of a resampled grid, with room for the resampling's reach."""
        self._scale = (own[1] / other[1], own[0] / other[0])
        self._margin = 4 + int(2 * max(self._scale))
        return self

    def touches(self, rect: Rect) -> bool:
        """Whether `rect` may hold data."""
        if self._sources is None and not self._blocks:
            return True
        rect = self._to_own(rect)
        if self._sources is not None:
            left, top, right, bottom = self._sources
            return bool(
                ((left < rect.right) & (right > rect.col) & (top < rect.bottom) & (bottom > rect.row)).any()
            )
        return any(self._block_is_stored(band, rect) for band in self._bidx)

    def _to_own(self, rect: Rect) -> Rect:
        if self._scale == (1.0, 1.0):
            return rect
        x, y = self._scale
        col, row = int(rect.col * x) - self._margin, int(rect.row * y) - self._margin
        right, bottom = int(rect.right * x) + self._margin, int(rect.bottom * y) + self._margin
        return Rect(col, row, right - col, bottom - row).intersection(
            Rect(0, 0, self._dataset.width, self._dataset.height)
        )

    def _block_is_stored(self, band: int, rect: Rect) -> bool:
        height, width = self._dataset.block_shapes[band - 1]
        return any(
            self._dataset.get_tag_item(f"BLOCK_OFFSET_{column}_{row}", "TIFF", band) is not None
            for row in range(rect.row // height, -(-rect.bottom // height))
            for column in range(rect.col // width, -(-rect.right // width))
        )


def _vrt_sources(dataset: Any, bidx: tuple[int, ...]) -> tuple[np.ndarray[Any, Any], ...] | None:
    """Left, top, right and bottom of every source of the bands; None where they cannot be told."""
    root = ElementTree.fromstring(dataset.tags(ns="xml:VRT")["xml:VRT"])
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
            place = source.find("DstRect")
            if place is None:
                return None
            rects.append([float(place.get(key, "nan")) for key in ("xOff", "yOff", "xSize", "ySize")])
    if not rects or np.isnan(rects).any():
        return None
    left, top, width, height = np.array(rects).T
    return left, top, left + width, top + height
