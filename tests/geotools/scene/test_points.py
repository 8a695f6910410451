"""Points with classes, and the places that clicks leave in a card."""

from pathlib import Path

import pytest
import shapely
from rasterio.crs import CRS
from support.maps import write_shapes

from iic_geotools.errors import SceneError
from iic_geotools.scene.points import clicked_places, read_points

HERE = [shapely.Point(3.0, 43.0), shapely.Point(3.1, 43.1), shapely.Point(3.2, 43.2)]


def test_points_and_their_classes(tmp_path: Path) -> None:
    path = write_shapes(
        tmp_path / "p.gpkg", HERE, "EPSG:4326", **{"class": ["a", None, "b"], "note": ["", "x", ""]}
    )
    points = read_points(path)
    assert points.classes == ("a", "", "b")
    assert points.crs == CRS.from_epsg(4326)
    assert clicked_places(path, None, None, 1000) == ((3.0, 43.0), (3.2, 43.2))
    x, y = points.on(CRS.from_epsg(2154))
    assert x[0] == pytest.approx(700000, abs=1e-3)  # on the central meridian
    assert 6.2e6 < y[0] < y[2] < 6.3e6


def test_parts_of_one_point_are_points(tmp_path: Path) -> None:
    shapes = [shapely.MultiPoint([point]) for point in HERE]
    assert read_points(
        write_shapes(tmp_path / "p.gpkg", shapes, "EPSG:4326", name=["a", "b", "a"])
    ).x.tolist() == [
        3.0,
        3.1,
        3.2,
    ]


def test_points_without_a_place(tmp_path: Path) -> None:
    shapes = [*HERE, shapely.Point(float("nan"), 43.0)]
    path = write_shapes(tmp_path / "p.gpkg", shapes, "EPSG:4326", name=["a"] * 4)
    with pytest.raises(SceneError, match=r"The points .* not finite numbers"):
        read_points(path)


def test_many_clicks_leave_an_even_selection(tmp_path: Path) -> None:
    shapes = [shapely.Point(3 + number / 1000, 43) for number in range(101)]
    path = write_shapes(tmp_path / "p.gpkg", shapes, "EPSG:4326", name=["a"] * 101)
    assert [round(x, 3) for x, _ in clicked_places(path, None, None, 5)] == [3.0, 3.025, 3.05, 3.075, 3.1]


def test_other_labels_have_no_places(tmp_path: Path) -> None:
    polygons = write_shapes(tmp_path / "z.gpkg", [shapely.box(3, 43, 4, 44)], "EPSG:4326", name=["a"])
    assert clicked_places(polygons, None, None, 1000) == ()
    with pytest.raises(SceneError, match="other shapes than points"):
        read_points(polygons)
    (tmp_path / "labels.tif").write_bytes(b"II*\0")
    assert clicked_places(tmp_path / "labels.tif", None, None, 1000) == ()
    nowhere = write_shapes(tmp_path / "n.gpkg", HERE, None, name=["a"] * 3)
    assert clicked_places(nowhere, None, None, 1000) == ()
    assert len(clicked_places(nowhere, None, CRS.from_epsg(4326), 1000)) == 3
