"""Unusual scenes: misleading masks and nodata values, values that do not fit, mosaics of many files."""

import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest
import rasterio
from affine import Affine
from rasterio.enums import ColorInterp
from rasterio.transform import from_origin
from rasterio.windows import Window
from support.maps import read_band
from support.open_files import most_open_files
from support.scenes import landscape
from support.tiny_onnx import make_model

from iic_geotools.errors import AssumptionWarning, SceneError
from iic_geotools.scene.info import describe
from iic_geotools.scene.listing import find_scene
from iic_geotools.tiling import Rect
from iic_runtime import Segmenter, segment_raster
from iic_runtime.model.select import find_model
from iic_runtime.raster.model_input import choose_reading

MakeScene = Callable[..., Path]
EXAMPLES = Path(__file__).parents[3] / "examples"
WHERE = from_origin(500000, 5400000, 0.5, 0.5)
NAMES = ("red", "green", "blue", "nir", "where")


@pytest.fixture
def metre_model(tmp_path: Path) -> Path:
    path = tmp_path / "metre.onnx"
    path.write_bytes(make_model(gsd=1.0))
    return path


def test_whole_numbers_of_pixels_are_averaged_as_in_training(
    make_scene: MakeScene, metre_model: Path
) -> None:
    """Two pixels of 0.502 m, as a projection may make them, are one of 1 m for the model."""
    values, where = landscape(76, 100), from_origin(500000, 5400000, 0.502, 0.502)
    info = describe(str(make_scene(values, transform=where)))
    source = choose_reading(info, find_model(metre_model).card, match_gsd=True)
    assert source.grid is not None
    assert (source.grid.width, source.grid.height) == (50, 38)
    assert source.grid.transform == where @ Affine.scale(2)
    with source.open() as scene:
        read = scene.read(Rect(0, 0, 50, 38)).values
    means = values.reshape(4, 38, 2, 50, 2).mean((2, 4))
    assert np.abs(read - means).max() <= 0.5


def test_an_infrared_band_marked_as_alpha_is_not_a_mask_at_any_resolution(
    make_scene: MakeScene, metre_model: Path, tmp_path: Path
) -> None:
    values = landscape(80, 100)
    values[3, 20:40, 20:40] = 0
    options = {"device": "cpu", "match_gsd": True}
    segment_raster(make_scene(values, "plain.tif"), tmp_path / "plain_map.tif", metre_model, **options)
    marked = make_scene(values, "marked.tif")
    with rasterio.open(marked, "r+") as dataset:
        dataset.colorinterp = [ColorInterp.red, ColorInterp.green, ColorInterp.blue, ColorInterp.alpha]
    segment_raster(marked, tmp_path / "marked_map.tif", metre_model, **options)
    assert np.array_equal(read_band(tmp_path / "marked_map.tif"), read_band(tmp_path / "plain_map.tif"))


@pytest.mark.parametrize(
    "told_by", ["nodata option", "nodata tag", "mask and nodata tag", "alpha", "option over alpha"]
)
def test_holes_do_not_leak_into_a_resampled_scene(
    make_scene: MakeScene, metre_model: Path, tmp_path: Path, told_by: str
) -> None:
    values = landscape(80, 100, bands=5)
    hole = np.zeros((80, 100), bool)
    hole[21:40, 31:50] = True
    values[4] = np.where(hole, 0, 255)
    maps = []
    for inside in (0, 250):
        values[:4, hole] = inside
        tagged = {"nodata": inside} if "tag" in told_by else {}
        with rasterio.Env(GDAL_TIFF_INTERNAL_MASK=True):
            bands = values if "alpha" in told_by else values[:4]
            scene = make_scene(bands, f"{inside}.tif", descriptions=NAMES[: len(bands)], **tagged)
            with rasterio.open(scene, "r+") as dataset:
                if "mask" in told_by:
                    dataset.write_mask(~hole)
                if "alpha" in told_by:
                    dataset.colorinterp = [ColorInterp.undefined] * 4 + [ColorInterp.alpha]
        nodata = inside if "option" in told_by else None
        out = tmp_path / f"map{inside}.tif"
        segment_raster(scene, out, metre_model, device="cpu", match_gsd=True, nodata=nodata)
        maps.append(read_band(out))
        assert np.array_equal(maps[-1] == 255, hole)
    assert np.array_equal(*maps)


