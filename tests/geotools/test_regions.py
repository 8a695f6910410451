"""Areas of interest as masks of pixels."""

import numpy as np
import pytest
import shapely
from affine import Affine
from hypothesis import given
from hypothesis import strategies as st
from rasterio.features import geometry_mask

from iic_geotools.errors import UsageError
from iic_geotools.grid import Rect
from iic_geotools.regions import MOST_POINTS, Area, _subdivided, pixels_within

WHERE = Affine.translation(500000, 5400000) @ Affine.rotation(20) @ Affine.scale(0.5, -0.5)


def star(points: int) -> shapely.Polygon:
    angle = np.linspace(0, 2 * np.pi, points, endpoint=False)
    radius = np.where(np.arange(points) % 2, 70, 90) + 5 * np.sin(7 * angle)
    return shapely.Polygon(np.column_stack([100 + radius * np.cos(angle), 80 + radius * np.sin(angle)]))


def on_ground(shape: shapely.Geometry) -> shapely.Geometry:
    return shapely.transform(shape, lambda points: np.array([WHERE @ tuple(point) for point in points]))


@pytest.mark.filterwarnings("error::rasterio.errors.NotGeoreferencedWarning")
@pytest.mark.parametrize("points", [12, 20 * MOST_POINTS])
def test_a_mask_of_windows_is_the_mask_of_the_whole(points: int) -> None:
    shape = star(points).difference(shapely.box(90, 60, 130, 95))
    area = Area.of(np.array([on_ground(shape)], object), WHERE)
    assert shapely.get_num_coordinates(area.polygons).max() <= MOST_POINTS
    expected = geometry_mask(
        [shapely.transform(shape, lambda points: 2 * points)], (160, 200), Affine.scale(2), invert=True
    )
    whole = area.inside(Rect(0, 0, 200, 160))
    assert np.mean(whole != expected) < 1e-3  # centres on an edge, by way of the ground and back
    for rect in (Rect(0, 0, 37, 41), Rect(60, 50, 64, 64), Rect(190, 150, 10, 10)):
        assert np.array_equal(area.inside(rect), whole[rect.slices])
        assert area.touches(rect) or not whole[rect.slices].any()


def test_long_polygons_that_cross_themselves_are_cut_too() -> None:
    angle = np.linspace(0, 2 * np.pi, 5 * MOST_POINTS, endpoint=False)
    eight = shapely.Polygon(np.column_stack([100 + 90 * np.sin(angle), 80 + 70 * np.sin(2 * angle)]))
    assert not eight.is_valid
    area = Area(_subdivided(np.array([eight], object)))
    assert shapely.area(area.polygons).sum() == pytest.approx(shapely.make_valid(eight).area)


@given(st.lists(st.tuples(*[st.integers(0, 50)] * 4), min_size=1, max_size=30))
def test_boxes_on_the_grid_are_exact(corners: list[tuple[int, int, int, int]]) -> None:
    expected = np.zeros((60, 60), bool)
    for left, top, wide, high in corners:
        expected[top : top + high + 1, left : left + wide + 1] = True
    boxes = [on_ground(shapely.box(x, y, x + w + 1, y + h + 1)) for x, y, w, h in corners]
    assert np.array_equal(Area.of(np.array(boxes, object), WHERE).inside(Rect(0, 0, 60, 60)), expected)


def test_bounds_without_end() -> None:
    with pytest.raises(UsageError, match="finite"):
        pixels_within((float("-inf"), 0, float("inf"), 1), WHERE, 10, 10)
