"""The stages of a run between its plan and its files: label parts, bring them onto the scene's grid, clean them.

While some tiles are labelled, the next ones are read and the last part is written.
"""

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from itertools import chain, groupby
from operator import attrgetter
from pathlib import Path
from threading import local
from typing import Any

import numpy as np
import rasterio
from affine import Affine
from numpy.typing import NDArray
from rasterio.windows import Window

from iic_geotools.classmap.classes import NODATA
from iic_geotools.classmap.cog import BLOCK
from iic_geotools.classmap.vrt import write_vrt
from iic_geotools.gdal import network_options
from iic_geotools.geobox import GeoBox
from iic_geotools.products.cleaning import TileStore, as_level, clean_tiles
from iic_geotools.scene.info import open_raster
from iic_geotools.scene.scene import Pixels, Scene
from iic_geotools.tiling import Part, Rect, Tile, TileGrid
from iic_geotools.work import OnProgress, Progress, cores, map_ahead
from iic_runtime.engine.base import LabelArray
from iic_runtime.raster.novelty import measure_novelty
from iic_runtime.raster.part_folder import MapParts, PartFolder
from iic_runtime.raster.plan import Plan, list_parts
from iic_runtime.segmenter import Segmentation, Segmenter, group_by_shape

OnTile = Callable[[Tile, bool], None]
Content = dict[str, LabelArray]

PARTS_IN_FLIGHT = 2
# Limits of GDAL's block cache in bytes, for engines on the CPU and on a GPU.
CACHE_LIMITS = (64 << 20, 256 << 20)
GPU_CACHE = 1 << 30
# GDAL keeps up to 450 files of a mosaic open by default, each with buffers of its own.
OPEN_SOURCES = 24
# 255 is nodata in every map, so the highest confidence in a map is 254.
MAX_CONFIDENCE = NODATA - 1
# Handles of readers that were still reading when the user interrupted the run; the end of the process closes them.
_abandoned: list[ExitStack] = []
REGRID_TILE = 1024
SAMPLE_PIXELS = 150_000
"""About how many pixels are kept of a run to check its map."""
SAMPLE_SIDE, SAMPLE_TILES = 128, 3
"""Side in pixels of tiles that a sample of a map is made of, and their number in each direction."""
_REGRIDDED = "scene_"


def gdal_options(plan: Plan) -> dict[str, int | str]:
    """Return GDAL's configuration options for reading the scene of a plan."""
    memory = {"GDAL_CACHEMAX": _cache_bytes(plan), "GDAL_MAX_DATASET_POOL_SIZE": OPEN_SOURCES}
    # A GPU outruns one core that decodes; an engine on the CPU needs the cores itself.
    threads = {} if plan.engine.on_cpu else {"GDAL_NUM_THREADS": cores()}
    return memory | threads | network_options(plan.scene.path)


def _cache_bytes(plan: Plan) -> int:
    """Return the size of GDAL's block cache, in which blocks that two rows of tiles share should stay.

    A row of tiles reads the same strips repeatedly, but few blocks twice: an engine on the CPU is not slowed down by
    decoding these again, unless they are JPEG 2000.
    """
    smallest, largest = CACHE_LIMITS
    # The blocks of a composed scene are not those of its files.
    is_jpeg_2000 = plan.scene.driver.startswith("JP2") or ".jp2" in plan.scene.path.lower()
    if plan.engine.on_cpu and is_jpeg_2000:
        return largest
    block_height, block_width = plan.scene.block
    grid, tiles = plan.scene.grid, plan.tiles
    rows = tiles.read_side * grid.height / tiles.height + block_height
    if not plan.engine.on_cpu:
        largest, rows = GPU_CACHE, rows + block_height
    elif block_width < grid.width:
        return smallest
    pixel = sum(np.dtype(dtype).itemsize for dtype in plan.scene.dtypes)
    return int(min(max(grid.width * rows * pixel, smallest), largest))


def confidence_layer(result: Segmentation) -> LabelArray:
    """Return the confidence as maps hold it: 255 where there is no data, and nowhere else."""
    return np.where(result.labels == NODATA, np.uint8(NODATA), np.minimum(result.confidence, MAX_CONFIDENCE))


