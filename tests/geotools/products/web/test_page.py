"""The page that shows a scene and its map: what is in the file."""

import base64
import io
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from affine import Affine
from PIL import Image
from rasterio.crs import CRS
from support.maps import LAMBERT, TRANSFORM, make_classes, random_labels, write_map
from support.scenes import landscape, write_raster

from iic_geotools.classmap.classes import NODATA, MapClass, rgb
from iic_geotools.errors import OutputError, SceneError, UsageError
from iic_geotools.products.areas import class_areas
from iic_geotools.products.web import page as module
from iic_geotools.products.web.page import WebPage, embed
from iic_geotools.tiling import Rect

CLASSES = make_classes(3)
HOSTILE = '</script><script>alert(1)</script><img src=x onerror=alert(2)>" onclick="alert(3)\'&lt;'


class Page(HTMLParser):
    """The elements of a page, its texts and its pictures."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: dict[str, list[str]] = {}
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            self.attributes.setdefault(name, []).append(value or "")

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def picture(self, index: int) -> Image.Image:
        content = base64.b64decode(self.attributes["src"][index].partition(",")[2])
        return Image.open(io.BytesIO(content))


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., tuple[Path, Path]]:
    """Write a scene and its map."""

    def write(
        height: int, width: int, crs: CRS | None = LAMBERT, transform: Affine = TRANSFORM
    ) -> tuple[Path, Path]:
        scene = write_raster(tmp_path / "scene.tif", landscape(height, width), crs=crs, transform=transform)
        labels = random_labels(height, width, 3, patch=7)
        return scene, write_map(tmp_path / "map.tif", labels, crs, transform)

    return write


def test_the_map_is_in_the_page_value_by_value(make: Callable[..., tuple[Path, Path]]) -> None:
    scene, labels = make(90, 120)
    page = Page(WebPage(scene, labels, CLASSES, bidx=(1, 2, 3)).html())
    expected = random_labels(90, 120, 3, patch=7)
    with page.picture(1) as drawing:
        drawing.verify()
    with page.picture(1) as drawing:
        assert np.array_equal(np.asarray(drawing), expected)
        colours = np.asarray(drawing.convert("RGBA"))
    assert (colours[expected == NODATA, 3] == 0).all()
    for value, map_class in enumerate(CLASSES):
        assert (colours[expected == value] == (*rgb(map_class.colour), 255)).all()
    with page.picture(0) as photograph:
        assert photograph.size == (120, 90)
        assert len(np.unique(np.asarray(photograph))) > 100


def test_nothing_is_loaded_and_nothing_else_runs(make: Callable[..., tuple[Path, Path]]) -> None:
    scene, labels = make(40, 50)
    text = WebPage(scene, labels, CLASSES, bidx=(1, 2, 3)).html()
    page = Page(text)
    assert all(address.startswith("data:image/") for address in page.attributes["src"])
    assert "href" not in page.attributes
    assert not re.search(r"https?:|@import|url\(|fetch\(|XMLHttp", text)
    assert "default-src 'none'" in page.attributes["content"][0]
    assert page.tags.count("script") == 1


def test_names_of_classes_are_text(make: Callable[..., tuple[Path, Path]]) -> None:
    scene, labels = make(40, 50)
    classes = [MapClass(HOSTILE, "#ff0000"), *CLASSES[1:]]
    text = WebPage(scene, labels, classes, bidx=(1, 2, 3), title=f"<b>{HOSTILE}", note=HOSTILE).html()
    page = Page(text)
    assert page.tags.count("script") == 1
    assert page.tags.count("img") == 2
    assert not {"onerror", "onclick"} & set(page.attributes)
    assert page.texts.count(HOSTILE) == 2
    frame = Page(embed(text))
    assert frame.tags == ["iframe"]
    assert frame.attributes["srcdoc"] == [text]
    assert frame.attributes["sandbox"] == ["allow-scripts"]


def test_the_legend_has_areas_and_shares(make: Callable[..., tuple[Path, Path]]) -> None:
    scene, labels = make(90, 120)
    areas = class_areas(labels, CLASSES)
    texts = Page(WebPage(scene, labels, CLASSES, bidx=(1, 2, 3), areas=areas).html()).texts
    assert "m²" in texts
    for row in areas.classes:
        assert f"{row.m2:,.0f}" in texts
        assert f"{row.share:.1%}".replace("%", " %") in texts
    assert "no data" in texts


@pytest.mark.parametrize(("pixel", "unit"), [(0.5, "m²"), (5.0, "ha"), (1000.0, "km²")])
def test_areas_have_a_unit_that_suits_them(
    make: Callable[..., tuple[Path, Path]], pixel: float, unit: str
) -> None:
    scene, labels = make(50, 60, transform=Affine(pixel, 0, 770000, 0, -pixel, 6279000))
    assert unit in Page(WebPage(scene, labels, CLASSES, bidx=(1, 2, 3)).html()).texts


def test_a_map_without_a_reference_system_counts_pixels(make: Callable[..., tuple[Path, Path]]) -> None:
    scene, labels = make(50, 60, None, Affine.identity())
    page = Page(WebPage(scene, labels, CLASSES, bidx=(1, 2, 3)).html())
    assert "px" in page.texts
    assert page.attributes["data-metres"] == ["0"]


def test_large_scenes_are_reduced_and_the_page_says_so(
    make: Callable[..., tuple[Path, Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    scene, labels = make(300, 500)
    page = Page(WebPage(scene, labels, CLASSES, bidx=(1, 2, 3), side=100).html())
    for index in range(2):
        with page.picture(index) as picture:
            assert picture.size == (100, 60)
    assert float(page.attributes["data-metres"][0]) == pytest.approx(2.5, rel=1e-3)
    assert any("reduced to 100 x 60" in text for text in page.texts)
    areas = class_areas(labels, CLASSES)
    assert f"{areas.classes[0].m2:,.0f}" in page.texts or f"{areas.classes[0].ha:,.2f}" in page.texts


@pytest.mark.parametrize(("height", "width"), [(1, 1), (1, 5000), (5000, 1)])
def test_thin_scenes(make: Callable[..., tuple[Path, Path]], height: int, width: int) -> None:
    scene, labels = make(height, width)
    page = Page(WebPage(scene, labels, CLASSES, bidx=(1,)).html())
    with page.picture(0) as photograph, page.picture(1) as drawing:
        assert photograph.size == drawing.size
        assert max(drawing.size) <= module.SIDE


def test_a_part_of_a_scene(make: Callable[..., tuple[Path, Path]], tmp_path: Path) -> None:
    values = np.zeros((3, 100, 100), np.uint8)
    values[:, 50:, 50:] = 200
    scene = write_raster(tmp_path / "corner.tif", values)
    labels = write_map(tmp_path / "part.tif", np.ones((60, 60), np.uint8))
    page = Page(WebPage(scene, labels, CLASSES, bidx=(1, 2, 3), region=Rect(40, 40, 60, 60)).html())
    with page.picture(0) as photograph:
        image = np.asarray(photograph)
    assert image[:8, :8].max() < 30
    assert image[20:, 20:].min() > 220


def test_pages_that_cannot_be_made(make: Callable[..., tuple[Path, Path]], tmp_path: Path) -> None:
    scene, labels = make(20, 20)
    with pytest.raises(UsageError, match=r"\.html"):
        WebPage(scene, labels, CLASSES, bidx=(1, 2, 3)).write(tmp_path / "page.txt")
    with pytest.raises(OutputError, match="cannot be written"):
        WebPage(scene, labels, CLASSES, bidx=(1, 2, 3)).write(tmp_path / "nowhere" / "page.html")
    with pytest.raises(SceneError, match="No page"):
        WebPage(tmp_path / "gone.tif", labels, CLASSES, bidx=(1, 2, 3)).write(tmp_path / "page.html")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["map.tif", "scene.tif"]
