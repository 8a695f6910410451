"""Cleaning maps: majority smoothing, then a minimum mapping unit, tile by tile and exactly as on the whole map.

Each step (`majority`, `sieve`) is a function that gives the pixels of any rectangle as they are after the step was
applied to the whole map; it reads around the rectangle what it needs for that. So the result does not depend on tiles.
The tiles of a step are files, and the next step reads them as one raster: memory holds one tile and what lies around
it, whatever the size of the map.

**Majority smoothing.** Each pixel takes the most common class of the square of 2 x radius + 1 pixels around it,
clipped at the edge of the map. So tiles read with `radius` extra pixels give exactly what the whole map gives. Pixels
without data stay so and are not counted. Of classes that are equally common the pixel keeps its own, or else takes
the one with the lowest value.
"""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Protocol
from warnings import catch_warnings, simplefilter

import numpy as np
import numpy.typing as npt
import rasterio
from rasterio.enums import ColorInterp
from rasterio.errors import NotGeoreferencedWarning, RasterioError

from iic_geotools.classmap.class_map import FINGERPRINT_TAG, ClassMap, open_map, read_values
from iic_geotools.classmap.classes import MAX_CLASSES, NODATA
from iic_geotools.classmap.cog import (
    BLOCK,
    NOWHERE,
    OPEN_PARTS,
    Level,
    assemble,
    creation_options,
    part_profile,
    stored_blocks,
    touched_blocks,
)
from iic_geotools.classmap.map_writer import place_files
from iic_geotools.classmap.sidecars import map_style, sidecar_path, style_path
from iic_geotools.classmap.vrt import write_vrt
from iic_geotools.errors import OutputError, SceneError, UsageError
from iic_geotools.files import MAP_SUFFIXES, check_writable, scratch_folder
from iic_geotools.gdal import gdal_errors
from iic_geotools.geobox import GeoBox
from iic_geotools.options import CleaningSettings, CreationSettings, WorkSettings
from iic_geotools.products.sieve import Bytes, Read, Sieve
from iic_geotools.scene.info import cause, open_raster
from iic_geotools.settings import PathLike, takes
from iic_geotools.tiling import Rect
from iic_geotools.work import OnProgress, Progress, silent

MAX_RADIUS = 100
"""Larger squares blur everything that a map shows, and their pixels no longer fit into 16 bits."""

TILE = 1024
"""Side in pixels of the tiles that are cleaned at once."""
MAX_SIEVE = 250_000
"""The most pixels of a patch that may be too small: a tile must see such patches whole, and what is around them."""
IN_MEMORY = 25_000_000
"""Maps of at most this many pixels may be sieved with any area."""

Parts = list[tuple[Path, Rect]]
"""One-band GeoTIFF files of bytes, and the rectangle of the map that each of them covers."""
Stage = Callable[[Read, Rect], Bytes]


@dataclass(frozen=True)
class Majority:
    """Smooth a map by majority.

    Attributes:
        radius: Number of pixels that the square reaches in each direction.
        whole: The rectangle of the whole map.
    """

    radius: int
    whole: Rect

    def __call__(self, read: Read, core: Rect) -> Bytes:
        """The pixels of a rectangle of the map after smoothing the whole map."""
        window = core.grow(self.radius).intersection(self.whole)
        pixels = read(window)
        place = core.relative_to(window).slices
        own = pixels[place]
        winner = np.zeros_like(own)
        most, own_count = np.zeros(own.shape, np.uint16), np.zeros(own.shape, np.uint16)
        for value in np.flatnonzero(np.bincount(pixels.ravel(), minlength=256)[:NODATA]).tolist():
            count = _count(pixels == value, self.radius)[place]
            np.copyto(winner, np.uint8(value), where=count > most)
            np.maximum(most, count, out=most)
            np.copyto(own_count, count, where=own == value)
        return np.where((own_count == most) | (own == NODATA), own, winner)


def _count(flags: npt.NDArray[np.bool_], radius: int) -> npt.NDArray[np.uint16]:
    """The number of flags in the square around each pixel."""
    return _count_along(_count_along(flags, radius, 0), radius, 1)


def _count_along(values: npt.NDArray[Any], radius: int, axis: int) -> npt.NDArray[np.uint16]:
    length = values.shape[axis]
    shape = list(values.shape)
    shape[axis] += 2 * radius + 1
    sums = np.zeros(shape, np.uint16)
    view = sums.swapaxes(0, axis)
    # Sums may exceed 16 bits and begin at 0 again; their differences are right nevertheless.
    np.cumsum(values.swapaxes(0, axis), 0, np.uint16, out=view[radius + 1 : radius + 1 + length])
    view[radius + 1 + length :] = view[radius + length]
    return (view[2 * radius + 1 :] - view[: -2 * radius - 1]).swapaxes(0, axis)


