import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import rasterio
import rasterio.shutil
from hypothesis import given
from hypothesis import strategies as st
from rasterio.enums import ColorInterp
from rasterio.transform import Affine, from_origin

from iic_geotools.errors import SceneError, UsageError
from iic_geotools.grid import Rect
from iic_geotools.rescale import Rescale, parse_rescale, robust_ranges, spread_windows
from iic_geotools.scene import SceneSource, describe, has_mask, valid_pixels, value_ranges
from iic_geotools.vrt import MapGrid

MakeScene = Callable[..., Path]


def source(path: Path, bidx: tuple[int, ...] = (1, 2, 3, 4), **changes: object) -> SceneSource:
    settings = {"dtype": "uint8", "nodata": None, "masked": False, "fill": (0.0,) * len(bidx)} | changes
    return SceneSource(str(path), bidx, **settings)  # type: ignore[arg-type]


def noise(bands: int = 4, height: int = 40, width: int = 60, top: int = 255) -> np.ndarray:
    return np.random.default_rng(0).integers(1, top, (bands, height, width)).astype(np.uint8)


def test_reading_a_window_in_band_order(make_scene: MakeScene) -> None:
    values = noise()
    path = make_scene(values)
    with source(path, (4, 2)).open() as scene:
        pixels = scene.read(Rect(5, 7, 11, 13))
    assert np.array_equal(pixels.values, values[[3, 1], 7:20, 5:16])
    assert pixels.valid is None


def test_nodata_means_every_band(make_scene: MakeScene) -> None:
    values = noise()
    values[:, :4] = 0
    values[0, 10] = 0
    path = make_scene(values, nodata=0)
    assert describe(str(path)).nodata == 0
    with source(path, nodata=0.0, fill=(9.0,) * 4).open() as scene:
        pixels = scene.read(Rect(0, 0, 60, 40))
    assert pixels.valid is not None
    assert not pixels.valid[:4].any()
    assert pixels.valid[4:].all()
    assert (pixels.values[:, :4] == 9).all()


def test_a_band_that_is_not_finite_makes_a_hole(make_scene: MakeScene) -> None:
    values = noise().astype(np.float32)
    values[2, 3, 3], values[0, 4, 4] = np.nan, np.inf
    with source(make_scene(values), dtype="float32").open() as scene:
        pixels = scene.read(Rect(0, 0, 60, 40))
    assert pixels.valid is not None
    assert np.argwhere(~pixels.valid).tolist() == [[3, 3], [4, 4]]
    assert np.isfinite(pixels.values).all()


def test_mask_bands_and_alpha(make_scene: MakeScene) -> None:
    path = make_scene(noise())
    mask = np.full((40, 60), 255, np.uint8)
    mask[:, 50:] = 0
    with rasterio.open(path, "r+") as dataset:
        dataset.write_mask(mask)
    info = describe(str(path))
    assert has_mask(info, (1, 2, 3, 4))
    with source(path, masked=True).open() as scene:
        valid = scene.read(Rect(0, 0, 60, 40)).valid
    assert np.array_equal(valid, mask > 0)


def test_an_alpha_band_read_as_infrared_is_no_mask(make_scene: MakeScene) -> None:
    info = describe(str(make_scene(noise(), photometric="RGB", alpha="YES")))
    assert info.interpretations == ("red", "green", "blue", "alpha")
    assert has_mask(info, (1, 2, 3))
    assert not has_mask(info, (1, 2, 3, 4))


def test_valid_pixels_with_a_nodata_outside_the_dtype() -> None:
    assert valid_pixels(noise(), -9999.0, None) is None


