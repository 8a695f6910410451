"""Whatever a scene is made of, a change of it is seen, or the scene is not identified."""

import os
import threading
import zipfile
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from xml.sax.saxutils import escape

import numpy as np
import pytest
import rasterio
import shapely
from pyogrio.raw import write as write_vector
from support.sources import make_source, noise

from iic_geotools.errors import SceneError
from iic_geotools.gdal import NETWORK_VARIABLE, allows_network, name_without_sidecars, network_options
from iic_geotools.scene.info import describe
from iic_geotools.scene.source_files import SourceFile, identify_sources
from iic_geotools.tiling import Rect

MakeScene = Callable[..., Path]


def identify(path: object) -> tuple[SourceFile, ...] | None:
    return identify_sources(str(path), describe(str(path)).files)


def change(path: Path) -> None:
    """Write a file again, of the same size."""
    status = path.stat()
    path.write_bytes(path.read_bytes())
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1_000_000_000))


def write_vrt(path: Path, source: str, relative: bool = False) -> Path:
    band = (
        f'<VRTRasterBand dataType="Byte" band="1"><SimpleSource><SourceFilename relativeToVRT="{int(relative)}">'
        f"{source}</SourceFilename><SourceBand>1</SourceBand></SimpleSource></VRTRasterBand>"
    )
    path.write_text(f'<VRTDataset rasterXSize="60" rasterYSize="40">{band}</VRTDataset>')
    return path


def nested_vrt(scene: Path) -> str:
    return str(write_vrt(scene.parent / "outer.vrt", str(write_vrt(scene.parent / "inner.vrt", str(scene)))))


def relative_vrt(scene: Path) -> str:
    (scene.parent / "below").mkdir()
    inner = write_vrt(scene.parent / "below" / "inner.vrt", f"../{scene.name}", relative=True)
    return str(write_vrt(scene.parent / "outer.vrt", str(inner)))


def index(scene: Path) -> str:
    path = scene.parent / "tiles.gti.gpkg"
    shape = np.array([shapely.to_wkb(shapely.box(500000, 5399980, 500030, 5400000))], object)
    place = {"geometry_type": "Polygon", "crs": "EPSG:32631"}
    write_vector(path, shape, [np.array([str(scene)], object)], ["location"], **place)
    return str(path)


# The scene under names that hide it.
NAMES: dict[str, Callable[[Path], str]] = {
    "plain": str,
    "file address": lambda scene: f"file://{scene}",
    "nested VRT": nested_vrt,
    "relative VRT": relative_vrt,
    "text of a VRT": lambda scene: write_vrt(scene.parent / "inner.vrt", str(scene)).read_text(),
    "vrt address": lambda scene: f"vrt://{scene}?bands=1",
    "sub-dataset": lambda scene: f"GTIFF_DIR:1:{scene}",
    "part of a file": lambda scene: f"/vsisubfile/0_{scene.stat().st_size},{scene}",
    "index": index,
    "named index": lambda scene: f"GTI:{index(scene)}",
}


@pytest.mark.parametrize("kind", NAMES)
def test_a_change_of_the_file_with_the_pixels_is_seen(make_scene: MakeScene, kind: str) -> None:
    scene = make_scene(noise())
    path = NAMES[kind](scene)
    before = identify(path)
    assert before is not None
    assert str(scene) in {source.name for source in before}
    assert identify(path) == before
    change(scene)
    assert identify(path) != before


@pytest.mark.parametrize(
    "address", ["/vsizip/{}/inner.tif", "zip://{}!inner.tif", "/vsizip/{{{}}}/inner.tif"]
)
def test_a_change_of_an_archive_is_seen(make_scene: MakeScene, tmp_path: Path, address: str) -> None:
    archive = tmp_path / "scenes.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.write(make_scene(noise()), "inner.tif")
    path = address.format(archive)
    before = identify(path)
    assert before is not None
    assert [source.name for source in before] == [str(archive)]
    change(archive)
    assert identify(path) != before


def test_another_file_under_the_same_name_is_seen(make_scene: MakeScene, tmp_path: Path) -> None:
    scene = make_scene(noise())
    before, status = identify(scene), scene.stat()
    other = tmp_path / "other.tif"
    other.write_bytes(scene.read_bytes())
    os.utime(other, ns=(status.st_atime_ns, status.st_mtime_ns))
    other.replace(scene)
    assert identify(scene) != before


@pytest.mark.parametrize("suffix", [".msk", ".aux.xml"])
def test_sidecars_of_sources_count(make_scene: MakeScene, tmp_path: Path, suffix: str) -> None:
    scene = make_scene(noise())
    path = write_vrt(tmp_path / "outer.vrt", str(scene))
    before = identify(path)
    scene.with_name(scene.name + suffix).write_bytes(b"<PAMDataset/>")
    assert identify_sources(str(path)) != before


