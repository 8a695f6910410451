import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import rasterio
from affine import Affine
from support.sources import make_source, noise

from iic_geotools.geobox import GeoBox
from iic_geotools.scene.info import describe
from iic_geotools.tiling import Rect

MakeScene = Callable[..., Path]


def test_another_grid_is_read_through_a_warped_vrt(make_scene: MakeScene) -> None:
    values = noise(4, 40, 60)
    values[:, :, 30:] = 0
    path = make_scene(values, nodata=0)
    info = describe(str(path))
    half = GeoBox(30, 20, info.grid.transform @ Affine.scale(2, 2), info.grid.crs)
    with make_source(path, nodata=0.0, grid=half).open() as scene:
        pixels = scene.read(Rect(0, 0, 30, 20))
        corner = scene.read(Rect(3, 5, 7, 9))
    mean = values[:, :, :30].reshape(4, 20, 2, 15, 2).mean(axis=(2, 4))
    assert np.abs(pixels.values[:, :, :15].astype(float) - mean).max() <= 0.5 + 1e-6
    assert pixels.valid is not None
    assert pixels.valid[:, :15].all()
    assert not pixels.valid[:, 15:].any()
    assert np.array_equal(corner.values, pixels.values[:, 5:14, 3:10])


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
    half = GeoBox(30, 20, info.grid.transform @ Affine.scale(2, 2), info.grid.crs)
    with make_source(path, (1, 2, 3), masked=True, grid=half).open() as scene:
        valid = scene.read(Rect(0, 0, 30, 20)).valid
    assert valid is not None
    assert not valid[:10].any()
    assert valid[10:].all()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("nodata", [None, -9999.0])
@pytest.mark.parametrize("scale", [2.0, 0.5])
def test_holes_that_are_not_finite_do_not_grow(
    make_scene: MakeScene, dtype: str, nodata: float | None, scale: float
) -> None:
    values = noise(4, 40, 60).astype(dtype)
    values[0, 10:15, 10:21] = np.nan
    values[1, 25, :5] = np.inf
    values[:, 30:35, 30:41] = np.nan if nodata is None else nodata
    holes = ~np.isfinite(values).all(0) | (values == nodata).all(0)
    path = make_scene(values, nodata=nodata)
    info = describe(str(path))
    size = int(60 / scale), int(40 / scale)
    grid = GeoBox(*size, info.grid.transform @ Affine.scale(scale), info.grid.crs)
    with make_source(path, dtype=dtype, nodata=nodata, grid=grid).open() as scene:
        pixels = scene.read(Rect(0, 0, *size))
    assert np.isfinite(pixels.values).all()
    assert pixels.valid is not None
    if scale > 1:
        assert np.array_equal(~pixels.valid, holes.reshape(20, 2, 30, 2).all((1, 3)))
    else:
        assert not (~pixels.valid & ~holes.repeat(2, 0).repeat(2, 1)).any()
    assert pixels.values[:, pixels.valid].min() >= 1, "nodata leaked into the average"


def test_nodata_counts_next_to_a_mask_on_another_grid(make_scene: MakeScene) -> None:
    values = noise(4, 40, 60)
    values[:, 11:15, 10:21] = 0
    values[0, 31:35, 30:41] = 0
    mask = np.full((40, 60), 255, np.uint8)
    mask[:3] = 0
    path = make_scene(values, nodata=0)
    info = describe(str(path))
    with rasterio.open(
        f"{path}.msk", "w", driver="GTiff", width=60, height=40, count=1, dtype="uint8"
    ) as dataset:
        dataset.write(mask, 1)
        dataset.update_tags(INTERNAL_MASK_FLAGS_1="2")
    half = GeoBox(30, 20, info.grid.transform @ Affine.scale(2, 2), info.grid.crs)
    with make_source(path, nodata=0.0, masked=True, grid=half).open() as scene:
        pixels = scene.read(Rect(0, 0, 30, 20))
    holes = (mask == 0) | (values == 0).all(0)
    assert pixels.valid is not None
    assert np.array_equal(~pixels.valid, holes.reshape(20, 2, 30, 2).all((1, 3)))
    data = np.where(holes, np.nan, values.astype(float)).reshape(4, 20, 2, 30, 2)
    mean = np.nanmean(data.transpose(0, 1, 3, 2, 4).reshape(4, 20, 30, 4)[:, pixels.valid], axis=-1)
    assert np.abs(pixels.values[:, pixels.valid] - mean).max() <= 0.5 + 1e-6


def test_another_grid_of_a_raster_in_an_archive_or_at_a_file_address(
    make_scene: MakeScene, tmp_path: Path
) -> None:
    path = make_scene(noise(), nodata=0)
    grid = describe(str(path)).grid
    half = GeoBox(30, 20, grid.transform @ Affine.scale(2, 2), grid.crs)
    with zipfile.ZipFile(tmp_path / "scenes.zip", "w") as archive:
        archive.write(path, "inner.tif")
    results = []
    for name in (str(path), f"zip://{tmp_path}/scenes.zip!inner.tif", f"file://{path}"):
        with replace(make_source(path, grid=half), path=name).open() as scene:
            results.append(scene.read(Rect(0, 0, 30, 20)).values)
    assert np.array_equal(results[0], results[1])
    assert np.array_equal(results[0], results[2])
