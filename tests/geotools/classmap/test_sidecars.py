import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from affine import Affine
from rasterio.crs import CRS
from rasterio.transform import from_origin

from iic_geotools.classmap.classes import MapClass
from iic_geotools.classmap.sidecars import map_style, sidecar, stac_item, with_areas
from iic_geotools.geobox import GeoBox

CLASSES = [MapClass("field & <meadow>", "#0072b2"), MapClass("forêt", "#e69f00")]


def test_the_sidecar_lists_names_and_colours() -> None:
    root = ElementTree.fromstring(sidecar(CLASSES))
    assert [category.text for category in root.iter("Category")] == ["field & <meadow>", "forêt"]
    rows = [[cell.text for cell in row] for row in root.iter("Row")]
    assert rows == [
        ["0", "field & <meadow>", "0", "114", "178", "255"],
        ["1", "forêt", "230", "159", "0", "255"],
    ]


def test_the_sidecar_lists_areas() -> None:
    root = ElementTree.fromstring(with_areas(sidecar(CLASSES), [(3_000_000_000, 7.5), (0, 0.0)]))
    (table,) = root.iter("GDALRasterAttributeTable")
    names = [entry.findtext("Name") for entry in table.iter("FieldDefn")]
    assert names == ["Value", "Class", "Red", "Green", "Blue", "Alpha", "Pixels", "Hectares"]
    assert [[cell.text for cell in row][-2:] for row in table.iter("Row")] == [
        ["3000000000", "7.5"],
        ["0", "0.0"],
    ]
    unknown = ElementTree.fromstring(with_areas(sidecar(CLASSES), [(5, None), (0, None)]))
    assert [entry.findtext("Name") for entry in unknown.iter("FieldDefn")] == names[:-1]


def test_the_sidecar_of_a_continuous_band_holds_only_the_georeference() -> None:
    root = ElementTree.fromstring(sidecar(None, "<SRS>EPSG:2154</SRS>"))
    assert [(element.tag, element.text) for element in root] == [("SRS", "EPSG:2154")]


def test_the_style_lists_only_the_classes() -> None:
    root = ElementTree.fromstring(map_style(CLASSES))
    entries = [
        (entry.get("value"), entry.get("color"), entry.get("label")) for entry in root.iter("paletteEntry")
    ]
    assert entries == [("0", "#0072b2", "field & <meadow>"), ("1", "#e69f00", "forêt")]


def test_a_stac_item_places_the_map_and_lists_its_classes_and_files(tmp_path: Path) -> None:
    grid = GeoBox(200, 100, from_origin(500000, 5400000, 10, 10), CRS.from_epsg(32632))
    files = {"map": tmp_path / "maps/map.tif", "stats": tmp_path / "stats.csv"}
    out, scene = tmp_path / "maps/map.json", "S2A_MSIL2A_20220315T101031_N0400"
    item = json.loads(stac_item(out, files, grid, CLASSES, scene, "iic-edge 1.2"))
    assert (item["type"], item["id"], item["properties"]["datetime"]) == (
        "Feature",
        "map",
        "2022-03-15T00:00:00Z",
    )
    west, south, east, north = item["bbox"]
    assert (west, north) == pytest.approx((9.0, 48.752), abs=2e-3)
    assert (east - west, north - south) == pytest.approx((0.0272, 0.009), rel=0.02)
    assert item["geometry"]["coordinates"][0][2] == [east, north]
    assert item["properties"]["proj:code"] == "EPSG:32632"
    assert item["properties"]["proj:shape"] == [100, 200]
    assert {name: asset["href"] for name, asset in item["assets"].items()} == {
        "map": "./map.tif",
        "stats": "./../stats.csv",
    }
    legend = item["assets"]["map"]["classification:classes"]
    assert [(entry["value"], entry["title"], entry["color_hint"]) for entry in legend] == [
        (0, "field & <meadow>", "0072B2"),
        (1, "forêt", "E69F00"),
    ]


def test_a_stac_item_without_a_place_or_date(tmp_path: Path) -> None:
    def make(grid: GeoBox) -> Any:
        return json.loads(
            stac_item(tmp_path / "i.json", {"map": tmp_path / "m.tif"}, grid, CLASSES, "a_99999999", "x 1")
        )

    nowhere = make(GeoBox(20, 10, Affine.identity(), None))
    assert nowhere["geometry"] is None
    assert "bbox" not in nowhere
    assert nowhere["properties"]["datetime"] == nowhere["properties"]["created"]
    fiji = make(GeoBox(200, 100, from_origin(179.5, -16, 0.01, 0.01), CRS.from_epsg(4326)))
    assert fiji["geometry"]["type"] in ("Polygon", "MultiPolygon")
