"""Where to click next: the largest areas of a scene of which a model is unsure, as points to give a class to."""

import logging
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from iic_geotools.classmap.classes import NODATA
from iic_geotools.errors import SceneError, UsageError
from iic_geotools.files import check_writable
from iic_geotools.geobox import GeoBox
from iic_geotools.packages import require_vector, shapely
from iic_geotools.scene.info import SceneInfo, describe
from iic_geotools.scene.scene import Pixels, SceneSource
from iic_geotools.scene.vectors import write_package
from iic_geotools.settings import PathLike, takes
from iic_geotools.tiling import Tile, TileGrid
from iic_geotools.work import OnProgress, Progress, silent
from iic_runtime.model.file import ModelFile
from iic_runtime.naming import SUGGESTED_PLACES
from iic_runtime.options import DeviceSettings, ReadingSettings, SuggestSettings
from iic_runtime.raster.model_input import choose_reading
from iic_runtime.segmenter import Segmentation, Segmenter, group_by_shape

_LOG = logging.getLogger(__name__)
SUFFIX = ".gpkg"
CELL = 16
"""Smallest side in pixels of the cells over which confidence is averaged."""
MOST_CELLS = 1024
"""Largest number of cells along a side of the scene."""
APART = 4
"""Least distance between two places, in cells."""
TILE = 256
MOST_PIXELS = 16_000_000
"""Pixels that are labelled for this; of a larger scene, tiles spread over it."""
Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Place:
    """A place to click.

    Attributes:
        row: Row of the pixel, on the grid that the scene is read on.
        column: Its column.
        guess: Name of the class that the model takes it for.
        confidence: Mean confidence around it, 0 to 1.
    """

    row: int
    column: int
    guess: str
    confidence: float


@dataclass(frozen=True)
class SuggestArguments(SuggestSettings):
    """Arguments of `suggest_places`."""

    model: PathLike | ModelFile
    scene: PathLike
    out: PathLike


@takes(SuggestArguments)
def suggest_places(arguments: SuggestArguments) -> list[Place]:
    """Write the places of a scene that a model is least sure of, to be given a class and used as labels.

    Args:
        model: A model file, or the name of a bundled model.
        scene: The scene, anything that GDAL opens.
        out: The points, .gpkg: `class` is empty and for you to fill in, `guess` is what the model takes them for.

    Raises:
        IICError: Something is wrong; the message says what, and what to do. No file is written.
    """
    out, count = Path(arguments.out), arguments.count
    if count < 1:
        raise UsageError(f"`count` must be at least 1, not {count}.")
    info = describe(os.fspath(arguments.scene))
    check_places(out, scene_files(info), arguments.overwrite)
    segmenter = Segmenter(arguments.model, tile=TILE, **arguments.part(DeviceSettings).values())
    reading = choose_reading(info, segmenter.card, **arguments.part(ReadingSettings).values())
    grid = reading.grid or info.grid
    places = find_unsure_places(segmenter, reading, grid, count, arguments.progress)
    if not places:
        raise SceneError(f"No area of {arguments.scene} holds enough data to suggest a place in it.")
    write_places(out, places, grid)
    return places


def scene_files(info: SceneInfo) -> list[Path]:
    """Return the files that a scene is read from, which no output may replace."""
    return [Path(info.path), *map(Path, info.files)]


def check_places(out: Path, inputs: Sequence[Path], overwrite: bool, argument: str = "out") -> None:
    """Check outputs before any work; the exceptions are those of `check_writable`.

    Raises:
        MissingPackageError: Vector files cannot be written here.
    """
    require_vector("Suggesting places")
    check_writable([(out, (SUFFIX,), argument)], inputs, overwrite=overwrite)


