"""The page in a browser: labels, files and sentences, compared with those of the runtime."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio
from rasterio.enums import ColorInterp
from rasterio.features import rasterize
from rasterio.warp import transform_geom
from rasterio.windows import Window
from support.browser import EMULATED_CARD, PROGRAM, Browser, open_browser
from support.maps import read_band
from support.page import download, drop, finish, run_page, serve, status
from support.studio import EXAMPLE

from iic_geotools.classmap.class_map import open_map
from iic_geotools.errors import MissingPackageError
from iic_geotools.products.areas import class_areas
from iic_runtime import segment_raster
from iic_runtime.page.site import vendored_files

pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.network,
    pytest.mark.skipif(PROGRAM is None, reason="needs Chromium"),
]
SIDES = {"aerial": 0.5, "satellite": 10.0}
"""Sides of pixels in metres that suit the models."""
EXAMPLES = {"aerial": EXAMPLE, "satellite": EXAMPLE.with_name("sentinel2.tif")}
SIZE = 1280, 800
TIES = 1e-5
"""Share of labels that may differ."""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with open_browser(tmp_path_factory.mktemp("profile")) as running:
        yield running


@pytest.fixture(scope="module", params=[*EXAMPLES])
def model(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def site(model: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a model, as the command writes it."""
    try:
        vendored_files()
    except MissingPackageError as error:
        pytest.skip(str(error))
    folder = tmp_path_factory.mktemp(model) / "site"
    done = run_page(model, "-o", folder, "--example", EXAMPLES[model])
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def address(site: Path, browser: Browser) -> Iterator[str]:
    browser.complaints.clear()
    browser.requests.clear()
    with serve(site) as served:
        yield served
        browser.call("Page.navigate", url="about:blank")


@pytest.fixture
def page(address: str, site: Path, browser: Browser) -> Browser:
    """The page without its example."""
    config = json.loads((site / "page.json").read_text())
    if config["example"] is not None:
        (site / "page.json").write_text(json.dumps({**config, "example": None}))
    browser.open(address, *SIZE)
    return browser


def assert_same(ours: Path, theirs: Path, most: float = TIES) -> None:
    """Compare labels: WebAssembly rounds otherwise than native code, which decides between equally likely classes."""
    got, expected = read_band(ours), read_band(theirs)
    assert ((got == 255) == (expected == 255)).all()
    assert np.count_nonzero(got != expected) <= most * got.size


def write(path: Path, values: np.ndarray, **profile: Any) -> Path:
    """Write a scene whose pixels are those of a model, 10 m unless `side` says otherwise."""
    side = profile.pop("side", 10.0)
    grid = rasterio.Affine(side, 0, 359130, 0, -side, 5352340)
    interpretations = profile.pop("colorinterp", None)
    names = profile.pop("descriptions", None)
    count, height, width = values.shape
    with rasterio.open(
        path, "w", "GTiff", width, height, count, "EPSG:32633", grid, values.dtype, **profile
    ) as dataset:
        if interpretations:
            dataset.colorinterp = interpretations
        if names:
            dataset.descriptions = names
        dataset.write(values)
    return path


def large(model: str, bands: int = 4) -> np.ndarray:
    """The example, repeated until it has several tiles."""
    with rasterio.open(EXAMPLES[model]) as dataset:
        return np.tile(dataset.read()[:bands], (1, 2, 3))[:, :601, :1303]


def small(model: str, bands: int = 4) -> np.ndarray:
    """A part of the example of one tile and several blocks of a file: WebAssembly takes seconds for a large scene."""
    return large(model, bands)[:, :301, :501]


