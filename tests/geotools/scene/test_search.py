"""Scenes from the catalogue of a STAC API: a real client asks a small API on this machine."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyogrio import read_info
from support.catalogue import write_catalogue
from support.hostile_servers import ServerCase, check_server
from support.web import WebServer, serve

from iic_geotools import MissingPackageError, OutputError, SceneError, UsageError, search_scenes
from iic_geotools.scene.listing import list_scenes

PLACE = (2.9, 48.6, 3.2, 48.9)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[WebServer]:
    (tmp_path / "web").mkdir()
    with serve(tmp_path / "web") as running:
        write_catalogue(tmp_path / "web", running.address)
        yield running


def search(server: WebServer, out: Path, **changes: Any) -> list[str]:
    settings = {"collection": "sentinel-2-l2a", "bbox": PLACE, "dates": "2024-06"} | changes
    return [scene.id for scene in search_scenes(server.url("stac"), out, **settings)]


def test_scenes_of_a_place_and_time(server: WebServer, tmp_path: Path) -> None:
    out = tmp_path / "june.json"
    assert search(server, out) == ["day 1", "day 2", "day 3", "day 4"], "over two pages"
    scenes = list_scenes([str(out)], ["red", "nir"], ("scl", (8,)))
    assert [scene.name for scene in scenes] == ["day 1", "day 2", "day 3", "day 4"]
    assert scenes[0].path == server.url("B04.tif"), "relative addresses are those of the item"
    info = scenes[0].describe()
    assert info.descriptions == ("red", "nir")
    assert (info.grid.width, info.grid.height) == (30, 20)


def test_a_list_is_geojson_with_footprints(server: WebServer, tmp_path: Path) -> None:
    out = tmp_path / "june.json"
    search(server, out)
    described = read_info(out)
    assert (described["features"], described["geometry_type"]) == (4, "Polygon")


def test_what_is_asked_for_counts(server: WebServer, tmp_path: Path) -> None:
    def days(**changes: Any) -> list[str]:
        return search(server, tmp_path / "list.geojson", overwrite=True, **changes)

    assert days(max_cloud=20) == ["day 1", "day 2"]
    assert days(max_cloud=100) == ["day 1", "day 2", "day 3"], "it is not known of the fourth"
    assert days(dates="2024-06-02") == ["day 2"]
    assert days(dates="2024-06-02/2024-06-03") == ["day 2", "day 3"]
    assert days(limit=3) == ["day 1", "day 2", "day 3"]
    assert days(collection="landsat-c2-l2") == ["day 5"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"bbox": (3.2, 48.6, 2.9, 48.9)}, "left below right"),
        ({"bbox": (2.9, 48.6, 3.2, 488)}, "in degrees"),
        ({"bbox": (500000, 5400000, 500100, 5400100)}, "in degrees"),
        ({"dates": "June"}, "a day, month or year"),
        ({"dates": "2024-13"}, "a day, month or year"),
        ({"dates": "2024-06-31"}, "a day, month or year"),
        ({"dates": "../.."}, "a day, month or year"),
        ({"dates": ""}, "a day, month or year"),
        ({"dates": "2024-06/2024-05"}, "ends before it begins"),
        ({"max_cloud": 101}, "between 0 and 100"),
        ({"max_cloud": float("nan")}, "between 0 and 100"),
        ({"limit": 0}, "1 to"),
        ({"out": "list.txt"}, "must end in"),
        ({"api": "stac"}, "address of a STAC API"),
    ],
)
def test_wrong_arguments(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    settings = {"collection": "sentinel-2-l2a", "bbox": PLACE, "dates": "2024-06"} | changes
    out = tmp_path / settings.pop("out", "list.json")
    with pytest.raises(UsageError, match=message):
        search_scenes(settings.pop("api", "http://127.0.0.1:9"), out, **settings)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("dates", ["2024", "2024-06", "2024-06-01/..", "../2024-06", "2024-05/2024-06-30"])
def test_dates(server: WebServer, tmp_path: Path, dates: str) -> None:
    assert search(server, tmp_path / "list.json", dates=dates)[0] == "day 1"


def test_searches_that_fail_write_nothing(server: WebServer, tmp_path: Path) -> None:
    out = tmp_path / "list.json"
    with pytest.raises(SceneError, match="knows no scene of sentinel-2-l2a in that place and time"):
        search(server, out, bbox=(10, 10, 11, 11))
    with pytest.raises(SceneError, match="with at most 5 % clouds"):
        search(server, out, max_cloud=5)
    catalogue = {"type": "Catalog", "id": "x", "stac_version": "1.0.0", "description": "x", "links": []}
    (tmp_path / "web" / "static").write_text(json.dumps(catalogue))
    (tmp_path / "web" / "page").write_text("<html>")
    place: dict[str, Any] = {"collection": "sentinel-2-l2a", "bbox": PLACE, "dates": "2024-06"}
    for api, reason in (
        ("static", "not a STAC API"),
        ("page", "cannot be searched"),
        ("gone", "cannot be searched"),
    ):
        with pytest.raises(SceneError, match=reason):
            search_scenes(server.url(api), out, **place)
    with pytest.raises(SceneError, match=r"9/ cannot be searched \(Connection refused\)"):
        search_scenes("http://127.0.0.1:9/", out, **place)
    with pytest.raises(OutputError, match="no folder"):
        search(server, tmp_path / "gone" / "list.json")
    assert not out.exists()
    server.be_busy(1)
    assert search(server, out)


def test_without_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pystac_client", None)
    with pytest.raises(MissingPackageError, match=r"pip install \"\.\[stac\]\""):
        search_scenes(
            "http://127.0.0.1:9",
            tmp_path / "list.json",
            collection="sentinel-2-l2a",
            bbox=PLACE,
            dates="2024",
        )


@pytest.mark.timeout(120)
@pytest.mark.parametrize("lie", ["endless", "drip", "deep", "silent", "longer", "not HTTP", "503"])
def test_a_server_that_lies_is_a_sentence(lie: str, tmp_path: Path) -> None:
    assert not check_server(ServerCase("search", lie, after=0), tmp_path / "case")
