"""Scene to parts: while one tile is computed the next ones are read and the last part is written."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import islice
from threading import local
from typing import TypeVar

import numpy as np

from iic_geotools.classmap import NODATA
from iic_geotools.grid import Part, Tile
from iic_geotools.parts import PartFolder
from iic_geotools.scene import Pixels, Scene
from iic_runtime.engines import Labels
from iic_runtime.job import Job
from iic_runtime.segmenter import Segmentation, Segmenter, alike

T = TypeVar("T")
R = TypeVar("R")
OnTile = Callable[[Tile, bool], None]
WriteParts = Callable[[Job, Sequence[Part], PartFolder, Segmenter, OnTile], None]
Content = dict[str, Labels]

GPU_READERS = 4
PARTS_IN_FLIGHT = 2
# 255 is nodata in every map, so the surest pixel of a confidence map is written as 254.
SUREST = NODATA - 1


def layers(confidence: bool) -> tuple[str, ...]:
    """The layers of a map."""
    return ("labels", "confidence") if confidence else ("labels",)


def confidence_layer(result: Segmentation) -> Labels:
    """The confidence as maps hold it: 255 where there is no data, and nowhere else."""
    return np.where(result.labels == NODATA, np.uint8(NODATA), np.minimum(result.confidence, SUREST))


def write_parts(
    job: Job, parts: Sequence[Part], folder: PartFolder, segmenter: Segmenter, on_tile: OnTile
) -> None:
    """Label `parts` of a job and write them to `folder`.

    Args:
        job: what to do.
        parts: which parts of it, in the order they are to be made.
        folder: where they go.
        segmenter: the job's model.
        on_tile: told of each tile when it is done, and whether it held data and was run.

    Raises:
        IICError: a read, a run or a write failed. Parts written before stay, the one in work is not written.
    """
    # One reader keeps GDAL's block cache warm for neighbouring tiles; only a GPU outruns it.
    readers = 1 if segmenter.engine.device == "cpu" else GPU_READERS
    with _scenes(job) as scene, _pool(readers) as reading, _pool(1) as writing:
        tiles = (tile for part in parts for tile in part.tiles)
        reads = _ahead(
            reading, lambda tile: _read(scene(), job, tile), tiles, segmenter.sizing.batch + readers
        )
        pending: deque[Future[None]] = deque()
        canvases = _Canvases(layers(job.confidence))

        def write(index: int, content: Content | None) -> None:
            folder.write(index, content)
            canvases.give_back(content)

        for part in parts:
            content = _label(part, islice(reads, len(part.tiles)), canvases, segmenter, on_tile)
            if len(pending) >= PARTS_IN_FLIGHT:
                pending.popleft().result()
            pending.append(writing.submit(write, part.index, content))
        for future in pending:
            future.result()


class _Canvases:
    """Arrays to paint parts on, used again and again: memory fresh from the system costs more than the painting."""

    def __init__(self, layers: tuple[str, ...]) -> None:
        self._layers = layers
        self._free: deque[Content] = deque()

    def take(self, shape: tuple[int, int]) -> Content:
        """One blank array a layer."""
        if self._free and self._free[0]["labels"].shape == shape:
            content = self._free.popleft()
        else:
            content = {layer: np.empty(shape, np.uint8) for layer in self._layers}
        for values in content.values():
            values.fill(NODATA)
        return content

    def give_back(self, content: Content | None) -> None:
        """Done with these."""
        if content is not None and len(self._free) < PARTS_IN_FLIGHT:
            self._free.append(content)


@dataclass(frozen=True)
class _Read:
    """A tile and what was read for it; None where it holds nothing to label."""

    tile: Tile
    pixels: Pixels | None


def _read(scene: Scene, job: Job, tile: Tile) -> _Read:
    nothing = _Read(tile, None)
    if not scene.may_hold_data(tile.core):
        return nothing
    wanted = None if job.area is None else job.area.inside(tile.core)
    if wanted is not None and not wanted.any():
        return nothing
    pixels = scene.read(tile.read)
    valid = pixels.valid
    if wanted is not None and not wanted.all():
        # Pixels outside the area still serve as context: they keep their values and only lose their label.
        valid = np.ones(pixels.values.shape[1:], bool) if valid is None else valid
        valid[tile.crop] &= wanted
    if valid is not None and not valid[tile.crop].any():
        return nothing
    return _Read(tile, Pixels(pixels.values, valid))


def _label(
    part: Part, reads: Iterable[_Read], canvases: _Canvases, segmenter: Segmenter, on_tile: OnTile
) -> Content | None:
    """The layers of a part; None if it holds no data at all."""
    content: Content | None = None
    for group in alike(_live(reads, on_tile), lambda read: read[0].read, segmenter.sizing.batch):
        tiles, pixels = [tile for tile, _ in group], [each for _, each in group]
        if content is None:
            content = canvases.take((part.rect.height, part.rect.width))
        for tile, result in zip(tiles, segmenter.run(tiles, pixels, "confidence" in content), strict=True):
            place = tile.core.relative_to(part.rect).slices
            content["labels"][place] = result.labels
            if "confidence" in content:
                content["confidence"][place] = confidence_layer(result)
            on_tile(tile, True)
    return content


def _live(reads: Iterable[_Read], on_tile: OnTile) -> Iterator[tuple[Tile, Pixels]]:
    for read in reads:
        if read.pixels is None:
            on_tile(read.tile, False)
        else:
            yield read.tile, read.pixels


@contextmanager
def _scenes(job: Job) -> Iterator[Callable[[], Scene]]:
    """A function that gives each thread a handle of its own on the scene."""
    own = local()
    with ExitStack() as handles:

        def scene() -> Scene:
            if not hasattr(own, "scene"):
                own.scene = handles.enter_context(job.source.open())
            opened: Scene = own.scene
            return opened

        yield scene


@contextmanager
def _pool(threads: int) -> Iterator[ThreadPoolExecutor]:
    """A pool that drops what it has not begun when the block fails."""
    pool = ThreadPoolExecutor(threads)
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def _ahead(
    pool: ThreadPoolExecutor, function: Callable[[T], R], items: Iterable[T], depth: int
) -> Iterator[R]:
    """Results in order, computed in the pool up to `depth` items ahead of their use."""
    source = iter(items)
    futures = deque(pool.submit(function, item) for item in islice(source, depth))
    while futures:
        result = futures.popleft().result()
        futures.extend(pool.submit(function, item) for item in islice(source, 1))
        yield result