def test_example_is_mapped_at_once_as_the_runtime_maps_it(
    browser: Browser, address: str, model: str, tmp_path: Path
) -> None:
    browser.open(address, *SIZE)
    assert "sentinel2.tif is mapped." in finish(browser) or model == "aerial"
    segment_raster(EXAMPLES[model], tmp_path / "map.tif", model)
    written = download(browser, "tif", tmp_path)
    np.testing.assert_array_equal(read_band(written), read_band(tmp_path / "map.tif"))
    download(browser, "xml", tmp_path)
    with open_map(written) as ours, open_map(tmp_path / "map.tif") as theirs:
        assert ours.grid == theirs.grid
        assert ours.classes == theirs.classes
        assert ours.has_names
        areas = class_areas(tmp_path / "map.tif", theirs.classes)
        shapes = json.loads(download(browser, "geojson", tmp_path).read_text())["features"]
        drawn = rasterize(
            [
                (transform_geom("EPSG:4326", theirs.grid.crs, each["geometry"]), each["properties"]["label"])
                for each in shapes
            ],
            out_shape=ours.dataset.shape,
            transform=ours.grid.transform,
            fill=255,
        )
    np.testing.assert_array_equal(drawn, read_band(written))
    rows = download(browser, "csv", tmp_path).read_text().splitlines()[1:]
    assert [float(row.split(",")[3]) for row in rows] == pytest.approx([each.m2 for each in areas.classes])
    assert browser.evaluate("crossOriginIsolated")
    assert set(browser.complaints) <= {
        "No available adapters."
    }  # what Chromium says of WebGPU without a card
    assert all(each.startswith((address, "data:", "blob:")) for each in browser.requests)


def test_scene_with_holes_of_many_tiles(page: Browser, model: str, tmp_path: Path) -> None:
    values = large(model)
    if model == "aerial":  # red, green, blue and an alpha band
        values[3] = 255
        values[3, 100:400, 300:900] = 0
        colours = ColorInterp.red, ColorInterp.green, ColorInterp.blue, ColorInterp.alpha
        scene = write(
            tmp_path / "scene.tif", values, colorinterp=colours, tiled=True, compress="lzw", predictor=2
        )
    else:  # reflectance as floats, in strips
        floats = values.astype(np.float32) / 10000
        floats[:, 100:400, 300:900] = np.nan
        scene = write(tmp_path / "scene.tif", floats, compress="deflate", predictor=3)
    drop(page, scene)
    if model == "satellite":  # bands without names
        page.wait("!document.getElementById('question').hidden")
        assert "Which bands are red, green, blue, nir?" in page.evaluate(
            "document.getElementById('question').textContent"
        )
        page.evaluate("document.querySelector('#reading button').click()")
    finish(page)
    segment_raster(scene, tmp_path / "map.tif", model)
    assert_same(download(page, "tif", tmp_path), tmp_path / "map.tif")
    assert (read_band(tmp_path / "map.tif")[100:400, 300:900] == 255).all()
    drawn = json.loads(download(page, "geojson", tmp_path).read_text())["features"]
    assert any(len(each["geometry"]["coordinates"]) > 1 for each in drawn)


def test_values_of_another_type(page: Browser, model: str, tmp_path: Path) -> None:
    if model == "aerial":  # 16 bits, of which the brightest become white
        scene = write(
            tmp_path / "scene.tif", small(model, 3).astype(np.uint16) * 31, photometric="RGB", compress="zstd"
        )
    else:  # 8 bits of unknown radiometry, nodata 0, no infrared
        with rasterio.open(EXAMPLES["aerial"]) as dataset:
            values = dataset.read([1, 2, 3])
        values[:, :50] = 0
        scene = write(tmp_path / "scene.tif", values, nodata=0, photometric="RGB", interleave="band")
    drop(page, scene)
    finish(page)
    segment_raster(scene, tmp_path / "map.tif", model)
    assert_same(download(page, "tif", tmp_path), tmp_path / "map.tif")


def test_unknown_values_are_asked(page: Browser, model: str, tmp_path: Path) -> None:
    if model == "aerial":
        scene = write(tmp_path / "scene.tif", small(model), photometric="MINISBLACK")
        asked = "Which bands are red, green, blue, nir?"
        options: dict[str, Any] = {"bands": ["3", "2", "1", "4"]}
        choose = "document.querySelectorAll('#bands select').forEach((each, at) => {each.value = [2, 1, 0, 3][at]})"
    else:
        scene = write(tmp_path / "scene.tif", small(model) + 1000)
        asked, options = (
            "What do the values mean?",
            {"bands": ["1", "2", "3", "4"], "reflectance": (1e-4, -0.1)},
        )
        choose = "document.getElementById('values').value = 'sentinel2'"
    drop(page, scene)
    page.wait("!document.getElementById('question').hidden")
    assert asked in page.evaluate("document.getElementById('question').textContent")
    assert page.evaluate("document.getElementById('result').hidden")
    page.evaluate(choose)
    page.evaluate("document.querySelector('#reading button').click()")
    finish(page)
    segment_raster(scene, tmp_path / "map.tif", model, **options)
    assert_same(download(page, "tif", tmp_path), tmp_path / "map.tif")


