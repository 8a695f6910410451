"""Products of satellites: folders and archives of one file per band, as one scene."""

import zipfile
from pathlib import Path

import numpy as np
import pytest
import rasterio
from rasterio.transform import from_origin

from iic_geotools.errors import SceneError, UsageError
from iic_geotools.scene.bands import COLOURS, pick
from iic_geotools.scene.listing import find_scene, qa_pixel_clouds

SAFE = "S2A_MSIL2A_20220315T101031_N0400_R022_T32UPU_20220315T141522"
LANDSAT = "LC08_L2SP_017051_20151205_20200908_02_T1"


def write(path: Path, level: int, size: int = 12, metres: float = 10.0, dtype: str = "uint16") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    values = np.full((1, size, size), level, dtype)
    with rasterio.open(
        path, "w", driver="GTiff", width=size, height=size, count=1, dtype=dtype, crs="EPSG:32632",
        transform=from_origin(600000, 5500000, metres, metres),
    ) as dataset:  # fmt: skip
        dataset.write(values)
    return path


def levels(scene: Path, **options: object) -> list[int]:
    """The values of red, green, blue and infrared in the middle of a scene."""
    info = find_scene(scene, **options)
    with rasterio.open(info.path) as dataset:
        return [int(dataset.read(pick(info.bands.certain, name)[0])[6, 6]) for name in COLOURS]


def make_safe(folder: Path) -> Path:
    """The layout of level 2A; the images are GeoTIFFs, which GDAL opens under any name."""
    images = folder / f"{SAFE}.SAFE/GRANULE/L2A_T32UPU/IMG_DATA"
    for number, band in enumerate(("B02", "B03", "B04", "B08"), 1):
        write(images / f"R10m/T32UPU_20220315T101031_{band}_10m.jp2", 1000 + number)
        write(images / f"R20m/T32UPU_20220315T101031_{band}_20m.jp2", 9, 6, 20.0)
    for number, band in enumerate(("B05", "B8A", "B11"), 5):
        write(images / f"R20m/T32UPU_20220315T101031_{band}_20m.jp2", 1000 + number, 6, 20.0)
    write(images / "R20m/T32UPU_20220315T101031_SCL_20m.jp2", 4, 6, 20.0, "uint8")
    write(images / "R10m/T32UPU_20220315T101031_TCI_10m.jp2", 7, dtype="uint8")
    write(images / "R10m/T32UPU_20220315T101031_AOT_10m.jp2", 7)
    return folder / f"{SAFE}.SAFE"


def test_sentinel_2(tmp_path: Path) -> None:
    scene = make_safe(tmp_path)
    assert levels(scene) == [1003, 1002, 1001, 1004]
    info = find_scene(scene)
    assert info.grid.width == 12
    assert info.bands.stated
    assert info.radiometry is not None
    assert info.radiometry.offsets[0] == -0.1


def test_landsat(tmp_path: Path) -> None:
    for number in range(1, 8):
        write(tmp_path / f"product/{LANDSAT}_SR_B{number}.TIF", 100 * number, metres=30)
    write(tmp_path / f"product/{LANDSAT}_ST_B10.TIF", 9, metres=30)
    write(tmp_path / f"product/{LANDSAT}_QA_PIXEL.TIF", 21824, metres=30)
    assert levels(tmp_path / "product") == [400, 300, 200, 500]
    assert find_scene(tmp_path / "product").radiometry.scales[0] == 2.75e-5


def test_hls(tmp_path: Path) -> None:
    for number in range(1, 8):
        write(tmp_path / f"HLS.L30.T11SKA.2022001T180000.v2.0.B{number:02}.tif", number, metres=30)
    write(tmp_path / "HLS.L30.T11SKA.2022001T180000.v2.0.Fmask.tif", 64, metres=30, dtype="uint8")
    assert levels(tmp_path) == [4, 3, 2, 5]


@pytest.mark.parametrize("names", [("B02", "B03", "B04", "B08"), ("blue", "green", "red", "nir")])
@pytest.mark.parametrize("prefix", ["", "field_2024-05-03_"])
def test_plain_folders_and_archives(tmp_path: Path, names: tuple[str, ...], prefix: str) -> None:
    folder = tmp_path / "scene"
    files = [write(folder / f"{prefix}{name}.tif", number) for number, name in enumerate(names, 1)]
    assert levels(folder) == [3, 2, 1, 4]
    with zipfile.ZipFile(tmp_path / "scene.zip", "w") as archive:
        for file in files:
            archive.write(file, f"inside/{file.name}")
    assert levels(tmp_path / "scene.zip") == [3, 2, 1, 4]


def test_one_raster_with_its_mask(tmp_path: Path) -> None:
    """PlanetScope: four bands without names, and a usable data mask."""
    path = tmp_path / "20230501_101112_55_24a1_3B_AnalyticMS_SR.tif"
    values = np.arange(1, 5, dtype=np.uint16)[:, None, None] * np.ones((1, 12, 12), np.uint16)
    where = {"crs": "EPSG:32632", "transform": from_origin(600000, 5500000, 3, 3)}
    with rasterio.open(
        path, "w", driver="GTiff", width=12, height=12, count=4, dtype="uint16", **where
    ) as dataset:
        dataset.write(values)
    write(tmp_path / "20230501_101112_55_24a1_3B_udm2.tif", 0, metres=3, dtype="uint8")
    assert levels(tmp_path) == [3, 2, 1, 4]
    with rasterio.open(find_scene(tmp_path, mask="auto").path) as dataset:
        assert not dataset.read_masks(1).any()


