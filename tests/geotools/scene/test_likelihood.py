"""Scalings and orders of bands, distinguished by the spectra of the world."""

import numpy as np
import pytest

from iic_geotools.scene.bands import COLOURS, identify_bands, usual_orders
from iic_geotools.scene.likelihood import Picture, judge_order, judge_picture, judge_values, scalings
from iic_geotools.scene.spectra import BANDS

# Water, leaves, meadows, soil, towns and sand, each with its own spread.
MATERIALS = {
    (0.03, 0.05, 0.05, 0.02): 0.008, (0.03, 0.05, 0.025, 0.30): 0.012, (0.06, 0.08, 0.04, 0.35): 0.02,
    (0.16, 0.12, 0.08, 0.25): 0.02, (0.12, 0.11, 0.10, 0.20): 0.02, (0.25, 0.20, 0.16, 0.33): 0.03,
}  # fmt: skip
RNG = np.random.default_rng(0)
SPECTRA = np.concatenate(
    [
        np.array(mean)[:, None] * RNG.normal(1, 0.1, (1, 400)) + RNG.normal(0, spread / 3, (4, 400))
        for mean, spread in MATERIALS.items()
    ],
    axis=1,
).clip(0.002)
TEXTS = {scaling.text: scaling for scaling in scalings()}


def stored(text: str, dtype: str) -> np.ndarray:
    scaling = TEXTS[text]
    values = (SPECTRA - scaling.offset) / scaling.scale
    return (
        np.rint(values).astype(dtype) if np.issubdtype(np.dtype(dtype), np.integer) else values.astype(dtype)
    )


@pytest.mark.parametrize("count", [3, 4])
@pytest.mark.parametrize(
    ("text", "dtype"),
    [
        ("reflectance", "float32"),
        ("reflectance in per cent", "float32"),
        ("reflectance x 1000", "uint16"),
        ("reflectance x 1000", "int16"),
        ("reflectance x 10000", "uint16"),
        ("reflectance x 10000", "float64"),
        ("reflectance x 10000 + 1000, as of Sentinel-2 since baseline 04.00", "uint16"),
        ("Landsat level 2", "uint16"),
    ],
)
def test_scalings_are_recognised(text: str, dtype: str, count: int) -> None:
    """Also without infrared."""
    verdict = judge_values(stored(text, dtype)[:count], BANDS[:count])
    assert verdict is not None
    assert verdict.scaling is not None
    assert verdict.scaling.text == text


@pytest.mark.parametrize(
    "text", ["reflectance x 32768, as of MicaSense", "reflectance x 65535, as of the Copernicus Browser"]
)
def test_gains_of_few_programs_are_recognised_by_large_values(text: str) -> None:
    """With no larger values than 10000, as over open sea, nothing speaks for them."""
    verdict = judge_values(stored(text, "uint16"), BANDS)
    assert verdict is not None
    assert verdict.scaling is TEXTS[text]
    sea = judge_values(stored("reflectance x 10000", "uint16")[:, :400], BANDS)
    assert sea is not None
    assert sea.scaling is TEXTS["reflectance x 10000"]


def test_gains_of_few_programs_are_never_sure() -> None:
    """Landsat of level 1 is nearly as probable."""
    verdict = judge_values(stored("reflectance x 65535, as of the Copernicus Browser", "uint16"), BANDS)
    assert verdict is not None
    assert verdict.doubt == "values of another gain"


def test_snow_is_not_taken_for_water_of_landsat_in_silence() -> None:
    shade = np.linspace(0.7, 1.1, 500)
    snow = np.array([0.86, 0.88, 0.9, 0.75])[:, None] * shade + RNG.normal(0, 0.005, (4, 500))
    verdict = judge_values(np.rint(snow * 1e4).astype(np.uint16), BANDS)
    assert verdict is not None
    assert not verdict.sure


