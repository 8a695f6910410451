from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import rasterio
from affine import Affine
from rasterio.enums import ColorInterp
from support.sources import make_source, noise

from iic_geotools.geobox import GeoBox
from iic_geotools.scene.info import describe, fill_holes, valid_pixels
from iic_geotools.tiling import Rect

MakeScene = Callable[..., Path]


def test_a_mask_band_says_where_data_is(make_scene: MakeScene) -> None:
    path = make_scene(noise())
    mask = np.full((40, 60), 255, np.uint8)
    mask[:, 50:] = 0
    with rasterio.open(path, "r+") as dataset:
        dataset.write_mask(mask)
    assert describe(str(path)).has_mask((1, 2, 3, 4))
    with make_source(path, masked=True).open() as scene:
        valid = scene.read(Rect(0, 0, 60, 40)).valid
    assert valid is not None
    assert np.array_equal(valid, mask > 0)


def test_valid_pixels_with_a_nodata_outside_the_dtype() -> None:
    assert valid_pixels(noise(), -9999.0, None) is None


@pytest.mark.parametrize("bands", [1, 2, 3, 4])
def test_alpha_behind_any_number_of_bands(make_scene: MakeScene, bands: int) -> None:
    alpha = np.full((1, 40, 60), 255, np.uint8)
    alpha[:, 30:] = 0
    path = make_scene(np.concatenate([noise(bands), alpha]), descriptions=None)
    with rasterio.open(path, "r+") as dataset:
        dataset.colorinterp = [ColorInterp.undefined] * bands + [ColorInterp.alpha]
    bidx = tuple(range(1, bands + 1))
    assert describe(str(path)).has_mask(bidx)
    with make_source(path, bidx, masked=True).open() as scene:
        valid = scene.read(Rect(0, 0, 60, 40)).valid
    assert valid is not None
    assert np.array_equal(valid, alpha[0] > 0)


def test_fills_are_clipped_to_the_type() -> None:
    values = noise(2)
    valid = np.ones(values.shape[1:], bool)
    valid[3, 5] = False
    fill_holes(values, valid, (-3.0, 300.0))
    assert values[:, 3, 5].tolist() == [0, 255]
    assert (values[:, valid] == noise(2)[:, valid]).all()


def test_a_dataset_mask_counts_next_to_an_alpha_band_that_is_read_as_infrared(make_scene: MakeScene) -> None:
    path = make_scene(noise())
    mask = np.full((40, 60), 255, np.uint8)
    mask[:7] = 0
    with rasterio.open(path, "r+") as dataset:
        dataset.colorinterp = [ColorInterp.red, ColorInterp.green, ColorInterp.blue, ColorInterp.alpha]
        dataset.write_mask(mask)
    bidx = (1, 2, 3, 4)
    assert describe(str(path)).has_mask(bidx)
    with make_source(path, bidx, masked=True).open() as scene:
        valid = scene.read(Rect(0, 0, 60, 40)).valid
    assert valid is not None
    assert np.array_equal(valid, mask > 0)


def test_an_alpha_band_and_a_dataset_mask_both_count(make_scene: MakeScene) -> None:
    values = noise()
    values[3, :, :9] = 0
    path = make_scene(values)
    mask = np.full((40, 60), 255, np.uint8)
    mask[:7] = 0
    with rasterio.open(path, "r+") as dataset:
        dataset.colorinterp = [ColorInterp.red, ColorInterp.green, ColorInterp.blue, ColorInterp.alpha]
        dataset.write_mask(mask)
    with make_source(path, (1, 2, 3), masked=True).open() as scene:
        valid = scene.read(Rect(0, 0, 60, 40)).valid
    assert valid is not None
    assert np.array_equal(valid, (mask > 0) & (values[3] > 0))


def band_masks(make_scene: MakeScene) -> tuple[Path, np.ndarray]:
    """A scene whose second and third band have masks of their own, and which pixels are valid in all bands."""
    path = make_scene(noise())
    masks = np.full((4, 40, 60), 255, np.uint8)
    masks[1, :5] = 0
    masks[2, :, 50:] = 0
    profile = {"driver": "GTiff", "width": 60, "height": 40, "count": 4, "dtype": "uint8"}
    with rasterio.open(f"{path}.msk", "w", **profile) as dataset:
        dataset.write(masks)
        dataset.update_tags(**{f"INTERNAL_MASK_FLAGS_{band}": "0" for band in range(1, 5)})
    return path, np.asarray((masks > 0).all(0))


def test_masks_of_single_bands_count(make_scene: MakeScene) -> None:
    path, expected = band_masks(make_scene)
    info = describe(str(path))
    assert info.masks == ("band",) * 4
    assert info.has_mask((1, 2, 3, 4))
    with make_source(path, masked=True).open() as scene:
        valid = scene.read(Rect(0, 0, 60, 40)).valid
    assert valid is not None
    assert np.array_equal(valid, expected)


def test_masks_of_single_bands_follow_onto_another_grid(make_scene: MakeScene) -> None:
    path, expected = band_masks(make_scene)
    grid = describe(str(path)).grid
    half = GeoBox(30, 20, grid.transform @ Affine.scale(2, 2), grid.crs)
    with make_source(path, masked=True, grid=half).open() as scene:
        valid = scene.read(Rect(0, 0, 30, 20)).valid
    assert valid is not None
    assert np.array_equal(valid, expected.reshape(20, 2, 30, 2).any((1, 3)))