def find_unsure_places(
    segmenter: Segmenter,
    reading: SceneSource,
    grid: GeoBox,
    count: int = SUGGESTED_PLACES,
    progress: OnProgress = silent,
) -> list[Place]:
    """Return the least sure places of a scene, no two of them close to each other.

    Args:
        progress: Called with reports of how far the work is.
    """
    side = max(CELL, math.ceil(max(grid.width, grid.height) / MOST_CELLS))
    shape = -(-grid.height // side), -(-grid.width // side)
    unsure, guesses = np.zeros(shape, np.float32), np.full(shape, NODATA, np.uint8)
    tile_side = side * max(1, TILE // side)
    card = segmenter.card
    tiles = TileGrid(grid.width, grid.height, tile_side, card.halo, card.stride)
    for tile, result in _label_some(segmenter, reading, tiles, progress):
        _average(tile, result, side, unsure, guesses)
    return [
        Place(row, column, card.classes[guess].name, 1 - doubt)
        for row, column, guess, doubt in _choose(unsure, guesses, side, count)
    ]


def _label_some(
    segmenter: Segmenter, reading: SceneSource, tiles: TileGrid, progress: OnProgress
) -> Iterator[tuple[Tile, Segmentation]]:
    rows, columns = tiles.shape
    most = min(rows * columns, max(1, MOST_PIXELS // tiles.tile**2))
    numbers = np.unique(np.linspace(0, rows * columns - 1, most).round().astype(int)).tolist()
    if most < rows * columns:
        _LOG.info("Looking at %d of %d tiles of the scene, spread over it", most, rows * columns)

    def read() -> Iterator[tuple[Tile, Pixels]]:
        for done, number in enumerate(numbers):
            progress(Progress("suggest", done, len(numbers)))
            tile = tiles.at(*divmod(number, columns))
            if scene.may_hold_data(tile.core):
                yield tile, scene.read(tile.read)

    with reading.open() as scene:
        for results in segmenter.label(group_by_shape(read(), segmenter.spec.batch), len(numbers)):
            yield from results
    progress(Progress("suggest", len(numbers), len(numbers)))


def _average(tile: Tile, result: Segmentation, side: int, unsure: Floats, guesses: NDArray[np.uint8]) -> None:
    """Average a tile over cells; cells that lack data somewhere are left out, as a place must be clickable."""
    height, width = (length // side for length in result.labels.shape)
    if not height or not width:
        return
    cut = (slice(height * side), slice(width * side))
    blocks = result.confidence[cut].reshape(height, side, width, side).astype(np.float32)
    labels = result.labels[cut].reshape(height, side, width, side)
    whole = (labels != NODATA).all((1, 3))
    row, column = tile.core.row // side, tile.core.col // side
    place = slice(row, row + height), slice(column, column + width)
    unsure[place] = np.where(whole, 1 - blocks.mean((1, 3)) / 255, 0.0)
    guesses[place] = labels[:, side // 2, :, side // 2]


def _choose(
    unsure: Floats, guesses: NDArray[np.uint8], side: int, count: int
) -> Iterator[tuple[int, int, int, float]]:
    """Yield row, column, guess and doubt of the least sure cells, judged with their neighbours: areas, not rims."""
    padded = np.pad(unsure, 1)
    height, width = unsure.shape
    wide = sum(padded[i : i + height, j : j + width] for i in range(3) for j in range(3)) / 9
    wide = np.where(unsure > 0, wide, 0.0)
    for _ in range(count):
        row, column = (int(index) for index in np.unravel_index(int(wide.argmax()), wide.shape))
        if wide[row, column] <= 0:
            return
        yield (
            row * side + side // 2,
            column * side + side // 2,
            int(guesses[row, column]),
            float(unsure[row, column]),
        )
        wide[max(row - APART, 0) : row + APART + 1, max(column - APART, 0) : column + APART + 1] = 0.0


def write_places(out: Path, places: Sequence[Place], grid: GeoBox) -> None:
    """Write places as points, in the CRS of the scene.

    Raises:
        OutputError: The file cannot be written.
    """
    columns = np.array([place.column + 0.5 for place in places])
    rows = np.array([place.row + 0.5 for place in places])
    xs, ys = grid.to_ground(columns, rows)
    fields = {
        "class": np.array([None] * len(places), object),
        "guess": np.array([place.guess for place in places], object),
        "confidence": np.array([round(place.confidence, 3) for place in places]),
        "rank": np.arange(1, len(places) + 1, dtype=np.int32),
    }
    crs = None if grid.crs is None else grid.crs.to_wkt()
    write_package(out, shapely.points(xs, ys), fields, crs)
