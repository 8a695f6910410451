"""Features of the tiles of a view, kept so that a click costs only a fit and its application."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from iic_geotools.classmap.classes import NODATA
from iic_geotools.geobox import GeoBox
from iic_geotools.tiling import Rect
from iic_runtime.naming.clicks import View
from iic_runtime.naming.teacher import Fit, Teacher
from iic_runtime.studio.tiles import TILE, KeptValues, TileAddress

MOST_LEVEL = 2
"""The coarsest level at which views are computed: beyond it, a view of a screen takes tens of megapixels."""
MOST_BYTES = 1 << 30
"""Bytes of features that are kept."""
BLOCK = 512
"""Side in pixels of the squares that are computed at once: smaller ones spend more on their surroundings."""
Labels = NDArray[np.uint8]


class FeatureTiles:
    """The features of tiles, at every pixel that the screen shows.

    Args:
        teacher: The model and the scene.
        most: Bytes that are kept.
    """

    def __init__(self, teacher: Teacher, most: int = MOST_BYTES) -> None:
        self._teacher = teacher
        self._kept: KeptValues[dict[TileAddress, View]] = KeptValues(most, _size)

    def label(self, address: TileAddress, fit: Fit) -> tuple[Labels, Labels]:
        """Return labels and confidence of a tile; at level 0 they are those of the finished map.

        Raises:
            UsageError: There is no such tile.
            SceneError: The scene cannot be read.
        """
        view = self.get(address)
        if address.level:
            # Pixels of the view lie apart, and so fewer of them are averaged.
            return replace(fit, smoothing=fit.smoothing >> address.level).label(view)
        labels, confidence = fit.label(view)
        place = address.rect(self._teacher.grid).relative_to(view.rect).slices
        return labels[place], confidence[place]

    def get(self, address: TileAddress) -> View:
        """Return the features of a tile, at level 0 with a margin that smoothing needs."""
        address.rect(self._teacher.grid)
        # At full resolution four tiles share one block.
        share = BLOCK // TILE if address.level == 0 else 1
        key = TileAddress(address.level, address.column // share * share, address.row // share * share)
        compute = self._look_at_block if share > 1 else self._look_at_tile
        return self._kept.get(key, lambda: compute(key))[address]

    def _look_at_block(self, corner: TileAddress) -> dict[TileAddress, View]:
        grid = self._teacher.grid
        whole = Rect(0, 0, grid.width, grid.height)
        block = Rect(corner.column * TILE, corner.row * TILE, BLOCK, BLOCK).grow(self._teacher.smoothing)
        view = self._teacher.look(block.intersection(whole))
        views = {}
        for row in range(corner.row, corner.row + BLOCK // TILE):
            for column in range(corner.column, corner.column + BLOCK // TILE):
                tile = Rect(column * TILE, row * TILE, TILE, TILE).intersection(whole)
                if not tile.empty:
                    rect = tile.grow(self._teacher.smoothing).intersection(whole)
                    views[TileAddress(0, column, row)] = cut(view, rect.relative_to(view.rect).slices, rect)
        return views

    def _look_at_tile(self, address: TileAddress) -> dict[TileAddress, View]:
        rect, step = address.rect(self._teacher.grid), address.step
        every = slice(None, None, step), slice(None, None, step)
        rows = []
        for row in range(rect.row, rect.bottom, BLOCK):
            blocks = [Rect(column, row, BLOCK, BLOCK) for column in range(rect.col, rect.right, BLOCK)]
            rows.append([cut(self._teacher.look(block.intersection(rect)), every, rect) for block in blocks])
        features, values, valid = (
            np.concatenate([np.concatenate(parts, -1) for parts in lines], -2)
            for lines in zip(*(zip(*map(_arrays, views), strict=True) for views in rows), strict=True)
        )
        return {address: View(rect, features, values, valid)}


def cut(view: View, place: tuple[slice, slice], rect: Rect) -> View:
    """Return a part of a view as a copy, so that the rest of it can be freed."""
    features, values, valid = (np.ascontiguousarray(array[..., *place]) for array in _arrays(view))
    return View(rect, features, values, valid)


def _arrays(view: View) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    return view.features, view.values, view.valid


def _size(views: dict[TileAddress, View]) -> int:
    return sum(array.nbytes for view in views.values() for array in _arrays(view))


Read = Callable[[Rect], tuple[Labels, Labels]]


def sample_tile(address: TileAddress, grid: GeoBox, read: Read) -> tuple[Labels, Labels]:
    """Return labels and confidence of a tile, one pixel of `step` in each direction.

    Args:
        read: Function that labels a rectangle of at most 512 pixels' side.
    """
    rect, step = address.rect(grid), address.step
    shape = -(-rect.height // step), -(-rect.width // step)
    labels, confidence = np.full(shape, NODATA, np.uint8), np.zeros(shape, np.uint8)
    for row in range(rect.row, rect.bottom, BLOCK):
        for column in range(rect.col, rect.right, BLOCK):
            block = Rect(column, row, BLOCK, BLOCK).intersection(rect)
            parts = read(block)
            top, left = (row - rect.row) // step, (column - rect.col) // step
            for whole, part in zip((labels, confidence), parts, strict=True):
                sampled = part[::step, ::step]
                whole[top : top + sampled.shape[0], left : left + sampled.shape[1]] = sampled
    return labels, confidence
