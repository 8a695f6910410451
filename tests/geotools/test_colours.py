import pytest

from iic_geotools.colours import MapClass, distinct_colours, rgb
from iic_geotools.errors import UsageError


def test_colours_are_distinct_and_a_longer_list_only_appends():
    everything = distinct_colours(254)
    assert len(set(everything)) == 254
    for n in (0, 1, 3, 8, 9, 100):
        assert distinct_colours(n) == everything[:n]


def test_first_colours_differ_in_luminance_or_hue_for_the_colour_blind():
    """Red-green blindness leaves, roughly, blue against the mean of red and green."""
    seen = [(rgb(c)[0] * 0.6 + rgb(c)[1] * 0.4, rgb(c)[2]) for c in distinct_colours(6)]
    for i, (yellow, blue) in enumerate(seen):
        for other_yellow, other_blue in seen[:i]:
            assert max(abs(yellow - other_yellow), abs(blue - other_blue)) > 25


@pytest.mark.parametrize("n", [-1, 255])
def test_more_colours_than_labels_are_refused(n):
    with pytest.raises(UsageError, match="254"):
        distinct_colours(n)


def test_rgb():
    assert rgb("#0A10ff") == (10, 16, 255)


@pytest.mark.parametrize("colour", ["", "red", "0072b2", "#0072b", "#0072b2ff", "#00g2b2", "#0072b2\n"])
def test_a_class_must_have_a_colour(colour):
    with pytest.raises(UsageError, match="#rrggbb"):
        MapClass("water", colour)


@pytest.mark.parametrize("name", ["", "  ", "a\nb", "\x00"])
def test_a_class_must_have_a_name(name):
    with pytest.raises(UsageError, match="name"):
        MapClass(name, "#000000")
