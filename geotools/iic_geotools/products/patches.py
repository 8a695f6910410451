"""Patches of a map, which ones border on which, and merging them: arrays only, no files.

A patch is a region of pixels of one class that are joined across edges, not across corners. Pixels without data
belong to no patch.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from iic_geotools.classmap.classes import NODATA
from iic_geotools.ellipsoid import Floats
from iic_geotools.tiling import Rect

Bytes = npt.NDArray[np.uint8]
Read = Callable[[Rect], Bytes]
"""A function that reads a rectangle of a map."""
Flags = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]
Numbers = npt.NDArray[np.int32]
"""Numbers of pixels, runs or patches of a window: most of the memory, so no longer than needed."""
Hashes = npt.NDArray[np.uint64]


def connect(count: int, one: Numbers, other: Numbers) -> Numbers:
    """For each of `count` nodes, the lowest node that it is connected with.

    Args:
        count: Number of nodes.
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
    """Different numbers for different numbers, in an order that looks like chance (the last step of SplitMix64)."""
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
        unknown: Whether the class of a patch cannot be told from the window.
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

        Args:
            enough: The size from which a patch never changes: borders between such patches are forgotten.

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
        """Forget the borders that cannot matter any more, and mark patches beside unknown ones as partial."""
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
        first: The index of its first pixel in the whole map.
        stride: The width of the whole map.
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
