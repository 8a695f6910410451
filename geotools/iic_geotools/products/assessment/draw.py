"""A stratified random sample of a map, to be labelled by people who do not see the map's class."""

import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from iic_geotools.classmap.class_map import ClassMap, check_placed, open_map, values_by_name
from iic_geotools.classmap.classes import NODATA
from iic_geotools.errors import OutputError, SceneError, UsageError
from iic_geotools.files import check_folder, check_name
from iic_geotools.products.areas import ClassAreas, PixelAreas, class_areas
from iic_geotools.products.assessment.accuracy import LEAST, Z
from iic_geotools.scene.points import write_points
from iic_geotools.settings import checked
from iic_geotools.tiling import Rect, TileGrid
from iic_geotools.work import OnProgress, Progress, silent

_LOG = logging.getLogger(__name__)
PathLike = str | os.PathLike[str]
Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
RARE = 50
"""Samples that a class gets at least, if there are enough: Olofsson et al. advise 50 to 100 for rare classes."""
ASSUMED_ACCURACY = 0.8
"""User's accuracy assumed by the advice; it is unknown before the samples are labelled."""
GOOD_MARGIN = 0.02
"""Margin of overall accuracy that the advice names a number of samples for."""
MOST_SAMPLES = 1_000_000
SAMPLE_KEY = "IIC_SAMPLE_OF"
"""The metadata item of a layer of samples that ties it to its map."""
_TILE = 1024


@dataclass(frozen=True)
class Stratum:
    """A class of the map, and how many samples are drawn from it.

    Attributes:
        name: Name of the class.
        share: Share of the class in the area of the map.
        samples: Number of samples.
    """

    name: str
    share: float
    samples: int


@dataclass(frozen=True)
class Draw:
    """A sample that was drawn.

    Attributes:
        path: The file of points.
        strata: What was drawn from each class, in the order of the legend.
        margin: Half of the width of the 95 % confidence interval of overall accuracy that may be expected, if 80 % of
            every class are right.
        advised: Number of samples that would bring it to 2 points.
    """

    path: Path
    strata: tuple[Stratum, ...]
    margin: float
    advised: int

    @property
    def advice(self) -> tuple[str, ...]:
        """What to do next, and whether the samples are enough, in sentences."""
        names = ", ".join(stratum.name for stratum in self.strata)
        few = [stratum.name for stratum in self.strata if stratum.samples < RARE]
        sentences = [
            f"Give each point of {self.path} its class in the field class: {names}.",
            f"If {100 * ASSUMED_ACCURACY:g} % of every class are right, overall accuracy will be known to ± "
            f"{100 * self.margin:.1f} points (95 %); {self.advised} samples would make that "
            f"± {100 * GOOD_MARGIN:g}.",
        ]
        if few:
            sentences.append(f"Below {RARE} samples, areas of a class are vague: {', '.join(few)}.")
        return tuple(sentences)


@checked
def draw_samples(
    map: PathLike,
    samples: PathLike,
    draw: int,
    *,
    seed: int = 0,
    overwrite: bool = False,
    progress: OnProgress = silent,
) -> Draw:
    """Draw a stratified random sample of a map, as points at the centres of pixels.

    The strata are the classes of the map. Each class gets samples in proportion to its area, but rare ones at least 50,
    as far as that leaves half of the samples to be shared by area. Within a class every piece of ground has the same
    chance. The points come in random order, with an empty field `class` to be filled in; the class of the map is not
    in the file.

    Raises:
        IICError: Something is wrong; the message says what, and what to do. No file is written.
    """
    out = Path(samples)
    _check_output(out, Path(map), overwrite)
    if not 1 <= draw <= MOST_SAMPLES:
        raise UsageError(f"`draw` must be 1 to {MOST_SAMPLES} samples, not {draw}.")
    if seed < 0:
        raise UsageError(f"`seed` must be 0 or more, not {seed}.")
    with open_map(Path(map)) as class_map:
        check_placed(class_map)
        values_by_name(class_map)
        areas = class_areas(class_map.path, class_map.classes)
        sizes = np.array([row.pixels for row in areas.classes])
        weights = np.array([row.share for row in areas.classes])
        if not sizes.any():
            raise SceneError(f"The map {map} has no pixel with data to draw samples from.")
        if not np.nansum(weights):
            raise SceneError(f"The map {map} does not lie on the earth; check its CRS and transform.")
        present = int((sizes > 0).sum())
        if draw < LEAST * present:
            raise UsageError(
                f"`draw` must be at least {LEAST * present}, {LEAST} for each of the {present} classes of the map, not "
                f"{draw}."
            )
        counts = allocate(draw, weights, sizes)
        pixels = _draw_pixels(class_map, counts, np.random.default_rng(seed), progress)
        _write(out, pixels, class_map, fingerprint(class_map, areas))
    strata = tuple(
        Stratum(row.name, row.share, int(count))
        for row, count in zip(areas.classes, counts, strict=True)
        if row.pixels
    )
    return Draw(out, strata, *_expectation(strata))


def _check_output(out: Path, map_path: Path, overwrite: bool) -> None:
    check_name(out)
    if out.suffix.lower() != ".gpkg":
        raise UsageError(f"`samples` must end in .gpkg to be drawn, not {out.name}.")
    if out.resolve() == map_path.resolve():
        raise UsageError(f"{out} is the map; give the samples another name.")
    check_folder(out)
    if out.exists() and not overwrite:
        raise OutputError(
            f"{out} exists, perhaps with labels; give another name, or `overwrite` to replace it."
        )