class TileStore(Protocol):
    """Where the tiles of a step are kept, each complete or absent."""

    def has(self, index: int) -> bool:
        """Whether a tile is there already."""

    def write(self, index: int, pixels: Bytes) -> None:
        """Keep a tile."""

    def file(self, index: int) -> Path:
        """The file of a tile, whether it exists or not."""


@dataclass(frozen=True, kw_only=True)
class Cleaning(CleaningSettings):
    """How a map is cleaned.

    Attributes:
        keep_islands: Whether patches that are too small and have no neighbour stay; if not, they become nodata.
    """

    keep_islands: bool = True

    def __bool__(self) -> bool:
        return self.sieve > 0 or self.majority > 0

    def check(self, grid: GeoBox) -> None:
        """Refuse what cannot be done with a map, before any work."""
        check_sieve("sieve", self.sieve, grid)
        if not 0 <= self.majority <= MAX_RADIUS:
            raise UsageError(f"`majority` must be 0 to {MAX_RADIUS} pixels, not {self.majority}.")

    def stages(self, grid: GeoBox) -> dict[str, Stage]:
        """The steps by name, in order."""
        stages: dict[str, Stage] = {}
        if self.majority:
            stages["majority"] = Majority(self.majority, Rect(0, 0, grid.width, grid.height))
        if self.sieve:
            stages["sieve"] = Sieve(self.sieve, grid, self.keep_islands)
        return stages

    @property
    def digest(self) -> str:
        """A short name of this way of cleaning."""
        return sha256(repr(self).encode()).hexdigest()[:12]

    @property
    def tags(self) -> dict[str, str]:
        """Metadata of a map that was cleaned so."""
        tags = {"IIC_MAJORITY": f"{self.majority} px", "IIC_SIEVE": f"{self.sieve:g} m2"}
        return {key: text for key, text in tags.items() if not text.startswith("0 ")}


def check_sieve(name: str, area: float, grid: GeoBox) -> None:
    """Refuse an area that a map cannot be sieved with.

    Args:
        area: The area in square metres.
    """
    if not 0 <= area < math.inf:
        raise UsageError(f"`{name}` must be 0 or more square metres, not {area:g}.")
    if area and grid.area_method == "none":
        raise UsageError(f"`{name}` is in square metres, and this map has no reference system: leave it out.")
    pixels = area / (grid.pixel_side or math.inf) ** 2
    if pixels > MAX_SIEVE and grid.width * grid.height > IN_MEMORY:
        raise UsageError(
            f"`{name}` of {area:g} square metres is {pixels:.3g} pixels of this map, and {MAX_SIEVE:,} are the most: "
            "patches of that size belong on a map of larger pixels."
        )


@dataclass(frozen=True)
class CleanedMap:
    """What cleaning a map did.

    Attributes:
        map: The new map.
        pixels: Number of its pixels.
        seconds: How long it took.
    """

    map: Path
    pixels: int
    seconds: float

    def sentence(self) -> str:
        """Describe it in one line."""
        speed = self.pixels / 1e6 / max(self.seconds, 1e-9)
        return f"{self.map}: {self.pixels / 1e6:.2f} Mpx cleaned in {self.seconds:.1f} s ({speed:.2f} Mpx/s)"


@dataclass(frozen=True)
class CleanArguments(CleaningSettings, CreationSettings, WorkSettings):
    """Arguments of `clean_map`."""

    map: PathLike
    out: PathLike


@takes(CleanArguments)
def clean_map(arguments: CleanArguments) -> CleanedMap:
    """Clean a map of any size: majority smoothing first, then a minimum mapping unit.

    Grid, classes, colours and metadata are kept, and so are pixels without data. The result does not depend on tiles,
    and memory does not depend on the size of the map.

    Args:
        map: The map: one band of bytes in which 255 is nodata.
        out: The clean map, .tif, a Cloud-Optimised GeoTIFF.

    Returns:
        What was done.

    Raises:
        IICError: Something is wrong; the message says what, and what to do. No file is written.
    """
    begun = time.monotonic()
    source, target = Path(arguments.map), Path(arguments.out)
    cleaning = Cleaning.of(arguments.values())
    creation = creation_options(arguments.co or {})
    outputs = [(target, MAP_SUFFIXES, "out")]
    check_writable(outputs, [source], overwrite=arguments.overwrite, sidecars=[style_path(target)])
    with open_map(source) as class_map:
        check_legend(class_map)
        cleaning.check(class_map.grid)
        if not cleaning:
            raise UsageError("There is nothing to do: give `sieve`, `majority` or both.")
        with scratch_folder(target) as folder:
            parts = clean_file(
                source,
                class_map.dataset,
                cleaning,
                folder,
                arguments.progress,
                classes=len(class_map.classes),
            )
            written, style = folder / f"map{target.suffix.lower()}", folder / "map.qml"
            tags = {
                key: text for key, text in class_map.tags.items() if key != FINGERPRINT_TAG
            } | cleaning.tags
            classes = class_map.classes
            assemble(parts, written, class_map.grid, classes=classes, tags=tags, options=creation)
            style.write_bytes(map_style(classes))
            place_files(
                [
                    (sidecar_path(written), sidecar_path(target)),
                    (style, style_path(target)),
                    (written, target),
                ]
            )
    return CleanedMap(target, class_map.grid.width * class_map.grid.height, time.monotonic() - begun)


