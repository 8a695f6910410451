from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import numpy as np
import pytest
import rasterio
import shapely
from affine import Affine
from pyogrio.raw import write
from support.maps import write_shapes
from support.scenes import CRS, NORTH, PIXEL, WEST, write_points, write_raster

from iic_geotools.errors import AssumptionWarning, NetworkError, SceneError, UsageError
from iic_geotools.geobox import GeoBox
from iic_geotools.scene.labels import NOT_LABELLED, open_labels, read_reduced
from iic_geotools.tiling import Rect

GRID = GeoBox(40, 30, Affine(PIXEL, 0, WEST, 0, -PIXEL, NORTH), rasterio.CRS.from_string(CRS))


def test_a_click_labels_its_pixel_and_no_other(tmp_path: Path) -> None:
    path = write_points(tmp_path / "clicks.gpkg", [3], [7], ["water"])
    with open_labels(path, GRID) as labels:
        values = labels.read(Rect(0, 0, 40, 30))
        assert labels.name(int(values[3, 7])) == "water"
    assert (values != NOT_LABELLED).sum() == 1


def test_a_raster_without_names_and_colours_is_numbered(tmp_path: Path) -> None:
    path = write_raster(tmp_path / "labels.tif", np.full((1, 30, 40), 5, np.uint8), nodata=0)
    with open_labels(path, GRID) as labels:
        assert (labels.read(Rect(0, 0, 40, 30)) == 5).all()
        assert (labels.name(5), labels.colour(5)) == ("class 5", None)


def test_a_file_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(SceneError, match="no file of labels"), open_labels(tmp_path / "gone.gpkg", GRID):
        pass


def test_a_file_that_is_neither_raster_nor_vector(tmp_path: Path) -> None:
    path = tmp_path / "labels.txt"
    path.write_text("not geodata")
    with pytest.raises(SceneError, match="neither a raster nor a vector"), open_labels(path, GRID):
        pass


def test_labels_that_are_not_integers(tmp_path: Path) -> None:
    path = write_raster(tmp_path / "labels.tif", np.zeros((1, 30, 40), np.float32))
    with pytest.raises(SceneError, match="give integers"), open_labels(path, GRID):
        pass


def test_a_raster_has_no_field(tmp_path: Path) -> None:
    path = write_raster(tmp_path / "labels.tif", np.zeros((1, 30, 40), np.uint8))
    with pytest.raises(UsageError, match="`label_field` applies only"), open_labels(path, GRID, "class"):
        pass


def test_of_several_fields_one_must_be_named(tmp_path: Path) -> None:
    path = write_points(tmp_path / "two.gpkg", [1], [1], ["x"], field="kind", extra={"note": ["n"]})
    with (
        pytest.raises(UsageError, match="as `label_field`; its fields are: kind, note"),
        open_labels(path, GRID),
    ):
        pass
    with open_labels(path, GRID, "kind") as labels:
        assert labels.name(0) == "x"


def test_a_field_that_does_not_exist(tmp_path: Path) -> None:
    path = write_points(tmp_path / "p.gpkg", [1], [1], ["x"])
    with (
        pytest.raises(UsageError, match="no field kind; their fields are: class"),
        open_labels(path, GRID, "kind"),
    ):
        pass


@pytest.mark.parametrize("crs", ["EPSG:4326", "EPSG:3857"])
def test_points_in_another_crs_are_reprojected(tmp_path: Path, crs: str) -> None:
    path = write_points(tmp_path / "p.gpkg", [3, 20], [7, 30], ["water", "wood"], crs=crs)
    with open_labels(path, GRID) as labels:
        values = labels.read(Rect(0, 0, 40, 30))
        assert [labels.name(int(values[at])) for at in ((3, 7), (20, 30))] == ["water", "wood"]


def test_points_without_a_crs_are_taken_to_be_in_that_of_the_scene(tmp_path: Path) -> None:
    point = shapely.Point(WEST + 7.5 * PIXEL, NORTH - 3.5 * PIXEL)
    bare = write_shapes(tmp_path / "bare.gpkg", [point], None, name=["water"])
    with pytest.warns(AssumptionWarning, match="have no CRS"), open_labels(bare, GRID) as labels:
        assert labels.name(int(labels.read(Rect(7, 3, 1, 1))[0, 0])) == "water"


def test_labels_outside_the_scene(tmp_path: Path) -> None:
    points = write_points(tmp_path / "p.gpkg", [300], [700], ["water"])
    raster = write_raster(
        tmp_path / "l.tif",
        np.zeros((1, 30, 40), np.uint8),
        transform=Affine(PIXEL, 0, WEST + 500, 0, -PIXEL, NORTH),
    )
    for path in (points, raster):
        with pytest.raises(SceneError, match="lie outside the scene"), open_labels(path, GRID):
            pass
        with open_labels(path, GRID, elsewhere=True) as labels:
            assert (labels.read(Rect(0, 0, 40, 30)) == NOT_LABELLED).all()


def test_contradictory_clicks_on_one_pixel(tmp_path: Path) -> None:
    path = write_points(tmp_path / "p.gpkg", [3, 5, 3], [7, 5, 7], ["water", "wood", "wood"])
    with (
        pytest.raises(SceneError, match="both water and wood in column 7, row 3"),
        open_labels(path, GRID),
    ):
        pass