@pytest.mark.parametrize("suffix", ["", "_clip", "_file_format"])
def test_a_bundle_of_planet(tmp_path: Path, suffix: str) -> None:
    """An order, clipped or not: the usable data mask is no second scene."""
    stem = "PSScene/20230501_101112_55_24a1_3B"
    image = write(tmp_path / f"{stem}_AnalyticMS_SR_8b{suffix}.tif", 7, metres=3)
    write(tmp_path / f"{stem}_udm2{suffix}.tif", 0, metres=3, dtype="uint8")
    for scene in (tmp_path, image):
        with rasterio.open(find_scene(scene, mask="auto").path) as dataset:
            assert dataset.read(1)[6, 6] == 7
            assert not dataset.read_masks(1).any()


def test_downloads_from_the_copernicus_browser(tmp_path: Path) -> None:
    stem = "2023-06-12-00:00_2023-06-12-23:59_Sentinel-2_L2A"
    for number, band in enumerate(("B02", "B03", "B04", "B08"), 1):
        write(tmp_path / f"{stem}_{band}_(Raw).tiff", number)
    write(tmp_path / f"{stem}_True_color.tiff", 9, dtype="uint8")
    assert levels(tmp_path) == [3, 2, 1, 4]


def test_bands_are_in_the_order_of_their_numbers_without_the_panchromatic_one(tmp_path: Path) -> None:
    """Its finer pixels would be those of the scene."""
    product = LANDSAT.replace("L2SP", "L1TP")
    for number in (10, 11, 1, 2, 3, 4, 5, 6, 7):
        write(tmp_path / f"{product}_B{number}.TIF", number, metres=30)
    write(tmp_path / f"{product}_B8.TIF", 8, 24, metres=15)
    info = find_scene(tmp_path)
    assert info.descriptions == ("B1", "B2", "B3", "B4", "B5", "B6", "B7", "B10", "B11")
    assert info.grid.width == 12


def test_wavelengths_of_spectrometers_are_read_from_another_file(tmp_path: Path) -> None:
    stem = "ENMAP01-____L2A-DT0000001000_20220627T104548Z_012_V010303_20230101T000000Z"
    lengths = (842.1, 664.7, 559.8, 492.0, 1610.5)
    values = np.arange(1, 6, dtype=np.int16)[:, None, None] * np.ones((1, 12, 12), np.int16)
    with rasterio.open(
        tmp_path / f"{stem}-SPECTRAL_IMAGE.TIF", "w", driver="GTiff", width=12, height=12, count=5, dtype="int16",
        crs="EPSG:32632", transform=from_origin(600000, 5500000, 30, 30),
    ) as dataset:  # fmt: skip
        dataset.write(values)
    write(tmp_path / f"{stem}-QL_QUALITY_CLOUD.TIF", 0, metres=30, dtype="uint8")
    entries = "".join(
        f'<bandID number="{number}"><wavelengthCenterOfBand>{length}</wavelengthCenterOfBand></bandID>'
        for number, length in enumerate(lengths, 1)
    )
    (tmp_path / f"{stem}-METADATA.XML").write_text(f"<level_X><bands>{entries}</bands></level_X>")
    assert levels(tmp_path) == [2, 3, 4, 1]
    assert levels(tmp_path / f"{stem}-SPECTRAL_IMAGE.TIF") == [2, 3, 4, 1]


def test_clouds_of_a_product_are_masked(tmp_path: Path) -> None:
    scene = make_safe(tmp_path)
    (mask,) = scene.rglob("*_SCL_20m.jp2")
    with rasterio.open(mask, "r+") as dataset:
        values = dataset.read(1)
        values[:3] = 9
        dataset.write(values, 1)
    with rasterio.open(find_scene(scene, mask="auto").path) as dataset:
        valid = dataset.read_masks(3) > 0
    assert not valid[:6].any()
    assert valid[6:].all()
    with pytest.raises(UsageError, match="No cloud mask comes with"):
        find_scene(write(tmp_path / "alone.tif", 1), mask="auto")


def test_flags_of_landsat() -> None:
    clouds = set(qa_pixel_clouds())
    assert not clouds & {21824, 21888, 5440, 5504, 30048}  # clear land and water, snow
    assert clouds >= {
        1,
        22280,
        23888,
        54596,
        21826,
        5896,
        7440,
    }  # fill, cloud, shadow, cirrus, next to a cloud


def test_what_is_no_scene(tmp_path: Path) -> None:
    for product in ("a", "b"):
        for band in ("red", "green"):
            write(tmp_path / f"two/{product}_{band}.tif", 1)
    with pytest.raises(SceneError, match="holds 2 products, a and b; give one of them"):
        find_scene(tmp_path / "two")
    write(tmp_path / "twice/one/s_red.tif", 1)
    write(tmp_path / "twice/other/s_red.tif", 1)
    write(tmp_path / "twice/s_blue.tif", 1)
    with pytest.raises(SceneError, match="the band red twice"):
        find_scene(tmp_path / "twice")
    write(tmp_path / "apart/s_red.tif", 1)
    write(tmp_path / "apart/s_blue.tif", 1, size=90)
    with pytest.raises(SceneError, match="lie in different places"):
        find_scene(tmp_path / "apart")
    with zipfile.ZipFile(tmp_path / "hostile.zip", "w") as archive:
        archive.write(tmp_path / "apart/s_red.tif", "../s_red.tif")
    with pytest.raises(SceneError, match="lies outside of the archive"):
        find_scene(tmp_path / "hostile.zip")
    (tmp_path / "empty").mkdir()
    with pytest.raises(SceneError, match="empty is empty: give a folder"):
        find_scene(tmp_path / "empty")