def check_legend(class_map: ClassMap) -> None:
    """Refuse a raster of bytes that is something other than a map, e.g. confidence."""
    if not class_map.has_names and class_map.dataset.colorinterp[0] != ColorInterp.palette:
        raise SceneError(
            f"{class_map.path} has neither names of classes nor a colour table, so it is not a map of classes; give a "
            "map, together with its .aux.xml file."
        )


def clean_file(
    path: Path,
    dataset: Any,
    cleaning: Cleaning,
    folder: Path,
    progress: OnProgress = silent,
    *,
    classes: int = MAX_CLASSES,
) -> Parts:
    """Clean a map, into files in a folder.

    Returns:
        The parts of the clean map; where there is none, the map holds no data.

    Raises:
        SceneError: The map cannot be read, or has a value without a class.
    """
    grid = GeoBox.of(dataset)
    stored, (high, wide) = stored_blocks(dataset, path)
    rects = (Rect(int(col) * wide, int(row) * high, wide, high) for row, col in np.argwhere(stored))
    touched = touched_blocks(rects, grid.width, grid.height, TILE)
    level = Level(path, grid.width, grid.height, TILE, touched)
    return clean_tiles(
        level, grid, cleaning, lambda name: _TileFiles(folder, name), folder, progress, classes
    )


def clean_tiles(
    level: Level,
    grid: GeoBox,
    cleaning: Cleaning,
    store: Callable[[str], TileStore],
    folder: Path,
    progress: OnProgress = silent,
    classes: int = MAX_CLASSES,
) -> Parts:
    """Clean a map tile by tile. Tiles that are in their store already are not computed again.

    Args:
        store: Gives the store of each step, by the step's name.

    Returns:
        The parts of the clean map; where there is none, the map holds no data.
    """
    stages = cleaning.stages(grid)
    total = len(stages) * sum(window.width * window.height for _, _, window in level.windows())
    parts: Parts = []
    done = 0
    for name, stage in stages.items():
        tiles = store(name)
        parts = []
        with rasterio.Env(GDAL_MAX_DATASET_POOL_SIZE=OPEN_PARTS), _reader(level, classes) as read:
            for index, core in _cores(level):
                if not (read(core) == NODATA).all():
                    if not tiles.has(index):
                        tiles.write(index, stage(read, core))
                    parts.append((tiles.file(index), core))
                done += core.area
                progress(Progress("clean", done, total, unit="px"))
        level = as_level(parts, grid, folder / f"{name}.vrt")
    return parts


def as_level(parts: Parts, grid: GeoBox, path: Path) -> Level:
    """Parts of a map as one raster, a virtual one that is written to `path`, with blocks of the size of a tile."""
    write_vrt(path, GeoBox(grid.width, grid.height, NOWHERE), parts, block=BLOCK)
    touched = touched_blocks((rect for _, rect in parts), grid.width, grid.height, TILE)
    return Level(path, grid.width, grid.height, TILE, touched)


def _cores(level: Level) -> Iterator[tuple[int, Rect]]:
    """Index and pixels of each tile that may hold data."""
    across = level.touched.shape[1]
    for row, col, window in level.windows():
        yield row * across + col, Rect(window.col_off, window.row_off, window.width, window.height)


@contextmanager
def _reader(level: Level, classes: int) -> Iterator[Read]:
    """Yield a function that reads rectangles of a raster."""
    with open_raster(str(level.path)) as dataset:
        yield lambda rect: read_values(dataset, rect, classes, level.path)


@dataclass(frozen=True)
class _TileFiles:
    """Tiles as plain files: all of them are computed."""

    folder: Path
    name: str

    def has(self, index: int) -> bool:
        return False

    def file(self, index: int) -> Path:
        return self.folder / f"{self.name}-{index:06d}.tif"

    def write(self, index: int, pixels: Bytes) -> None:
        height, width = pixels.shape
        try:
            with catch_warnings(), gdal_errors():
                simplefilter("ignore", NotGeoreferencedWarning)
                with rasterio.open(self.file(index), "w", **part_profile(width, height)) as dataset:
                    dataset.write(pixels, 1)
        except RasterioError as error:
            raise OutputError(
                f"{self.file(index)} cannot be written ({cause(error)}); make room first."
            ) from error
