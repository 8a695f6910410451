import numpy as np
import pytest
from rasterio.crs import CRS
from rasterio.warp import transform as reproject

from iic_geotools.geobox import Ellipsoid, Ground

WGS84 = Ellipsoid(6378137.0, 6378137.0 * (1 - 1 / 298.257223563))


def test_the_whole_earth() -> None:
    assert 4 * np.pi * WGS84.zone(np.pi / 2) == pytest.approx(510_065_621_724_088, rel=1e-12)
    assert Ellipsoid(2.0, 2.0).zone(np.pi / 2) * 4 * np.pi == pytest.approx(16 * np.pi)


@pytest.mark.parametrize("epsg", [4326, 4807, 2154, 3857, 7405, 3413])
def test_every_system_finds_its_ellipsoid(epsg: int) -> None:
    ground = Ground.of(CRS.from_epsg(epsg))
    assert ground is not None
    assert ground.ellipsoid.a == pytest.approx(6378000, abs=1000)
    assert 1 / (1 - ground.ellipsoid.b / ground.ellipsoid.a) == pytest.approx(297, abs=4)


def test_a_ring_around_the_pole() -> None:
    polar = Ground.of(CRS.from_epsg(3413))
    assert polar is not None
    lon = np.append(np.arange(0, 360, 0.1), 0.0)
    x, y = map(np.array, reproject(CRS.from_epsg(4326), CRS.from_epsg(3413), lon, np.full(lon.shape, 88.0)))
    cap = 2 * np.pi * (WGS84.zone(np.pi / 2) - WGS84.zone(np.radians(88.0)))
    assert polar.ring_areas(x, y, np.zeros(len(x), int)) == pytest.approx(cap, rel=1e-5)


def test_a_ring_across_the_antimeridian() -> None:
    """The same box in metres, once on the antimeridian and once far from it."""
    box = np.array([[-1000.0, 0.0], [1000.0, 0.0], [1000.0, 2000.0], [-1000.0, 2000.0], [-1000.0, 0.0]])
    areas = []
    for lon in (180, 10):
        ground = Ground.of(CRS.from_string(f"+proj=tmerc +lon_0={lon} +lat_0=10 +ellps=WGS84"))
        assert ground is not None
        areas.append(ground.ring_areas(box[:, 0], box[:, 1], np.zeros(5, int))[0])
    assert areas == pytest.approx([4e6, 4e6], rel=1e-6)