@pytest.mark.parametrize(("across", "down"), [(0.7, 1.9), (1.9, 0.7), (0.9, 1.3), (1.9, 1.2)])
def test_pixels_next_to_holes_keep_their_labels_where_pixels_are_not_square(
    make_scene: MakeScene, metre_model: Path, tmp_path: Path, across: float, down: float
) -> None:
    values = landscape(40, 57)
    holes = np.random.default_rng(0).random((40, 57)) < 0.4
    values[:, holes] = 0
    scene = make_scene(values, transform=from_origin(500000, 5400000, across, down), nodata=0)
    segment_raster(scene, tmp_path / "map.tif", metre_model, device="cpu", match_gsd=True)
    assert np.array_equal(read_band(tmp_path / "map.tif") == 255, holes)


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize(
    ("dtype", "hole", "rescale"),
    [
        ("uint16", 0, "-5,8000"),
        ("float32", np.nan, "-5,255"),
        ("float64", -1.8e307, "1,255"),
        ("int16", -32768, "auto"),
    ],
)
def test_nodata_values_need_not_fit_the_type(
    make_scene: MakeScene, model: Path, tmp_path: Path, dtype: str, hole: float, rescale: str
) -> None:
    values = landscape(40, 50).astype(dtype)
    values[:, 10:20, 10:20] = hole
    segment_raster(
        make_scene(values, nodata=hole), tmp_path / "map.tif", model, device="cpu", rescale=rescale
    )
    empty = np.zeros((40, 50), bool)
    empty[10:20, 10:20] = True
    assert np.array_equal(read_band(tmp_path / "map.tif") == 255, empty)


def test_a_model_whose_range_begins_below_its_type(make_scene: MakeScene, tmp_path: Path) -> None:
    model = tmp_path / "low.onnx"
    model.write_bytes(make_model(offset=(-20.0,) * 4))
    values = landscape(40, 50)
    values[:, :5] = 0
    segment_raster(make_scene(values, nodata=0), tmp_path / "map.tif", model, device="cpu")
    assert (read_band(tmp_path / "map.tif")[:5] == 255).all()


@pytest.mark.parametrize("sparse", [True, False])
def test_rescale_auto_finds_the_data_of_a_nearly_empty_scene(
    make_scene: MakeScene, model: Path, tmp_path: Path, sparse: bool
) -> None:
    scene = tmp_path / "sparse.tif"
    layout = {
        "tiled": True,
        "sparse_ok": sparse,
        "nodata": 0,
        "compress": "zstd",
        "photometric": "MINISBLACK",
    }
    size = {"width": 6000, "height": 5000, "count": 4, "dtype": "uint16"}
    with rasterio.open(
        scene, "w", driver="GTiff", crs="EPSG:32631", transform=WHERE, **size, **layout
    ) as dataset:
        dataset.descriptions = NAMES[:4]
        values = landscape(256, 256).astype(np.uint16) * 30
        dataset.write(values, window=Window(2304, 2560, 256, 256))
    segment_raster(scene, tmp_path / "map.tif", model, device="cpu", rescale="auto")
    segment_raster(make_scene(values), tmp_path / "alone.tif", model, device="cpu", rescale="auto")
    inner = slice(32, -32)  # beyond the reach of what surrounds the data
    labels = read_band(tmp_path / "map.tif")[2560:2816, 2304:2560]
    # Only part of the data is looked at there: percentiles differ by a little.
    assert np.mean(labels[inner, inner] == read_band(tmp_path / "alone.tif")[inner, inner]) > 0.97
    assert (read_band(tmp_path / "map.tif") != 255).sum() == 256 * 256


