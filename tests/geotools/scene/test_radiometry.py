"""What files and STAC items say about reflectance."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio

from iic_geotools.scene.info import describe
from iic_geotools.scene.radiometry import Radiometry, stac_radiometry

MakeScene = Callable[..., Path]
VALUES = np.full((4, 8, 8), 1500, np.uint16)


def declared(path: Path) -> Radiometry:
    radiometry = describe(str(path)).radiometry
    assert radiometry is not None
    return radiometry


def add_tags(path: Path, band: int = 0, **tags: str) -> Path:
    with rasterio.open(path, "r+") as dataset:
        dataset.update_tags(band, **tags) if band else dataset.update_tags(**tags)
    return path


def test_a_file_that_says_nothing(make_scene: MakeScene) -> None:
    assert describe(str(make_scene(VALUES))).radiometry is None


def test_scale_and_offset_of_the_bands(make_scene: MakeScene) -> None:
    path = make_scene(VALUES)
    with rasterio.open(path, "r+") as dataset:
        dataset.scales, dataset.offsets = (1e-4, 1e-4, 1e-4, 2e-4), (0.0, 0.0, 0.0, -0.1)
    radiometry = declared(path)
    assert (radiometry.scales, radiometry.offsets) == ((1e-4, 1e-4, 1e-4, 2e-4), (0.0, 0.0, 0.0, -0.1))
    assert radiometry.of_bands((4, 1)).scales == (2e-4, 1e-4)


@pytest.mark.parametrize(
    ("tags", "offset"),
    [
        ({"PROCESSING_BASELINE": "04.00"}, -0.1),
        ({"PROCESSING_BASELINE": "05.11", "BOA_QUANTIFICATION_VALUE": "10000"}, -0.1),
        ({"PROCESSING_BASELINE": "03.01", "QUANTIFICATION_VALUE": "10000"}, 0.0),
        ({"QUANTIFICATION_VALUE": "10000", "RADIO_ADD_OFFSET": "-1000"}, -0.1),
        ({"PROCESSING_BASELINE": "04.00", "BOA_ADD_OFFSET": "-500", "AOT_QUANTIFICATION_VALUE": "7"}, -0.05),
        ({"scale_factor": "0.0001", "add_offset": "-0.1"}, -0.1),
    ],
)
def test_metadata_of_sentinel_2_and_hls(make_scene: MakeScene, tags: dict[str, str], offset: float) -> None:
    radiometry = declared(add_tags(make_scene(VALUES), **tags))
    assert radiometry.scales == pytest.approx((1e-4,) * 4)
    assert radiometry.offsets == pytest.approx((offset,) * 4)


@pytest.mark.parametrize(
    ("name", "scale", "offset"),
    [
        ("S2A_MSIL2A_20220315T101031_N0400_R022_T32UPU_20220315T150000.tif", 1e-4, -0.1),
        ("S2B_MSIL1C_20190315T101031_N0207_R022_T32UPU_20190315T150000.tif", 1e-4, 0.0),
        ("LC08_L2SP_017051_20151205_20200908_02_T1.tif", 2.75e-5, -0.2),
        ("LE07_L2SR_017051_20011205_20200908_02_T1.tif", 2.75e-5, -0.2),
    ],
)
def test_names_of_products(make_scene: MakeScene, name: str, scale: float, offset: float) -> None:
    radiometry = declared(make_scene(VALUES, name))
    assert radiometry.scales == pytest.approx((scale,) * 4)
    assert radiometry.offsets == pytest.approx((offset,) * 4)


def test_a_name_says_nothing_about_8_bits(make_scene: MakeScene) -> None:
    path = make_scene(VALUES.astype(np.uint8), "LC08_L2SP_017051_20151205_20200908_02_T1.tif")
    assert describe(str(path)).radiometry is None


def test_the_product_may_be_named_in_a_tag(make_scene: MakeScene) -> None:
    tags = {"PRODUCT_URI": "S2A_MSIL2A_20220315T101031_N0510_R022_T32UPU_20220315T150000.SAFE"}
    assert declared(add_tags(make_scene(VALUES), **tags)).offsets == pytest.approx((-0.1,) * 4)


def test_level_1_of_landsat_by_its_metadata_file(make_scene: MakeScene, tmp_path: Path) -> None:
    """GDAL reads the text file next to a band of the product."""
    (tmp_path / "LE07_L1TP_016035_20001118_20200917_02_T1_MTL.txt").write_text(
        "GROUP = LANDSAT_METADATA_FILE\n  GROUP = IMAGE_ATTRIBUTES\n"
        '    SPACECRAFT_ID = "LANDSAT_7"\n    SUN_ELEVATION = 30.0\n  END_GROUP = IMAGE_ATTRIBUTES\n'
        "  GROUP = LEVEL1_RADIOMETRIC_RESCALING\n"
        "    REFLECTANCE_MULT_BAND_3 = 1.5E-03\n    REFLECTANCE_MULT_BAND_4 = 2.5E-03\n"
        "    REFLECTANCE_ADD_BAND_3 = -0.010\n    REFLECTANCE_ADD_BAND_4 = -0.020\n"
        "  END_GROUP = LEVEL1_RADIOMETRIC_RESCALING\nEND_GROUP = LANDSAT_METADATA_FILE\nEND\n"
    )
    name = "LE07_L1TP_016035_20001118_20200917_02_T1_B4.TIF"
    radiometry = declared(make_scene(VALUES[:1].astype(np.uint8), name, descriptions=None))
    sun = math.sin(math.radians(30))
    assert radiometry.scales == pytest.approx((2.5e-3 / sun,))
    assert radiometry.offsets == pytest.approx((-0.02 / sun,))
    assert "30 degrees" in radiometry.source


def test_multipliers_of_landsat_in_tags_of_a_stack(make_scene: MakeScene) -> None:
    level1 = {f"RADIOMETRIC_RESCALING.REFLECTANCE_MULT_BAND_{band}": "2.0E-05" for band in (2, 3, 4, 5)}
    level1 |= {f"RADIOMETRIC_RESCALING.REFLECTANCE_ADD_BAND_{band}": "-0.1" for band in (2, 3, 4, 5)}
    path = add_tags(make_scene(VALUES), **level1)
    assert declared(path).scales == pytest.approx((2e-5 / math.sin(math.radians(50)),) * 4)
    surface = {
        key.replace("RADIOMETRIC_RESCALING", "SURFACE_REFLECTANCE_PARAMETERS"): "3e-5" for key in level1
    }
    assert declared(add_tags(path, **surface)).scales == pytest.approx((3e-5,) * 4)


def test_multipliers_that_differ_and_bands_without_numbers(make_scene: MakeScene) -> None:
    tags = {"REFLECTANCE_MULT_BAND_3": "1e-3", "REFLECTANCE_MULT_BAND_4": "2e-3"}
    tags |= {"REFLECTANCE_ADD_BAND_3": "0", "REFLECTANCE_ADD_BAND_4": "0"}
    assert describe(str(add_tags(make_scene(VALUES), **tags))).radiometry is None


@pytest.mark.parametrize("text", ["", "nan", "-1", "one"])
def test_nonsense_is_left_alone(make_scene: MakeScene, text: str) -> None:
    path = add_tags(make_scene(VALUES), scale_factor=text, QUANTIFICATION_VALUE=text)
    assert describe(str(path)).radiometry is None


@pytest.mark.parametrize(
    ("asset", "expected"),
    [
        ({"raster:bands": [{"scale": 1e-4, "offset": -0.1}]}, (1e-4, -0.1)),
        ({"raster:bands": [{"scale": 1e-4, "offset": -0.1}] * 4}, (1e-4, -0.1)),
        ({"bands": [{"name": "red", "raster:scale": 1e-4}] * 4}, (1e-4, 0.0)),
        ({"raster:scale": 2e-4, "raster:offset": 0.5}, (2e-4, 0.5)),
        (
            {"raster:bands": [{"scale": 1e-4, "offset": -0.1}], "earthsearch:boa_offset_applied": True},
            (1e-4, 0.0),
        ),
    ],
)
def test_stac_items(asset: dict[str, Any], expected: tuple[float, float]) -> None:
    radiometry = stac_radiometry(asset, 4)
    assert radiometry is not None
    assert set(zip(radiometry.scales, radiometry.offsets, strict=True)) == {expected}


@pytest.mark.parametrize(
    "asset", [{}, {"raster:bands": [{"scale": 1e-4}] * 3}, {"raster:bands": "x"}, {"bands": [{}]}]
)
def test_stac_items_without_calibration(asset: dict[str, Any]) -> None:
    assert stac_radiometry(asset, 4) is None