@pytest.mark.parametrize(("photometric", "most"), [("RGB", TIES), ("YCBCR", 0.03)])
def test_jpeg(page: Browser, photometric: str, most: float, model: str, tmp_path: Path) -> None:
    """Of YCbCr, geotiff.js rounds otherwise than GDAL."""
    values = small("aerial", 3)
    options = {"side": SIDES[model], "tiled": True, "compress": "jpeg", "photometric": photometric}
    drop(page, write(tmp_path / "scene.tif", values, **options))
    finish(page)
    segment_raster(tmp_path / "scene.tif", tmp_path / "map.tif", model)
    assert_same(download(page, "tif", tmp_path), tmp_path / "map.tif", most)


@pytest.mark.parametrize("names", [("red", "green", "blue", "nir"), None], ids=["named", "unnamed"])
def test_infrared_that_writers_mark_as_alpha(
    page: Browser, names: tuple[str, ...] | None, model: str, tmp_path: Path
) -> None:
    scene = write(tmp_path / "scene.tif", small("aerial"), side=SIDES[model], tiled=True, descriptions=names)
    with rasterio.open(scene) as dataset:
        assert dataset.colorinterp[3] is ColorInterp.alpha
        assert (dataset.read(4) == 0).any()
    drop(page, scene)
    if names is None:
        page.wait("!document.getElementById('question').hidden")
        page.evaluate("document.querySelector('#reading button').click()")
    finish(page)
    segment_raster(scene, tmp_path / "map.tif", model)
    assert_same(download(page, "tif", tmp_path), tmp_path / "map.tif")


