import logging
from pathlib import Path

import numpy as np
import pytest
import shapely
from affine import Affine
from hypothesis import given
from hypothesis import strategies as st
from pyogrio.raw import write
from rasterio.crs import CRS
from rasterio.features import geometry_mask
from rasterio.rpc import RPC
from rasterio.warp import transform as reproject
from support.maps import LAMBERT, random_labels, write_map

from iic_geotools.errors import SceneError, UsageError
from iic_geotools.geobox import GeoBox
from iic_geotools.scene.region import MOST_POINTS, Area, choose_region, pixels_within, read_aoi
from iic_geotools.tiling import Rect

NADIR = RPC(
    height_off=0.0,
    height_scale=1.0,
    lat_off=48.5,
    lat_scale=1.0,
    line_den_coeff=[1.0, *[0.0] * 19],
    line_num_coeff=[0.0, 0.0, -1.0, *[0.0] * 17],
    line_off=30.0,
    line_scale=30.0,
    long_off=11.5,
    long_scale=1.0,
    samp_den_coeff=[1.0, *[0.0] * 19],
    samp_num_coeff=[0.0, 1.0, *[0.0] * 18],
    samp_off=30.0,
    samp_scale=30.0,
)
TO_GROUND = Affine.translation(500000, 5400000) @ Affine.rotation(20) @ Affine.scale(0.5, -0.5)


def star(points: int) -> shapely.Polygon:
    angle = np.linspace(0, 2 * np.pi, points, endpoint=False)
    radius = np.where(np.arange(points) % 2, 70, 90) + 5 * np.sin(7 * angle)
    return shapely.Polygon(np.column_stack([100 + radius * np.cos(angle), 80 + radius * np.sin(angle)]))


def on_ground(shape: shapely.Geometry) -> shapely.Geometry:
    return shapely.transform(shape, lambda points: np.array([TO_GROUND @ tuple(point) for point in points]))


@pytest.mark.filterwarnings("error::rasterio.errors.NotGeoreferencedWarning")
@pytest.mark.parametrize("points", [12, 20 * MOST_POINTS])
def test_a_mask_of_windows_is_the_mask_of_the_whole(points: int) -> None:
    shape = star(points).difference(shapely.box(90, 60, 130, 95))
    area = Area.of(np.array([on_ground(shape)], object), TO_GROUND)
    assert shapely.get_num_coordinates(area.polygons).max() <= MOST_POINTS
    expected = geometry_mask(
        [shapely.transform(shape, lambda points: 2 * points)], (160, 200), Affine.scale(2), invert=True
    )
    whole = area.inside(Rect(0, 0, 200, 160))
    assert np.mean(whole != expected) < 1e-3  # rounding of centres that lie on an edge
    for rect in (Rect(0, 0, 37, 41), Rect(60, 50, 64, 64), Rect(190, 150, 10, 10)):
        assert np.array_equal(area.inside(rect), whole[rect.slices])
        assert area.touches(rect) or not whole[rect.slices].any()


def test_long_polygons_that_cross_themselves_are_cut_too() -> None:
    angle = np.linspace(0, 2 * np.pi, 5 * MOST_POINTS, endpoint=False)
    eight = shapely.Polygon(np.column_stack([100 + 90 * np.sin(angle), 80 + 70 * np.sin(2 * angle)]))
    assert not eight.is_valid
    area = Area.of(np.array([on_ground(eight)], object), TO_GROUND)
    assert shapely.area(area.polygons).sum() == pytest.approx(shapely.make_valid(eight).area)


@given(st.lists(st.tuples(*[st.integers(0, 50)] * 4), min_size=1, max_size=30))
def test_boxes_on_the_grid_are_exact(corners: list[tuple[int, int, int, int]]) -> None:
    expected = np.zeros((60, 60), bool)
    for left, top, wide, high in corners:
        expected[top : top + high + 1, left : left + wide + 1] = True
    boxes = [on_ground(shapely.box(x, y, x + w + 1, y + h + 1)) for x, y, w, h in corners]
    assert np.array_equal(Area.of(np.array(boxes, object), TO_GROUND).inside(Rect(0, 0, 60, 60)), expected)


def test_infinite_bounds_are_refused() -> None:
    with pytest.raises(UsageError, match="finite"):
        pixels_within((float("-inf"), 0, float("inf"), 1), GeoBox(10, 10, TO_GROUND))


def write_shapes(
    path: Path,
    shapes: list[shapely.Geometry | None],
    crs: str | None = "EPSG:2154",
    kind: str = "Unknown",
) -> Path:
    write(path, shapely.to_wkb(np.array(shapes, object)), [], [], geometry_type=kind, crs=crs)
    return path


def test_areas_of_interest_are_split_into_polygons(tmp_path: Path) -> None:
    box, other = shapely.box(0, 0, 10, 10), shapely.box(20, 0, 30, 5)
    shapes = [shapely.MultiPolygon([box, other]), shapely.Point(1, 1), None, shapely.Polygon()]
    path = write_shapes(tmp_path / "aoi.gpkg", shapes)
    polygons = read_aoi(path, LAMBERT)
    assert [polygon.geom_type for polygon in polygons] == ["Polygon", "Polygon"]
    assert [polygon.area for polygon in polygons] == [100, 50]


def test_areas_of_interest_are_made_valid(tmp_path: Path) -> None:
    bow_tie = shapely.Polygon([(0, 0), (10, 10), (10, 0), (0, 10)])
    polygons = read_aoi(write_shapes(tmp_path / "aoi.fgb", [bow_tie], kind="Polygon"), LAMBERT)
    assert shapely.is_valid(polygons).all()
    assert shapely.area(polygons).sum() == pytest.approx(50)


