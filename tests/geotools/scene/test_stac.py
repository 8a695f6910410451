"""What STAC items say about their assets, of any version, and what becomes of it."""

import json
import socket
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio
from support.catalogue import write_item
from support.scenes import write_raster
from support.sources import noise
from support.web import WebServer, serve

from iic_geotools import addresses
from iic_geotools.errors import SceneError, UsageError
from iic_geotools.scene.listing import find_scene, is_stac, list_scenes, read_items

RGBN = ("red", "green", "blue", "nir")


@pytest.fixture
def item(tmp_path: Path) -> dict[str, Any]:
    return write_item(tmp_path / "s2")


def write(path: Path, content: Any) -> str:
    path.write_text(json.dumps(content))
    return str(path)


def test_which_names_are_stac() -> None:
    root = "https://127.0.0.1/v1/collections/sentinel-2-l2a/items"
    for name in (
        "item.json",
        "a/items.GeoJSON",
        "https://127.0.0.1/item.json?token=1",
        root,
        f"{root}/S2A?a=b",
    ):
        assert is_stac(name), name
    for name in (
        "scene.tif",
        "https://127.0.0.1/scene.tif?item.json",
        "s3://bucket/items/a.tif",
        "<VRTDataset/>",
    ):
        assert not is_stac(name), name


@pytest.mark.parametrize("names", [RGBN, ("B04", "B03", "B02", "B08"), ("B04", "GREEN", "blue", "NIR")])
def test_bands_by_name_and_by_common_name(
    item: dict[str, Any], tmp_path: Path, names: tuple[str, ...]
) -> None:
    info = find_scene(write(tmp_path / "s2" / "item.json", item), names)
    assert info.descriptions == RGBN
    assert info.title == item["id"]
    with rasterio.open(info.path) as scene:
        for number, name in enumerate(("B04", "B03", "B02", "B08"), 1):
            with rasterio.open(tmp_path / "s2" / f"{name}.tif") as band:
                assert np.array_equal(scene.read(number), band.read(1))


def test_stac_1_1_tells_names_and_values_of_bands(item: dict[str, Any], tmp_path: Path) -> None:
    for asset in item["assets"].values():
        if "eo:bands" in asset:
            (band,) = asset.pop("eo:bands")
            entry = {"name": band["name"], "eo:common_name": band["common_name"], "nodata": 1}
            asset["bands"] = [entry | {"raster:scale": 0.0001, "raster:offset": -0.1}]
    info = find_scene(write(tmp_path / "s2" / "item.json", item), RGBN)
    assert info.descriptions == RGBN
    assert info.nodatavals == (0,) * 4, "the files know best"
    assert info.radiometry is not None
    assert (info.radiometry.scales, info.radiometry.offsets) == ((0.0001,) * 4, (-0.1,) * 4)
    # The fields of a single band may stand in the asset itself.
    for asset in item["assets"].values():
        asset.update(asset.pop("bands", [{}])[0])
    assert find_scene(write(tmp_path / "s2" / "item.json", item), RGBN).radiometry == info.radiometry


def test_scale_and_offset_are_those_of_each_asset(item: dict[str, Any], tmp_path: Path) -> None:
    for number, asset in enumerate(item["assets"].values()):
        asset["raster:bands"] = [{"scale": 0.001 * (number + 1), "offset": -0.1 * number}]
    info = find_scene(write(tmp_path / "s2" / "item.json", item), ["nir", "red"])
    assert info.radiometry is not None
    assert info.radiometry.scales == (0.005, 0.002)
    assert info.radiometry.offsets == pytest.approx((-0.4, -0.1))
    item["properties"]["earthsearch:boa_offset_applied"] = True
    info = find_scene(write(tmp_path / "s2" / "item.json", item), ["nir", "red"])
    assert info.radiometry is not None
    assert info.radiometry.offsets == (0, 0)


def test_one_asset_of_several_bands(tmp_path: Path) -> None:
    values = noise()
    write_raster(tmp_path / "naip.tif", values)
    names = [{"common_name": name} for name in ("nir", "red", "green", "blue")]
    asset = {"href": "naip.tif", "eo:bands": names, "raster:bands": [{"nodata": 7}] * 4}
    path = write(tmp_path / "item.json", {"type": "Feature", "id": "naip", "assets": {"image": asset}})
    whole = find_scene(path)
    assert whole.path == str(tmp_path / "naip.tif")
    assert whole.descriptions == ("nir", "red", "green", "blue")
    assert whole.nodatavals == (7,) * 4
    part = find_scene(path, ("red", "nir"))
    with rasterio.open(part.path) as scene:
        assert np.array_equal(scene.read(), values[[1, 0]])


def test_a_band_of_its_own_is_taken_before_one_of_a_picture(item: dict[str, Any], tmp_path: Path) -> None:
    bands = [{"common_name": name} for name in ("red", "green", "blue")]
    item["assets"]["visual"] = {"href": "TCI.tif", "roles": ["data"], "eo:bands": bands}
    path = write(tmp_path / "s2" / "item.json", item)
    assert [pick.asset for pick in list_scenes([path], RGBN)[0].picks] == ["B04", "B03", "B02", "B08"]
    item["assets"]["B04-jp2"] = item["assets"]["B04"]
    with pytest.raises(UsageError, match="several bands with the common name red, in B04 and B04-jp2"):
        find_scene(write(tmp_path / "s2" / "item.json", item), RGBN)