def test_bands_with_nodata_values_of_their_own(make_scene: MakeScene, tmp_path: Path) -> None:
    made = make_scene(noise(), nodata=0)
    rasterio.shutil.copy(made, tmp_path / "scene.vrt", driver="VRT")
    text = (tmp_path / "scene.vrt").read_text()
    (tmp_path / "scene.vrt").write_text(text.replace("<NoDataValue>0", "<NoDataValue>7", 1))
    info = describe(str(tmp_path / "scene.vrt"))
    assert info.nodata_of((2, 3, 4)) == 0
    assert info.nodata_of((1,)) == 7
    with pytest.raises(SceneError, match=r"different nodata values \(0, 7\).*--nodata"):
        info.nodata_of((1, 2))


def test_failing_reads_raise(make_scene: MakeScene, tmp_path: Path) -> None:
    path = make_scene(noise(4, 200, 300), compress="deflate", tiled=True, blockxsize=64, blockysize=64)
    content = path.read_bytes()
    path.write_bytes(content[:20000] + bytes(20000) + content[40000:])
    with (
        source(path).open() as scene,
        pytest.raises(SceneError, match=r"Cannot read rows 0-199, columns 0-299 of .*TIFFReadEncodedTile"),
    ):
        scene.read(Rect(0, 0, 300, 200))


def test_what_is_not_a_scene(tmp_path: Path, make_scene: MakeScene) -> None:
    with pytest.raises(SceneError, match="There is no file"):
        describe(str(tmp_path / "no.tif"))
    (tmp_path / "text.tif").write_text("not a raster")
    with pytest.raises(SceneError, match="not a raster that GDAL can open"):
        describe(str(tmp_path / "text.tif"))
    with pytest.raises(SceneError, match="complex numbers"):
        describe(str(make_scene(noise().astype(np.complex64))))


def sparse_vrt(folder: Path, tile: Path, side: int, nodata: str) -> Path:
    band = (
        f"{nodata}<SimpleSource><SourceFilename relativeToVRT='1'>{tile.name}</SourceFilename>"
        "<SourceBand>{0}</SourceBand><SrcRect xOff='0' yOff='0' xSize='60' ySize='40'/>"
        "<DstRect xOff='100' yOff='200' xSize='60' ySize='40'/></SimpleSource>"
    )
    bands = "".join(
        f"<VRTRasterBand dataType='Byte' band='{i}'>{band.format(i)}</VRTRasterBand>" for i in (1, 2, 3, 4)
    )
    path = folder / "sparse.vrt"
    path.write_text(f"<VRTDataset rasterXSize='{side}' rasterYSize='{side}'>{bands}</VRTDataset>")
    return path


def test_holes_of_a_mosaic_are_known_without_reading(make_scene: MakeScene, tmp_path: Path) -> None:
    tile = make_scene(noise(), nodata=0)
    path = sparse_vrt(tmp_path, tile, 100000, "<NoDataValue>0</NoDataValue>")
    with source(path, nodata=0.0).open() as scene:
        assert not scene.may_hold_data(Rect(0, 0, 100, 100000))
        assert scene.may_hold_data(Rect(0, 0, 101, 201))
        assert not scene.may_hold_data(Rect(160, 0, 99840, 100000))
    with source(path, nodata=7.0).open() as scene:  # a hole reads as 0, which is a value here
        assert scene.may_hold_data(Rect(0, 0, 10, 10))


def test_holes_without_a_nodata_value_are_zeros(make_scene: MakeScene, tmp_path: Path) -> None:
    path = sparse_vrt(tmp_path, make_scene(noise()), 1000, "")
    with source(path).open() as scene:
        assert scene.may_hold_data(Rect(0, 0, 10, 10))


def test_blocks_of_a_sparse_tiff_are_known_without_reading(tmp_path: Path) -> None:
    path = tmp_path / "sparse.tif"
    profile = {"width": 4000, "height": 4000, "count": 4, "dtype": "uint8", "nodata": 0, "crs": "EPSG:32631"}
    with rasterio.open(
        path, "w", driver="GTiff", tiled=True, sparse_ok=True, transform=from_origin(0, 0, 1, 1), **profile
    ) as dataset:
        dataset.write(np.ones((4, 256, 256), np.uint8), window=((512, 768), (256, 512)))
    with source(path, nodata=0.0).open() as scene:
        assert scene.may_hold_data(Rect(0, 0, 300, 600))
        assert not scene.may_hold_data(Rect(0, 0, 4000, 512))
        assert not scene.may_hold_data(Rect(600, 0, 3000, 4000))


