"""How much is run at once: the largest tiles that fit into the memory a run may take."""

import os

import numpy as np

from iic_geotools.errors import SceneError, UsageError
from iic_geotools.geobox import GeoBox
from iic_runtime.engine.base import CPU_DEVICES, Device, EngineSpec
from iic_runtime.model.card import Card

DEFAULT_MEMORY = 1 << 30
TILES = (2048, 1024, 512, 256, 128)
# Larger tiles are not faster on a CPU and take up to four times the memory.
CPU_TILE, GPU_TILE = 512, 1024
CPU_BATCH, GPU_BATCH = 1, 4
# Interpreter, libraries, GDAL's block cache and the part that is being written: measured at about 250 MB.
BASE_MEMORY = 300 << 20
QUEUED_TILES = 3
# A million pixels on each side: about two days of work at 5 Mpx/s, if all of them hold data.
MAX_PIXELS = 10**12


def choose_spec(
    card: Card,
    device: Device,
    threads: int | None = None,
    tile: int | None = None,
    batch: int | None = None,
    max_memory: int | None = None,
) -> EngineSpec:
    """Choose the tile and batch that were not given so that the estimated memory stays below a limit.

    Args:
        card: The card of the model.
        device: The device that the model runs on.
        threads: Number of threads of the engine.
        tile: Side of a tile's core in pixels, if given.
        batch: Number of tiles that are run at once, if given.
        max_memory: The limit in bytes; by default 1 GiB, with tiles of at most 512 px on a CPU.

    Raises:
        UsageError: Nothing fits into the memory, or a number is not positive.
    """
    for name, value in (("tile", tile), ("batch", batch)):
        if value is not None and value < 1:
            raise UsageError(f"`{name}` must be at least 1, not {value}.")
    if batch is None:
        batch = CPU_BATCH if device in CPU_DEVICES else GPU_BATCH
    # A scene may be smaller than a tile, but not than the smallest one that is worth running.
    check_machine(card, min(tile or TILES[-1], TILES[-1]), batch)
    if tile is not None:
        needed = estimate_memory(card, tile, batch)
        if max_memory is not None and needed > max_memory:
            raise UsageError(
                f"A `tile` of {tile} px with a `batch` of {batch} needs about {needed >> 20} MiB, more than the "
                f"`max_memory` of {max_memory >> 20} MiB; leave out `tile` or allow more memory."
            )
        return EngineSpec(device, tile, batch, threads)
    budget = DEFAULT_MEMORY if max_memory is None else max_memory
    largest = TILES[0] if max_memory is not None else CPU_TILE if device in CPU_DEVICES else GPU_TILE
    for side in TILES:
        if side <= largest and estimate_memory(card, side, batch) <= budget:
            return EngineSpec(device, side, batch, threads)
    if max_memory is None:
        return EngineSpec(device, TILES[-1], batch, threads)
    raise UsageError(
        f"A `max_memory` of {max_memory >> 20} MiB is too little: this model needs about "
        f"{estimate_memory(card, TILES[-1], batch) >> 20} MiB with the smallest tiles and a `batch` of {batch}."
    )


def check_machine(card: Card, tile: int, batch: int) -> None:
    """Refuse what needs more memory than the machine has.

    Args:
        card: The card of the model.
        tile: Side of a tile's core in pixels, not more than that of the scene.
        batch: Number of tiles that are run at once.

    Raises:
        UsageError: It needs more.
    """
    needed, present = estimate_memory(card, tile, batch), _physical_memory()
    if present is not None and needed > present:
        raise UsageError(
            f"A `tile` of {tile} px with a `batch` of {batch} needs about {needed / (1 << 30):.3g} GiB with the model "
            f"{card.name}, and this machine has {present / (1 << 30):.3g} GiB; give less."
        )


def check_work(pixels: int, grid: GeoBox) -> None:
    """Refuse work that would never end, before it begins.

    Args:
        pixels: Number of pixels to label.
        grid: The grid that they are on.

    Raises:
        SceneError: They are too many.
    """
    if pixels > MAX_PIXELS:
        raise SceneError(
            f"{pixels:.3g} pixels of {grid.width} x {grid.height} would have to be labelled, and {MAX_PIXELS:.3g} are "
            "the most; map a part of the scene with `bounds` or `aoi`, or at a coarser resolution."
        )


def _physical_memory() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # not everywhere
        return None


def estimate_memory(card: Card, tile: int, batch: int) -> int:
    """Return the bytes that a run takes at its peak."""
    side = tile + 2 * card.halo
    raw = len(card.bands) * np.dtype(card.dtype).itemsize
    return BASE_MEMORY + side * side * (batch * (card.memory_per_pixel + raw) + QUEUED_TILES * raw)
