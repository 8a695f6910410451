from xml.etree import ElementTree

from iic_geotools.classmap.classes import MapClass
from iic_geotools.classmap.sidecars import map_style, sidecar

CLASSES = [MapClass("field & <meadow>", "#0072b2"), MapClass("forêt", "#e69f00")]


def test_the_sidecar_lists_names_and_colours() -> None:
    root = ElementTree.fromstring(sidecar(CLASSES))
    assert [category.text for category in root.iter("Category")] == ["field & <meadow>", "forêt"]
    rows = [[cell.text for cell in row] for row in root.iter("Row")]
    assert rows == [
        ["0", "field & <meadow>", "0", "114", "178", "255"],
        ["1", "forêt", "230", "159", "0", "255"],
    ]


def test_the_sidecar_of_a_continuous_band_holds_only_the_georeference() -> None:
    root = ElementTree.fromstring(sidecar(None, "<SRS>EPSG:2154</SRS>"))
    assert [(element.tag, element.text) for element in root] == [("SRS", "EPSG:2154")]


def test_the_style_lists_only_the_classes() -> None:
    root = ElementTree.fromstring(map_style(CLASSES))
    entries = [
        (entry.get("value"), entry.get("color"), entry.get("label")) for entry in root.iter("paletteEntry")
    ]
    assert entries == [("0", "#0072b2", "field & <meadow>"), ("1", "#e69f00", "forêt")]