def test_rescale_auto_brings_every_band_to_its_own_range(
    make_scene: MakeScene, model: Path, tmp_path: Path
) -> None:
    """Another sensor: each band with a gain and an offset of its own; rounding alone may move a pixel."""
    values = landscape(200, 200)
    bands = np.arange(1, 5)[:, None, None]
    segment_raster(make_scene(values), tmp_path / "map.tif", model, device="cpu", rescale="auto")
    other = (values * (20 * bands) + 100 * bands).astype(np.uint16)
    segment_raster(make_scene(other), tmp_path / "other.tif", model, device="cpu", rescale="auto")
    assert np.mean(read_band(tmp_path / "map.tif") == read_band(tmp_path / "other.tif")) > 0.999


def test_a_paletted_image_is_mapped_as_the_picture_that_it_shows(
    make_scene: MakeScene, tmp_path: Path
) -> None:
    model = tmp_path / "rgb.onnx"
    model.write_bytes(make_model(bands=("red", "green", "blue")))
    image = landscape(40, 50, bands=3) // 64 * 64
    index = (image // 64 * np.array([16, 4, 1], np.uint8)[:, None, None]).sum(0, dtype=np.uint8)[None]
    table = {value: (value // 16 * 64, value // 4 % 4 * 64, value % 4 * 64, 255) for value in range(64)}
    for nodata in (None, int(index[0, 0, 0])):
        scene = make_scene(index, descriptions=None, photometric="PALETTE", nodata=nodata)
        with rasterio.open(scene, "r+") as dataset:
            dataset.write_colormap(1, table)
        with pytest.warns(AssumptionWarning, match="are taken as red, green and blue.$"):
            segment_raster(scene, tmp_path / "map.tif", model, device="cpu", overwrite=True)
        picture = make_scene(image, descriptions=None, photometric="RGB")
        segment_raster(picture, tmp_path / "picture.tif", model, device="cpu", overwrite=True)
        labels, expected = read_band(tmp_path / "map.tif"), read_band(tmp_path / "picture.tif")
        holes = np.zeros_like(labels, bool) if nodata is None else index[0] == nodata
        assert (labels[holes] == 255).all()
        if nodata is None:
            assert np.array_equal(labels, expected)


def test_a_paletted_image_of_few_colours_may_be_a_map(make_scene: MakeScene) -> None:
    scene = make_scene(landscape(40, 50, bands=1) // 64, descriptions=None, photometric="PALETTE")
    with rasterio.open(scene, "r+") as dataset:
        dataset.write_colormap(
            1, {0: (0, 90, 0, 255), 1: (0, 0, 200, 255), 2: (200, 0, 0, 255), 3: (9, 9, 9, 255)}
        )
    with pytest.warns(AssumptionWarning, match="They are only 5, as those of a map"):
        find_scene(scene)


def example(bands: Sequence[int]) -> np.ndarray:
    with rasterio.open(EXAMPLES / "scene.tif") as dataset:
        return dataset.read([band + 1 for band in bands])


@pytest.mark.parametrize("kind", [".tif", ".jpg", "nameless"])
def test_infrared_shown_as_red_is_asked_about(make_scene: MakeScene, kind: str) -> None:
    profile = {"driver": "JPEG"} if kind == ".jpg" else {"photometric": "RGB"}
    if kind == "nameless":
        profile = {"photometric": "MINISBLACK"}
    card = find_model("aerial").card
    picture = make_scene(
        example((3, 0, 1)), f"cir.{'jpg' if kind == '.jpg' else 'tif'}", descriptions=None, **profile
    )
    with pytest.raises(SceneError, match=r"1 infrared, 2 red, 3 green.*`bands` 1,2,3"):
        choose_reading(describe(str(picture)), card)
    assert choose_reading(describe(str(picture)), card, bands=("1", "2", "3")).bidx == (1, 2, 3)
    true = make_scene(example((0, 1, 2)), "true.tif", descriptions=None, photometric="RGB")
    assert choose_reading(describe(str(true)), card).bidx == (1, 2, 3)


def test_infrared_shown_as_red_is_doubted_where_little_tells_it(make_scene: MakeScene) -> None:
    corner = example((3, 0, 1))[:, 300:400, :100]
    picture = make_scene(corner, descriptions=None, photometric="RGB")
    with pytest.warns(AssumptionWarning, match="may show infrared as red"):
        choose_reading(describe(str(picture)), find_model("aerial").card)


def test_a_band_with_a_strange_name_is_not_left_out_in_silence(make_scene: MakeScene) -> None:
    scene = make_scene(example((0, 1, 2, 3)), descriptions=("red", "green", "blue", "quux"))
    with pytest.warns(AssumptionWarning, match=r"without nir.*\(4 quux\), give `bands` in the order red"):
        choose_reading(describe(str(scene)), find_model("aerial").card)


def test_one_band_of_a_product_is_not_the_scene(make_scene: MakeScene) -> None:
    band = make_scene(example((0,)), "T32UPU_20230615T101559_B04_10m.tif", descriptions=None)
    with pytest.raises(SceneError, match="give the folder that holds it"):
        choose_reading(describe(str(band)), find_model("satellite").card)


@pytest.mark.parametrize(("bands", "text"), [((0, 3, 1), "infrared as green"), ((1, 1, 1), "is grey")])
def test_pictures_without_true_colours_are_doubted(
    make_scene: MakeScene, bands: tuple[int, ...], text: str
) -> None:
    with rasterio.open(EXAMPLES / "sentinel2.tif") as dataset:
        values = dataset.read([band + 1 for band in bands])
    scene = make_scene(np.clip(values / 16, 1, 255).astype(np.uint8), descriptions=None, photometric="RGB")
    with pytest.warns(AssumptionWarning, match=text):
        assert choose_reading(describe(str(scene)), find_model("aerial").card).bidx == (1, 2, 3)


def test_three_nameless_bands_of_8_bits_are_a_picture(make_scene: MakeScene) -> None:
    """As in files of ERDAS Imagine, which do not say which band is red."""
    picture = make_scene(example((0, 1, 2)), "a.img", descriptions=None, driver="HFA")
    with pytest.warns(AssumptionWarning, match="1 red, 2 green, 3 blue"):
        assert choose_reading(describe(str(picture)), find_model("aerial").card).bidx == (1, 2, 3)


def test_a_picture_in_another_type_is_a_picture(make_scene: MakeScene) -> None:
    """Its values are no reflectances, by which the order of bands could be known."""
    scene = make_scene((example((0, 1, 2)) / 255).astype(np.float32), descriptions=None)
    with pytest.warns(AssumptionWarning, match="1 red, 2 green, 3 blue, by the order of the model"):
        assert choose_reading(describe(str(scene)), find_model("aerial").card).bidx == (1, 2, 3)


@pytest.mark.parametrize("count", [3, 4, 5])
def test_a_mask_without_a_name_is_no_band(make_scene: MakeScene, count: int) -> None:
    """Cameras with five bands, satellites with four, and pictures, each with a mask as its last band."""
    with rasterio.open(EXAMPLES / "sentinel2.tif") as dataset:
        red, green, blue, nir = dataset.read((1, 2, 3, 4)).astype(np.int32)
    edge = red + (nir - red) // 5
    bands = {3: (blue, green, red), 4: (blue, green, red, nir), 5: (blue, green, red, edge, nir)}[count]
    mask = np.full_like(red, 65535)
    mask[:20] = 0
    scene = make_scene(np.stack([*bands, mask]).astype(np.uint16), descriptions=None)
    source = choose_reading(describe(str(scene)), find_model("satellite").card)
    assert source.bidx == {3: (3, 2, 1), 4: (3, 2, 1, 4), 5: (3, 2, 1, 5)}[count]


def test_a_picture_with_a_mask_of_8_bits_has_no_infrared(make_scene: MakeScene) -> None:
    picture = example((0, 1, 2, 3))
    picture[3] = 255
    picture[3, :20] = 0
    scene = make_scene(picture, descriptions=None)
    assert choose_reading(describe(str(scene)), find_model("aerial").card).bidx == (1, 2, 3)


def test_decibels_are_no_colours(make_scene: MakeScene) -> None:
    decibels = np.random.default_rng(0).normal(-15, 4, (4, 60, 60)).astype(np.float32)
    scene = make_scene(decibels, descriptions=None)
    with pytest.raises(SceneError, match=r"values are negative.*iic-studio"):
        choose_reading(describe(str(scene)), find_model("satellite").card)


def test_nothing_is_assumed_of_values_where_there_are_none(make_scene: MakeScene) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", AssumptionWarning)
        scene = make_scene(np.full((4, 60, 60), -9999, np.int16), nodata=-9999)
        source = choose_reading(describe(str(scene)), find_model("satellite").card)
    assert any("no data" in note for note in source.notes)


@pytest.mark.parametrize("dtype", ["int16", "float32"])
def test_minus_9999_that_is_not_declared_is_nodata(make_scene: MakeScene, tmp_path: Path, dtype: str) -> None:
    values = landscape(60, 60).astype(dtype) * 20
    values[:, :12] = -9999
    info = find_scene(make_scene(values))
    with pytest.warns(AssumptionWarning, match="20.0 % of .* is -9999 in every band: taken as nodata"):
        source = choose_reading(info, find_model("satellite").card)
    assert source.nodata == -9999
    assert any("nodata" in note for note in source.notes)
    assert choose_reading(info, find_model("satellite").card, nodata=-1.0).nodata == -1


def test_a_black_collar_is_nodata_and_dark_ground_is_not(make_scene: MakeScene) -> None:
    card = find_model("aerial").card
    values = np.maximum(landscape(300, 300, bands=3), 1)
    rows, columns = np.mgrid[:300, :300]
    for blank, expected in (
        (rows + columns < 90, 0.0),
        ((rows > 100) & (rows < 200), None),
        (rows < 1, None),
    ):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", AssumptionWarning)
            source = choose_reading(
                find_scene(make_scene(np.where(blank, 0, values), photometric="RGB")), card
            )
        assert source.nodata == expected
        assert (expected is not None) == any("taken as nodata" in str(entry.message) for entry in caught)
    white = make_scene(np.where(rows + columns < 90, 255, np.minimum(values, 254)), photometric="RGB")
    with pytest.warns(AssumptionWarning, match=r"% of .* is 255 in every band: taken as nodata"):
        assert choose_reading(find_scene(white), card).nodata == 255
    declared = make_scene(np.where(rows + columns < 90, 0, values), photometric="RGB", nodata=7)
    assert choose_reading(find_scene(declared), card).nodata == 7  # what the file says is never overruled


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="counts open files through /proc")
@pytest.mark.parametrize("in_thread", [False, True])
def test_a_mosaic_keeps_few_files_open(
    make_scene: MakeScene, model: Path, tmp_path: Path, in_thread: bool
) -> None:
    """GDAL would keep every file of the mosaic open that a run has read; Dask runs its tasks in a thread."""
    count, side = 60, 32
    values = landscape(side, side * count)
    pieces = [
        make_scene(values[:, :, side * index : side * (index + 1)], f"piece-{index}.tif", descriptions=None)
        for index in range(count)
    ]
    sources = "".join(
        f"<SimpleSource><SourceFilename>{piece}</SourceFilename><SourceBand>{{band}}</SourceBand>"
        f'<SrcRect xOff="0" yOff="0" xSize="{side}" ySize="{side}"/>'
        f'<DstRect xOff="{side * index}" yOff="0" xSize="{side}" ySize="{side}"/></SimpleSource>'
        for index, piece in enumerate(pieces)
    )
    bands = "".join(
        f'<VRTRasterBand dataType="Byte" band="{band}">{sources.format(band=band)}</VRTRasterBand>'
        for band in range(1, 5)
    )
    mosaic = tmp_path / "mosaic.vrt"
    mosaic.write_text(f'<VRTDataset rasterXSize="{side * count}" rasterYSize="{side}">{bands}</VRTDataset>')
    out = tmp_path / "map.tif"
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        most_open = process.submit(most_open_files, mosaic, model, out, in_thread).result()
    assert np.array_equal(read_band(tmp_path / "map.tif"), Segmenter(model, device="cpu")(values).labels)
    assert 0 < most_open < 40
