import pytest

from iic_geotools.classmap.classes import MAX_CLASSES, NODATA, MapClass, distinct_colours, rgb
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


def test_colours_beside_those_that_are_taken() -> None:
    taken = distinct_colours(3)
    assert distinct_colours(2, besides=taken) == distinct_colours(5)[3:]
    rest = distinct_colours(MAX_CLASSES, besides=[*taken, None])
    assert len(set(rest) - set(taken)) == MAX_CLASSES