def label_parts(
    plan: Plan,
    parts: Sequence[Part],
    folder: PartFolder,
    segmenter: Segmenter,
    on_tile: OnTile,
    sampler: "Sampler | None" = None,
) -> None:
    """Label parts and write them.

    Args:
        on_tile: Called after each tile with the tile and whether it held data and was run.
        sampler: Keeps a sample of the pixels and their labels.

    Raises:
        IICError: A read, a run or a write failed. Parts that were written before stay; those in progress are lost.
    """
    spec = segmenter.spec
    confidence = "confidence" in plan.layers or plan.unsure is not None or sampler is not None
    with (
        _open_scenes(plan) as scene,
        # Only one: each handle has a block cache of its own, and several would decode the same blocks.
        _pool(1, gdal_options(plan), patient=False) as reader,
        _pool(1) as writer,
    ):
        # What is decoded at once: on a GPU whole parts, whose blocks are shared by many threads.
        runs = (
            ((tile,) for part in parts for tile in part.tiles)
            if spec.on_cpu
            else (part.tiles for part in parts)
        )
        depth = spec.batch + 1 if spec.on_cpu else PARTS_IN_FLIGHT
        reads = chain.from_iterable(
            map_ahead(reader, lambda run: _measured(plan, _read(scene(), plan, run)), runs, depth)
        )
        # One stream over all parts: no lane waits for the last tile of a part before it begins the next one.
        novelties: deque[LabelArray | None] = deque()
        groups = group_by_shape(_with_data(reads, on_tile, novelties, sampler), spec.batch)
        pending: deque[Future[None]] = deque()
        canvases = _Canvases(plan.layers)

        def write(index: int, content: Content | None) -> None:
            folder.write(index, content)
            canvases.give_back(content)

        count = sum(len(part.columns) for part in parts)
        with closing(segmenter.label(groups, count, confidence)) as labelled:
            results = _Results(labelled if sampler is None else map(sampler.label, labelled))
            for part in parts:
                content = _paint(plan, part, results.within(part.rect), novelties, canvases, on_tile)
                if len(pending) >= PARTS_IN_FLIGHT:
                    pending.popleft().result()
                pending.append(writer.submit(write, part.index, content))
        for future in pending:
            future.result()


@dataclass(frozen=True)
class LabelSample:
    """Pixels of tiles that are spread over a scene.

    Attributes:
        values: Their values [bands, N] as the model takes them.
        labels: Their labels [N], before the map is cleaned.
        confidence: 255 x the probability of each label [N].
    """

    values: NDArray[Any]
    labels: LabelArray
    confidence: LabelArray


