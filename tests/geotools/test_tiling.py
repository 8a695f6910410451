from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iic_geotools.errors import UsageError
from iic_geotools.tiling import Rect, TileGrid


@st.composite
def grids(draw: st.DrawFn) -> TileGrid:
    width, height = draw(st.integers(1, 90)), draw(st.integers(1, 90))
    region = None
    if draw(st.booleans()):
        col, row = draw(st.integers(0, width - 1)), draw(st.integers(0, height - 1))
        region = Rect(col, row, draw(st.integers(1, width - col)), draw(st.integers(1, height - row)))
    tile, halo, stride = draw(st.integers(1, 40)), draw(st.integers(0, 30)), draw(st.integers(1, 8))
    return TileGrid(width, height, tile, halo, stride, region, uniform=draw(st.booleans()))


@given(grids())
def test_cores_cover_the_region_exactly_once(grid: TileGrid) -> None:
    hits = np.zeros((grid.height, grid.width), int)
    for tile in grid:
        assert not tile.core.empty
        hits[tile.core.slices] += 1
    expected = np.zeros_like(hits)
    expected[grid.area.slices] = 1
    assert (hits == expected).all()
    assert len(grid) == sum(1 for _ in grid)


@given(grids())
def test_reads_are_aligned_and_reach_the_halo_or_the_edge(grid: TileGrid) -> None:
    for tile in grid:
        core, read = tile.core, tile.read
        assert read == read.intersection(grid.scene)
        assert read.col % grid.stride == 0
        assert read.row % grid.stride == 0
        assert read.col <= max(0, core.col - grid.halo)
        assert read.row <= max(0, core.row - grid.halo)
        assert read.right >= min(grid.width, core.right + grid.halo)
        assert read.bottom >= min(grid.height, core.bottom + grid.halo)
        assert read.right % grid.stride == 0 or read.right == grid.width
        assert read.bottom % grid.stride == 0 or read.bottom == grid.height
        assert max(read.width, read.height) <= grid.read_side


@given(grids())
def test_uniform_tiles_differ_only_where_the_stride_does_not_divide_the_scene(grid: TileGrid) -> None:
    grid = replace(grid, uniform=True)
    widths = {
        tile.read.width for tile in grid if tile.read.right < grid.width or grid.width % grid.stride == 0
    }
    heights = {
        tile.read.height for tile in grid if tile.read.bottom < grid.height or grid.height % grid.stride == 0
    }
    assert len(widths) <= 1
    assert len(heights) <= 1
    assert len({(tile.read.width, tile.read.height) for tile in grid}) <= 4


@given(grids())
def test_crop_finds_the_core_in_the_pixels_read(grid: TileGrid) -> None:
    scene = np.arange(grid.width * grid.height).reshape(grid.height, grid.width)
    for tile in grid:
        assert (scene[tile.read.slices][tile.crop] == scene[tile.core.slices]).all()


@given(grids(), st.integers(1, 5))
def test_parts_hold_every_tile_once_in_order(grid: TileGrid, most_tiles: int) -> None:
    parts = list(grid.parts(most_tiles))
    assert [tile for part in parts for tile in part.tiles] == list(grid)
    assert [part.index for part in parts] == list(range(len(parts)))
    for part in parts:
        assert 1 <= len(part.tiles) <= most_tiles
        assert part.rect.area == sum(tile.core.area for tile in part.tiles)
        assert all(tile.core == tile.core.intersection(part.rect) for tile in part.tiles)


def test_a_region_outside_the_scene_is_refused() -> None:
    with pytest.raises(UsageError, match="does not lie inside"):
        TileGrid(10, 10, 4, 0, 1, Rect(8, 0, 4, 4))
    with pytest.raises(UsageError, match="positive"):
        TileGrid(10, 10, 0, 0, 1)


def test_disjoint_rectangles_have_an_empty_intersection() -> None:
    nothing = Rect(0, 0, 2, 2).intersection(Rect(5, 5, 2, 2))
    assert nothing.empty
    assert nothing.area == 0