def test_a_virtual_raster_in_an_archive_is_not_identified(make_scene: MakeScene, tmp_path: Path) -> None:
    inner = write_vrt(tmp_path / "inner.vrt", str(make_scene(noise())))
    with zipfile.ZipFile(tmp_path / "scenes.zip", "w") as file:
        file.write(inner, "inner.vrt")
    assert identify(f"/vsizip/{tmp_path}/scenes.zip/inner.vrt") is None


@pytest.mark.parametrize(
    "name",
    [
        "/vsis3/bucket/scene.tif",
        "/vsimem/scene.tif",
        "s3://bucket/scene.tif",
        'NETCDF:"gone.nc":red',
        "gone.tif",
    ],
)
def test_what_cannot_be_followed_is_not_identified(name: str) -> None:
    assert identify_sources(name) is None


def test_a_local_file_that_names_a_service_is_not_identified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = tmp_path / "service.xml"
    service.write_text("<GDAL_WMS><Service name='TMS'/></GDAL_WMS>")
    with pytest.raises(SceneError, match="refers to a service"):
        describe(str(service))
    monkeypatch.setenv(NETWORK_VARIABLE, "1")
    assert identify_sources(str(service)) is None


def test_a_virtual_raster_of_itself_ends(tmp_path: Path) -> None:
    path = tmp_path / "loop.vrt"
    write_vrt(path, str(path))
    assert identify_sources(str(path)) is not None


REQUESTS: list[str] = []


@pytest.fixture
def server() -> Iterator[tuple[str, dict[str, str]]]:
    """The address of a server, and the headers that it answers with."""
    headers: dict[str, str] = {}
    REQUESTS.clear()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            REQUESTS.append(self.path)
            self.send_error(404)

        def do_HEAD(self) -> None:
            REQUESTS.append(self.path)
            self.send_response(200)
            for key, value in headers.items():
                self.send_header(key, value)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        thread = threading.Thread(target=http.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{http.server_port}/scene.tif", headers
        http.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"ETag": '"1"'}, {"ETag": '"2"'}),
        (
            {"Content-Length": "5", "Last-Modified": "Mon, 16 Nov 2026 19:00:00 GMT"},
            {"Content-Length": "5", "Last-Modified": "Mon, 16 Nov 2026 19:00:01 GMT"},
        ),
    ],
)
def test_a_change_at_an_address_is_seen(
    server: tuple[str, dict[str, str]], first: dict[str, str], second: dict[str, str]
) -> None:
    address, headers = server
    headers |= first
    before = identify_sources(address)
    assert before is not None
    assert identify_sources(address) == identify_sources(name_without_sidecars(address)) == before
    headers |= second
    assert identify_sources(address) != before
    assert identify_sources(name_without_sidecars(address)) != before


def test_a_server_that_does_not_tell_versions_is_not_identified(server: tuple[str, dict[str, str]]) -> None:
    address, headers = server
    headers["Content-Length"] = "5"
    assert identify_sources(address) is None