def test_contradictory_clicks_in_a_layer_of_many_points_each(tmp_path: Path) -> None:
    x, y = WEST + 2.5 * PIXEL, NORTH - 2.5 * PIXEL
    shapes = [shapely.MultiPoint([(x, y), (x + 3, y)]), shapely.MultiPoint([(x + 0.1, y), (x, y - 4)])]
    path = tmp_path / "s.gpkg"
    names = np.array(["meadow", "tree"], object)
    write(path, shapely.to_wkb(shapes), [names], ["class"], geometry_type="MultiPoint", crs=CRS)
    with pytest.raises(SceneError, match="both meadow and tree in column 2, row 2"), open_labels(path, GRID):
        pass


def test_clicks_that_agree_on_one_pixel(tmp_path: Path) -> None:
    path = write_points(tmp_path / "p.gpkg", [3, 3], [7, 7], ["water", "water"])
    with open_labels(path, GRID) as labels:
        assert (labels.read(Rect(0, 0, 40, 30)) != NOT_LABELLED).sum() == 1


def test_a_point_refines_a_polygon_that_comes_before_it(tmp_path: Path) -> None:
    shapes = [
        shapely.box(WEST, NORTH - 10 * PIXEL, WEST + 10 * PIXEL, NORTH),
        shapely.Point(WEST + 2.5 * PIXEL, NORTH - 2.5 * PIXEL),
    ]
    path = tmp_path / "s.gpkg"
    names = np.array(["meadow", "tree"], object)
    write(path, shapely.to_wkb(shapes), [names], ["class"], geometry_type="Unknown", crs=CRS)
    with open_labels(path, GRID) as labels:
        values = labels.read(Rect(0, 0, 40, 30))
        assert labels.name(int(values[2, 2])) == "tree"
        assert (values == values[0, 0]).sum() == 99


def test_too_many_classes(tmp_path: Path) -> None:
    rows, columns = np.divmod(np.arange(300), 40)
    path = write_points(tmp_path / "p.gpkg", rows, columns, [f"class of {index}" for index in range(300)])
    with pytest.raises(SceneError, match=r"300 classes.*at most 254"), open_labels(path, GRID):
        pass


@pytest.mark.parametrize("names", [[], [""]])
def test_a_file_without_labels(tmp_path: Path, names: list[str]) -> None:
    count = len(names)
    path = write_points(tmp_path / "p.gpkg", [1] * count, [1] * count, names)
    with pytest.raises(SceneError, match="no point or polygon with a class"), open_labels(path, GRID):
        pass


def test_points_may_bring_the_colours_of_their_classes(tmp_path: Path) -> None:
    path = write_points(
        tmp_path / "p.gpkg",
        [1, 2, 3],
        [1, 2, 3],
        ["b", "a", "b"],
        extra={"colour": ["#00FF00", "red", "#0000ff"]},
    )
    with open_labels(path, GRID) as labels:
        assert [(labels.name(value), labels.colour(value)) for value in (0, 1)] == [
            ("a", None),
            ("b", "#00ff00"),
        ]


def test_minus_one_is_a_class_like_any_other(tmp_path: Path) -> None:
    values = np.zeros((1, 30, 40), np.int16)
    values[0, :10], values[0, 10:20] = -1, 7
    path = write_raster(tmp_path / "labels.tif", values, nodata=0)
    with open_labels(path, GRID) as labels:
        read = labels.read(Rect(0, 0, 40, 30))
        assert np.unique(read).tolist() == [NOT_LABELLED, -1, 7]
        assert labels.name(-1) == "class -1"
        assert (read_reduced(labels, Rect(0, 0, 8, 2), 5) == -1).all()


@pytest.mark.parametrize("kind", ["virtual raster", "service"])
def test_labels_do_not_lead_to_the_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Also where `no_proxy` names the host, which a proxy alone would not stop."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_error(404)

        def do_HEAD(self) -> None:
            self.do_GET()

        def log_message(self, format: str, *args: object) -> None:
            pass

    monkeypatch.delenv("IIC_ALLOW_NETWORK", raising=False)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}/labels.tif"
        texts = {
            "virtual raster": '<VRTDataset rasterXSize="40" rasterYSize="30"><VRTRasterBand dataType="Byte" band="1">'
            f"<SimpleSource><SourceFilename>/vsicurl/{address}</SourceFilename></SimpleSource></VRTRasterBand>"
            "</VRTDataset>",
            "service": f'<GDAL_WMS><Service name="TMS"><ServerUrl>{address}</ServerUrl></Service></GDAL_WMS>',
        }
        path = tmp_path / "labels.vrt"
        path.write_text(texts[kind])
        with pytest.raises(NetworkError, match="IIC_ALLOW_NETWORK"), open_labels(path, GRID):
            pass
        server.shutdown()
    assert asked == []


def test_labels_with_cut_pixels_are_a_sentence(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    path = write_raster(
        tmp_path / "labels.tif", rng.integers(0, 9, (1, 30, 40), np.uint8), compress="deflate"
    )
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(SceneError, match="labels"), open_labels(path, GRID) as labels:
        labels.read(Rect(0, 0, 40, 30))
