"""Parts that were labelled at the model's ground resolution, brought back onto the scene's own grid."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
from affine import Affine
from numpy.typing import NDArray
from rasterio.windows import Window

from iic_geotools.classmap.classes import NODATA
from iic_geotools.classmap.cog import BLOCK
from iic_geotools.classmap.vrt import write_vrt
from iic_geotools.geobox import GeoBox
from iic_geotools.progress import OnProgress, Progress
from iic_geotools.scene.info import open_raster
from iic_geotools.scene.scene import Scene
from iic_geotools.tiling import Part, Rect, Tile, TileGrid
from iic_runtime.engine.base import LabelArray
from iic_runtime.raster.part_folder import MapParts, PartFolder
from iic_runtime.raster.plan import Plan, list_parts

TILE = 1024
PREFIX = "scene_"


def regrid_parts(plan: Plan, parts: Sequence[Part], folder: PartFolder, progress: OnProgress) -> MapParts:
    """Bring parts onto the scene's grid: each pixel takes the nearest label, if the scene itself holds data there.

    Parts of a scene that was read on its own grid are only listed.

    Args:
        plan: The plan of the run.
        parts: The parts on the grid that the scene was read on.
        folder: The folder of these parts, which the new ones are written to, too.
        progress: Called with the pixels done so far.

    Returns:
        The parts on the map's grid.
    """
    if plan.reading.grid is None:
        return folder.placed(parts, plan.tiles.area)
    grid, reading = plan.scene.grid, replace(plan.reading, grid=None)
    tiles = TileGrid(grid.width, grid.height, TILE, halo=0, stride=1, region=plan.region)
    scene_parts = list_parts(tiles, reading, plan.area)
    total = sum(part.rect.area for part in scene_parts)
    scene_folder = PartFolder(folder.path, [PREFIX + layer for layer in folder.layers])
    done = 0
    with reading.open() as scene, _open_mosaics(plan, parts, folder) as mosaics:
        for part in scene_parts:
            if not scene_folder.has(part.index):
                scene_folder.write(part.index, _regrid(plan, part, scene, mosaics))
            done += part.rect.area
            progress(Progress("regrid", done, total, unit="px"))
    placed = scene_folder.placed(scene_parts, plan.region)
    return {layer.removeprefix(PREFIX): files for layer, files in placed.items()}


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
            content = {PREFIX + layer: np.full(shape, NODATA, np.uint8) for layer in mosaics}
        rows, columns = _nearest(plan, tile.core)
        window = Window(columns[0], rows[0], columns[-1] - columns[0] + 1, rows[-1] - rows[0] + 1)
        place = tile.core.relative_to(part.rect).slices
        for layer, mosaic in mosaics.items():
            coarse = mosaic.read(1, window=window)
            fine = coarse[np.ix_(rows - rows[0], columns - columns[0])]
            content[PREFIX + layer][place] = np.where(valid, fine, np.uint8(NODATA))
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
