from pathlib import Path

import numpy as np
import pytest
import rasterio
from affine import Affine
from rasterio.control import GroundControlPoint
from rasterio.crs import CRS

from iic_geotools.geobox import GeoBox
from iic_geotools.tiling import Rect


@pytest.mark.parametrize(
    ("epsg", "transform", "expected"),
    [
        (2154, Affine(0.2, 0, 770000, 0, -0.25, 6279000), (0.2, 0.25)),
        (2225, Affine(1, 0, 6.5e6, 0, -1, 2.1e6), (0.3048, 0.3048)),
        (32631, Affine(0.3, 0.4, 500000, 0.4, -0.3, 4.8e6), (0.5, 0.5)),
        (4326, Affine(1e-5, 0, 3, 0, -1e-5, 60), (0.5580, 1.11412)),
        (3857, Affine(1, 0, 1e6, 0, -1, 8399737.9), (0.50126, 0.50042)),
    ],
)
def test_pixel_size_is_in_metres(epsg: int, transform: Affine, expected: tuple[float, float]) -> None:
    grid = GeoBox(10, 10, transform, CRS.from_epsg(epsg))
    assert grid.pixel_size == pytest.approx(expected, rel=2e-3)
    assert grid.pixel_side == pytest.approx((expected[0] * expected[1]) ** 0.5, rel=2e-3)


def test_pixels_beyond_a_pole_have_no_size() -> None:
    grid = GeoBox(1, 67, Affine(1e6, 0, -2e7, 0, -1e7, 1e8), CRS.from_epsg(3857))
    assert grid.pixel_size is None


def test_pixel_size_in_systems_off_the_earth() -> None:
    unplaced = GeoBox(5, 5, Affine.identity())
    assert unplaced.pixel_size is None
    assert unplaced.pixel_side is None
    assert unplaced.area_method == "none"
    site = GeoBox(5, 5, Affine(0.5, 0, 0, 0, -0.5, 0), CRS.from_wkt('LOCAL_CS["site",UNIT["metre",1]]'))
    assert site.pixel_size == (0.5, 0.5)
    assert site.planar_pixel_area == 0.25
    assert site.area_method == "planar"


def test_a_crop_stays_in_its_place() -> None:
    grid = GeoBox(100, 80, Affine(0.5, 0.1, 1000, 0.1, -0.5, 2000), CRS.from_epsg(32631))
    crop = grid.crop(Rect(30, 20, 10, 5))
    assert (crop.width, crop.height) == (10, 5)
    assert crop.transform @ (0, 0) == pytest.approx(grid.transform @ (30, 20))
    assert crop.differences(grid)
    assert not grid.crop(Rect(0, 0, 10, 5)).differences(grid)


def test_a_crop_without_a_transform_keeps_its_control_points() -> None:
    point = GroundControlPoint(row=50, col=40, x=3.1, y=43.7)
    grid = GeoBox(100, 80, Affine.identity(), None, (point,), CRS.from_epsg(4326))
    (moved,) = grid.crop(Rect(30, 20, 10, 5)).gcps
    assert (moved.row, moved.col, moved.x, moved.y) == (30, 10, 3.1, 43.7)
    assert grid.crop(Rect(30, 20, 10, 5)).transform == Affine.identity()


def test_a_crs_of_no_control_points_is_none(tmp_path: Path) -> None:
    path = tmp_path / "scene.jp2"
    profile = {"driver": "JP2OpenJPEG", "width": 64, "height": 64, "count": 1, "dtype": "uint16"}
    place = {"crs": CRS.from_epsg(32633), "transform": Affine(10, 0, 4e5, 0, -10, 5e6)}
    with rasterio.open(path, "w", **profile, **place) as dataset:
        dataset.write(np.ones((1, 64, 64), np.uint16))
    with rasterio.open(path) as dataset:
        assert not GeoBox.of(dataset).differences(GeoBox(64, 64, place["transform"], place["crs"]))


def test_extent_encloses_a_rotated_grid() -> None:
    rotated = GeoBox(10, 10, Affine.rotation(45), CRS.from_epsg(32631))
    assert rotated.extent == pytest.approx((-(50**0.5), 0, 50**0.5, 200**0.5))
