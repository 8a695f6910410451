"""Parts made at the model's ground resolution, brought back onto the scene's own grid."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
from affine import Affine
from numpy.typing import NDArray
from rasterio.windows import Window

from iic_geotools.classmap import NODATA
from iic_geotools.grid import Grid, Part, Rect, Tile
from iic_geotools.parts import BLOCK, PartFolder
from iic_geotools.scene import Scene, open_raster
from iic_geotools.vrt import MapGrid, write_vrt
from iic_runtime.job import Job
from iic_runtime.planning import Target
from iic_runtime.progress import OnProgress, Progress

TILE = 1024
PREFIX = "scene_"


def regrid_parts(
    job: Job, parts: Sequence[Part], target: Target, folder: PartFolder, progress: OnProgress
) -> tuple[PartFolder, list[Part]]:
    """Write parts on the scene's grid: each pixel takes the nearest label, where the scene itself holds data.

    Returns:
        The folder of the new parts, and the parts.
    """
    grid = Grid(target.info.grid.width, target.info.grid.height, TILE, halo=0, stride=1, region=target.region)
    scene_job = replace(job, source=replace(job.source, grid=None), grid=grid, area=target.area)
    scene_parts = scene_job.parts()
    total = sum(part.rect.area for part in scene_parts)
    regridded = PartFolder(folder.path, [PREFIX + layer for layer in folder.layers])
    done = 0
    with scene_job.source.open() as scene, _mosaics(job, parts, folder) as mosaics:
        for part in scene_parts:
            if not regridded.done(part.index):
                regridded.write(part.index, _regrid(part, job, target, scene, mosaics))
            done += part.rect.area
            progress(Progress("regrid", done, total))
    return regridded, scene_parts


@contextmanager
def _mosaics(job: Job, parts: Sequence[Part], folder: PartFolder) -> Iterator[Mapping[str, Any]]:
    """The parts of each layer as one open raster."""
    region = job.grid.area
    whole = MapGrid(region.width, region.height, Affine.identity())
    with ExitStack() as opened:
        mosaics = {}
        for layer in folder.layers:
            files = [(folder.file(layer, part.index), part.rect.relative_to(region)) for part in parts]
            vrt = folder.path / f"{layer}.vrt"
            write_vrt(vrt, whole, [(file, rect) for file, rect in files if file.stat().st_size], block=BLOCK)
            mosaics[layer] = opened.enter_context(open_raster(str(vrt)))
        yield mosaics


def _regrid(
    part: Part,
    job: Job,
    target: Target,
    scene: Scene,
    mosaics: Mapping[str, Any],
) -> dict[str, NDArray[np.uint8]] | None:
    content: dict[str, NDArray[np.uint8]] | None = None
    for tile in part.tiles:
        valid = _wanted(tile, target, scene)
        if not valid.any():
            continue
        if content is None:
            shape = (part.rect.height, part.rect.width)
            content = {PREFIX + layer: np.full(shape, NODATA, np.uint8) for layer in mosaics}
        rows, columns = _nearest(tile.core, job, target)
        window = Window(columns[0], rows[0], columns[-1] - columns[0] + 1, rows[-1] - rows[0] + 1)
        place = tile.core.relative_to(part.rect).slices
        for layer, mosaic in mosaics.items():
            coarse = mosaic.read(1, window=window)
            fine = coarse[np.ix_(rows - rows[0], columns - columns[0])]
            content[PREFIX + layer][place] = np.where(valid, fine, np.uint8(NODATA))
    return content


def _wanted(tile: Tile, target: Target, scene: Scene) -> NDArray[np.bool_]:
    shape = (tile.core.height, tile.core.width)
    if not scene.may_hold_data(tile.core):
        return np.zeros(shape, bool)
    wanted = np.ones(shape, bool) if target.area is None else target.area.inside(tile.core)
    if wanted.any():
        valid = scene.read(tile.core).valid
        wanted = wanted if valid is None else wanted & valid
    return wanted


def _nearest(core: Rect, job: Job, target: Target) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """For each row and column of `core`, the row and column of the parts' region that its centre falls in."""
    whole, region = target.info.grid, job.grid.area
    rows = (np.arange(core.row, core.bottom) + 0.5) * (job.grid.height / whole.height)
    columns = (np.arange(core.col, core.right) + 0.5) * (job.grid.width / whole.width)
    return rows.astype(np.int64) - region.row, columns.astype(np.int64) - region.col
