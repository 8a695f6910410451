"""What a model sees of the tiles of a view, kept so that a click costs only a fit and its application."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from iic_geotools.classmap.classes import NODATA
from iic_geotools.geobox import GeoBox
from iic_geotools.tiling import Rect
from iic_runtime.naming import SMOOTHING
from iic_runtime.studio.teacher import Lesson, Teacher, View
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

    def label(self, address: TileAddress, lesson: Lesson) -> tuple[Labels, Labels]:
        """Return labels and confidence of a tile; at level 0 they are those of the finished map.

        Raises:
            UsageError: There is no such tile.
            SceneError: The scene cannot be read.
        """
        view = self.get(address)
        labels, confidence = lesson.label(view)
        inner = address.rect(self._teacher.grid)
        if address.level == 0:
            place = inner.relative_to(view.rect).slices
            return labels[place], confidence[place]
        return labels, confidence

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
        block = Rect(corner.column * TILE, corner.row * TILE, BLOCK, BLOCK).grow(SMOOTHING)
        view = self._teacher.look(block.intersection(whole))
        views = {}
        for row in range(corner.row, corner.row + BLOCK // TILE):
            for column in range(corner.column, corner.column + BLOCK // TILE):
                tile = Rect(column * TILE, row * TILE, TILE, TILE).intersection(whole)
                if not tile.empty:
                    views[TileAddress(0, column, row)] = cut(view, tile.grow(SMOOTHING).intersection(whole))
        return views

    def _look_at_tile(self, address: TileAddress) -> dict[TileAddress, View]:
        grid, step = self._teacher.grid, address.step
        rect = address.rect(grid)

        def look(block: Rect) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
            view = self._teacher.look(block)
            return view.features[:, ::step, ::step], view.valid[::step, ::step]

        rows = []
        for row in range(rect.row, rect.bottom, BLOCK):
            blocks = [
                look(Rect(column, row, BLOCK, BLOCK).intersection(rect))
                for column in range(rect.col, rect.right, BLOCK)
            ]
            features, valid = zip(*blocks, strict=True)
            rows.append((np.concatenate(features, 2), np.concatenate(valid, 1)))
        features, valid = zip(*rows, strict=True)
        return {address: View(np.concatenate(features, 1), np.concatenate(valid), rect)}


def cut(view: View, rect: Rect) -> View:
    """Return the part of a view at full resolution that lies in a rectangle."""
    place = rect.relative_to(view.rect).slices
    return View(np.ascontiguousarray(view.features[:, *place]), view.valid[place].copy(), rect)


def _size(views: dict[TileAddress, View]) -> int:
    return sum(view.features.nbytes + view.valid.nbytes for view in views.values())


Read = Callable[[Rect], tuple[Labels, Labels]]


def sample_tile(address: TileAddress, grid: GeoBox, read: Read) -> tuple[Labels, Labels]:
    """Return labels and confidence of a tile, one pixel of `step` in each direction.

    Args:
        address: The tile.
        grid: The grid.
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
