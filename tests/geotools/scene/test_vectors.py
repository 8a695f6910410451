"""Vector files of any kind: read as they are, or refused with a sentence, and never over the network."""

import socket
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import shapely
from pyogrio.raw import write
from rasterio.crs import CRS

from iic_geotools.errors import SceneError
from iic_geotools.scene.region import read_aoi
from iic_geotools.scene.vectors import list_fields, read_names, read_shapes

NAN = float("nan")
UTM = CRS.from_epsg(32631)


def polygon(*points: tuple[float, float]) -> str:
    ring = ",".join(f"[{x!r},{y!r}]" for x, y in points).replace("nan", "NaN").replace("inf", "Infinity")
    return (
        '{"type":"FeatureCollection","features":[{"type":"Feature","properties":{"class":"a"},'
        f'"geometry":{{"type":"Polygon","coordinates":[[{ring}]]}}}}]}}'
    )


def write_shapes(path: Path, *shapes: shapely.Geometry | None) -> Path:
    wkb = shapely.to_wkb(np.array(shapes, object))
    names = np.array([f"class {number}" for number in range(len(shapes))], object)
    write(path, wkb, [names], ["class"], geometry_type="Unknown", crs="EPSG:32631")
    return path


def test_empty_shapes_go_with_their_fields(tmp_path: Path) -> None:
    path = write_shapes(tmp_path / "a.gpkg", shapely.Point(), shapely.Point(1, 2), None, shapely.Point(3, 4))
    shapes = read_shapes(path, "The labels", ["class"])
    assert shapely.get_coordinates(shapes.geometries).tolist() == [[1, 2], [3, 4]]
    assert shapes.fields["class"].tolist() == ["class 1", "class 3"]
    assert shapes.numbers.tolist() == [2, 4]
    assert list_fields(path, "The labels") == ["class"]
    whole = read_shapes(path, "The zones", None, keep_empty=True)
    assert shapely.is_empty(whole.geometries).tolist() == [True, False, True, False]
    assert whole.fields["class"].tolist() == [f"class {number}" for number in range(4)]


@pytest.mark.parametrize("bad", [shapely.Point(NAN, 5), shapely.Point(float("inf"), 5)])
def test_coordinates_that_are_not_numbers(tmp_path: Path, bad: shapely.Point) -> None:
    path = write_shapes(tmp_path / "a.gpkg", shapely.Point(1, 2), bad)
    with pytest.raises(SceneError, match="some coordinates are not finite numbers"):
        read_shapes(path, "The labels")


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "points",
    [
        ((NAN, 0), (9, 0), (9, 9), (NAN, 0)),
        ((0, 0), (float("inf"), 0), (9, 9), (0, 0)),
        tuple((1e308 * x, 1e308 * y) for x, y in ((-1, -1), (1, -1), (1, 1), (-1, 1), (-1, -1))),
    ],
)
def test_areas_of_interest_without_a_place(tmp_path: Path, points: tuple[tuple[float, float], ...]) -> None:
    path = tmp_path / "aoi.geojson"
    path.write_text(polygon(*points))
    with pytest.raises(SceneError, match=r"The area of interest .*aoi\.geojson"):
        read_aoi(path, UTM, (0, 0, 9, 9))


def test_files_that_are_no_vector_files(tmp_path: Path) -> None:
    (tmp_path / "empty.geojson").touch()
    for name in ("empty.geojson", "gone.gpkg", "a\udcff.gpkg"):
        with pytest.raises(SceneError) as refusal:
            read_shapes(tmp_path / name, "The labels")
        assert "\n" not in str(refusal.value)
    assert read_names(tmp_path / "empty.geojson", "location", "x") is None


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """A place where a connection would be seen."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        server.settimeout(0.2)
        yield server


@pytest.mark.parametrize(
    "source", ["/vsicurl/{}/a.geojson", "{}/a.geojson", "WFS:{}/a", "CSV:/vsicurl/{}/a.csv"]
)
def test_a_vector_file_makes_no_connection(listener: socket.socket, tmp_path: Path, source: str) -> None:
    address = source.format(f"http://127.0.0.1:{listener.getsockname()[1]}")
    path = tmp_path / "aoi.vrt"
    path.write_text(
        f"<OGRVRTDataSource><OGRVRTLayer name='a'><SrcDataSource>{address}</SrcDataSource></OGRVRTLayer>"
        "</OGRVRTDataSource>"
    )
    with pytest.raises(SceneError):
        read_shapes(path, "The area of interest")
    with pytest.raises(TimeoutError):
        listener.accept()
