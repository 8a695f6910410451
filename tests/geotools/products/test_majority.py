import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from support.maps import random_labels

from iic_geotools.classmap.classes import NODATA
from iic_geotools.products.cleaning import Majority
from iic_geotools.tiling import Rect


def judge(labels: np.ndarray, radius: int) -> np.ndarray:
    """The most common class around each pixel, one pixel after the other."""
    out = labels.copy()
    for y, x in np.argwhere(labels != NODATA):
        around = labels[max(0, y - radius) : y + radius + 1, max(0, x - radius) : x + radius + 1]
        counts = np.bincount(around[around != NODATA], minlength=256)
        if counts[labels[y, x]] < counts.max():
            out[y, x] = counts.argmax()
    return out


@settings(max_examples=60, deadline=None)
@given(
    size=st.tuples(st.integers(1, 25), st.integers(1, 25)),
    classes=st.sampled_from([1, 2, 5, 200]),
    radius=st.sampled_from([1, 2, 3, 9, 40]),
    tile=st.integers(3, 30),
    seed=st.integers(0, 10_000),
)
def test_tiles_and_the_whole_map_agree_with_the_judge(
    size: tuple[int, int], classes: int, radius: int, tile: int, seed: int
) -> None:
    labels = random_labels(*size, classes, seed, patch=1 + seed % 3)
    height, width = labels.shape
    whole = Rect(0, 0, width, height)
    expected = judge(labels, radius)
    stage = Majority(radius, whole)
    np.testing.assert_array_equal(stage(lambda rect: labels[rect.slices], whole), expected)
    for row in range(0, height, tile):
        for col in range(0, width, tile):
            core = Rect(col, row, tile, tile).intersection(whole)
            np.testing.assert_array_equal(
                stage(lambda rect: labels[rect.slices], core), expected[core.slices]
            )


def test_counts_that_exceed_sixteen_bits_along_a_line() -> None:
    labels = np.zeros((3, 70_000), np.uint8)
    labels[1, 66_000] = 1
    smoothed = Majority(1, Rect(0, 0, 70_000, 3))(lambda rect: labels[rect.slices], Rect(0, 0, 70_000, 3))
    assert not smoothed.any()