def test_wrong_assets(item: dict[str, Any], tmp_path: Path) -> None:
    path = write(tmp_path / "s2" / "item.json", item)
    with pytest.raises(
        UsageError, match=r"common name, swir; give `asset`, one or more of B02, B03, B04, B08"
    ):
        find_scene(path, ["red", "swir"])
    with pytest.raises(UsageError, match="does not say which of its assets"):
        find_scene(path)
    with pytest.raises(UsageError, match="none of them is empty"):
        find_scene(path, ["red", ""])
    with pytest.raises(UsageError, match="neither an asset of the item S2A_31UDQ_20240612_0_L2A nor a file"):
        find_scene(path, RGBN, ("clouds", (1,)))
    with pytest.raises(UsageError, match=r"`asset` is for STAC items, and .*B04\.tif is not one"):
        find_scene(tmp_path / "s2" / "B04.tif", "red")
    with pytest.raises(SceneError, match="has no assets"):
        find_scene(write(tmp_path / "none.json", item | {"assets": {}}))
    item["assets"]["B08"]["eo:bands"] = [{}, {"common_name": "nir"}]
    with pytest.raises(SceneError, match="has 2 bands or more, but it has 1"):
        find_scene(write(tmp_path / "s2" / "item.json", item), RGBN)
    with pytest.raises(UsageError, match=r"holds 2 scenes; give a folder as `out`"):
        find_scene(
            write(tmp_path / "two.json", {"type": "FeatureCollection", "features": [item, item]}), "B02"
        )


def test_files_of_an_item_are_next_to_it_wherever_one_is(
    item: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_item(tmp_path / "other", 20, 30)
    monkeypatch.chdir(tmp_path / "other")
    path = write(tmp_path / "s2" / "item.json", item)
    assert find_scene(path, "B04").grid.width == 160
    assert find_scene("../s2/item.json", RGBN).grid.width == 160


def test_catalogues_link_to_items(item: dict[str, Any], tmp_path: Path) -> None:
    write(tmp_path / "s2" / "item.json", item)
    links = [{"rel": "self", "href": "x"}, {"rel": "item", "href": "./s2/item.json"}]
    path = write(tmp_path / "catalog.json", {"type": "Catalog", "id": "all", "links": links})
    assert find_scene(path, "B08").path == str(tmp_path / "s2" / "B08.tif")
    with serve(tmp_path) as server:
        assert find_scene(server.url("catalog.json"), "B08").title == server.url("s2/B08.tif")
    with pytest.raises(SceneError, match="a STAC catalog without items; find some with iic-scenes search"):
        list_scenes([write(tmp_path / "empty.json", {"type": "Catalog", "id": "all", "links": links[:1]})])


def test_lists_may_name_items(item: dict[str, Any], tmp_path: Path) -> None:
    write(tmp_path / "s2" / "item.json", item)
    (tmp_path / "list.txt").write_text("s2/item.json\n")
    (scene,) = list_scenes([str(tmp_path / "list.txt")], RGBN, ("scl", (3,)))
    assert scene.name == item["id"]
    assert scene.mask is not None
    assert scene.mask.path == str(tmp_path / "s2" / "SCL.tif")


def test_an_item_at_an_address_names_no_files_of_this_machine(item: dict[str, Any], tmp_path: Path) -> None:
    for href in ("file:///etc/hostname", "vrt:///etc/hostname", "zip:///a.zip!b.tif", 'NETCDF:"a.nc":red'):
        item["assets"]["B04"]["href"] = href
        write(tmp_path / "s2" / "item.json", item)
        with (
            serve(tmp_path) as server,
            pytest.raises(SceneError, match="is at an address, but its asset B04 is"),
        ):
            find_scene(server.url("s2/item.json"), RGBN)


@pytest.fixture
def server(tmp_path: Path) -> Any:
    with serve(tmp_path) as running:
        yield running


def test_a_busy_server_is_asked_again(
    item: dict[str, Any], server: WebServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(addresses, "RETRY_AFTER", (0.01, 0.01))
    write(tmp_path / "item.json", item)
    server.be_busy(2)
    assert [one.id for one in read_items(server.url("item.json"))] == [item["id"]]
    server.be_busy(3)
    with pytest.raises(SceneError, match=r"cannot be read \(503 Service Unavailable\)"):
        list(read_items(server.url("item.json")))


def test_a_silent_server_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(addresses, "TIMEOUT", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(SceneError, match="timed out"):
        list(read_items(f"http://127.0.0.1:{silent.getsockname()[1]}/item.json"))


def test_servers_that_do_not_help(server: WebServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SceneError, match=r"item\.json cannot be read \(404"):
        list(read_items(server.url("item.json?token=secret")))
    (tmp_path / "page.json").write_text("<html>")
    with pytest.raises(SceneError, match="neither a STAC item nor"):
        list(read_items(server.url("page.json")))
    with pytest.raises(SceneError, match="Connection refused"):
        list(read_items("http://127.0.0.1:9/item.json"))
    monkeypatch.setattr(addresses, "LARGEST", 3)
    with pytest.raises(SceneError, match="MB; give a shorter list"):
        list(read_items(server.url("page.json")))
    with pytest.raises(SceneError, match="give an item by its https:// address"):
        list(read_items("s3://bucket/item.json"))


@pytest.mark.parametrize("digits", [400, 5000])
def test_numbers_of_many_digits_are_read_as_infinite(
    item: dict[str, Any], tmp_path: Path, digits: int
) -> None:
    for asset in item["assets"].values():
        asset["raster:bands"] = [{"scale": 17, "offset": 0}]
    name = write(tmp_path / "s2" / "item.json", item)
    Path(name).write_text(Path(name).read_text().replace('"scale": 17', '"scale": 1' + "0" * digits))
    assert find_scene(name, RGBN).descriptions == RGBN