@pytest.mark.parametrize("prefix", ["", "/vsicurl/", "/vsicurl_streaming/", "/vsizip//vsicurl/"])
def test_a_local_file_makes_no_connection_unless_that_is_allowed(
    server: tuple[str, dict[str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prefix: str
) -> None:
    address, _ = server
    path = write_vrt(tmp_path / "outer.vrt", prefix + address)
    with pytest.raises(SceneError, match=rf"refers to .*{address}.*{NETWORK_VARIABLE} to 1"):
        describe(str(path))
    assert REQUESTS == []
    monkeypatch.setenv(NETWORK_VARIABLE, "1")
    assert describe(str(path)).grid.width == 60


def test_options_of_gdal_are_the_same_within_themselves() -> None:
    """Threads ask for them while they hold already, and need them too."""
    for path in ("scene.tif", "http://127.0.0.1/scene.tif"):
        with rasterio.Env(**network_options(path)):
            assert network_options(path)
    with rasterio.Env(GDAL_HTTP_CONNECTTIMEOUT="3"):
        assert "GDAL_HTTP_CONNECTTIMEOUT" not in network_options("http://127.0.0.1/scene.tif")


def test_settings_of_the_user_do_not_open_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many set these to read their own scenes faster, or through a proxy."""
    monkeypatch.setenv("CPL_VSIL_CURL_ALLOWED_EXTENSIONS", ".tif")
    monkeypatch.setenv("GDAL_HTTP_PROXY", "proxy.example:80")
    assert {"CPL_VSIL_CURL_ALLOWED_EXTENSIONS", "GDAL_HTTP_PROXY"} <= {*network_options("scene.tif")}


SERVICES = [
    "WMS:{}?",
    "WMTS:{}",
    "WCS:{}?",
    "IIP:{}",
    "DAAS:{}",
    'STACTA:"{}"',
    'STACIT:"{}"',
    'NETCDF:"{}":red',
    'ZARR:"/vsicurl/{}"',
    "GTI:/vsicurl/{}",
    "<GDAL_WMS><Service name='TMS'><ServerUrl>{}</ServerUrl></Service></GDAL_WMS>",
]


@pytest.mark.parametrize("name", SERVICES)
def test_a_local_file_reaches_no_service(
    server: tuple[str, dict[str, str]], tmp_path: Path, name: str
) -> None:
    path = write_vrt(tmp_path / "outer.vrt", escape(name.format(server[0])))
    with pytest.raises(SceneError, match=rf"refers to .*{NETWORK_VARIABLE} to 1"):
        describe(str(path))
    assert REQUESTS == []


def test_gdal_itself_reaches_no_service_for_a_local_file(server: tuple[str, dict[str, str]]) -> None:
    """Where a reference is hidden too well, nothing but GDAL can refuse it."""
    for name in ("WMS:{}?", "WMTS:{}", "DAAS:{}"):
        with rasterio.Env(**network_options("scene.tif")), pytest.raises(rasterio.errors.RasterioIOError):
            rasterio.open(name.format(server[0]))
    assert REQUESTS == []


def test_xml_that_only_gdal_can_read_holds_no_address(
    server: tuple[str, dict[str, str]], tmp_path: Path
) -> None:
    path = write_vrt(tmp_path / "outer.vrt", f"WMS:{server[0]}?a=1&b=2")  # & is not XML
    with pytest.raises(SceneError, match="refers to an address"):
        describe(str(path))
    assert REQUESTS == []


def test_a_name_that_is_a_service_is_an_allowance() -> None:
    assert allows_network("WMS:http://127.0.0.1/wms")
    assert allows_network('NETCDF:"https://example.com/a.nc":red')
    assert not allows_network("<VRTDataset xmlns='http://example.com/schema'/>")
    assert not allows_network("zip://scenes.zip!a.tif")


def test_an_index_with_its_tiles_in_another_field_is_not_identified(make_scene: MakeScene) -> None:
    path = Path(index(make_scene(noise())))
    text = f"<GDALTileIndexDataset><IndexDataset>{path}</IndexDataset>"
    whole = path.with_name("whole.vrt")
    whole.write_text(f"{text}</GDALTileIndexDataset>")
    assert identify_sources(str(whole)) is not None
    whole.write_text(f"{text}<LocationField>other</LocationField></GDALTileIndexDataset>")
    assert identify_sources(str(whole)) is None


def test_an_index_is_not_identified_without_the_packages_that_read_it(
    make_scene: MakeScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = index(make_scene(noise()))
    assert identify_sources(path) is not None
    monkeypatch.setattr("iic_geotools.scene.vectors.has_vector", lambda: False)
    assert identify_sources(path) is None


def test_gdal_itself_makes_no_connection_for_a_local_file(server: tuple[str, dict[str, str]]) -> None:
    with rasterio.Env(**network_options("scene.tif")), pytest.raises(rasterio.errors.RasterioIOError):
        rasterio.open(f"/vsicurl/{server[0]}")
    assert REQUESTS == []


def test_python_in_a_virtual_raster_is_not_run(make_scene: MakeScene, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    code = f"import pathlib\ndef f(*a, **k):\n    pathlib.Path({str(mark)!r}).touch()\n"
    path = tmp_path / "python.vrt"
    path.write_text(
        '<VRTDataset rasterXSize="60" rasterYSize="40"><VRTRasterBand dataType="Byte" band="1" '
        'subClass="VRTDerivedRasterBand"><PixelFunctionType>f</PixelFunctionType>'
        f"<PixelFunctionLanguage>Python</PixelFunctionLanguage><PixelFunctionCode><![CDATA[{code}]]>"
        f"</PixelFunctionCode><SimpleSource><SourceFilename>{make_scene(noise())}</SourceFilename>"
        "<SourceBand>1</SourceBand></SimpleSource></VRTRasterBand></VRTDataset>"
    )
    with pytest.raises(SceneError), make_source(path, (1,)).open() as scene:
        scene.read(Rect(0, 0, 60, 40))
    assert not mark.exists()
