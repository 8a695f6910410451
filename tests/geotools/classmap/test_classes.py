import pytest

from iic_geotools.classmap.classes import (
    MAX_CLASSES,
    NODATA,
    MapClass,
    class_colours,
    distinct_colours,
    rgb,
    suggest_colour,
    usual_colour,
)
from iic_geotools.errors import UsageError


def test_colours_are_distinct_and_a_longer_list_only_appends() -> None:
    colours = distinct_colours(MAX_CLASSES)
    assert len(set(colours)) == MAX_CLASSES
    for count in (0, 1, 3, 8, 9, 100):
        assert distinct_colours(count) == colours[:count]


def test_first_colours_differ_in_luminance_or_hue_for_the_colour_blind() -> None:
    """Red-green blindness leaves, roughly, blue against the mean of red and green."""
    colours = [rgb(colour) for colour in distinct_colours(6)]
    perceived = [(red * 0.6 + green * 0.4, blue) for red, green, blue in colours]
    for index, (yellow, blue) in enumerate(perceived):
        for other_yellow, other_blue in perceived[:index]:
            assert max(abs(yellow - other_yellow), abs(blue - other_blue)) > 25


@pytest.mark.parametrize("count", [-1, NODATA])
def test_more_colours_than_classes_are_refused(count: int) -> None:
    with pytest.raises(UsageError, match="254"):
        distinct_colours(count)


def test_colours_are_read_in_either_case() -> None:
    assert rgb("#0A10ff") == (10, 16, 255)


@pytest.mark.parametrize("colour", ["", "red", "0072b2", "#0072b", "#0072b2ff", "#00g2b2", "#0072b2\n"])
def test_a_class_must_have_a_colour(colour: str) -> None:
    with pytest.raises(UsageError, match="#rrggbb"):
        MapClass("water", colour)


@pytest.mark.parametrize("name", ["", "  ", "a\nb", "\x00"])
def test_a_class_must_have_a_name(name: str) -> None:
    with pytest.raises(UsageError, match="name"):
        MapClass(name, "#000000")


def test_colours_avoid_those_that_are_taken() -> None:
    taken = distinct_colours(3)
    assert distinct_colours(2, besides=taken) == distinct_colours(5)[3:]
    rest = distinct_colours(MAX_CLASSES, besides=[*taken, None])
    assert len(set(rest) - set(taken)) == MAX_CLASSES


@pytest.mark.parametrize(
    ("concept", "names"),
    {
        "forest": "Forest|trees|high vegetation|Wälder|forêt|Bosques|bosco|森林|лес|Mischwald|WALD|dense_forest",
        "water": "open water|Wasserfläche|plan d'eau|río|acqua|水域|Gewässer|Lakes",
        "built-up": "building|Built-Up|built_up area|Gebäude|bâti|edificios|建物|houses",
        "bare": "bare soil|sol nu|Offener Boden|barren|suelo desnudo|裸地|ground",
        "low vegetation": "grass|Wiesen|prairie|pradera|low-vegetation|草地|green crops",
        "road": "roads|Straßen|route|carretera|gravel road",
    }.items(),
)
def test_names_in_many_languages_have_the_colours_that_people_expect(concept: str, names: str) -> None:
    assert {usual_colour(name) for name in names.split("|")} == {usual_colour(concept)}


@pytest.mark.parametrize("name", ["", "cluster 3", "class 0 é", "B", "zone 12", "is by su"])
def test_a_name_that_says_nothing_has_no_usual_colour(name: str) -> None:
    assert usual_colour(name) is None


def test_woods_of_two_kinds_are_two_greens() -> None:
    colours = class_colours(["deciduous forest", "mixed forest", "tall forest", "unheard of"])
    assert len(set(colours)) == 4
    for red, green, blue in map(rgb, colours[:3]):
        assert green > max(red, blue)


def test_given_colours_stay_unless_two_classes_share_them() -> None:
    assert class_colours(["water", "forest"], ["#ff0000", None]) == ["#ff0000", "#1a7837"]
    assert class_colours(["water", "forest"], ["#ff0000", "#ff0000"]) == ["#2b8cbe", "#1a7837"]
    assert class_colours(["a b", "c d"]) == distinct_colours(2)
    assert suggest_colour("Water", []) == "#2b8cbe"


def test_as_many_classes_as_a_map_holds_have_colours_that_differ() -> None:
    names = [f"{word} {index}" for index in range(85) for word in ("forest", "water", "thing")][:MAX_CLASSES]
    assert len(set(class_colours(names))) == MAX_CLASSES
