"""How much to run at once: the largest tiles that fit the memory one may take."""

from dataclasses import dataclass

import numpy as np

from iic_geotools.errors import UsageError
from iic_runtime.card import Card

DEFAULT_MEMORY = 1 << 30
TILES = (2048, 1024, 512, 256, 128)
CPU_TILE, GPU_TILE = 512, 1024
# Interpreter, libraries, GDAL's block cache and the part being written, measured at about 250 MB.
BASE_MEMORY = 300 << 20
GPU_BATCH = 4
QUEUED_TILES = 3


@dataclass(frozen=True)
class Sizing:
    """Side of a tile's core in pixels, and how many tiles are run at once."""

    tile: int
    batch: int


def choose_sizing(
    card: Card, device: str, tile: int | None = None, batch: int | None = None, max_memory: int | None = None
) -> Sizing:
    """Take what is given and choose the rest so that the estimate stays below `max_memory` (default 1 GiB).

    Tiles of 512 px are the default on a CPU: larger ones are no faster there and take up to four times the memory.

    Raises:
        UsageError: nothing fits, or what was given makes no sense.
    """
    for name, value in (("--tile", tile), ("--batch", batch)):
        if value is not None and value < 1:
            raise UsageError(f"{name} must be at least 1, not {value}.")
    if batch is None:
        batch = GPU_BATCH if device != "cpu" else 1
    budget = DEFAULT_MEMORY if max_memory is None else max_memory
    if tile is not None:
        if max_memory is not None and estimate(card, Sizing(tile, batch)) > max_memory:
            raise UsageError(
                f"--tile {tile} with --batch {batch} needs about {estimate(card, Sizing(tile, batch)) >> 20} MiB, "
                f"more than --max-memory {max_memory >> 20} MiB; leave out --tile or allow more."
            )
        return Sizing(tile, batch)
    largest = TILES[0] if max_memory is not None else CPU_TILE if device == "cpu" else GPU_TILE
    for side in TILES:
        if side <= largest and estimate(card, Sizing(side, batch)) <= budget:
            return Sizing(side, batch)
    smallest = Sizing(TILES[-1], batch)
    if max_memory is None:
        return smallest
    raise UsageError(
        f"--max-memory {max_memory >> 20} MiB is too little: this model needs about "
        f"{estimate(card, smallest) >> 20} MiB with the smallest tiles and --batch {batch}."
    )


def estimate(card: Card, sizing: Sizing) -> int:
    """Bytes that a run takes at its peak."""
    side = sizing.tile + 2 * card.halo
    raw = len(card.bands) * np.dtype(card.dtype).itemsize
    return BASE_MEMORY + side * side * (sizing.batch * (card.memory_per_pixel + raw) + QUEUED_TILES * raw)
