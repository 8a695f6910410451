"""The page that shows a scene and its map, in a browser: zoom, pan, opacity and legend, by mouse and by touch."""

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from support.browser import Browser, open_browser
from support.maps import write_map
from support.scenes import write_raster

from iic_geotools.classmap.classes import NODATA, MapClass
from iic_geotools.products.web.page import WebPage, embed

pytestmark = pytest.mark.browser
HOSTILE = "<img src=x onerror=document.title='broken'><script>document.title='broken'</script>"
CLASSES = (MapClass("left", "#ff0000"), MapClass(HOSTILE, "#0000ff"))
WIDTH, HEIGHT = 80, 40
RED, BLUE = (255, 0, 0), (0, 0, 255)
# The view is 800 x 600 next to a legend: ten CSS pixels per pixel of the picture, with 100 above and below it.
LEFT, RIGHT, EMPTY = (200, 300), (600, 300), (790, 120)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A grey scene, whose map is red on the left and blue on the right, with no data in a corner."""
    folder = tmp_path_factory.mktemp("page")
    values = np.full((3, HEIGHT, WIDTH), 100, np.uint8)
    values[:, 0, 0], values[:, 0, 1] = 0, 200
    labels = np.zeros((HEIGHT, WIDTH), np.uint8)
    labels[:, WIDTH // 2 :] = 1
    labels[:5, -5:] = NODATA
    scene = write_raster(folder / "scene.tif", values)
    text = WebPage(scene, write_map(folder / "map.tif", labels), CLASSES, bidx=(1, 2, 3)).html()
    (folder / "map.html").write_text(text)
    (folder / "notebook.html").write_text(f"<body class=ready>{embed(text)}</body>")
    return folder / "map.html"


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with open_browser(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.fixture
def browser(started: Browser, page: Path) -> Iterator[Browser]:
    started.requests.clear()
    started.complaints.clear()
    started.open(page, 1152, 600)
    assert started.evaluate("document.getElementById('view').clientWidth") == 800
    yield started
    assert started.complaints == []
    assert all(address.startswith(("file:", "data:", "blob:")) for address in started.requests)


def set_opacity(browser: Browser, value: float) -> None:
    browser.evaluate(
        f"(slider => {{slider.value = {value}; slider.dispatchEvent(new Event('input'))}})(opacity)"
    )


def below(browser: Browser) -> str:
    return str(browser.evaluate("here.textContent"))


def hover(browser: Browser, x: float, y: float) -> str:
    browser.mouse("mouseMoved", x, y, button="none", buttons=0)
    return below(browser)


def test_the_slider_fades_from_scene_to_map(browser: Browser) -> None:
    red, grey, blue = (np.array(browser.pixel(*place), int) for place in (LEFT, EMPTY, RIGHT))
    assert red[0] > red[2] + 100
    assert blue[2] > blue[0] + 100
    assert np.ptp(grey) < 5
    set_opacity(browser, 1)
    assert browser.pixel(*LEFT) == RED
    assert browser.pixel(*RIGHT) == BLUE
    set_opacity(browser, 0)
    assert np.ptp(browser.pixel(*LEFT)) < 5


def test_classes_are_hidden_in_the_legend_and_shown_again(browser: Browser) -> None:
    set_opacity(browser, 1)
    grey = browser.pixel(*EMPTY)
    browser.evaluate("document.querySelector('[data-value=\"0\"]').click()")
    browser.wait_for_pixel(*LEFT, grey)
    assert browser.pixel(*RIGHT) == BLUE
    browser.evaluate("document.querySelector('[data-value=\"0\"]').click()")
    browser.wait_for_pixel(*LEFT, RED)


def test_the_class_below_the_pointer_is_named_and_hostile_names_are_text(browser: Browser) -> None:
    browser.wait(
        "(canvas.dispatchEvent(new PointerEvent('pointermove', {clientX: 200, clientY: 300})), here.textContent)"
    )
    assert hover(browser, *LEFT) == "left"
    assert hover(browser, *RIGHT) == HOSTILE
    assert hover(browser, *EMPTY) == "no data"
    assert hover(browser, 400, 50) == ""
    assert browser.evaluate("document.title") == "map.tif"
    assert browser.evaluate("document.images.length") == 2


def test_the_mouse_moves_and_zooms(browser: Browser) -> None:
    set_opacity(browser, 1)
    bar = browser.evaluate("bar.textContent")
    edge = 400
    browser.mouse("mousePressed", 300, 300, clickCount=1)
    browser.mouse("mouseMoved", 350, 300)
    browser.mouse("mouseReleased", 350, 300, clickCount=1)
    assert browser.pixel(edge + 45, 300) == RED
    assert browser.pixel(edge + 55, 300) == BLUE
    browser.mouse("mouseWheel", edge + 50, 300, button="none", deltaX=0, deltaY=-480)
    assert browser.pixel(edge + 45, 300) == RED, "the place below the pointer stays"
    assert browser.pixel(edge + 55, 300) == BLUE
    assert browser.evaluate("bar.textContent") != bar
    browser.evaluate("document.querySelector('[data-zoom=\"\"]').click()")
    assert browser.pixel(edge - 5, 300) == RED
    assert browser.pixel(edge + 5, 300) == BLUE


def test_the_picture_cannot_be_lost(browser: Browser) -> None:
    for _ in range(3):
        browser.mouse("mousePressed", 20, 300, clickCount=1)
        browser.mouse("mouseMoved", 790, 300)
        browser.mouse("mouseReleased", 790, 300, clickCount=1)
        browser.mouse("mouseWheel", 790, 300, button="none", deltaX=0, deltaY=3000)
    shades = {browser.pixel(x, 300) for x in (390, 410)}
    assert shades != {browser.pixel(20, 20)}, "the picture is in the middle"


def test_two_fingers_zoom_on_a_phone(browser: Browser, page: Path, tmp_path: Path) -> None:
    browser.open(page, 360, 740, phone=True)
    assert browser.evaluate("document.documentElement.scrollWidth") == 360
    set_opacity(browser, 1)
    middle = browser.evaluate("document.getElementById('view').clientHeight") / 2
    assert browser.pixel(100, middle) == RED
    bar = browser.evaluate("bar.textContent")
    browser.touch("touchStart", (60, middle), (120, middle))
    for step in range(1, 6):
        browser.touch("touchMove", (60 - 8 * step, middle), (120 + 24 * step, middle))
    browser.touch("touchEnd")
    # Four times larger between the fingers: the border, 120 px to the right of their middle, has left the view.
    assert browser.pixel(355, middle) == RED
    assert browser.evaluate("bar.textContent") != bar
    browser.touch("touchStart", (300, middle))
    browser.touch("touchMove", (20, middle))
    browser.touch("touchEnd")
    assert browser.pixel(355, middle) == BLUE
    browser.screenshot(tmp_path / "phone.png")


def test_it_works_inside_a_notebook(browser: Browser, page: Path) -> None:
    browser.open(page.with_name("notebook.html"), 1000, 600)
    assert browser.evaluate("document.querySelector('iframe').contentDocument") is None, "it is kept apart"
    for _ in range(100):  # until the page inside the page is drawn
        left, right = (np.array(browser.pixel(x, 250), int) for x in (100, 500))
        if left[0] > left[2] + 100 and right[2] > right[0] + 100:
            break
        time.sleep(0.05)
    assert left[0] > left[2] + 100
    assert right[2] > right[0] + 100
    browser.mouse("mouseWheel", 200, 250, button="none", deltaX=0, deltaY=-480)
    browser.wait_for_pixel(500, 250, browser.pixel(200, 250))