class Sampler:
    """Keeps a sample of the labelled pixels, so that a map can be checked without labelling it again."""

    def __init__(self, plan: Plan) -> None:
        step = max(1, math.isqrt(plan.tiles.area.area // SAMPLE_PIXELS))
        self._every = slice(step // 2, None, step), slice(step // 2, None, step)
        self._values: deque[NDArray[Any]] = deque()
        self._kept: list[LabelSample] = []

    def read(self, tile: Tile, pixels: Pixels) -> None:
        """Keep the values of a tile until its labels are there."""
        self._values.append(pixels.values[:, *tile.crop][:, *self._every].copy())

    def label(self, results: list[tuple[Tile, Segmentation]]) -> list[tuple[Tile, Segmentation]]:
        """Keep the labels of tiles, which come in the order in which they were read, and return them."""
        for _, result in results:
            labels, confidence = result.labels[self._every], result.confidence[self._every]
            valid = labels != NODATA
            self._kept.append(LabelSample(self._values.popleft()[:, valid], labels[valid], confidence[valid]))
        return results

    def sample(self) -> LabelSample | None:
        """Return what is kept; None if nothing is, because an earlier run or other processes have labelled all."""
        if not self._kept:
            return None
        rows = ((entry.values.T, entry.labels, entry.confidence) for entry in self._kept)
        values, labels, confidence = (np.concatenate(arrays) for arrays in zip(*rows, strict=True))
        return LabelSample(values.T, labels, confidence)


def label_sample(plan: Plan, segmenter: Segmenter) -> LabelSample:
    """Label small tiles spread over the region of a plan; what holds no data is left out."""
    card, spec = plan.card, segmenter.spec
    grid = plan.read_grid
    side = min(spec.tile, SAMPLE_SIDE)
    tiles = TileGrid(grid.width, grid.height, side, card.halo, card.stride, plan.tiles.area)
    rows, columns = (
        sorted({(2 * i + 1) * n // (2 * SAMPLE_TILES) for i in range(SAMPLE_TILES)}) for n in tiles.shape
    )
    chosen = [tiles.at(row, column) for row in rows for column in columns]
    with plan.reading.open() as scene:
        reads = [read for tile in chosen for read in _read(scene, plan, (tile,))]
    pairs = [(read.tile, read.pixels) for read in reads if read.pixels is not None]
    values, labels, confidence = (
        [np.empty((len(card.bands), 0))],
        [np.empty(0, np.uint8)],
        [np.empty(0, np.uint8)],
    )
    groups = list(group_by_shape(pairs, spec.batch))
    for group, results in zip(groups, segmenter.label(iter(groups), 1), strict=True):
        for (tile, pixels), (_, result) in zip(group, results, strict=True):
            valid = result.labels != NODATA
            values.append(pixels.values[:, *tile.crop][:, valid])
            labels.append(result.labels[valid])
            confidence.append(result.confidence[valid])
    return LabelSample(np.concatenate(values, 1), np.concatenate(labels), np.concatenate(confidence))


class _Canvases:
    """Arrays that parts are painted on, used repeatedly: fresh memory costs more time than the painting."""

    def __init__(self, layers: tuple[str, ...]) -> None:
        self._layers = layers
        self._free: deque[Content] = deque()

    def take(self, shape: tuple[int, int]) -> Content:
        """Return one blank array per layer."""
        if self._free and self._free[0]["labels"].shape == shape:
            content = self._free.popleft()
        else:
            content = {layer: np.empty(shape, np.uint8) for layer in self._layers}
        for values in content.values():
            values.fill(NODATA)
        return content

    def give_back(self, content: Content | None) -> None:
        """Take arrays back that are no longer needed."""
        if content is not None and len(self._free) < PARTS_IN_FLIGHT:
            self._free.append(content)


@dataclass(frozen=True)
class _Read:
    """A tile and the pixels that were read for it; None if there is nothing to label."""

    tile: Tile
    pixels: Pixels | None
    novelty: LabelArray | None = None


def _measured(plan: Plan, reads: list[_Read]) -> list[_Read]:
    """Measure the novelty of tiles, if the plan says so, while their pixels are there."""
    if "novelty" not in plan.layers:
        return reads
    return [
        read
        if read.pixels is None
        else replace(
            read,
            novelty=measure_novelty(plan.card, plan.reading, read.pixels.values[:, *read.tile.crop]),
        )
        for read in reads
    ]


def _read(scene: Scene, plan: Plan, tiles: Sequence[Tile]) -> list[_Read]:
    """Read consecutive tiles of a row, those that are next to each other in one piece."""
    reads: list[_Read] = []
    for hold_data, run in groupby(
        [_outline(scene, plan, tile) for tile in tiles], key=attrgetter("holds_data")
    ):
        outlines = list(run)
        if not hold_data:
            reads += [_Read(outline.tile, None) for outline in outlines]
            continue
        first, last = outlines[0].tile.read, outlines[-1].tile.read
        strip = Rect(first.col, first.row, last.right - first.col, first.height)
        pixels = scene.read(strip)
        reads += [_Read(outline.tile, outline.cut(pixels, strip)) for outline in outlines]
    return reads


@dataclass(frozen=True)
class _Outline:
    """What is known about a tile before its pixels are read: whether it may hold data, and its mapped pixels."""

    tile: Tile
    holds_data: bool
    inside: NDArray[np.bool_] | None = None

    def cut(self, pixels: Pixels, strip: Rect) -> Pixels | None:
        """Return the pixels of the tile in those of a strip; None if there is nothing to label."""
        tile, inside = self.tile, self.inside
        place = tile.read.relative_to(strip).slices
        values = pixels.values[:, *place]
        valid = None if pixels.valid is None else pixels.valid[place]
        if inside is not None and not inside.all():
            # Pixels outside the area still serve as context: they keep their values and only lose their label.
            valid = np.ones(values.shape[1:], bool) if valid is None else valid.copy()
            valid[tile.crop] &= inside
        if valid is not None and not valid[tile.crop].any():
            return None
        return Pixels(values, valid)


def _outline(scene: Scene, plan: Plan, tile: Tile) -> _Outline:
    if not scene.may_hold_data(tile.core):
        return _Outline(tile, holds_data=False)
    if plan.tile_area is None:
        return _Outline(tile, holds_data=True)
    inside = plan.tile_area.inside(tile.core)
    return _Outline(tile, bool(inside.any()), inside)


class _Results:
    """Labels of tiles in their order, handed out part by part: a batch may hold tiles of several parts."""

    def __init__(self, groups: Iterable[list[tuple[Tile, Segmentation]]]) -> None:
        self._results = chain.from_iterable(groups)
        self._next: tuple[Tile, Segmentation] | None = None

    def within(self, rect: Rect) -> Iterator[tuple[Tile, Segmentation]]:
        """Yield the results up to the first one whose tile lies elsewhere."""
        while True:
            self._next = self._next or next(self._results, None)
            if self._next is None or self._next[0].core.intersection(rect).empty:
                return
            result, self._next = self._next, None
            yield result


def _with_data(
    reads: Iterable[_Read],
    on_tile: OnTile,
    novelties: deque[LabelArray | None],
    sampler: Sampler | None,
) -> Iterator[tuple[Tile, Pixels]]:
    """Yield the tiles with something to label, and report the others; their novelty waits until they are painted."""
    for read in reads:
        if read.pixels is None:
            on_tile(read.tile, False)
        else:
            novelties.append(read.novelty)
            if sampler is not None:
                sampler.read(read.tile, read.pixels)
            yield read.tile, read.pixels


def _paint(
    plan: Plan,
    part: Part,
    results: Iterable[tuple[Tile, Segmentation]],
    novelties: deque[LabelArray | None],
    canvases: _Canvases,
    on_tile: OnTile,
) -> Content | None:
    """Return the layers of a part; None if it holds no data at all."""
    content: Content | None = None
    for tile, result in results:
        if content is None:
            content = canvases.take((part.rect.height, part.rect.width))
        place = tile.core.relative_to(part.rect).slices
        content["labels"][place] = result.labels if plan.unsure is None else plan.unsure.mark(result)
        if "confidence" in content:
            content["confidence"][place] = confidence_layer(result)
        novelty = novelties.popleft()
        if novelty is not None:
            content["novelty"][place] = np.where(result.labels == NODATA, np.uint8(NODATA), novelty)
        on_tile(tile, True)
    return content


@contextmanager
def _open_scenes(plan: Plan) -> Iterator[Callable[[], Scene]]:
    """Yield a function that returns the calling thread's own handle on the scene."""
    thread = local()
    with ExitStack() as handles:

        def scene() -> Scene:
            if not hasattr(thread, "scene"):
                thread.scene = handles.enter_context(plan.reading.open())
            handle: Scene = thread.scene
            return handle

        try:
            yield scene
        except KeyboardInterrupt:
            # A reader may still wait for a server: its handle must not be closed under it.
            _abandoned.append(handles.pop_all())
            raise


@contextmanager
def _pool(
    threads: int, gdal_options: Mapping[str, int | str] | None = None, patient: bool = True
) -> Iterator[ThreadPoolExecutor]:
    """Yield a pool that drops what it has not begun if the block fails, with options of GDAL for its threads.

    Unless it is `patient`, an interrupt does not wait for what it has begun.
    """
    # GDAL's options are set per thread, and those of this one may not be seen by the others.
    pool = ThreadPoolExecutor(threads, initializer=lambda: rasterio.env.defenv(**(gdal_options or {})))
    wait = True
    try:
        yield pool
    except KeyboardInterrupt:
        wait = patient
        raise
    finally:
        pool.shutdown(wait=wait, cancel_futures=True)


def regrid_parts(plan: Plan, parts: Sequence[Part], folder: PartFolder, progress: OnProgress) -> MapParts:
    """Bring parts onto the scene's grid: each pixel takes the nearest label, if the scene itself holds data there.

    Parts of a scene that was read on its own grid are only listed.

    Returns:
        The parts on the map's grid.
    """
    if plan.reading.grid is None:
        return folder.placed(parts, plan.tiles.area)
    grid, reading = plan.scene.grid, replace(plan.reading, grid=None)
    tiles = TileGrid(grid.width, grid.height, REGRID_TILE, halo=0, stride=1, region=plan.region)
    scene_parts = list_parts(tiles, reading, plan.area)
    total = sum(part.rect.area for part in scene_parts)
    scene_folder = PartFolder(folder.path, [_REGRIDDED + layer for layer in folder.layers])
    done = 0
    with reading.open() as scene, _open_mosaics(plan, parts, folder) as mosaics:
        for part in scene_parts:
            if not scene_folder.has(part.index):
                scene_folder.write(part.index, _regrid(plan, part, scene, mosaics))
            done += part.rect.area
            progress(Progress("regrid", done, total, unit="px"))
    placed = scene_folder.placed(scene_parts, plan.region)
    return {layer.removeprefix(_REGRIDDED): files for layer, files in placed.items()}


@contextmanager
def _open_mosaics(plan: Plan, parts: Sequence[Part], folder: PartFolder) -> Iterator[Mapping[str, Any]]:
    """Open the parts of each layer as one raster."""
    region = plan.tiles.area
    whole = GeoBox(region.width, region.height, Affine.identity())
    with ExitStack() as stack:
        mosaics = {}
        for layer, files in folder.placed(parts, region).items():
            vrt = folder.path / f"{layer}.vrt"
            write_vrt(vrt, whole, files, block=BLOCK)
            mosaics[layer] = stack.enter_context(open_raster(str(vrt)))
        yield mosaics


def _regrid(plan: Plan, part: Part, scene: Scene, mosaics: Mapping[str, Any]) -> dict[str, LabelArray] | None:
    content: dict[str, LabelArray] | None = None
    for tile in part.tiles:
        valid = _mapped_pixels(plan, tile, scene)
        if not valid.any():
            continue
        if content is None:
            shape = (part.rect.height, part.rect.width)
            content = {_REGRIDDED + layer: np.full(shape, NODATA, np.uint8) for layer in mosaics}
        rows, columns = _nearest(plan, tile.core)
        window = Window(columns[0], rows[0], columns[-1] - columns[0] + 1, rows[-1] - rows[0] + 1)
        place = tile.core.relative_to(part.rect).slices
        for layer, mosaic in mosaics.items():
            coarse = mosaic.read(1, window=window)
            fine = coarse[np.ix_(rows - rows[0], columns - columns[0])]
            content[_REGRIDDED + layer][place] = np.where(valid, fine, np.uint8(NODATA))
    return content


def _mapped_pixels(plan: Plan, tile: Tile, scene: Scene) -> NDArray[np.bool_]:
    """Return which pixels of a tile hold data and lie inside the area."""
    shape = (tile.core.height, tile.core.width)
    if not scene.may_hold_data(tile.core):
        return np.zeros(shape, bool)
    mapped = np.ones(shape, bool) if plan.area is None else plan.area.inside(tile.core)
    if mapped.any():
        valid = scene.read(tile.core).valid
        mapped = mapped if valid is None else mapped & valid
    return mapped


def _nearest(plan: Plan, core: Rect) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return for each row and column of `core` the row and column of the parts' region that its centre falls in."""
    grid, tiles = plan.scene.grid, plan.tiles
    rows = (np.arange(core.row, core.bottom) + 0.5) * (tiles.height / grid.height)
    columns = (np.arange(core.col, core.right) + 0.5) * (tiles.width / grid.width)
    return rows.astype(np.int64) - tiles.area.row, columns.astype(np.int64) - tiles.area.col


@dataclass(frozen=True)
class _Tiles:
    """Tiles of a clean map among the parts of a run, so that a run which was interrupted need not make them again."""

    folder: PartFolder

    def has(self, index: int) -> bool:
        return self.folder.has(index)

    def write(self, index: int, pixels: LabelArray) -> None:
        self.folder.write(index, {self.folder.layers[0]: pixels})

    def file(self, index: int) -> Path:
        return self.folder.file(self.folder.layers[0], index)


def clean_parts(plan: Plan, parts: MapParts, folder: PartFolder, progress: OnProgress) -> MapParts:
    """Clean the labels of a map, if the plan says so; confidence stays that of the labels before cleaning.

    Returns:
        The parts of the clean map.
    """
    cleaning = plan.outputs.cleaning
    if cleaning is None:
        return parts
    grid = plan.map_grid

    def store(step: str) -> TileStore:
        # The name says how the map is cleaned: tiles of another cleaning are not taken for these.
        return _Tiles(PartFolder(folder.path, [f"{step}_{cleaning.digest}"]))

    level = as_level(list(parts["labels"]), grid, folder.path / "raw.vrt")
    return {**parts, "labels": clean_tiles(level, grid, cleaning, store, folder.path, progress)}
