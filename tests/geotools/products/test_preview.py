from pathlib import Path

import numpy as np
import pytest
import rasterio
from affine import Affine
from PIL import Image
from rasterio.crs import CRS
from support.maps import LAMBERT, TRANSFORM, make_classes

from iic_geotools.classmap.classes import NODATA, rgb
from iic_geotools.errors import OutputError, SceneError, UsageError
from iic_geotools.products.areas import class_areas
from iic_geotools.products.preview import _panel_size, _scale_bar, preview
from iic_geotools.tiling import Rect

CLASSES = make_classes(3)


def write_raster(
    path: Path,
    pixels: np.ndarray,
    crs: CRS | None = LAMBERT,
    transform: Affine = TRANSFORM,
    nodata: int | None = None,
) -> Path:
    count, height, width = pixels.shape
    profile = {"driver": "GTiff", "count": count, "dtype": pixels.dtype, "nodata": nodata, "crs": crs}
    with rasterio.open(path, "w", width=width, height=height, transform=transform, **profile) as dst:
        dst.write(pixels)
    return path


def make(
    folder: Path,
    height: int,
    width: int,
    crs: CRS | None = LAMBERT,
    transform: Affine = TRANSFORM,
    bands: int = 4,
    dtype: str = "uint8",
) -> tuple[Path, Path]:
    """Write a scene and its map."""
    rng = np.random.default_rng(0)
    scene = write_raster(
        folder / "scene.tif", rng.integers(1, 200, (bands, height, width)).astype(dtype), crs, transform, 0
    )
    labels = (np.arange(width) * 3 // width).astype(np.uint8)[None, None].repeat(height, 1)
    return scene, write_raster(folder / "map.tif", labels, crs, transform, NODATA)


def share_of(picture: Image.Image, colour: str) -> float:
    return float(np.mean((np.asarray(picture) == rgb(colour)).all(-1)))


@pytest.mark.parametrize(
    ("height", "width", "dtype"),
    [(1, 1, "uint8"), (5, 400, "uint8"), (3000, 200, "uint16"), (300, 2500, "float32"), (700, 700, "uint8")],
)
def test_scenes_of_every_shape(tmp_path: Path, height: int, width: int, dtype: str) -> None:
    scene, labels = make(tmp_path, height, width, dtype=dtype)
    preview(scene, labels, tmp_path / "preview.png", CLASSES, bidx=(1, 2, 3))
    with Image.open(tmp_path / "preview.png") as picture:
        assert max(picture.size) < 2500
        panel = np.prod(_panel_size(width, height)) / np.prod(picture.size)
        shares = [share_of(picture, map_class.colour) for map_class in CLASSES]
    if width >= 3:
        assert all(share == pytest.approx(panel / 3, rel=0.25, abs=0.01) for share in shares)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["map.tif", "preview.png", "scene.tif"]


def test_panels_show_the_same_ground(tmp_path: Path) -> None:
    """A map of a corner of the scene: the panel next to it is that corner, not the whole."""
    pixels = np.zeros((3, 400, 400), np.uint8)
    pixels[:, 200:, 100:] = 50
    pixels[0, 200:300, 100:] = 250
    scene = write_raster(tmp_path / "scene.tif", pixels)
    corner = Affine(0.5, 0, TRANSFORM.c + 50, 0, -0.5, TRANSFORM.f - 100)
    labels = write_raster(tmp_path / "map.tif", np.ones((1, 200, 300), np.uint8), LAMBERT, corner, NODATA)
    preview(scene, labels, tmp_path / "preview.png", CLASSES, bidx=(1, 2, 3), region=Rect(100, 200, 300, 200))
    with Image.open(tmp_path / "preview.png") as picture:
        image = np.asarray(picture)
    ys, xs = np.nonzero((image == rgb(CLASSES[1].colour)).all(-1))
    red = (image == (255, 0, 0)).all(-1)
    below = red[: ys.min() + 200].sum()
    assert below == pytest.approx(100 * 300, rel=0.02)
    assert xs.max() > 300


@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_pixels_without_data_are_light_grey_and_do_not_stretch_the_rest(tmp_path: Path, dtype: str) -> None:
    pixels = np.linspace(100, 120, 400 * 400).reshape(1, 400, 400).repeat(3, 0).astype(dtype)
    pixels[:, :200] = 0 if dtype == "uint8" else np.nan
    scene = write_raster(tmp_path / "scene.tif", pixels, nodata=0 if dtype == "uint8" else None)
    values = np.ones((1, 400, 400), np.uint8)
    values[:, :200] = NODATA
    labels = write_raster(tmp_path / "map.tif", values, nodata=NODATA)
    preview(scene, labels, tmp_path / "preview.png", CLASSES, bidx=(1, 2, 3))
    with Image.open(tmp_path / "preview.png") as picture:
        total = np.prod(picture.size)
        assert share_of(picture, "#ececec") * total == pytest.approx(2 * 200 * 400, rel=0.02)
        assert share_of(picture, "#000000") * total > 1000


@pytest.mark.parametrize("bands", [1, 2])
def test_scenes_of_few_bands_are_grey(tmp_path: Path, bands: int) -> None:
    scene, labels = make(tmp_path, 400, 400, bands=bands)
    preview(scene, labels, tmp_path / "preview.png", CLASSES, bidx=tuple(range(1, bands + 1)))
    with Image.open(tmp_path / "preview.png") as picture:
        image = np.asarray(picture).astype(int)
    grey = (image.max(-1) == image.min(-1)) & (image.max(-1) < 200)
    assert grey.sum() > 100_000


@pytest.mark.parametrize("epsg", [None, 4326])
def test_maps_in_degrees_and_without_a_reference_system(tmp_path: Path, epsg: int | None) -> None:
    crs = CRS.from_epsg(epsg) if epsg else None
    scene, labels = make(
        tmp_path, 350, 350, crs, Affine(1e-5, 0, 3, 0, -1e-5, 43) if epsg else Affine.identity()
    )
    preview(scene, labels, tmp_path / "preview.png", CLASSES, bidx=(1, 2, 3))
    assert (tmp_path / "preview.png").stat().st_size > 10_000


def test_a_legend_of_many_classes_lists_the_largest(tmp_path: Path) -> None:
    many = make_classes(200)
    scene, _ = make(tmp_path, 400, 400)
    values = (np.arange(400) // 2).astype(np.uint8)[None, None].repeat(400, 1)
    labels = write_raster(tmp_path / "map.tif", values, nodata=NODATA)
    preview(scene, labels, tmp_path / "preview.png", many, bidx=(1, 2, 3), areas=class_areas(labels, many))
    with Image.open(tmp_path / "preview.png") as picture:
        assert max(picture.size) < 1500


@pytest.mark.parametrize(
    ("metres", "longest", "expected"),
    [
        (0.2, 100, (100, "20 m")),
        (30, 100, (67, "2 km")),
        (0.003, 100, (67, "20 cm")),
        (1, 999, (500, "500 m")),
    ],
)
def test_scale_bars_are_round(metres: float, longest: int, expected: tuple[int, str]) -> None:
    assert _scale_bar(metres, longest) == expected


def test_previews_that_cannot_be_made(tmp_path: Path) -> None:
    scene, labels = make(tmp_path, 30, 30)
    with pytest.raises(UsageError, match=r"\.png"):
        preview(scene, labels, tmp_path / "preview.jpg", CLASSES, bidx=(1, 2, 3))
    with pytest.raises(OutputError, match="cannot be written"):
        preview(scene, labels, tmp_path / "nowhere" / "preview.png", CLASSES, bidx=(1, 2, 3))
    scene.write_bytes(b"not a scene")
    with pytest.raises(SceneError, match="No preview"):
        preview(scene, labels, tmp_path / "preview.png", CLASSES, bidx=(1, 2, 3))
