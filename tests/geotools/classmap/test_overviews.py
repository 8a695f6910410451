from pathlib import Path

import numpy as np
import pytest
import rasterio
from support.maps import TRANSFORM, random_labels, write_map

from iic_geotools.classmap.classes import NODATA
from iic_geotools.classmap.cog import (
    Level,
    build_levels,
    mean_of_four,
    mode_of_four,
    nearest_of_four,
    touched_blocks,
)
from iic_geotools.tiling import Rect

BLOCK = 32


def make_level(folder: Path, labels: np.ndarray) -> Level:
    """A level of which every block may hold data."""
    height, width = labels.shape
    path = write_map(folder / "map.tif", labels, None, TRANSFORM, BLOCK)
    touched = touched_blocks([Rect(0, 0, width, height)], width, height, BLOCK)
    return Level(path, width, height, BLOCK, touched)


def blocks_with_data(labels: np.ndarray) -> list[list[bool]]:
    rows, cols = (range(0, side, BLOCK) for side in labels.shape)
    return [
        [bool((labels[row : row + BLOCK, col : col + BLOCK] != NODATA).any()) for col in cols] for row in rows
    ]


@pytest.mark.parametrize("count", [None, 0, 2])
def test_levels_know_their_empty_blocks_and_leave_the_base_as_it_was(
    tmp_path: Path, count: int | None
) -> None:
    labels = random_labels(150, 170, 3, patch=10)
    labels[:70, 60:] = NODATA
    base = make_level(tmp_path, labels)
    levels = build_levels(base, lambda name: tmp_path / name, mode_of_four, count)
    assert base.touched.all()
    assert [level.width for level in levels] == [170, 85, 43, 22][: 4 if count is None else count + 1]
    for level in levels:
        with rasterio.open(level.path) as dataset:
            assert level.touched.tolist() == blocks_with_data(dataset.read(1))


def test_touched_blocks_cannot_be_changed(tmp_path: Path) -> None:
    level = make_level(tmp_path, random_labels(40, 40, 3))
    with pytest.raises(ValueError, match="read-only"):
        level.touched[0, 0] = False


def test_reducers_leave_out_nodata() -> None:
    squares = np.array([[1, 2, NODATA, NODATA, 7, NODATA], [2, 4, NODATA, 3, NODATA, NODATA]], np.uint8)
    assert mode_of_four(squares).tolist() == [[2, 3, 7]]
    assert mean_of_four(squares).tolist() == [[2, 3, 7]]
    assert nearest_of_four(squares).tolist() == [[1, NODATA, 7]]
