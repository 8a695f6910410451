"""Minimum mapping unit: patches that are too small take the class around them.

**Method.** Areas double from that of a pixel to the minimum, so that the smallest patches go first. At each of
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

**Patches.** A patch is a region of
pixels of one class that are joined across edges, not across corners. Pixels without data belong to no patch.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from iic_geotools.classmap.classes import NODATA
from iic_geotools.geobox import Floats, GeoBox, Ground
from iic_geotools.tiling import Rect

Bytes = npt.NDArray[np.uint8]
Read = Callable[[Rect], Bytes]
"""A function that reads a rectangle of a map."""
Flags = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]
Numbers = npt.NDArray[np.int32]
"""Numbers of pixels, runs or patches of a window: most of the memory, so no longer than needed."""
Hashes = npt.NDArray[np.uint64]

# Limits of the number of pixels around a core that are read at first; more where that is not enough.
_HALO_LIMITS = (64, 512)
# In noise, the fate of a pixel is decided within about three times the side of a square of the minimum area.
_SIDES = 4
# Areas that differ from pixel to pixel are whole multiples of this share of the minimum.
_STEPS = 1 << 32


def connect(count: int, one: Numbers, other: Numbers) -> Numbers:
    """For each of `count` nodes, the lowest node that it is connected with.

    Args:
        one: One end of each edge.
        other: The other end of each edge.
    """
    lowest = np.arange(count, dtype=np.int32)
    while len(one):
        low, high = np.minimum(one, other), np.maximum(one, other)
        # Of several edges at one node any may win: all of them lead to a lower node, so there are no circles.
        lowest[high] = low
        while True:
            shorter = lowest[lowest]
            if np.array_equal(shorter, lowest):
                break
            lowest = shorter
        one, other = lowest[low], lowest[high]
        apart = one != other
        one, other = one[apart], other[apart]
    return lowest


def scramble(numbers: npt.NDArray[np.integer]) -> Hashes:
    """Permute 64-bit integers pseudo-randomly (the finaliser of SplitMix64)."""
    mixed = numbers.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


@dataclass
class Patches:
    """Patches in a window of a map, in the order of their first pixels, and the borders between them.

    Attributes:
        values: The class of each patch.
        sizes: The area of each patch, in a unit in which pixels have whole numbers, so that sums are exact.
        pixels: The number of pixels of each patch.
        firsts: The index of the first pixel of each patch in the whole map.
        partial: Whether a patch may be larger than the window shows.
        unknown: Whether the class of a patch is unknown from the window.
        one: For each piece of border, the patch on one side; a pair of patches may share several pieces.
        other: The patch on the other side.
        lengths: The length of each piece of border, in edges of pixels.
    """

    values: Bytes
    sizes: Floats
    pixels: Numbers
    firsts: Ints
    partial: Flags
    unknown: Flags
    one: Numbers
    other: Numbers
    lengths: Numbers

    def flag(self, patches: Numbers) -> Flags:
        """One flag per patch, set for those that are listed."""
        flags = np.zeros(len(self.values), bool)
        flags[patches] = True
        return flags

    def merge(self, enough: float) -> Numbers:
        """Join patches of one class that border on each other.

        Returns:
            The new number of each patch.
        """
        one, other = self.one, self.other
        joined = (self.values[one] == self.values[other]) & ~self.unknown[one] & ~self.unknown[other]
        lowest = connect(len(self.values), one[joined], other[joined])
        kept = lowest == np.arange(len(lowest))
        number = (np.cumsum(kept, dtype=np.int32) - 1)[lowest]
        count = int(kept.sum())
        self.sizes = np.asarray(np.bincount(number, self.sizes, count), np.float64)
        self.pixels = np.bincount(number, self.pixels, count).astype(np.int32)
        self.partial = np.bincount(number[self.partial], minlength=count) > 0
        self.values, self.firsts, self.unknown = self.values[kept], self.firsts[kept], self.unknown[kept]
        self.one, self.other = number[one], number[other]
        self.drop_borders(enough)
        return number

    def drop_borders(self, enough: float) -> None:
        """Forget the borders that cannot matter any more, and mark patches next to unknown ones as partial."""
        alive = (self.sizes < enough) & ~self.unknown
        matters = (self.one != self.other) & (alive[self.one] | alive[self.other])
        self.one, self.other, self.lengths = self.one[matters], self.other[matters], self.lengths[matters]
        self.partial |= self.flag(self.one[self.unknown[self.other]])
        self.partial |= self.flag(self.other[self.unknown[self.one]])


@dataclass(frozen=True)
class Runs:
    """A window of a map as runs of equal pixels within its rows.

    Attributes:
        shape: Height and width of the window.
        lengths: The number of pixels of each run.
        patch: The patch that each run belongs to; -1 without data.
    """

    shape: tuple[int, int]
    lengths: Numbers
    patch: Numbers

    def paint(self, values: Bytes) -> Bytes:
        """The window, with a value for each patch."""
        by_run = np.append(values, np.uint8(NODATA))[self.patch]
        return np.repeat(by_run, self.lengths).reshape(self.shape)

    def patches_in(self, rows: slice, columns: slice) -> Numbers:
        """The patches of some pixels of the window, in any order and repeatedly."""
        by_pixel = np.repeat(self.patch, self.lengths).reshape(self.shape)[rows, columns]
        return by_pixel[by_pixel >= 0]


def find_patches(
    window: Bytes, pixel_sizes: Ints, first: int, stride: int, cut: tuple[bool, bool, bool, bool]
) -> tuple[Patches, Runs]:
    """Find the patches of a window of a map.

    Args:
        window: The pixels of the window.
        pixel_sizes: The area of its pixels, one per row (`[height, 1]`) or one per pixel.
        cut: Whether the map continues above, below, left and right of the window.
    """
    width = window.shape[1]
    begins = np.ones(window.shape, bool)
    np.not_equal(window[:, 1:], window[:, :-1], out=begins[:, 1:])
    starts = np.flatnonzero(begins).astype(np.int32)
    lengths = np.diff(starts, append=np.int32(window.size))
    run = np.repeat(np.arange(len(starts), dtype=np.int32), lengths)
    values = window.ravel()[starts]
    holds_data = values != NODATA

    # Pieces of horizontal border: they begin wherever a run begins above or below.
    pieces = np.flatnonzero(begins[:-1] | begins[1:]).astype(np.int32)
    above, below = run[pieces], run[pieces + width]
    border = np.diff(pieces, append=np.int32(window.size - width))
    both = holds_data[above] & holds_data[below]
    above, below, border = above[both], below[both], border[both]
    same = values[above] == values[below]
    lowest = connect(len(starts), above[same], below[same])

    kept = (lowest == np.arange(len(lowest))) & holds_data
    patch = np.where(holds_data, (np.cumsum(kept, dtype=np.int32) - 1)[lowest], np.int32(-1))
    count = int(kept.sum())
    data = patch[holds_data]
    beside = np.flatnonzero(holds_data[:-1] & holds_data[1:] & (starts[1:] % width > 0))
    rows, columns = np.divmod(starts[kept].astype(np.int64), width)
    runs = Runs((window.shape[0], width), lengths, patch)
    sizes = _run_sizes(pixel_sizes, starts, lengths, width)[holds_data]
    patches = Patches(
        values=values[kept],
        sizes=np.asarray(np.bincount(data, sizes, count), np.float64),
        pixels=np.bincount(data, lengths[holds_data], count).astype(np.int32),
        firsts=first + rows * stride + columns,
        partial=np.zeros(count, bool),
        unknown=np.zeros(count, bool),
        one=np.concatenate([patch[above[~same]], patch[beside]]),
        other=np.concatenate([patch[below[~same]], patch[beside + 1]]),
        lengths=np.concatenate([border[~same], np.ones(len(beside), np.int32)]),
    )
    edges = (run[:width], run[-width:], run[::width], run[width - 1 :: width])
    for edge, continues in zip(edges, cut, strict=True):
        if continues:
            on_edge = patch[edge]
            patches.partial[on_edge[on_edge >= 0]] = True
    return patches, runs


def _run_sizes(pixel_sizes: Ints, starts: Numbers, lengths: Numbers, width: int) -> Ints:
    if pixel_sizes.shape[1] == 1:
        return np.asarray(pixel_sizes[starts // width, 0] * lengths)
    return np.asarray(np.add.reduceat(pixel_sizes.ravel(), starts))


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
        """The pixels of a rectangle of the map after sieving the whole map."""
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
        in_core: For each patch, whether its class is needed.
        keep_islands: Whether small patches without any neighbour keep their class.

    Returns:
        The new class of each of the patches that were given; None if a class that is needed is unknown.
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
    # Whether a neighbour leads is unknown if its own neighbours are.
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