def allocate(count: int, weights: Floats, sizes: Ints) -> Ints:
    """Number of samples of each stratum: by area, but of rare ones at least 50, as Olofsson et al. (2014) advise.

    Half of the samples at most are given to classes because they are rare. No stratum gets more than it has pixels.

    Args:
        weights: Share of each stratum in the area; 0 for one that does not occur.
        sizes: Number of pixels of each stratum.
    """
    present = (sizes > 0) & (weights > 0)
    least = np.minimum(np.where(present, min(RARE, max(LEAST, count // (2 * int(present.sum())))), 0), sizes)
    fixed = np.zeros(len(weights), bool)
    target = np.zeros(len(weights))
    while True:
        free = present & ~fixed
        remaining = max(0.0, count - target[fixed].sum())
        if not free.any():
            break
        target[free] = remaining * weights[free] / weights[free].sum()
        # A stratum below its minimum, or above what it holds, is fixed, and the others share the rest again.
        low, high = free & (target < least), free & (target > sizes)
        if low.any():
            target[low] = least[low]
            fixed |= low
        elif high.any():
            target[high] = sizes[high]
            fixed |= high
        else:
            break
    return _round(target, sizes)


def _round(target: Floats, sizes: Ints) -> Ints:
    """Whole numbers with the same sum, rounded, where the largest fractions are rounded up."""
    whole = np.floor(target + 1e-9).astype(np.int64)
    missing = round(float(target.sum())) - int(whole.sum())
    for index in np.argsort(whole - target, kind="stable"):
        if missing > 0 and whole[index] < sizes[index] and target[index] > 0:
            whole[index] += 1
            missing -= 1
    return whole


def _expectation(strata: Sequence[Stratum]) -> tuple[float, int]:
    """Expected margin of overall accuracy, and the number of samples for a good one (equation 13 of Olofsson)."""
    deviation = (ASSUMED_ACCURACY * (1 - ASSUMED_ACCURACY)) ** 0.5
    variance = sum((entry.share * deviation) ** 2 / max(entry.samples - 1, 1) for entry in strata)
    total = sum(entry.share for entry in strata) * deviation
    return Z * float(variance**0.5), int(np.ceil((total * Z / GOOD_MARGIN) ** 2))


def _draw_pixels(
    class_map: ClassMap, counts: Ints, rng: np.random.Generator, progress: OnProgress
) -> NDArray[np.int64]:
    """Rows and columns `[N, 2]` of pixels drawn from each class without replacement, in random order.

    Every pixel draws a lot, and the least ones of each class win. A lot is divided by the pixel's area, so that in
    degrees, where pixels differ, chances go by ground and not by pixel (Efraimidis and Spirakis, 2006).
    """
    limits = np.where(counts > 0, np.inf, -np.inf)
    table = np.full(NODATA + 1, -np.inf)
    lots: list[Floats] = [np.empty(0)] * len(counts)
    places: list[Ints] = [np.empty((0, 2), np.int64)] * len(counts)
    for values, areas, rect in _windows(class_map, progress):
        table[: len(counts)] = limits
        with np.errstate(divide="ignore"):
            draws = rng.standard_exponential(values.shape) / areas
        rows, columns = np.nonzero(draws < table[values])
        winners, drawn = values[rows, columns], draws[rows, columns]
        for value in np.unique(winners).tolist():
            here = winners == value
            spots = np.stack([rows[here] + rect.row, columns[here] + rect.col], 1)
            together = np.concatenate([lots[value], drawn[here]])
            kept = np.argsort(together, kind="stable")[: counts[value]]
            lots[value] = together[kept]
            places[value] = np.concatenate([places[value], spots])[kept]
            if len(kept) == counts[value]:
                limits[value] = lots[value][-1]
    pixels = np.concatenate(places)
    return np.asarray(rng.permutation(pixels))


def _windows(class_map: ClassMap, progress: OnProgress) -> Iterator[tuple[NDArray[np.uint8], Floats, Rect]]:
    """Values and areas of the pixels of a map, window by window."""
    grid = class_map.grid
    areas = PixelAreas(grid)
    tiles = TileGrid(grid.width, grid.height, _TILE, halo=0, stride=1)
    for done, tile in enumerate(tiles):
        progress(Progress("draw", done, len(tiles)))
        yield class_map.read(tile.core), areas.of(tile.core), tile.core
    progress(Progress("draw", len(tiles), len(tiles)))


def fingerprint(class_map: ClassMap, areas: ClassAreas) -> str:
    """Fingerprint of the map that a sample was drawn from: grid, legend and number of pixels per class."""
    grid = class_map.grid
    facts = [grid.width, grid.height, *tuple(grid.transform)[:6]]
    facts += [(row.name, row.pixels) for row in areas.classes if row.pixels]
    return sha256(repr(facts).encode()).hexdigest()[:32]


def _write(out: Path, pixels: Ints, class_map: ClassMap, map_fingerprint: str) -> None:
    grid = class_map.grid
    x, y = grid.to_ground(pixels[:, 1] + 0.5, pixels[:, 0] + 0.5)
    fields = {
        "class": np.array([None] * len(pixels), object),
        "number": np.arange(1, len(pixels) + 1, dtype=np.int32),
    }
    write_points(out, x, y, grid.crs, fields, {SAMPLE_KEY: map_fingerprint})
