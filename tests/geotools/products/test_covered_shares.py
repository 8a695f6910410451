"""Shares of pixels inside polygons, judged by intersecting every pixel with shapely."""

import numpy as np
import pytest
import shapely
from hypothesis import given, settings
from hypothesis import strategies as st

from iic_geotools.products.zones import covered_centres, covered_shares
from iic_geotools.tiling import Rect

WINDOW = Rect(-2, 3, 9, 11)


def intersections(polygons: np.ndarray, rect: Rect) -> np.ndarray:
    rows, columns = np.mgrid[rect.row : rect.bottom, rect.col : rect.right]
    pixels = shapely.box(columns, rows, columns + 1, rows + 1)
    return np.asarray(sum(shapely.area(shapely.intersection(polygon, pixels)) for polygon in polygons))


def polygons_of(shape: object) -> np.ndarray:
    parts = shapely.get_parts(shapely.make_valid(shape))
    return np.array([part for part in parts if part.geom_type == "Polygon" and part.area > 0], object)


coordinates = st.floats(-6, 18, allow_nan=False) | st.integers(-6, 18).map(float)


@settings(max_examples=120, deadline=None)
@given(points=st.lists(st.tuples(coordinates, coordinates), min_size=3, max_size=9))
def test_shares_are_areas_of_intersections(points: list[tuple[float, float]]) -> None:
    polygons = polygons_of(shapely.Polygon(points))
    if len(polygons):
        assert covered_shares(polygons, WINDOW) == pytest.approx(intersections(polygons, WINDOW), abs=1e-9)


def test_holes_and_parts() -> None:
    ring = shapely.Point(4, 8).buffer(5).difference(shapely.Point(4.3, 8).buffer(2.2))
    polygons = np.array([ring, shapely.Point(4.3, 8).buffer(1)], object)
    assert covered_shares(polygons, WINDOW) == pytest.approx(intersections(polygons, WINDOW), abs=1e-12)
    # The direction in which rings are drawn does not matter.
    mirrored = shapely.reverse(polygons)
    assert covered_shares(mirrored, WINDOW) == pytest.approx(covered_shares(polygons, WINDOW), abs=1e-12)


@settings(max_examples=50, deadline=None)
@given(cut=st.tuples(st.integers(1, 29), st.integers(1, 19)), seed=st.integers(0, 1000))
def test_windows_add_up(cut: tuple[int, int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    polygons = polygons_of(shapely.Polygon(rng.uniform(-5, 35, (7, 2))))
    if not len(polygons):
        return
    whole = covered_shares(polygons, Rect(0, 0, 30, 20))
    column, row = cut
    for part in (
        Rect(0, 0, column, row),
        Rect(column, 0, 30 - column, row),
        Rect(column, row, 30 - column, 20 - row),
    ):
        assert covered_shares(polygons, part) == pytest.approx(whole[part.slices], abs=1e-12)


def test_a_square_of_pixels_is_covered_exactly() -> None:
    square = np.array([shapely.box(0, 4, 3, 7)], object)
    expected = np.zeros((11, 9))
    expected[1:4, 2:5] = 1
    assert (covered_shares(square, WINDOW) == expected).all()
    assert (covered_centres(square, WINDOW) == expected).all()


def test_centres() -> None:
    triangle = np.array([shapely.Polygon([(0, 4), (6, 4), (0, 12)])], object)
    inside = covered_centres(triangle, WINDOW)
    rows, columns = np.mgrid[WINDOW.row : WINDOW.bottom, WINDOW.col : WINDOW.right]
    expected = shapely.contains_xy(triangle[0], columns + 0.5, rows + 0.5)
    assert (inside == expected).all()
