"""Minimum mapping unit: patches that are too small take the class of what is around them.

**What is done.** Areas double from that of a pixel to the minimum, so that the smallest patches go first. At each of
these areas, all patches below it are decided at once, and this is repeated until nothing changes:

- A patch that borders on patches of that area or more takes the class that it has the longest border with among
  those, counted in edges of pixels.
- A patch that borders on none of these waits. If it has more pixels than each of its neighbours, it leads. If not,
  it takes the class that it has the longest border with among leaders, if it borders on any.

Ties are decided by a fixed scramble of the index of a patch's first pixel, so that they favour no class. Pixels without
data stay so, and count as no neighbour. In the end no patch below the minimum is left, except those that have no
neighbour: in every other group of patches that border on each other, one is large or leads.

**Why it does not depend on tiles.** What becomes of a patch depends on the patches around it, on those around them, and
so on, but only as far as patches below the minimum reach. A window around the core of a tile shows some patches only
partly: their areas are at least what is seen. Wherever a decision rests on a part that is not seen, its result is
marked as unknown, and what borders on it as perhaps larger than known. So by induction over the repetitions every
patch that is not marked has the class that it has in the whole map. If any patch in the core is marked, the window
is enlarged, in the end to the whole map, where nothing is cut off. Sums of areas are sums of whole numbers, hence the
same in any order.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from iic_geotools.classmap.classes import NODATA
from iic_geotools.ellipsoid import Ground
from iic_geotools.geobox import GeoBox
from iic_geotools.products.patches import Bytes, Flags, Ints, Numbers, Patches, Read, find_patches, scramble
from iic_geotools.tiling import Rect

# Limits of the number of pixels around a core that are read at first; more where that is not enough.
_HALO_LIMITS = (64, 512)
# In noise, the fate of a pixel is decided within about three times the side of a square of the minimum area.
_SIDES = 4
# Areas that differ from pixel to pixel are whole multiples of this share of the minimum.
_STEPS = 1 << 32


@dataclass(frozen=True)
class Sieve:
    """Absorb patches below a minimum area.

    Attributes:
        area: The minimum in square metres.
        grid: The grid of the map.
        keep_islands: Whether patches below the minimum that have no neighbour stay; if not, they become nodata.
    """

    area: float
    grid: GeoBox
    keep_islands: bool = True

    def __call__(self, read: Read, core: Rect) -> Bytes:
        """The pixels of a rectangle of the map after sieving the whole map.

        Args:
            read: Reads a rectangle of the map.
            core: The rectangle.
        """
        whole = Rect(0, 0, self.grid.width, self.grid.height)
        halo = self._halo
        while True:
            window = core.grow(halo).intersection(whole)
            if (sieved := self._sieve(read(window), window, core)) is not None:
                return sieved
            halo *= 2

    def _sieve(self, pixels: Bytes, window: Rect, core: Rect) -> Bytes | None:
        """The core of a window after sieving, or None if the window does not show enough for that."""
        place = core.relative_to(window).slices
        sizes, enough = self._pixel_sizes(window)
        cut = (
            window.row > 0,
            window.bottom < self.grid.height,
            window.col > 0,
            window.right < self.grid.width,
        )
        first = window.row * self.grid.width + window.col
        patches, runs = find_patches(pixels, sizes, first, self.grid.width, cut)
        in_core = patches.flag(runs.patches_in(*place))
        if not (in_core & (patches.sizes < enough)).any():
            return pixels[place]
        values = dissolve(patches, int(sizes.min()), enough, in_core, self.keep_islands)
        return None if values is None else runs.paint(values)[place]

    def _pixel_sizes(self, window: Rect) -> tuple[Ints, float]:
        """The area of the pixels of a window in whole numbers, and the minimum in the same unit."""
        if self._ground is None:
            # Ten digits: 0.3 m2 are 30 pixels of 0.1 m, and not a hair more.
            enough = float(f"{self.area / self.grid.planar_pixel_area:.10g}")
            return np.ones((window.height, 1), np.int64), enough
        shares = self.grid.true_pixel_areas(self._ground, window) / self.area
        return np.clip(np.rint(shares * _STEPS), 1, _STEPS).astype(np.int64), float(_STEPS)

    @cached_property
    def _halo(self) -> int:
        side = math.sqrt(self.area) / (self.grid.pixel_side or 1.0)
        return int(np.clip(_SIDES * side, *_HALO_LIMITS))

    @cached_property
    def _ground(self) -> Ground | None:
        """The ground under the map, if areas are measured there and not in the plane."""
        crs = self.grid.crs
        return None if crs is None or self.grid.area_method == "planar" else Ground.of(crs)


def dissolve(
    patches: Patches, smallest: int, enough: float, in_core: Flags, keep_islands: bool = True
) -> Bytes | None:
    """Merge patches below a size into others, as described above.

    Args:
        patches: The patches of a window, which are merged.
        smallest: The size of the smallest pixel.
        enough: The size from which patches stay as they are.
        in_core: For each patch, whether its class is needed.
        keep_islands: Whether small patches without any neighbour keep their class.

    Returns:
        The new class of each of the patches that were given; None if a class that is needed cannot be told.
    """
    patches.drop_borders(enough)
    numbers: list[Numbers] = []
    levels = [enough]
    while levels[-1] > smallest:
        levels.append(levels[-1] / 2)
    for level in reversed(levels):
        while _decide(patches, level):
            if (patches.unknown & in_core).any():
                return None
            numbers.append(patches.merge(enough))
            in_core = patches.flag(numbers[-1][in_core])
    values = patches.values
    if not keep_islands:
        values = np.where(patches.sizes < enough, np.uint8(NODATA), values)
    for number in reversed(numbers):
        values = values[number]
    return values


def _decide(patches: Patches, level: float) -> bool:
    """Give patches below a size new classes, all at once; return whether anything changed."""
    doubtful = patches.partial & (patches.sizes < level) & ~patches.unknown
    patches.unknown |= doubtful
    small = (patches.sizes < level) & ~patches.unknown
    one, other = patches.one, patches.other
    forth, back = small[one], small[other]
    source = np.concatenate([one[forth], other[back]])
    target = np.concatenate([other[forth], one[back]])
    lengths = np.concatenate([patches.lengths[forth], patches.lengths[back]])

    unsure = patches.flag(source[patches.unknown[target]])
    beside_large = ~small[target] & ~patches.unknown[target]
    waits = small & ~unsure & ~patches.flag(source[beside_large])
    leads = _leaders(patches, waits, source, target)
    # Whether a neighbour leads cannot be told if its own neighbours are unknown.
    unsure |= patches.flag(source[waits[source] & ~leads[source] & unsure[target]])
    choice = ~unsure[source] & np.where(waits[source], leads[target], beside_large)
    decided, classes = _longest(patches, source[choice], target[choice], lengths[choice])
    patches.values[decided] = classes
    patches.unknown |= unsure
    return bool(len(decided) or unsure.any() or doubtful.any())


def _leaders(patches: Patches, waits: Flags, source: Numbers, target: Numbers) -> Flags:
    """Which of the patches that wait come before all their neighbours: by number of pixels, then by scramble."""
    waiting = waits[source]
    source, target = source[waiting], target[waiting]
    mine, theirs = patches.pixels[source], patches.pixels[target]
    behind = mine < theirs
    ties = np.flatnonzero(mine == theirs)
    behind[ties] = scramble(patches.firsts[source[ties]]) > scramble(patches.firsts[target[ties]])
    return waits & ~patches.flag(source[behind])


def _longest(patches: Patches, source: Numbers, target: Numbers, lengths: Numbers) -> tuple[Ints, Bytes]:
    """Patches, and the class that each of them has the longest border with among some borders."""
    keys, group = np.unique(source.astype(np.int64) * 256 + patches.values[target], return_inverse=True)
    patch, classes = np.divmod(keys, 256)
    longest = _is_best(patch, np.bincount(group, lengths))
    patch, classes = patch[longest], classes[longest]
    lot = scramble(scramble(patches.firsts[patch]) ^ classes.astype(np.uint64))
    first = _is_best(patch, lot)
    return patch[first], classes[first].astype(np.uint8)


def _is_best(groups: Ints, scores: npt.NDArray[Any]) -> Flags:
    """Which entries have the highest score of their group; the entries of a group follow each other."""
    if not len(groups):
        return np.zeros(0, bool)
    begins = np.flatnonzero(np.diff(groups, prepend=-1))
    best = np.maximum.reduceat(scores, begins)
    return np.asarray(scores == np.repeat(best, np.diff(begins, append=len(groups))))