@pytest.mark.parametrize("bits", [11, 12])
def test_raw_numbers_are_never_taken_for_reflectance_in_silence(bits: int) -> None:
    gains, air = np.array([0.7, 0.9, 0.8, 0.6])[:, None], np.array([0.03, 0.05, 0.08, 0.01])[:, None]
    raw = np.rint((SPECTRA + air) * gains * 2**bits).astype(np.uint16)
    verdict = judge_values(raw, BANDS)
    assert verdict is not None
    assert not verdict.sure


def test_values_that_are_no_spectra_are_left_to_others() -> None:
    noise = RNG.integers(0, 10000, (4, 2000)).astype(np.uint16)
    assert judge_values(noise, BANDS) is None
    assert judge_values(noise[:2], BANDS[:2]) is None
    assert judge_values(noise[:, :0], BANDS) is None


@pytest.mark.parametrize(
    "order",
    [("red", "green", "blue", "nir"), ("blue", "green", "red", "nir"), ("nir", "red", "green", "blue")],
)
def test_the_order_of_bands_is_recognised(order: tuple[str, ...]) -> None:
    values = stored("reflectance x 10000", "uint16")[[BANDS.index(name) for name in order]]
    usual = (("red", "green", "blue", "nir"), ("blue", "green", "red", "nir"))
    verdict = judge_order(values, usual)
    assert verdict is not None
    assert verdict.sure
    assert verdict.readings[0] == order


@pytest.mark.parametrize(
    "order", [("red", "green", "blue"), ("blue", "green", "red"), ("nir", "red", "green")]
)
def test_the_order_of_three_bands_is_recognised(order: tuple[str, ...]) -> None:
    """Infrared pictures have infrared first, and no blue."""
    values = stored("reflectance x 10000", "uint16")[[BANDS.index(name) for name in order]]
    verdict = judge_order(values, identify_bands((None,) * 3, ("gray", "undefined", "undefined")).readings)
    assert verdict is not None
    assert verdict.sure
    assert verdict.readings[0] == order


@pytest.mark.parametrize("stretched", [False, True])
def test_infrared_shown_as_red_is_noticed(stretched: bool) -> None:
    low, high = np.percentile(SPECTRA, (2, 98), axis=1)[..., None] if stretched else (0, 0.4)
    picture = np.clip((SPECTRA - low) / (high - low) * 255, 1, 255).astype(np.uint8)
    assert judge_picture(picture[:3]) is Picture.TRUE
    assert judge_picture(picture[[2, 1, 0]]) is Picture.TRUE
    assert judge_picture(picture[[3, 0, 1]]) is Picture.INFRARED
    assert judge_picture(picture[[0, 3, 1]]) is Picture.FALSE
    assert judge_picture(picture[[1, 1, 1]]) is Picture.GREY


def test_woods_in_infrared_are_pink_all_over() -> None:
    """Their bands rise and fall together, as those of true colours do."""
    woods = np.array([60.0, 75, 50, 180])[:, None] * RNG.normal(1, 0.2, 2000).clip(0.4)
    picture = np.clip(woods + RNG.normal(0, 1, woods.shape), 1, 255).astype(np.uint8)
    assert judge_picture(picture[:3]) is Picture.TRUE
    assert judge_picture(picture[[3, 0, 1]]) is Picture.INFRARED


@pytest.mark.parametrize("values", [np.full((3, 500), 9, np.uint8), np.empty((3, 0), np.uint8)])
def test_blank_pictures_show_nothing_unusual(values: np.ndarray) -> None:
    assert judge_picture(values) is Picture.TRUE


def test_nothing_is_said_about_the_order_of_8_bits() -> None:
    assert judge_order(np.full((4, 9), 7, np.uint8), (BANDS,)) is None


def test_unused_orders_are_not_offered() -> None:
    noise = RNG.normal(1000, 100, (4, 2000)).astype(np.uint16)
    verdict = judge_order(noise, usual_orders(len(COLOURS)))
    assert verdict is not None
    assert not verdict.sure
    assert set(verdict.readings[:2]) == set(usual_orders(len(COLOURS)))
