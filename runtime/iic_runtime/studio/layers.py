"""Layers of the studio, tile by tile: labels by the fit to the clicks, by the bundled model, and the finished map."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import rasterio
from numpy.typing import NDArray
from rasterio.errors import RasterioError
from rasterio.windows import Window

from iic_geotools.classmap.class_map import open_map
from iic_geotools.classmap.classes import NODATA, MapClass
from iic_geotools.errors import SceneError
from iic_geotools.geobox import GeoBox
from iic_geotools.products.areas import ClassAreas, class_areas
from iic_geotools.scene.info import SceneInfo
from iic_geotools.scene.scene import SceneSource
from iic_geotools.tiling import Rect, TileGrid
from iic_runtime.model.select import ModelSelector
from iic_runtime.naming.clicks import View
from iic_runtime.naming.teacher import Fit, ReadingOptions, Teacher
from iic_runtime.raster.model_input import choose_reading
from iic_runtime.raster.novelty import knows_novelty, measure_novelty
from iic_runtime.segmenter import Segmenter
from iic_runtime.studio.tiles import TILE, KeptValues, TileAddress

MOST_LEVEL = 2
"""The coarsest level at which views are computed: beyond it, a view of a screen takes tens of megapixels."""
FEATURE_BYTES, MOST_BYTES = 1 << 30, 128 << 20
"""Bytes of features, and of tiles of each other layer, that are kept."""
BLOCK = 512
"""Side in pixels of the squares that are computed at once: smaller ones spend more on their surroundings."""
Labels = NDArray[np.uint8]
Tile = tuple[Labels, Labels]


class FeatureTiles:
    """The features of tiles, at every pixel that the screen shows.

    Args:
        teacher: The model and the scene.
        most: Bytes that are kept.
    """

    def __init__(self, teacher: Teacher, most: int = FEATURE_BYTES) -> None:
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


class BundledLayer:
    """The map of the bundled model, shown before the first fit."""

    def __init__(self, segmenter: Segmenter, reading: SceneSource, grid: GeoBox) -> None:
        self._segmenter, self._reading, self.grid = segmenter, reading, grid
        self._kept, self._novel = (
            KeptValues[Tile](MOST_BYTES, lambda tile: tile[0].nbytes + tile[1].nbytes) for _ in range(2)
        )

    @classmethod
    def open(cls, info: SceneInfo, options: ReadingOptions) -> Self:
        """Open the bundled model that suits a scene.

        Raises:
            IICError: There is none.
        """
        file = ModelSelector().for_scene(info)
        reading = choose_reading(
            info,
            file.card,
            bands=options.get("bands"),
            rescale=options.get("rescale"),
            reflectance=options.get("reflectance"),
            nodata=options.get("nodata"),
            match_gsd=options.get("match_gsd"),
        )
        segmenter = Segmenter(
            file, device=options.get("device", "auto"), threads=options.get("threads"), tile=512
        )
        return cls(segmenter, reading, reading.grid or info.grid)

    @property
    def classes(self) -> tuple[MapClass, ...]:
        """Names and colours of the labels."""
        return self._segmenter.card.classes

    def tile(self, address: TileAddress) -> Tile:
        """Return labels and confidence of a tile.

        Raises:
            UsageError: There is no such tile.
            SceneError: The scene cannot be read.
        """
        return self._kept.get(address, lambda: sample_tile(address, self.grid, self._label))

    @property
    def has_novelty(self) -> bool:
        """Whether novelty can be measured for the scene and the model."""
        return knows_novelty(self._segmenter.card, self._reading)

    def novelty_tile(self, address: TileAddress) -> Tile:
        """Return 0 where a tile holds data, 255 elsewhere, and its novelty; the arguments are those of `tile`."""
        return self._novel.get(address, lambda: sample_tile(address, self.grid, self._measure))

    def _measure(self, rect: Rect) -> Tile:
        with self._reading.open() as scene:
            pixels = scene.read(rect)
        novelty = measure_novelty(self._segmenter.card, self._reading, pixels.values)
        labels = np.zeros((rect.height, rect.width), np.uint8)
        if pixels.valid is not None:
            labels[~pixels.valid] = NODATA
        return labels, np.zeros_like(labels) if novelty is None else novelty

    def _label(self, rect: Rect) -> Tile:
        card, grid = self._segmenter.card, self.grid
        side = max(rect.width, rect.height)
        tile = TileGrid(grid.width, grid.height, side, card.halo, card.stride, rect).at(0, 0)
        with self._reading.open() as scene:
            pixels = scene.read(tile.read)
        ((_, result),) = next(iter(self._segmenter.label([[(tile, pixels)]], 1)))
        return result.labels, result.confidence


class FileLayer:
    """A finished map and its confidence."""

    def __init__(self, map: Path, confidence: Path) -> None:
        self._map, self._confidence = map, confidence
        self._legend: tuple[int, tuple[MapClass, ...], ClassAreas] | None = None
        self.changes = 0

    def refresh(self) -> None:
        """Read the files again, which have changed."""
        self.changes += 1

    @property
    def classes(self) -> tuple[MapClass, ...]:
        """Names and colours of the labels."""
        return self._read_legend()[1]

    @property
    def areas(self) -> ClassAreas:
        """How much ground each class covers."""
        return self._read_legend()[2]

    def _read_legend(self) -> tuple[int, tuple[MapClass, ...], ClassAreas]:
        """Read classes and areas, once for each finished map."""
        if self._legend is None or self._legend[0] != self.changes:
            changes = self.changes
            with open_map(self._map) as class_map:
                classes = tuple(class_map.classes)
            self._legend = changes, classes, class_areas(self._map, classes)
        return self._legend

    def tile(self, address: TileAddress) -> Tile:
        """Return labels and confidence of a tile, read from overviews.

        Raises:
            UsageError: There is no such tile.
            SceneError: The map cannot be read.
        """
        labels = _read(self._map, address)
        try:
            confidence = _read(self._confidence, address)
        except SceneError:
            confidence = np.full_like(labels, NODATA - 1)
        return labels, confidence


def _read(path: Path, address: TileAddress) -> Labels:
    try:
        with rasterio.open(path) as dataset:
            rect = address.rect(GeoBox.of(dataset))
            shape = -(-rect.height // address.step), -(-rect.width // address.step)
            window = Window(rect.col, rect.row, rect.width, rect.height)
            return np.asarray(dataset.read(1, window=window, out_shape=shape))
    except RasterioError as error:
        raise SceneError(f"The map {path} cannot be read ({error}); map the scene again.") from error
