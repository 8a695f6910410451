"""Maps that are shown without a fit: that of the bundled model, and the finished one."""

from pathlib import Path
from typing import Self

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
from iic_runtime.naming.teacher import ReadingOptions
from iic_runtime.raster.model_input import choose_reading
from iic_runtime.raster.novelty import knows_novelty, measure_novelty
from iic_runtime.segmenter import Segmenter
from iic_runtime.studio.features import sample_tile
from iic_runtime.studio.tiles import KeptValues, TileAddress

MOST_BYTES = 128 << 20
Labels = NDArray[np.uint8]
Tile = tuple[Labels, Labels]


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
