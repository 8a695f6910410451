"""Bands of several files as one scene, and scenes under a mask: exact, whatever window is read."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import rasterio
from affine import Affine
from rasterio.crs import CRS
from rasterio.enums import ColorInterp, Resampling
from rasterio.transform import from_origin
from rasterio.warp import calculate_default_transform, reproject
from support.sources import make_source, noise

from iic_geotools.errors import SceneError, UsageError
from iic_geotools.option_texts import parse_mask
from iic_geotools.scene.composition import apply_mask, bands_of, compose
from iic_geotools.scene.info import SceneInfo, describe
from iic_geotools.scene.scene import Pixels
from iic_geotools.scene.source_files import identify_sources
from iic_geotools.scene.valuemask import ValueMask
from iic_geotools.tiling import Rect

MakeScene = Callable[..., Path]
FINE, COARSE = from_origin(500000, 5400000, 10, 10), from_origin(500000, 5400000, 20, 20)


def read(info: SceneInfo, rect: Rect | None = None, **changes: object) -> Pixels:
    bidx = tuple(range(1, len(info.dtypes) + 1))
    settings = {"masked": info.has_mask(bidx), "nodata": info.nodata_of(bidx), "dtype": info.dtype_of(bidx)}
    with make_source(info.path, bidx, **settings | changes).open() as scene:  # type: ignore[arg-type]
        return scene.read(rect or Rect(0, 0, info.grid.width, info.grid.height))


def valid(info: SceneInfo, rect: Rect | None = None) -> np.ndarray:
    pixels = read(info, rect)
    return np.ones(pixels.values.shape[1:], bool) if pixels.valid is None else pixels.valid


@pytest.fixture
def classes(make_scene: MakeScene) -> tuple[Path, np.ndarray]:
    """A raster of classes 0 to 11 at 20 m, and its values."""
    values = np.random.default_rng(1).integers(0, 12, (1, 20, 30)).astype(np.uint8)
    return make_scene(values, "scl.tif", transform=COARSE, descriptions=None, nodata=0), values[0]


def enlarged(values: np.ndarray) -> np.ndarray:
    return values.repeat(2, -1).repeat(2, -2)


def test_bands_of_several_files_are_one_scene(make_scene: MakeScene) -> None:
    values = noise()
    files = [
        make_scene(values[band : band + 1], f"b{band}.tif", transform=FINE, descriptions=None)
        for band in range(4)
    ]
    bands = [band for file in reversed(files) for band in bands_of(describe(str(file)))]
    info = compose("all", bands)
    assert np.array_equal(read(info).values, values[::-1])
    assert info.grid == describe(str(files[0])).grid
    assert info.title == "all"
    sources = identify_sources(info.path, info.files)
    assert sources is not None
    assert {source.name for source in sources} == {str(file) for file in files}


@pytest.mark.parametrize("name", ["a&b <c> é.tif", " new\nline.tif"])
def test_files_of_any_name(make_scene: MakeScene, name: str) -> None:
    values = noise(1)
    file = make_scene(values, name, transform=FINE, descriptions=('red & "\n',), nodata=0)
    other = make_scene(values[:, ::2, ::2], f"coarse {name}", transform=COARSE, descriptions=None, nodata=0)
    info = compose(name, [*bands_of(describe(str(file))), *bands_of(describe(str(other)))])
    assert np.array_equal(read(info).values[0], values[0])
    assert info.descriptions == ('red & "\n', None)


def test_coarse_bands_are_brought_onto_the_finest_grid_whatever_is_read(make_scene: MakeScene) -> None:
    rng = np.random.default_rng(0)
    fine = rng.integers(1, 4000, (1, 400, 600)).astype(np.uint16)
    coarse = rng.integers(1, 4000, (1, 200, 300)).astype(np.uint16)
    coarse[:, 50:60, 40:70] = 0
    paths = [
        make_scene(coarse, "b11.tif", transform=COARSE, descriptions=("swir",), nodata=0),
        make_scene(fine, "b04.tif", transform=FINE, descriptions=("red",), nodata=0),
    ]
    info = compose("item", [band for path in paths for band in bands_of(describe(str(path)))])
    assert (info.grid.width, info.grid.height, info.grid.transform) == (600, 400, FINE)
    assert info.descriptions == ("swir", "red")
    whole = read(info).values
    assert np.array_equal(whole[1], fine[0])
    assert np.array_equal(whole[0], bilinear(coarse[0]))
    for _ in range(20):
        col, row = rng.integers(0, 560), rng.integers(0, 360)
        rect = Rect(int(col), int(row), int(rng.integers(1, 600 - col)), int(rng.integers(1, 400 - row)))
        assert np.array_equal(read(info, rect).values, whole[(slice(None), *rect.slices)]), rect


def bilinear(values: np.ndarray) -> np.ndarray:
    """Twice as many pixels: three quarters of the nearest and one of the next, of those that are not 0."""
    weights = (values > 0).astype(float)

    def spread(image: np.ndarray) -> np.ndarray:
        for axis in (0, 1):
            padded = np.pad(image, [(1, 1) if a == axis else (0, 0) for a in (0, 1)])
            before, here, after = (
                np.take(padded, np.arange(offset, offset + image.shape[axis]), axis) for offset in range(3)
            )
            pair = np.stack([0.75 * here + 0.25 * before, 0.75 * here + 0.25 * after], axis + 1)
            image = pair.reshape([side * (2 if a == axis else 1) for a, side in enumerate(image.shape)])
        return image

    mean = spread(values * weights) / np.maximum(spread(weights), 1e-9)
    return np.where(enlarged(values) > 0, np.floor(mean + 0.5), 0).astype(values.dtype)


def test_a_mask_makes_pixels_nodata_whatever_is_read(
    make_scene: MakeScene, classes: tuple[Path, np.ndarray]
) -> None:
    scl, values = classes
    scene = describe(str(make_scene(noise(), transform=FINE)))
    info = apply_mask(scene, ValueMask(str(scl), (3, 8, 9, 10)))
    expected = ~np.isin(enlarged(values), (3, 8, 9, 10))
    assert np.array_equal(valid(info), expected)
    assert np.array_equal(read(info).values[:, expected], noise()[:, expected])
    for rect in (Rect(0, 0, 1, 1), Rect(7, 3, 31, 22), Rect(59, 39, 1, 1), Rect(1, 1, 58, 38)):
        assert np.array_equal(valid(info, rect), expected[rect.slices])
    assert (info.grid, info.descriptions) == (scene.grid, scene.descriptions)
    assert info.interpretations == scene.interpretations
    assert info.title == scene.path
    sources = identify_sources(info.path, info.files)
    assert sources is not None
    assert {source.name for source in sources} == {scene.path, str(scl)}


@pytest.mark.parametrize("values", [(0,), (1, 2), (11, 0), tuple(range(12))])
def test_any_values_can_be_masked(
    make_scene: MakeScene, classes: tuple[Path, np.ndarray], values: tuple[int, ...]
) -> None:
    scene = describe(str(make_scene(noise(), transform=FINE)))
    info = apply_mask(scene, ValueMask(str(classes[0]), values))
    assert np.array_equal(valid(info), ~np.isin(enlarged(classes[1]), values))


@pytest.mark.parametrize("dtype", ["int8", "uint16", "int32", "float32"])
def test_masks_of_any_type(make_scene: MakeScene, dtype: str) -> None:
    values = np.random.default_rng(1).integers(0, 5, (1, 40, 60)).astype(dtype)
    if dtype == "float32":
        values[0, 0] = np.nan
    mask = make_scene(values, "mask.tif", transform=FINE, descriptions=None)
    info = apply_mask(describe(str(make_scene(noise(), transform=FINE))), ValueMask(str(mask), (2, 3)))
    assert np.array_equal(valid(info), ~np.isin(values[0], (2, 3)))


def test_a_mask_in_another_crs(
    make_scene: MakeScene, classes: tuple[Path, np.ndarray], tmp_path: Path
) -> None:
    with rasterio.open(classes[0]) as source:
        wide = np.pad(source.read(1), 10, constant_values=5)
        shifted = source.transform @ Affine.translation(-10, -10)
        target = CRS.from_epsg(4326)
        bounds = rasterio.transform.array_bounds(*wide.shape, shifted)
        transform, width, height = calculate_default_transform(source.crs, target, *wide.shape[::-1], *bounds)
        degrees = np.zeros((1, height, width), np.uint8)
        reproject(
            wide, degrees, src_transform=shifted, src_crs=source.crs, dst_transform=transform, dst_crs=target
        )
        scene = make_scene(noise(), transform=FINE)
        expected = np.zeros((40, 60), np.uint8)
        reproject(
            degrees,
            expected,
            src_transform=transform,
            src_crs=target,
            dst_transform=FINE,
            dst_crs=source.crs,
            resampling=Resampling.nearest,
            tolerance=1e-9,
        )
    mask = make_scene(degrees, "degrees.tif", transform=transform, crs=target, descriptions=None)
    info = apply_mask(describe(str(scene)), ValueMask(str(mask), (3, 8)))
    assert np.array_equal(valid(info), ~np.isin(expected, (3, 8)))


def test_what_the_scene_itself_masks_stays_masked(
    make_scene: MakeScene, classes: tuple[Path, np.ndarray]
) -> None:
    values = noise()
    values[:, :5] = 0
    expected = ~np.isin(enlarged(classes[1]), (3, 8))
    mask = ValueMask(str(classes[0]), (3, 8))
    declared = make_scene(values, "nodata.tif", transform=FINE, nodata=0)
    own = expected.copy()
    own[:5] = False
    assert np.array_equal(valid(apply_mask(describe(str(declared)), mask)), own)
    masked = make_scene(noise(), "masked.tif", transform=FINE)
    with rasterio.open(masked, "r+") as dataset:
        dataset.write_mask(np.pad(np.full((35, 60), 255, np.uint8), ((5, 0), (0, 0))))
    assert np.array_equal(valid(apply_mask(describe(str(masked)), mask)), own)
    alpha = np.concatenate([noise(3), np.full((1, 40, 60), 255, np.uint8)])
    alpha[3, :5] = 0
    rgba = make_scene(alpha, "rgba.tif", transform=FINE, descriptions=None, photometric="RGB", alpha="YES")
    info = apply_mask(describe(str(rgba)), mask)
    assert info.interpretations == ("red", "green", "blue", "alpha")
    with make_source(info.path, (1, 2, 3), masked=info.has_mask((1, 2, 3))).open() as scene:  # type: ignore[arg-type]
        assert np.array_equal(scene.read(Rect(0, 0, 60, 40)).valid, own)
    # An infrared band that is marked as alpha is data if it is read.
    assert np.array_equal(valid(info), expected)


def test_masks_of_single_files_count(make_scene: MakeScene) -> None:
    files = []
    for band in range(2):
        file = make_scene(noise()[band : band + 1], f"b{band}.tif", transform=FINE, descriptions=None)
        with rasterio.open(file, "r+") as dataset:
            mask = np.full((40, 60), 255, np.uint8)
            mask[10 * band : 10 * band + 10] = 0
            dataset.write_mask(mask)
        files.append(file)
    coarse = make_scene(noise()[:1, ::2, ::2], "coarse.tif", transform=COARSE, descriptions=None)
    with rasterio.open(coarse, "r+") as dataset:
        dataset.write_mask(np.pad(np.full((15, 30), 255, np.uint8), ((0, 5), (0, 0))))
    info = compose("all", [band for file in [*files, coarse] for band in bands_of(describe(str(file)))])
    expected = np.ones((40, 60), bool)
    expected[:20] = False
    expected[30:] = False
    assert np.array_equal(valid(info), expected)
    with make_source(info.path, (1,), masked=True).open() as scene:  # type: ignore[arg-type]
        alone = scene.read(Rect(0, 0, 60, 40)).valid
    assert alone is not None
    assert not alone[:10].any()
    assert alone[10:].all(), "the masks of bands that are not read do not count"


def test_colours_survive(make_scene: MakeScene, classes: tuple[Path, np.ndarray]) -> None:
    scene = make_scene(noise(), transform=FINE, descriptions=None)
    colours = (ColorInterp.blue, ColorInterp.nir, ColorInterp.gray, ColorInterp.undefined)
    with rasterio.open(scene, "r+") as dataset:
        dataset.colorinterp = colours
    info = apply_mask(describe(str(scene)), ValueMask(str(classes[0]), (3,)))
    assert info.interpretations == describe(str(scene)).interpretations


def test_a_scene_without_a_georeference_takes_a_mask_of_its_size(make_scene: MakeScene) -> None:
    values = np.random.default_rng(1).integers(0, 5, (1, 40, 60)).astype(np.uint8)
    plain = {"transform": Affine.identity(), "crs": None, "descriptions": None}
    scene, mask = make_scene(noise(), **plain), make_scene(values, "mask.tif", **plain)
    info = apply_mask(describe(str(scene)), ValueMask(str(mask), (2,)))
    assert np.array_equal(valid(info), values[0] != 2)
    small = make_scene(values[:, :20], "small.tif", **plain)
    with pytest.raises(SceneError, match="no CRS or no transform; give a mask of the scene's size"):
        apply_mask(describe(str(scene)), ValueMask(str(small), (2,)))


def test_masks_that_do_not_fit(
    make_scene: MakeScene, classes: tuple[Path, np.ndarray], tmp_path: Path
) -> None:
    scene = describe(str(make_scene(noise(), transform=FINE)))
    _, values = classes
    elsewhere = make_scene(
        values[None], "far.tif", transform=from_origin(600000, 5400000, 20, 20), descriptions=None
    )
    with pytest.raises(SceneError, match="lies elsewhere than"):
        apply_mask(scene, ValueMask(str(elsewhere), (3,)))
    part = make_scene(values[None, :, :15], "part.tif", transform=COARSE, descriptions=None)
    with pytest.raises(SceneError, match=r"covers only a part of .* reaches 15 of its pixels beyond it"):
        apply_mask(scene, ValueMask(str(part), (3,)))
    nearly = make_scene(values[None, :19], "nearly.tif", transform=COARSE, descriptions=None)
    assert valid(apply_mask(scene, ValueMask(str(nearly), (3,))))[38:].all()
    with pytest.raises(UsageError, match=r"asks for the value 300, but .* holds uint8"):
        apply_mask(scene, ValueMask(str(classes[0]), (300,)))
    with pytest.raises(SceneError, match="no file"):
        apply_mask(scene, ValueMask(str(tmp_path / "gone.tif"), (3,)))


def test_bands_that_do_not_lie_on_each_other(make_scene: MakeScene) -> None:
    def scene(name: str, side: int, transform: Affine, crs: object = "EPSG:32631") -> Path:
        return make_scene(noise(1, side, side), name, transform=transform, crs=crs, descriptions=None)

    def stack(other: Path) -> SceneInfo:
        fine = scene("fine.tif", 40, FINE)
        return compose("item", [*bands_of(describe(str(fine))), *bands_of(describe(str(other)))])

    with pytest.raises(SceneError, match=r"lie in different places, and .*part\.tif does not cover"):
        stack(scene("part.tif", 19, COARSE))
    with pytest.raises(SceneError, match="different CRSs"):
        stack(scene("zone.tif", 20, COARSE, "EPSG:32632"))
    with pytest.raises(SceneError, match="different sizes, and not all of them have a CRS"):
        stack(scene("plain.tif", 20, Affine.identity(), None))


def test_masks_as_text() -> None:
    assert parse_mask("scl.tif:3,8,9,10", "mask") == ("scl.tif", (3, 8, 9, 10))
    assert parse_mask("https://127.0.0.1:80/scl.tif:3", "mask") == ("https://127.0.0.1:80/scl.tif", (3,))
    for text in ("scl.tif", "scl.tif:", ":3", "scl.tif:3,", "scl.tif:clouds", "scl.tif:1.5", ""):
        with pytest.raises(UsageError, match="FILE:VALUES"):
            parse_mask(text, "mask")
    for values in ((), (1.5,), ("3",), (1 << 40,)):
        with pytest.raises(UsageError, match="whole numbers"):
            ValueMask.of(("scl.tif", values))  # type: ignore[arg-type]
