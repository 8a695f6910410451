"""The places of a view of which a fit is least sure."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from iic_geotools.classmap.classes import NODATA
from iic_runtime.studio.tiles import TILE, TileAddress

CELL = 16
"""Side in pixels of the screen of the cells over which confidence is averaged."""
APART = 4
"""Least distance between two places, and from a place to a click, in cells."""
Labels = NDArray[np.uint8]


def find_unsure(
    tiles: Mapping[TileAddress, tuple[Labels, Labels]], clicked: Sequence[tuple[int, int]], count: int
) -> list[tuple[int, int]]:
    """Return rows and columns of the least sure places, none close to another or to a click.

    Areas count, not rims: a cell is judged with its eight neighbours.

    Args:
        tiles: Labels and confidence of the tiles of a view, all of one level.
        clicked: Row and column of each click.
        count: At most this many places.
    """
    step = next(iter(tiles)).step
    top, left = min(tile.row for tile in tiles), min(tile.column for tile in tiles)
    per_tile = TILE // CELL
    shape = (
        (max(tile.row for tile in tiles) - top + 1) * per_tile,
        (max(tile.column for tile in tiles) - left + 1) * per_tile,
    )
    doubt = np.zeros(shape, np.float32)
    for tile, (labels, confidence) in tiles.items():
        cells = _average(labels, confidence)
        row, column = (tile.row - top) * per_tile, (tile.column - left) * per_tile
        doubt[row : row + cells.shape[0], column : column + cells.shape[1]] = cells
    padded = np.pad(doubt, 1)
    wide = sum(padded[i : i + shape[0], j : j + shape[1]] for i in range(3) for j in range(3))
    wide = np.where(doubt > 0, wide, 0.0)
    side = CELL * step
    origin = np.array([top, left]) * TILE * step
    for place in np.array(clicked, np.int64).reshape(-1, 2):
        _clear(wide, (place - origin) // side)
    places = []
    for _ in range(count):
        cell = np.array(np.unravel_index(int(wide.argmax()), shape))
        if wide[tuple(cell)] <= 0:
            break
        row, column = (origin + cell * side + side // 2).tolist()
        places.append((row, column))
        _clear(wide, cell)
    return places


def find_typical(
    tiles: Mapping[TileAddress, tuple[Labels, Labels]], label: int, count: int
) -> list[tuple[int, int]]:
    """Return rows and columns of the places that a fit takes for a label with most certainty, apart from each other.

    Args:
        tiles: Labels and confidence of tiles, all of one level.
        label: The label.
        count: At most this many places.
    """
    step = next(iter(tiles)).step
    cells = []
    for tile, (labels, confidence) in tiles.items():
        sure = _average(labels, np.where(labels == label, 255 - confidence, 255).astype(np.uint8))
        for row, column in np.argwhere(sure > 0):
            place = (
                np.array([tile.row, tile.column]) * TILE + (row * CELL, column * CELL) + CELL // 2
            ) * step
            cells.append((float(sure[row, column]), *place.tolist()))
    places: list[tuple[int, int]] = []
    for _, row, column in sorted(cells, reverse=True):
        if len(places) == count:
            break
        if all(max(abs(row - other), abs(column - side)) > APART * CELL * step for other, side in places):
            places.append((row, column))
    return places


def _average(labels: Labels, confidence: Labels) -> NDArray[np.float32]:
    """Return the doubt of each whole cell, 0 where some of it holds no data."""
    height, width = (length // CELL for length in labels.shape)
    cut = slice(height * CELL), slice(width * CELL)
    shape = height, CELL, width, CELL
    whole = (labels[cut].reshape(shape) != NODATA).all((1, 3))
    doubt = 1 - confidence[cut].reshape(shape).astype(np.float32).mean((1, 3)) / 255
    return np.where(whole, doubt, 0.0).astype(np.float32)


def _clear(wide: NDArray[np.float32], cell: NDArray[np.int64]) -> None:
    row, column = cell.tolist()
    rows, columns = (slice(max(index - APART, 0), max(index + APART + 1, 0)) for index in (row, column))
    wide[rows, columns] = 0.0
