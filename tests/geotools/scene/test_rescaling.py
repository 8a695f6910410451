import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iic_geotools.errors import UsageError
from iic_geotools.scene.radiometry import (
    CHUNK,
    Rescale,
    parse_rescale,
    robust_ranges,
    sample_values,
    spread_windows,
)
from iic_geotools.tiling import Rect


def test_rescaling_rounds_and_clips() -> None:
    rescale = Rescale(((0.0, 10000.0), (0.0, 20000.0)), ((0.0, 255.0), (10.0, 30.0)))
    values = np.array([[[0, 5000, 10000, 60000]]] * 2, np.uint16)
    assert rescale.apply(values, "uint8").tolist() == [[[0, 128, 255, 255]], [[10, 15, 20, 70]]]
    assert rescale.apply(values, "float32").dtype == np.float32


def test_rescale_as_text() -> None:
    assert parse_rescale("0,3000.5") == (0.0, 3000.5)
    with pytest.raises(UsageError, match="MIN,MAX"):
        parse_rescale("0-3000")
    with pytest.raises(UsageError, match="MIN below MAX"):
        Rescale(((5.0, 5.0),), ((0.0, 1.0),))


def test_robust_ranges_ignores_outliers_and_holes() -> None:
    rng = np.random.default_rng(0)
    values = rng.uniform(100, 200, (2, 500, 700))
    values[1] *= 10
    values[:, :5] = 1e9
    valid = np.ones((500, 700), bool)
    valid[:5] = False

    def read(rect: Rect) -> tuple[np.ndarray, np.ndarray]:
        return values[:, *rect.slices], valid[rect.slices]

    for times, (low, high) in zip((1, 10), robust_ranges(sample_values(read, 700, 500)), strict=True):
        assert math.isclose(low, 102 * times, abs_tol=0.5 * times)
        assert math.isclose(high, 198 * times, abs_tol=0.5 * times)


def test_ranges_of_nothing_and_of_one_value_can_be_used() -> None:
    """No data, a constant band, and one so far from zero that a float32 cannot count in ones there."""
    empty = robust_ranges(sample_values(lambda rect: (np.zeros((2, 5, 5)), np.zeros((5, 5), bool)), 5, 5))
    assert empty == ((0.0, 1.0),) * 2
    constant = np.stack([np.zeros((5, 5)), np.full((5, 5), 1e9), np.arange(25.0).reshape(5, 5)])
    constant = constant.astype(np.float32)
    ranges = robust_ranges(sample_values(lambda rect: (constant, None), 5, 5))
    scaled = Rescale(ranges, ((0.0, 255.0),) * 3).apply(constant, "float32")
    assert not scaled[:2].any()
    assert np.isfinite(scaled).all()
    assert scaled[2].max() >= 255


def test_all_of_a_large_scene_is_sampled_however_many_its_bands() -> None:
    """Half of the scene, the lower one, is bright in its last band only."""
    values = np.zeros((13, 2048, 2048), np.uint8)
    values[:, :1024] = 10
    values[12, 1024:] = 200
    ranges = robust_ranges(sample_values(lambda rect: (values[:, *rect.slices], None), 2048, 2048))
    assert ranges == ((0.0, 10.0),) * 12 + ((10.0, 200.0),)


@given(gain=st.integers(1, 200), offset=st.integers(0, 10000), seed=st.integers(0, 99))
def test_gain_and_offset_of_a_scene_do_not_matter(gain: int, offset: int, seed: int) -> None:
    values = np.random.default_rng(seed).integers(0, 256, (2, 40, 30)).astype(np.uint8)
    other = (values.astype(np.int64) * gain + offset).astype(np.uint16)
    assert np.array_equal(_stretch(values), _stretch(other))


def _stretch(values: np.ndarray) -> np.ndarray:
    ranges = robust_ranges(sample_values(lambda rect: (values[:, *rect.slices], None), *values.shape[:0:-1]))
    return Rescale(ranges, ((0.0, 255.0),) * len(values)).apply(values, "uint8")


def test_sampling_windows_lie_inside() -> None:
    for width, height in ((10, 3000), (100000, 257), (256, 256)):
        for rect in spread_windows(width, height):
            assert rect == rect.intersection(Rect(0, 0, width, height))
            assert not rect.empty
    assert len(list(spread_windows(100000, 100000))) == 64


def test_a_rescale_that_changes_nothing() -> None:
    assert Rescale(((0.0, 10000.0),), ((0.0, 10000.0),)).changes_nothing
    assert not Rescale(((0.0, 10000.0),), ((0.0, 255.0),)).changes_nothing


@pytest.mark.parametrize(
    ("source", "target"), [("uint8", "int16"), ("uint16", "uint8"), ("float64", "float32")]
)
@pytest.mark.parametrize("shape", [(2, 1, 1), (2, 300, 701), (2, 3, CHUNK)])
def test_rows_at_a_time_give_the_bits_of_the_whole(
    shape: tuple[int, int, int], source: str, target: str
) -> None:
    rescale = Rescale(((20.0, 220.0), (-3.0, 90.5)), ((0.0, 10000.0), (5.0, 250.0)))
    values = np.random.default_rng(0).uniform(0, 255, shape).astype(source)
    lows, highs = np.array(rescale.sources, np.float32).T[:, :, None, None]
    starts, ends = np.array(rescale.targets, np.float32).T[:, :, None, None]
    whole = (values.astype(np.float32) - lows) / (highs - lows) * (ends - starts) + starts
    if target != "float32":
        whole = np.clip(np.rint(whole), np.iinfo(target).min, np.iinfo(target).max)
    result = rescale.apply(values, target)
    assert result.dtype == target
    assert result.flags.c_contiguous
    np.testing.assert_array_equal(result, whole.astype(target))
