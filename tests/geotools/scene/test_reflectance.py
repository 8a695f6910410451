"""From values to reflectance: what is believed, what is recognised, and what is estimated."""

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from iic_geotools.errors import AssumptionWarning, SceneError, UsageError
from iic_geotools.option_texts import parse_reflectance
from iic_geotools.scene.info import describe
from iic_geotools.scene.radiometry import Radiometry
from iic_geotools.scene.reflectance import (
    choose_reflectance,
    reflectance_of,
)
from iic_geotools.scene.scene import SceneSource, value_sample
from iic_geotools.tiling import Rect

MakeScene = Callable[..., Path]
NAMES = ("red", "green", "blue", "nir")
RNG = np.random.default_rng(0)
# A scene of water, forest and soil.
TRUE = np.concatenate(
    [
        RNG.normal(np.array(mean)[:, None, None], 0.003, (4, 20, 60))
        for mean in ((0.03, 0.05, 0.06, 0.01), (0.02, 0.04, 0.02, 0.35), (0.2, 0.15, 0.1, 0.3))
    ],
    axis=1,
).clip(0.001)


def brought_to_reflectance(path: Path, reflectance: tuple[float, float] | None = None) -> np.ndarray:
    """Read a scene as reflectance x 10000."""
    info = describe(str(path))
    source = SceneSource.of(info, (1, 2, 3, 4), "int16")
    radiometry = reflectance_of(
        info,
        source.bidx,
        NAMES,
        lambda: value_sample(source, info, skip_empty=True),
        reflectance,
    )
    with rescaled(source, radiometry).open() as scene:
        values = scene.read(Rect(0, 0, info.grid.width, info.grid.height)).values
    return np.asarray(values / 1e4)


def rescaled(source: SceneSource, radiometry: Radiometry) -> SceneSource:
    return replace(source, rescale=radiometry.rescale(((0.0, 10000.0),) * 4))


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("tenthousandths.tif", (TRUE * 1e4).astype(np.uint16)),
        ("signed.tif", (TRUE * 1e4).astype(np.int16)),
        ("floats.tif", TRUE.astype(np.float32)),
        ("doubles.tif", TRUE),
        ("LC09_L2SP_017051_20251205_20251206_02_T1.tif", ((TRUE + 0.2) / 2.75e-5).astype(np.uint16)),
        ("S2A_MSIL2A_20220315T101031_N0400_R022_T32UPU.tif", (TRUE * 1e4 + 1000).astype(np.uint16)),
        # already without the shift that the name promises: not believed, and recognised by their values
        ("S2A_MSIL2A_20220315T101031_N0510_R022_T32UPU.tif", (TRUE * 1e4).astype(np.uint16)),
        # and a product of Landsat that somebody has brought to reflectance
        ("LC08_L2SP_017051_20151205_20200908_02_T1.tif", (TRUE * 1e4).astype(np.uint16)),
    ],
)
def test_values_of_every_kind_become_one_reflectance(
    make_scene: MakeScene, name: str, values: np.ndarray
) -> None:
    assert np.abs(brought_to_reflectance(make_scene(values, name)) - TRUE).max() < 3e-4


def test_scale_and_offset_of_the_user_come_first(make_scene: MakeScene) -> None:
    path = make_scene(((TRUE + 0.3) / 5e-5).astype(np.uint16), "LC08_L2SP_017051_20151205_20200908_02_T1.tif")
    assert np.abs(brought_to_reflectance(path, (5e-5, -0.3)) - TRUE).max() < 3e-4


def test_an_empty_border_decides_nothing(make_scene: MakeScene) -> None:
    values = ((TRUE + 0.2) / 2.75e-5).astype(np.uint16)
    values[:, :, :10] = 0
    path = make_scene(values, "LC08_L2SP_017051_20151205_20200908_02_T1.tif")
    assert np.abs(brought_to_reflectance(path) - TRUE)[:, :, 10:].max() < 3e-4


@pytest.mark.parametrize(
    "mean", [(0.03, 0.05, 0.06, 0.002), (0.02, 0.04, 0.02, 0.35), (0.45, 0.3, 0.2, 0.55)]
)
def test_a_scene_of_one_class_keeps_its_reflectance(make_scene: MakeScene, mean: tuple[float, ...]) -> None:
    """Open sea, forest and desert."""
    rng = np.random.default_rng(0)
    true = rng.normal(np.array(mean)[:, None, None], 0.01 * max(mean), (4, 40, 40)).clip(0)
    assert np.abs(brought_to_reflectance(make_scene((true * 1e4).astype(np.uint16))) - true).max() < 3e-4


# Spectra of water, leaves, meadows, soil, towns and sand as satellites see them, each with its own spread.
MATERIALS = {
    (0.03, 0.05, 0.05, 0.02): 0.008, (0.03, 0.05, 0.025, 0.30): 0.012, (0.06, 0.08, 0.04, 0.35): 0.02,
    (0.16, 0.12, 0.08, 0.25): 0.02, (0.12, 0.11, 0.10, 0.20): 0.02, (0.25, 0.20, 0.16, 0.33): 0.03,
}  # fmt: skip