def test_fine_pixels_are_averaged(page: Browser, model: str, tmp_path: Path) -> None:
    values = large("aerial", 3)[:, :600, :1296].copy()
    values[:, 200:240, 300:361] = 0
    side, factor = (0.05, 4) if model == "aerial" else (0.5, 6)
    scene = write(tmp_path / "scene.tif", values, side=side, photometric="RGB", nodata=0, tiled=True)
    drop(page, scene)
    assert f"{factor} of its pixels averaged into one" in finish(page)
    segment_raster(scene, tmp_path / "map.tif", model)
    with rasterio.open(scene) as fine, rasterio.open(download(page, "tif", tmp_path)) as ours:
        assert ours.transform == fine.transform @ rasterio.Affine.scale(factor)
        got = ours.read(1)
    expected = read_band(tmp_path / "map.tif")[factor // 2 :: factor, factor // 2 :: factor]
    known = (got != 255) & (expected != 255)
    assert np.count_nonzero(known) > 0.98 * got.size
    assert (
        np.count_nonzero((got != expected) & known) <= 0.005 * got.size
    )  # GDAL leaves holes out band by band


def refuse(page: Browser, scene: Path) -> str:
    """Drop what cannot be mapped, and return the sentence."""
    drop(page, scene)
    page.wait("document.getElementById('status').classList.contains('wrong')")
    assert page.evaluate("document.getElementById('result').hidden")
    return status(page)


def test_bad_input_is_one_sentence_and_the_next_scene_is_mapped(
    page: Browser, model: str, tmp_path: Path
) -> None:
    (tmp_path / "text.tif").write_text("no scene")
    assert "cannot be read as a GeoTIFF" in refuse(page, tmp_path / "text.tif")
    values = large(model, 2)[:, :300, :300]
    assert "has 2 bands, and the model takes red, green, blue" in refuse(
        page, write(tmp_path / "two.tif", values)
    )
    paletted = write(tmp_path / "palette.tif", values[:1].astype(np.uint8), photometric="PALETTE")
    assert "is a paletted image" in refuse(page, paletted)
    block = tmp_path / "block.tif"
    with rasterio.open(
        block,
        "w",
        "GTiff",
        12000,
        12000,
        3,
        dtype="uint8",
        blockysize=12000,
        SPARSE_OK=True,
        interleave="pixel",
    ):
        pass
    assert "stored in blocks of 432 MB" in refuse(page, block)
    broken = write(
        tmp_path / "broken.tif", large(model).astype(np.uint8), photometric="RGB", tiled=True, compress="lzw"
    )
    broken.write_bytes(broken.read_bytes()[:40_000])
    assert "broken.tif is cut off" in refuse(page, broken)
    swapped = write(tmp_path / "swapped.tif", values, ENDIANNESS="BIG")
    assert "stored with the largest byte first" in refuse(page, swapped)
    damaged = write(
        tmp_path / "damaged.tif", large("aerial", 3), photometric="RGB", tiled=True, compress="deflate"
    )
    content = bytearray(damaged.read_bytes())
    content[len(content) // 2 :] = bytes(len(content) - len(content) // 2)
    damaged.write_bytes(content)
    assert "of damaged.tif cannot be decoded" in refuse(page, damaged)
    scene = write(tmp_path / "scene.tif", large("aerial", 3)[:, :200, :200], photometric="RGB")
    drop(page, scene)
    finish(page)
    assert not page.evaluate("document.getElementById('status').classList.contains('wrong')")


def test_file_of_three_gigabytes_is_not_read_as_a_whole(page: Browser, tmp_path: Path) -> None:
    scene = tmp_path / "large.tif"
    profile = {
        "dtype": "uint8",
        "tiled": True,
        "photometric": "MINISBLACK",
        "SPARSE_OK": True,
        "BIGTIFF": True,
    }
    with rasterio.open(scene, "w", "GTiff", 30000, 30000, 4, **profile):
        pass
    os.truncate(scene, 3 << 30)
    drop(page, scene)
    page.wait("!document.getElementById('question').hidden")
    peaks = [
        int(Path(f"/proc/{process}/status").read_text().partition("VmHWM:")[2].split()[0]) / 1024
        for process in page.renderers()
    ]
    assert max(peaks) < 1500  # MB, those of earlier tests included


def test_browser_without_simd(browser: Browser, address: str) -> None:
    script = browser.call(
        "Page.addScriptToEvaluateOnNewDocument", source="WebAssembly.validate = () => false"
    )
    browser.open(address, *SIZE)
    assert "lacks WebAssembly with SIMD" in status(browser)
    browser.call("Page.removeScriptToEvaluateOnNewDocument", identifier=script["identifier"])


def test_phone(browser: Browser, address: str, site: Path) -> None:
    config = json.loads((site / "page.json").read_text())
    browser.open(address, 390, 844, phone=True)
    if config["example"] is not None:
        finish(browser)
    assert browser.evaluate("document.documentElement.scrollWidth") == 390
    heights = (
        "[...document.querySelectorAll('button, .button')].map((each) => each.offsetHeight).filter(Boolean)"
    )
    assert browser.evaluate(f"Math.min(...{heights})") >= 32


def test_graphics_card_is_compared_before_it_is_used(site: Path, model: str, tmp_path: Path) -> None:
    """On a card that Chromium emulates, which is slow: a few pixels."""
    with rasterio.open(EXAMPLES[model]) as dataset:
        values, names = dataset.read(window=Window(200, 100, 128, 96)), dataset.descriptions
    scene = write(tmp_path / "scene.tif", values, side=SIDES[model], descriptions=names)
    with serve(site) as address, open_browser(tmp_path / "profile", *EMULATED_CARD) as browser:
        browser.open(address, *SIZE)
        if browser.evaluate("document.getElementById('gpuRow').hidden"):
            pytest.skip("this Chromium does not emulate WebGPU")
        browser.evaluate("document.getElementById('gpu').click()")
        drop(browser, scene)
        if model == "satellite":
            browser.wait("!document.getElementById('question').hidden")
            browser.evaluate("document.querySelector('#reading button').click()")
        finish(browser)
        said = browser.evaluate("document.getElementById('speed').textContent")
        assert "0 of 12288 labels differed" in said
        if "it is not used" not in said:
            assert browser.evaluate("document.body.dataset.engine") == "webgpu"
        segment_raster(scene, tmp_path / "map.tif", model)
        assert_same(download(browser, "tif", tmp_path), tmp_path / "map.tif")


def test_every_control_has_a_name(page: Browser) -> None:
    assert page.nameless_controls() == []