def test_another_grid_is_read_through_a_warped_vrt(make_scene: MakeScene) -> None:
    values = noise(4, 40, 60)
    values[:, :, 30:] = 0
    path = make_scene(values, nodata=0)
    info = describe(str(path))
    half = MapGrid(30, 20, info.grid.transform @ Affine.scale(2, 2), info.grid.crs)
    with source(path, nodata=0.0, grid=half).open() as scene:
        pixels = scene.read(Rect(0, 0, 30, 20))
        corner = scene.read(Rect(3, 5, 7, 9))
    mean = values[:, :, :30].reshape(4, 20, 2, 15, 2).mean(axis=(2, 4))
    assert np.abs(pixels.values[:, :, :15].astype(float) - mean).max() <= 0.5 + 1e-6
    assert pixels.valid is not None
    assert pixels.valid[:, :15].all()
    assert not pixels.valid[:, 15:].any()
    assert np.array_equal(corner.values, pixels.values[:, 5:14, 3:10])


@pytest.mark.parametrize("bands", [1, 2, 3, 4])
def test_alpha_behind_any_number_of_bands(make_scene: MakeScene, bands: int) -> None:
    alpha = np.full((1, 40, 60), 255, np.uint8)
    alpha[:, 30:] = 0
    path = make_scene(np.concatenate([noise(bands), alpha]), descriptions=None)
    with rasterio.open(path, "r+") as dataset:
        dataset.colorinterp = [ColorInterp.undefined] * bands + [ColorInterp.alpha]
    bidx = tuple(range(1, bands + 1))
    assert has_mask(describe(str(path)), bidx)
    with source(path, bidx, masked=True).open() as scene:
        valid = scene.read(Rect(0, 0, 60, 40)).valid
    assert np.array_equal(valid, alpha[0] > 0)


@pytest.mark.parametrize("kind", ["mask", "alpha"])
def test_masks_follow_onto_another_grid(make_scene: MakeScene, kind: str) -> None:
    mask = np.full((40, 60), 255, np.uint8)
    mask[:20] = 0
    if kind == "mask":
        path = make_scene(noise())
        with rasterio.open(path, "r+") as dataset:
            dataset.write_mask(mask)
    else:
        values = np.concatenate([noise(3), mask[None]])
        path = make_scene(values, photometric="RGB", alpha="YES", descriptions=None)
    info = describe(str(path))
    half = MapGrid(30, 20, info.grid.transform @ Affine.scale(2, 2), info.grid.crs)
    with source(path, (1, 2, 3), masked=True, grid=half).open() as scene:
        valid = scene.read(Rect(0, 0, 30, 20)).valid
    assert valid is not None
    assert not valid[:10].any()
    assert valid[10:].all()


def test_rescaling_rounds_and_clips() -> None:
    rescale = Rescale(((0.0, 10000.0), (0.0, 20000.0)), ((0.0, 255.0), (10.0, 30.0)))
    values = np.array([[[0, 5000, 10000, 60000]]] * 2, np.uint16)
    assert rescale.apply(values, "uint8").tolist() == [[[0, 128, 255, 255]], [[10, 15, 20, 70]]]
    assert rescale.apply(values, "float32").dtype == np.float32


def test_rescale_as_text() -> None:
    assert parse_rescale("0,3000.5") == (0.0, 3000.5)
    with pytest.raises(UsageError, match="MIN,MAX"):
        parse_rescale("0-3000")
    with pytest.raises(UsageError, match="MIN below MAX"):
        Rescale(((5.0, 5.0),), ((0.0, 1.0),))


