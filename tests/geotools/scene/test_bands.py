import pytest

from iic_geotools.errors import SceneError, UsageError
from iic_geotools.scene.bands import canonical, match_bands

RGBI = ("red", "green", "blue", "nir")
NO_NAMES = (None, None, None, None)


@pytest.mark.parametrize("name", ["NIR", "Near-Infrared", "near infrared", "IR", "nir band", "Band nir"])
def test_names_of_one_band(name: str) -> None:
    assert canonical(name) == "nir"


def test_descriptions_win_over_colour_interpretation() -> None:
    # GDAL writes the fourth band of an RGB file as alpha whatever its description says.
    assert match_bands(RGBI, RGBI, ("red", "green", "blue", None)) == (1, 2, 3, 4)
    names = ("NIR", "Red", "Green", "Blue")
    assert match_bands(RGBI, names, ("red", "green", "blue", None)) == (2, 3, 4, 1)


def test_colour_interpretation_serves_where_descriptions_are_missing() -> None:
    assert match_bands(RGBI, NO_NAMES, ("blue", "green", "red", "nir")) == (3, 2, 1, 4)


def test_an_unnamed_band_is_never_guessed() -> None:
    with pytest.raises(SceneError, match=r"no band named nir .*4 unnamed.*with `bands`"):
        match_bands(RGBI, NO_NAMES, ("red", "green", "blue", None))
    with pytest.raises(SceneError, match="no band named red"):
        match_bands(RGBI, NO_NAMES, NO_NAMES)


def test_two_bands_of_one_name_are_an_error() -> None:
    with pytest.raises(SceneError, match=r"Bands 1 and 3 .* both named red"):
        match_bands(("red",), ("red", None, "Red"), (None,) * 3)


def test_bands_given_by_number_and_name() -> None:
    assert match_bands(RGBI, NO_NAMES, NO_NAMES, ["4", "3", "2", "1"]) == (4, 3, 2, 1)
    assert match_bands(("red", "nir"), ("B08", "B04"), (None,) * 2, ["b04", "B08"]) == (2, 1)


@pytest.mark.parametrize(
    ("bands", "message"),
    [
        (["1", "2"], "names 2 band"),
        (["1", "2", "3", "5"], "bands 1 to 4"),
        (["0", "2", "3", "4"], "bands 1 to 4"),
        (["1", "1", "3", "4"], "twice"),
    ],
)
def test_choices_of_bands_that_do_not_fit(bands: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        match_bands(RGBI, NO_NAMES, NO_NAMES, bands)