def test_areas_of_interest_are_reprojected_with_their_long_edges_bent(tmp_path: Path) -> None:
    """The northern edge of a box in degrees is an arc in Lambert 93: its middle lies far from the chord."""
    path = write_shapes(tmp_path / "aoi.gpkg", [shapely.box(-1, 45, 7, 46)], "EPSG:4326", "Polygon")
    (polygon,) = read_aoi(path, LAMBERT)
    xs, ys = reproject(CRS.from_epsg(4326), LAMBERT, [-1, 3, 3, 3, 3], [46, 46.001, 45.999, 45.001, 44.999])
    middle_top_out, middle_top_in, middle_bottom_in, middle_bottom_out = shapely.points(xs[1:], ys[1:])
    assert polygon.contains(middle_top_in)
    assert polygon.contains(middle_bottom_in)
    assert not polygon.contains(middle_top_out)
    assert not polygon.contains(middle_bottom_out)


@pytest.mark.parametrize(("aoi_crs", "scene_crs"), [(None, LAMBERT), ("EPSG:4326", None)])
@pytest.mark.filterwarnings("ignore:'crs' was not provided")
def test_a_missing_reference_system_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, aoi_crs: str | None, scene_crs: CRS | None
) -> None:
    path = write_shapes(tmp_path / "aoi.gpkg", [shapely.box(0, 0, 1, 1)], aoi_crs, "Polygon")
    with caplog.at_level(logging.WARNING):
        (polygon,) = read_aoi(path, scene_crs)
    assert polygon.bounds == (0, 0, 1, 1)
    assert "no coordinate reference system" in caplog.text


def test_a_scene_that_only_rational_polynomials_place_has_no_bounds(tmp_path: Path) -> None:
    """Its pixels have no coordinates, so that degrees would be taken for pixels."""
    square = GeoBox(60, 60, Affine.identity(), rpcs=NADIR)
    path = write_shapes(tmp_path / "aoi.gpkg", [shapely.box(11, 48, 12, 49)], "EPSG:4326", "Polygon")
    for bounds, aoi in (((11.0, 48.0, 12.0, 49.0), None), (None, path)):
        with pytest.raises(
            UsageError, match=r"this one has rational polynomial coefficients .*warp it first"
        ):
            choose_region(square, bounds, aoi)
    assert choose_region(square, None, None) == (Rect(0, 0, 60, 60), None)
    warped = GeoBox(60, 60, Affine(0.1, 0, 10, 0, -0.1, 50), CRS.from_epsg(4326), rpcs=NADIR)
    assert choose_region(warped, (11.0, 48.0, 12.0, 49.0), None)[0] == Rect(10, 10, 10, 10)


def test_files_that_hold_no_area_of_interest(tmp_path: Path) -> None:
    with pytest.raises(SceneError, match="cannot be read"):
        read_aoi(tmp_path / "missing.gpkg", LAMBERT)
    (tmp_path / "text.geojson").write_text("hello")
    with pytest.raises(SceneError, match="cannot be read"):
        read_aoi(tmp_path / "text.geojson", LAMBERT)
    with pytest.raises(SceneError, match=r"cannot be read|is empty"):
        read_aoi(write_map(tmp_path / "map.tif", random_labels(5, 5, 3)), LAMBERT)
    with pytest.raises(SceneError, match="is empty"):
        read_aoi(write_shapes(tmp_path / "empty.gpkg", [None]), LAMBERT)
    with pytest.raises(SceneError, match="no polygon"):
        read_aoi(write_shapes(tmp_path / "line.gpkg", [shapely.LineString([(0, 0), (1, 1)])]), LAMBERT)
    flat = shapely.Polygon([(0, 0), (1, 1), (0, 0), (0, 0)])
    with pytest.raises(SceneError, match="no polygon"):
        read_aoi(write_shapes(tmp_path / "flat.gpkg", [flat]), LAMBERT)
    world = write_shapes(tmp_path / "world.gpkg", [shapely.box(-180, -90, 180, 90)], "EPSG:4326")
    with pytest.raises(SceneError, match="scene"):
        read_aoi(world, CRS.from_string("+proj=ortho +lat_0=40"))


def test_areas_of_interest_may_reach_round_the_world(tmp_path: Path) -> None:
    """The world's corners have no place in a transverse Mercator; the scene's part of it has."""
    world = write_shapes(tmp_path / "world.gpkg", [shapely.box(-180, -90, 180, 90)], "EPSG:4326")
    extent = (500000.0, 5399900.0, 500130.0, 5400000.0)
    polygons = read_aoi(world, CRS.from_epsg(32631), extent)
    assert shapely.union_all(polygons).covers(shapely.box(*extent))
    with pytest.raises(SceneError, match="outside the scene"):
        read_aoi(
            write_shapes(tmp_path / "far.gpkg", [shapely.box(90, 0, 91, 1)], "EPSG:4326"), LAMBERT, extent
        )


@pytest.mark.parametrize(
    ("crs", "extent"),
    [
        ("EPSG:4326", (179.9, 9.9, 180.1, 10.1)),
        ("EPSG:4326", (-180.1, 9.9, -179.9, 10.1)),
        ("EPSG:32660", (820000.0, 1090000.0, 840000.0, 1110000.0)),
    ],
)
def test_areas_of_interest_on_both_sides_of_the_antimeridian(
    tmp_path: Path, crs: str, extent: tuple[float, float, float, float]
) -> None:
    sides = [shapely.box(179, 9, 180, 11), shapely.box(-180, 9, -179, 11)]
    polygons = read_aoi(write_shapes(tmp_path / "aoi.gpkg", sides, "EPSG:4326"), CRS.from_string(crs), extent)
    hole = shapely.box(*extent).difference(shapely.union_all(polygons))
    assert hole.area < 1e-6 * shapely.box(*extent).area