@pytest.mark.parametrize("water", [0, 1, 4])
@pytest.mark.parametrize("common", [True, False])
def test_stretched_imagery_is_estimated_and_said_so(make_scene: MakeScene, water: int, common: bool) -> None:
    """Little or much water, all bands in one stretch or each in its own."""
    rng = np.random.default_rng(0)
    repeats = [water, 2, 2, 2, 1, 1]
    strips = [
        np.clip(
            np.array(mean)[:, None, None] * rng.normal(1, 0.15, (1, 12, 60))
            + rng.normal(0, spread, (4, 12, 60)),
            0.002,
            1,
        )
        for (mean, spread), times in zip(MATERIALS.items(), repeats, strict=True)
        for _ in range(times)
    ]
    true = np.concatenate(strips, axis=1)
    low, high = np.percentile(true, (1, 99), axis=None if common else (1, 2))
    low, high = (np.broadcast_to(end, 4)[:, None, None] for end in (low, high))
    stretched = ((true - low) / (high - low) * 253 + 1).round().clip(1, 254).astype(np.uint8)
    with pytest.warns(AssumptionWarning, match=r"estimated over the whole scene \(red "):
        estimated = brought_to_reflectance(make_scene(stretched))
    assert np.abs(estimated - true).mean() < 0.04
    index = (estimated[3] - estimated[0]) / np.maximum(estimated[3] + estimated[0], 0.01)
    assert np.median(index[12 * water : 12 * (water + 4)]) > 0.5  # leaves and meadows
    if water:
        assert np.median(estimated[3, : 12 * water]) < 0.06


def test_an_estimate_is_the_same_for_another_gain_and_offset(make_scene: MakeScene) -> None:
    values = (TRUE / 0.4 * 200).round().clip(1, 255)
    one = brought_to_reflectance(make_scene(values.astype(np.uint8), "one.tif"))
    other = brought_to_reflectance(make_scene((values * 3 + 30000).astype(np.uint16), "other.tif"))
    assert np.abs(one - other).max() < 2e-4


@pytest.mark.parametrize(
    ("dtype", "ranges", "source"),
    [
        # Landsat 8: raw, which air makes bluish, and surface reflectance, which does not say what it is
        (
            "uint16",
            ((6149, 8741), (7015, 9053), (8113, 9452), (5555, 22266)),
            "what they look like",
        ),
        ("uint16", ((7788, 11648), (7992, 12096), (6968, 10208), (7040, 25216)), "what they look like"),
        ("uint16", ((20, 120), (20, 110), (30, 100), (15, 250)), "an estimate"),  # 8 bits in 16
        (
            "uint16",
            ((4464, 5224), (2650, 3424), (1973, 2624), (5132, 5926)),
            "what they look like",
        ),  # a desert
        ("float32", ((0.01, 0.2), (0.01, 0.2), (0.01, 0.2), (-0.02, 0.6)), "what they look like"),
        ("float32", ((100, 2000), (200, 1500), (80, 900), (90, 4000)), "what they look like"),
        ("float32", ((3, 12), (4, 11), (2, 8), (10, 40)), "what they look like"),  # per cent
        ("float32", ((1e5, 3e5), (1e5, 4e5), (1e5, 3e5), (2e4, 8e5)), "an estimate"),
        ("uint8", ((1, 254),) * 4, "an estimate"),
    ],
)
def test_what_is_recognised(dtype: str, ranges: tuple[tuple[float, float], ...], source: str) -> None:
    assert choose_reflectance(None, dtype, NAMES, lambda: spread(ranges)).source == source


def spread(ranges: tuple[tuple[float, float], ...]) -> np.ndarray:
    """Values [bands, N] with these 2nd and 98th percentiles."""
    return np.stack([np.repeat([low, (low + high) / 2, high], [10, 80, 10]) for low, high in ranges])


@pytest.mark.parametrize("shift", [0, 1000])
def test_a_shift_of_sentinel_2_is_recognised(
    make_scene: MakeScene, caplog: pytest.LogCaptureFixture, shift: int
) -> None:
    """A name that says nothing, values that are shifted by 1000 or are not."""
    with caplog.at_level(logging.INFO):
        estimated = brought_to_reflectance(make_scene((TRUE * 1e4 + shift).astype(np.uint16)))
    assert np.abs(estimated - TRUE).max() < 3e-4
    assert ("since baseline 04.00" in caplog.text) == bool(shift)


def test_a_bright_desert_is_not_taken_for_shifted(make_scene: MakeScene) -> None:
    desert = np.random.default_rng(1).normal(
        np.array([0.48, 0.30, 0.22, 0.55])[:, None, None], 0.02, (4, 40, 40)
    )
    estimated = brought_to_reflectance(make_scene((desert * 1e4).astype(np.uint16)))
    assert np.abs(estimated - desert).max() < 3e-4


def test_no_estimate_for_other_bands() -> None:
    with pytest.raises(SceneError, match="no estimate for swir16; give scale and offset as `reflectance`"):
        choose_reflectance(None, "uint8", ("red", "swir16"), lambda: spread(((0, 255), (0, 255))))


def test_what_is_assumed_of_a_scene_without_data_is_said() -> None:
    with pytest.warns(
        AssumptionWarning, match="Assuming reflectance x 10000: no pixel has data other than 0"
    ):
        radiometry = choose_reflectance(None, "uint16", NAMES, lambda: np.empty((4, 0)))
    assert radiometry.formula() == "value x 0.0001"


@pytest.mark.parametrize(("text", "pair"), [("0.0001,-0.1", (1e-4, -0.1)), ("1e-4", (1e-4, 0.0))])
def test_scale_and_offset_as_text(text: str, pair: tuple[float, float]) -> None:
    assert parse_reflectance(text, "reflectance") == pair


@pytest.mark.parametrize("text", ["", "x", "1,2,3", "0,0", "-1e-4,0", "nan,0", "1e-4,inf"])
def test_text_that_is_neither(text: str) -> None:
    with pytest.raises(UsageError, match="`reflectance` takes"):
        parse_reflectance(text, "reflectance")
