"""What bands are, by what is written about them."""

from pathlib import Path

import numpy as np
import pytest
import rasterio
from support.scenes import write_raster

from iic_geotools.scene.bands import COLOURS, identify_bands, pick
from iic_geotools.scene.info import describe

DEFAULT = ("red", "green", "blue", "alpha")


def bands(text: str, reading: int = 0, **about: object) -> tuple[int, ...]:
    """The bands of red, green, blue and infrared; 0 for one that is not there."""
    names = tuple(text.split(","))
    colours = about.pop("colours", ("undefined",) * len(names))
    known = identify_bands(names, colours, **about)
    return tuple((pick(known.readings[reading], colour) or (0,))[0] for colour in COLOURS)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("B01,B02,B03,B04,B05,B06,B07,B08,B8A,B09,B11,B12", (4, 3, 2, 8)),
        ("B01,B02,B03,B04,B05,B06,B07,B08,B09,B10,B11,B12", (4, 3, 2, 8)),
        ("B2,B3,B4,B8", (3, 2, 1, 4)),
        ("S2_B04,S2_B03,S2_B02,S2_B08", (1, 2, 3, 4)),
        ("B02,B03,B04,B8A", (3, 2, 1, 4)),
        ("SR_B1,SR_B2,SR_B3,SR_B4,SR_B5,SR_B6,SR_B7", (4, 3, 2, 5)),
        ("SR_B2,SR_B3,SR_B4,SR_B5", (3, 2, 1, 4)),
        ("blue,green,red,nir08", (3, 2, 1, 4)),
        ("coastal_blue,blue,green_i,green,yellow,red,rededge,nir", (6, 4, 2, 8)),
        ("Coastal,Blue,Green,Yellow,Red,RedEdge,NIR1,NIR2", (5, 3, 2, 7)),
        ("Blue-444,Green-531,Red-650,Red edge-705,NIR-842", (3, 2, 1, 5)),
        ("B0,B1,B2,B3", (3, 2, 1, 4)),
        ("Band 4 (Red),Band 3 (Green),Band 2 (Blue),Band 5 (NIR)", (1, 2, 3, 4)),
        ("nir_median,red_median,green_median,blue_median", (2, 3, 4, 1)),
        ("rot,gruen,blau,nahes Infrarot", (1, 2, 3, 4)),
        ("R,G,B,N", (1, 2, 3, 4)),
        ("B2,B3,B4,B8,TCI_R,TCI_G,TCI_B,QA60", (3, 2, 1, 4)),
        ("TCI_R,TCI_G,TCI_B", (1, 2, 3, 0)),
        ("SR_B1,SR_B2,SR_B3,SR_B4,SR_B5,SR_QA_AEROSOL", (4, 3, 2, 5)),
        ("T33_20230612_B02_10m,T33_20230612_B03_10m,T33_20230612_B04_10m,T33_20230612_B08_10m", (3, 2, 1, 4)),
        ("VV,VH,ratio", (0, 0, 0, 0)),
        ("Sigma0_VV_db,Sigma0_VH_db,Gamma0_VV_db,Gamma0_VH_db", (0, 0, 0, 0)),
        ("NDVI,NDWI,dem", (0, 0, 0, 0)),
        ("sur_refl_b01,sur_refl_b02,sur_refl_b03,sur_refl_b04", (1, 4, 3, 2)),
        ("490 nm,560 nm,665 nm,842 nm", (3, 2, 1, 4)),
        ("B02_10m,B03_10m,B04_10m,B08_10m", (3, 2, 1, 4)),
        ("BLU,GRN,RED,NIR", (3, 2, 1, 4)),
        ("Rosso,Verde,Blu,Infrarosso vicino", (1, 2, 3, 4)),
        ("Синий,Зелёный,Красный,Ближний ИК", (3, 2, 1, 4)),
        ("蓝,绿,红,近红外", (3, 2, 1, 4)),
        ("0.49 um,0.56 um,0.665 um,0.842 um", (3, 2, 1, 4)),
    ],
)
def test_names_of_sensors(text: str, expected: tuple[int, ...]) -> None:
    assert bands(text) == expected


def test_radar_and_elevation_have_names_and_are_no_picture() -> None:
    known = identify_bands(("VV", "VH", "DSM", "NDVI"), ("gray", *("undefined",) * 3))
    assert known.certain == ("radar", "radar", "elevation", "index")
    assert known.stated


def test_grey_says_nothing_of_the_only_band() -> None:
    """GDAL calls the band of every raster of one band grey."""
    assert not identify_bands(("NDVI",), ("gray",)).conflict


def test_the_product_decides_between_sensors() -> None:
    names = "B1,B2,B3,B4,B5,B6,B7"
    assert bands(names, product="LC08_L1TP_017051") == (4, 3, 2, 5)
    assert bands(names, product="LE07_L1TP_017051") == (3, 2, 1, 4)
    known = identify_bands(tuple(names.split(",")), ("undefined",) * 7)
    assert not known.stated
    assert len(known.readings) == 2


def test_descriptions_come_before_default_colours() -> None:
    assert bands("B02,B03,B04,nir", colours=DEFAULT) == (3, 2, 1, 4)


def test_a_contradiction_is_said() -> None:
    names = ("B02", "B03", "B04", "nir")
    assert not identify_bands(names, DEFAULT).conflict
    assert not identify_bands(names, ("blue", "green", "red", "nir")).conflict
    known = identify_bands(names, ("red", "green", "blue", "nir"))
    assert known.conflict == "band 1 is blue by its description and red by its colour interpretation"


@pytest.mark.parametrize("names", ["1,2,3,4", "Band 1,Band 2,Band 3,Band 4", "a,b,c,d"])
def test_numbers_and_letters_are_no_names(names: str) -> None:
    known = identify_bands(tuple(names.split(",")), ("undefined",) * 4)
    assert not known.stated
    assert not any(known.certain)


def test_imaging_spectrometers_are_read_by_wavelength(tmp_path: Path) -> None:
    lengths = np.arange(420, 1000, 7)
    path = write_raster(tmp_path / "enmap.tif", np.ones((len(lengths), 4, 4), np.int16))
    with rasterio.open(path, "r+") as dataset:
        for band, length in enumerate(lengths, 1):
            dataset.update_tags(band, wavelength=str(length), wavelength_units="Nanometers")
    reading = describe(str(path)).bands.certain
    chosen = [lengths[pick(reading, colour)[0] - 1] for colour in COLOURS]
    assert np.abs(np.array(chosen) - (665, 560, 490, 842)).max() <= 4


def test_headers_of_envi(tmp_path: Path) -> None:
    path = write_raster(tmp_path / "scene.img", np.ones((3, 4, 4), np.int16), driver="ENVI")
    header = tmp_path / "scene.hdr"
    header.write_text(
        header.read_text() + "wavelength = {0.842, 0.665, 0.56}\nwavelength units = Micrometers\n"
    )
    reading = describe(str(path)).bands.certain
    assert reading == ("nir", "red", "green")


def test_common_names_in_tags(tmp_path: Path) -> None:
    path = write_raster(tmp_path / "scene.tif", np.ones((3, 4, 4), np.int16))
    with rasterio.open(path, "r+") as dataset:
        for band, name in enumerate(("nir08", "red", "green"), 1):
            dataset.update_tags(band, common_name=name)
    assert describe(str(path)).bands.certain == ("nir08", "red", "green")
