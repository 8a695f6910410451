"""Scenes by address: items of catalogues on a server, one asset per band, under the mask of their clouds."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio
from rasterio.transform import from_origin
from support.catalogue import CLOUDS, NORTH, WEST, write_band, write_item
from support.maps import read_band
from support.scenes import write_raster
from support.tiny_onnx import make_model
from support.web import WebServer, serve
from typer.testing import CliRunner

from iic_geotools import addresses
from iic_geotools.errors import SceneError, UsageError
from iic_geotools.gdal import NETWORK_VARIABLE
from iic_geotools.scene.info import describe
from iic_geotools.work import Progress
from iic_runtime import segment_raster, segment_rasters
from iic_runtime.cli.segment_raster import app

RGBN = ["red", "green", "blue", "nir"]
FILES = ("B04.tif", "B03.tif", "B02.tif", "B08.tif")


@pytest.fixture
def item(tmp_path: Path) -> dict[str, Any]:
    item = write_item(tmp_path / "web")
    (tmp_path / "web" / "item.json").write_text(json.dumps(item))
    return item


@pytest.fixture
def server(item: dict[str, Any], tmp_path: Path) -> Iterator[WebServer]:
    with serve(tmp_path / "web") as running:
        yield running


def run(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, [*map(str, arguments), "--device", "cpu"])
    return result.exit_code, result.output


@pytest.fixture
def stacked(item: dict[str, Any], tmp_path: Path) -> Path:
    """The bands of the item in one file, 0 where there are clouds."""
    values = np.stack([read_band(tmp_path / "web" / name) for name in FILES])
    clouds = np.isin(read_band(tmp_path / "web" / "SCL.tif"), CLOUDS).repeat(2, 0).repeat(2, 1)
    assert 0.05 < clouds.mean() < 0.95
    values[:, clouds] = 0
    place = from_origin(WEST, NORTH, 10, 10)
    return write_raster(tmp_path / "stacked.tif", values, nodata=0, transform=place)


@pytest.mark.parametrize("tile", [32, 512])
def test_an_item_at_an_address_is_mapped_as_if_it_were_one_file(
    server: WebServer, stacked: Path, model: Path, tmp_path: Path, tile: int
) -> None:
    out, preview = tmp_path / "map.tif", tmp_path / "preview.png"
    page = tmp_path / "page.html"
    options = ("--model", model, "--asset", "red,green,blue,nir", "--mask", "scl:3,8,9,10", "--tile", tile)
    code, output = run(server.url("item.json"), out, *options, "--preview", preview, "--web", page)
    assert code == 0, output
    segment_raster(stacked, tmp_path / "expected.tif", model, device="cpu")
    assert np.array_equal(read_band(out), read_band(tmp_path / "expected.tif"))
    assert preview.exists()
    assert "Scene: S2A_31UDQ_20240612_0_L2A." in page.read_text()
    with rasterio.open(out) as dataset:
        assert dataset.tags()["IIC_SCENE"] == "S2A_31UDQ_20240612_0_L2A"


@pytest.mark.parametrize("match_gsd", [False, True])
def test_a_mask_for_a_scene_in_a_file(
    item: dict[str, Any], stacked: Path, tmp_path: Path, match_gsd: bool
) -> None:
    """Masked pixels are holes like any other, also where finer pixels are averaged to larger ones."""
    model = tmp_path / "model.onnx"
    model.write_bytes(make_model(gsd=25.0))
    with rasterio.open(stacked) as dataset:
        values = np.stack([read_band(tmp_path / "web" / name) for name in FILES])
        scene = write_raster(tmp_path / "scene.tif", values, transform=dataset.transform)
    mask = (tmp_path / "web" / "SCL.tif", CLOUDS)
    settings: dict[str, Any] = {"device": "cpu", "match_gsd": match_gsd}
    segment_raster(scene, tmp_path / "map.tif", model, mask=mask, **settings)
    segment_raster(stacked, tmp_path / "expected.tif", model, **settings)
    assert np.array_equal(read_band(tmp_path / "map.tif"), read_band(tmp_path / "expected.tif"))
    described = segment_raster(describe(str(scene)), tmp_path / "again.tif", model, mask=mask, **settings)
    assert np.array_equal(read_band(described.map), read_band(tmp_path / "expected.tif"))
    # Another nodata value does not undo a mask that was asked for.
    segment_raster(scene, tmp_path / "other.tif", model, mask=mask, nodata=0, **settings)
    assert np.array_equal(read_band(tmp_path / "other.tif"), read_band(tmp_path / "expected.tif"))


def test_a_mask_is_part_of_what_a_run_is(item: dict[str, Any], model: Path, tmp_path: Path) -> None:
    out = tmp_path / "maps"
    settings: dict[str, Any] = {"asset": RGBN, "device": "cpu"}
    path = tmp_path / "web" / "item.json"

    def kept(**changes: Any) -> bool:
        (outcome,) = segment_rasters([path], out, model, **settings | changes)
        return outcome.summary is not None and outcome.summary.made_before

    assert not kept(mask=("scl", CLOUDS))
    assert kept(mask=("scl", CLOUDS[::-1]))
    assert kept(mask=(tmp_path / "web" / "SCL.tif", CLOUDS), asset=["B04", "B03", "B02", "B08"])
    assert not kept(mask=("scl", CLOUDS[1:]))
    assert not kept()
    assert not kept(asset=["B04", "B03", "B08", "B02"], bands=[1, 2, 3, 4], mask=("scl", CLOUDS))
    write_band(tmp_path / "web" / "SCL.tif", read_band(tmp_path / "web" / "SCL.tif"), 20)
    assert not kept(mask=("scl", CLOUDS)), "the mask was written again"


def test_a_run_over_addresses_resumes(
    server: WebServer, item: dict[str, Any], model: Path, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {"asset": RGBN, "mask": ("scl", CLOUDS), "device": "cpu"}
    first = segment_rasters([server.url("item.json")], tmp_path / "maps", model, **settings)
    assert [outcome.error for outcome in first] == [None]
    again = segment_rasters([server.url("item.json")], tmp_path / "maps", model, **settings)
    assert again[0].summary is not None
    assert again[0].summary.made_before


def busy_at_the_end(server: WebServer, times: int) -> Callable[[Progress], None]:
    """Make a server refuse requests when everything is labelled."""

    def on_progress(moment: Progress) -> None:
        if moment.stage == "segment" and moment.done == moment.total:
            server.be_busy(times)

    return on_progress


def test_a_server_that_is_busy_at_the_end_is_asked_again(
    server: WebServer, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(addresses, "RETRY_AFTER", (0.01, 0.01))
    settings: dict[str, Any] = {"asset": RGBN, "device": "cpu", "progress": busy_at_the_end(server, 2)}
    segment_raster(server.url("item.json"), tmp_path / "map.tif", model, **settings)
    assert (tmp_path / "map.tif").exists()


def test_a_server_that_gives_no_version_at_the_end_costs_no_parts(
    server: WebServer, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(addresses, "RETRY_AFTER", (0.01, 0.01))
    scene, out = server.url("item.json"), tmp_path / "map.tif"
    settings: dict[str, Any] = {"asset": RGBN, "device": "cpu"}
    with pytest.raises(SceneError, match=r"cannot be checked whether .* changed .* again to resume"):
        segment_raster(scene, out, model, progress=busy_at_the_end(server, 3), **settings)
    assert not out.exists()
    assert segment_raster(scene, out, model, **settings).parts_reused
    assert out.exists()


def test_lists_of_items_at_addresses(
    server: WebServer, item: dict[str, Any], model: Path, tmp_path: Path
) -> None:
    features = [item | {"id": f"item {number}"} for number in range(2)]
    collection = {"type": "FeatureCollection", "features": features, "links": []}
    (tmp_path / "web" / "items.json").write_text(json.dumps(collection))
    options = ("--model", model, "--asset", "B04,B03,B02,B08", "--mask", "scl:3,8,9,10", "--mosaic")
    code, output = run(server.url("items.json"), tmp_path / "maps", *options, tmp_path / "all.vrt")
    assert code == 0, output
    assert sorted(path.name for path in (tmp_path / "maps").glob("*.tif")) == ["item 0.tif", "item 1.tif"]


@pytest.mark.slow
def test_workers_read_addresses(server: WebServer, model: Path, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"asset": RGBN, "mask": ("scl", CLOUDS), "device": "cpu", "tile": 64}
    one = segment_raster(server.url("item.json"), tmp_path / "one.tif", model, **settings)
    two = segment_raster(server.url("item.json"), tmp_path / "two.tif", model, workers=1, **settings)
    assert np.array_equal(read_band(one.map), read_band(two.map))


@pytest.mark.parametrize(
    ("scheme", "options"),
    [
        (
            "s3",
            {
                "AWS_S3_ENDPOINT": "",
                "AWS_HTTPS": "NO",
                "AWS_VIRTUAL_HOSTING": "FALSE",
                "AWS_NO_SIGN_REQUEST": "YES",
            },
        ),
        ("gs", {"CPL_GS_ENDPOINT": "", "GS_NO_SIGN_REQUEST": "YES"}),
    ],
)
def test_assets_in_buckets(
    server: WebServer,
    item: dict[str, Any],
    stacked: Path,
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    scheme: str,
    options: dict[str, str],
) -> None:
    for key, value in options.items():
        address = server.address + "/" if scheme == "gs" else server.address.removeprefix("http://")
        monkeypatch.setenv(key, value or address)
    (tmp_path / "web" / "bucket").symlink_to(tmp_path / "web")
    for asset in item["assets"].values():
        asset["href"] = asset["href"].replace("./", f"{scheme}://bucket/")
    path = tmp_path / "local.json"
    path.write_text(json.dumps(item))
    segment_raster(path, tmp_path / "map.tif", model, asset=RGBN, mask=("scl", CLOUDS), device="cpu")
    segment_raster(stacked, tmp_path / "expected.tif", model, device="cpu")
    assert np.array_equal(read_band(tmp_path / "map.tif"), read_band(tmp_path / "expected.tif"))


def test_servers_are_asked_for_the_assets_only(server: WebServer, model: Path, tmp_path: Path) -> None:
    segment_raster(
        server.url("item.json"), tmp_path / "map.tif", model, asset=RGBN, mask=("scl", CLOUDS), device="cpu"
    )
    files = {request.partition(" /")[2] for request in server.requests()}
    # Only where it warps, GDAL looks for a mask next to the file.
    assert {file for file in files if not file.lower().endswith(".msk")} == {"item.json", "SCL.tif", *FILES}


def test_a_server_that_is_busy_is_asked_again(
    server: WebServer, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(addresses, "RETRY_AFTER", (0.01,))
    server.be_busy(3)  # two for us, who ask for its version, and one for GDAL
    code, output = run(server.url("B04.tif"), tmp_path / "map.tif", "--model", model, "--bands", "1,1,1,1")
    assert code == 2, output
    assert "names a band of the scene twice" in output, "the scene could be opened"


def test_a_local_asset_that_refers_to_addresses_is_refused(
    server: WebServer, item: dict[str, Any], model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = f"<SourceFilename>/vsicurl/{server.url('B04.tif')}</SourceFilename><SourceBand>1</SourceBand>"
    (tmp_path / "web" / "hidden.vrt").write_text(
        '<VRTDataset rasterXSize="160" rasterYSize="120"><SRS>EPSG:32631</SRS>'
        "<GeoTransform>500000, 10, 0, 5400000, 0, -10</GeoTransform>"
        f'<VRTRasterBand dataType="Byte" band="1"><SimpleSource>{source}</SimpleSource></VRTRasterBand></VRTDataset>'
    )
    item["assets"]["B03"]["href"] = server.url("B03.tif")
    item["assets"]["B04"]["href"] = "./hidden.vrt"
    path = tmp_path / "web" / "mixed.json"
    path.write_text(json.dumps(item))
    before = server.requests()
    with pytest.raises(SceneError, match=rf"hidden\.vrt refers to .*{NETWORK_VARIABLE} to 1"):
        segment_raster(path, tmp_path / "map.tif", model, asset=RGBN, device="cpu")
    assert not [request for request in server.requests()[len(before) :] if "B04" in request]
    monkeypatch.setenv(NETWORK_VARIABLE, "1")
    segment_raster(path, tmp_path / "map.tif", model, asset=RGBN, device="cpu")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--asset", "red,green,blue,ultraviolet"), 2, "no band with the common name, ultraviolet"),
        (("--asset", "red,,nir"), 2, "--asset takes names"),
        ((), 2, "give --asset"),
        (("--asset", "red,green,blue"), 1, "no band named nir"),
        (("--asset", "red,green,blue,thumbnail"), 1, "t.png is not a raster"),
        (
            ("--asset", "red,green,blue,nir", "--mask", "clouds:1"),
            2,
            "--mask is clouds, which is neither an asset",
        ),
        (("--asset", "red,green,blue,nir", "--mask", "scl"), 2, "--mask takes FILE:VALUES"),
        (("--asset", "red,green,blue,nir", "--mask", "scl:900"), 2, "--mask asks for the value 900"),
        (("--asset", "red,green,blue,nir", "--mask", "http://127.0.0.1:9/a.tif:1"), 1, "not a raster"),
    ],
)
def test_wrong_arguments_leave_nothing(
    server: WebServer, model: Path, tmp_path: Path, arguments: tuple[str, ...], code: int, message: str
) -> None:
    before = sorted(tmp_path.rglob("*"))
    result, output = run(server.url("item.json"), tmp_path / "map.tif", "--model", model, *arguments)
    assert result == code, output
    assert output.splitlines()[-1].startswith("Error: ")
    assert message in output
    assert "VRTDataset" not in output
    assert sorted(tmp_path.rglob("*")) == before


def test_servers_that_are_down(server: WebServer, item: dict[str, Any], model: Path, tmp_path: Path) -> None:
    down = "http://127.0.0.1:9"
    code, output = run(f"{down}/item.json", tmp_path / "map.tif", "--model", model, "--asset", "red")
    assert (code, "that 127.0.0.1:9 can be reached" in output) == (1, True), output
    item["assets"]["B08"]["href"] = f"{down}/B08.tif"
    path = tmp_path / "web" / "half.json"
    path.write_text(json.dumps(item))
    with pytest.raises(
        SceneError, match=r"http://127\.0\.0\.1:9/B08\.tif is not a raster that GDAL can open"
    ):
        segment_raster(path, tmp_path / "map.tif", model, asset=RGBN, device="cpu")
    with pytest.raises(UsageError, match="is described already"):
        segment_raster(describe(server.url("B04.tif")), tmp_path / "map.tif", model, asset="red")
    assert not (tmp_path / "map.tif").exists()