def test_robust_ranges_ignores_outliers_and_holes() -> None:
    rng = np.random.default_rng(0)
    values = rng.uniform(100, 200, (2, 500, 700))
    values[1] *= 10
    values[:, :5] = 1e9
    valid = np.ones((500, 700), bool)
    valid[:5] = False

    def read(rect: Rect) -> tuple[np.ndarray, np.ndarray]:
        return values[:, *rect.slices], valid[rect.slices]

    for times, (low, high) in zip((1, 10), robust_ranges(read, 700, 500), strict=True):
        assert math.isclose(low, 102 * times, abs_tol=0.5 * times)
        assert math.isclose(high, 198 * times, abs_tol=0.5 * times)


def test_ranges_of_nothing_and_of_one_value_can_be_used() -> None:
    """No data, a constant band, and one so far from zero that a float32 cannot count in ones there."""
    empty = robust_ranges(lambda rect: (np.zeros((2, 5, 5)), np.zeros((5, 5), bool)), 5, 5)
    assert empty == ((0.0, 1.0),) * 2
    constant = np.stack([np.zeros((5, 5)), np.full((5, 5), 1e9), np.arange(25.0).reshape(5, 5)])
    constant = constant.astype(np.float32)
    ranges = robust_ranges(lambda rect: (constant, None), 5, 5)
    scaled = Rescale(ranges, ((0.0, 255.0),) * 3).apply(constant, "float32")
    assert not scaled[:2].any()
    assert np.isfinite(scaled).all()
    assert scaled[2].max() >= 255


def test_all_of_a_large_scene_is_sampled_however_many_its_bands() -> None:
    """Half of the scene, the lower one, is bright in its last band only."""
    values = np.zeros((13, 2048, 2048), np.uint8)
    values[:, :1024] = 10
    values[12, 1024:] = 200
    ranges = robust_ranges(lambda rect: (values[:, *rect.slices], None), 2048, 2048)
    assert ranges == ((0.0, 10.0),) * 12 + ((10.0, 200.0),)


@given(gain=st.integers(1, 200), offset=st.integers(0, 10000), seed=st.integers(0, 99))
def test_gain_and_offset_of_a_scene_do_not_matter(gain: int, offset: int, seed: int) -> None:
    values = np.random.default_rng(seed).integers(0, 256, (2, 40, 30)).astype(np.uint8)
    other = (values.astype(np.int64) * gain + offset).astype(np.uint16)
    assert np.array_equal(*(_stretched(each) for each in (values, other)))


def _stretched(values: np.ndarray) -> np.ndarray:
    ranges = robust_ranges(lambda rect: (values[:, *rect.slices], None), *values.shape[:0:-1])
    return Rescale(ranges, ((0.0, 255.0),) * len(values)).apply(values, "uint8")


def test_sampling_windows_lie_inside() -> None:
    for width, height in ((10, 3000), (100000, 257), (256, 256)):
        for rect in spread_windows(width, height):
            assert rect == rect.intersection(Rect(0, 0, width, height))
            assert not rect.empty
    assert len(list(spread_windows(100000, 100000))) == 64


@pytest.mark.parametrize(("nodata", "told"), [(None, True), (0, False)])
def test_an_undeclared_empty_border_is_told(make_scene, caplog, nodata, told):
    values = np.full((4, 100, 100), 90, np.uint8)
    values[:, :4] = 0
    path = make_scene(values, nodata=nodata)
    info = describe(str(path))
    source = SceneSource(str(path), (1, 2, 3, 4), "uint8", nodata, masked=False, fill=(0.0,) * 4)
    ranges = value_ranges(source, info)
    assert ("4.0 %" in caplog.text and "--nodata 0" in caplog.text) == told
    assert (ranges[0][0] == 0) == told
