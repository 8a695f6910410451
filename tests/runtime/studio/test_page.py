"""The page in a browser, from the first look at a scene to a map, as people use it."""

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import rasterio
from support.browser import PROGRAM, Browser, open_browser
from support.studio import EXAMPLE, Studio, run_studio

from iic_geotools.geobox import GeoBox
from iic_geotools.scene.points import read_points, to_pixels
from iic_runtime import name_model, segment_raster

pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.skipif(PROGRAM is None, reason="needs Chromium"),
]
CLICKS = EXAMPLE.with_name("clicks.geojson")
NAMES = ("trees", "fields", "gravel", "town")
SIZE = 1280, 800


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with open_browser(tmp_path_factory.mktemp("profile")) as running:
        yield running


@pytest.fixture
def studio(tmp_path: Path, browser: Browser) -> Iterator[Studio]:
    with run_studio(EXAMPLE, "-o", tmp_path / "example") as running:
        browser.complaints.clear()
        browser.requests.clear()
        browser.open(running.address, *SIZE)
        yield running
        browser.call(
            "Page.navigate", url="about:blank"
        )  # the page would go on asking a studio that has ended


def count(browser: Browser) -> int:
    """The number of clicks that the page shows."""
    counts = "[...document.querySelectorAll('#classes .count')].map(each => parseInt(each.textContent))"
    return int(browser.evaluate(f"{counts}.reduce((sum, value) => sum + value, 0)"))


def add_class(browser: Browser, name: str) -> None:
    browser.evaluate("document.getElementById('name').focus()")
    browser.call("Input.insertText", text=name)
    press(browser, "Enter", "\r")
    browser.wait(f"document.querySelector('#classes li.chosen .name')?.textContent === '{name}'")


def press(browser: Browser, key: str, text: str = "") -> None:
    browser.call("Input.dispatchKeyEvent", type="keyDown", key=key, text=text)
    browser.call("Input.dispatchKeyEvent", type="keyUp", key=key)


def position(browser: Browser, column: float, row: float) -> tuple[float, float]:
    """Where the page shows a pixel of the example when all of the scene is shown."""
    width, height = browser.evaluate("[canvas.clientWidth, canvas.clientHeight]")
    with rasterio.open(EXAMPLE) as scene:
        scale = min(width / scene.width, height / scene.height)
        return width / 2 + (column - scene.width / 2) * scale, height / 2 + (row - scene.height / 2) * scale


def click(browser: Browser, x: float, y: float) -> None:
    """Click once, and wait until the page shows one click more."""
    before = count(browser)
    browser.mouse("mousePressed", x, y, clickCount=1)
    browser.mouse("mouseReleased", x, y, clickCount=1)
    for _ in range(600):
        if count(browser) == before + 1:
            return
        time.sleep(0.05)
    raise AssertionError((x, y, browser.evaluate("document.getElementById('status').textContent")))


def test_four_classes_by_twenty_clicks_give_the_map_of_the_commands(
    browser: Browser, studio: Studio, tmp_path: Path
) -> None:
    points = read_points(CLICKS)
    with rasterio.open(EXAMPLE) as scene:
        columns, rows = to_pixels(*points.on(scene.crs), GeoBox.of(scene))
    for name in NAMES:
        add_class(browser, name)
        chosen = [index for index, each in enumerate(points.classes) if each == name][:5]
        for index in chosen:
            click(browser, *position(browser, columns[index], rows[index]))
    assert count(browser) == 20
    browser.wait("document.getElementById('accuracy').textContent.includes('recognised')")
    browser.wait("document.body.dataset.milliseconds > 0")
    browser.evaluate("document.getElementById('map').click()")
    browser.wait("!document.getElementById('finished').hidden", 3000)
    assert browser.evaluate("document.querySelectorAll('#areas tr').length") == 4
    folder = tmp_path / "example"
    name_model(None, folder / "clicks.gpkg", EXAMPLE, tmp_path / "model.onnx")
    segment_raster(EXAMPLE, tmp_path / "map.tif", tmp_path / "model.onnx")
    assert (folder / "model.onnx").read_bytes() == (tmp_path / "model.onnx").read_bytes()
    assert (folder / "map.tif").read_bytes() == (tmp_path / "map.tif").read_bytes()
    assert browser.complaints == []
    served = [address for address in browser.requests if not address.startswith("data:")]
    assert served
    assert all(address.startswith(studio.address) for address in served)


def status(browser: Browser) -> str:
    return str(browser.evaluate("document.getElementById('status').textContent"))


def test_keys_pen_and_fingers(browser: Browser, studio: Studio) -> None:
    browser.evaluate("canvas.focus()")
    press(browser, "Enter")
    browser.wait("document.getElementById('status').textContent.includes('Add a class first')")
    add_class(browser, "trees")
    add_class(browser, "town")
    browser.evaluate("canvas.focus()")
    press(browser, "1", "1")
    browser.wait("document.querySelector('#classes li.chosen .name').textContent === 'trees'")
    press(browser, "Enter")  # at the cross, in the middle
    browser.wait("document.querySelector('#classes .count').textContent === '1'")
    press(browser, "ArrowRight")
    press(browser, "Enter")
    browser.wait("document.querySelector('#classes .count').textContent === '2'")
    press(browser, "u", "u")
    browser.wait("document.querySelector('#classes .count').textContent === '1'")
    first, second = (state["place"] for state in studio.state()["clicks"] * 2)
    assert first == second == [257.5, 201.5]
    middle = position(browser, 257.5 + 40 / 1.83, 201.5)
    browser.evaluate("document.querySelector('[data-zoom=\\'\\']').click()")
    x, y = position(browser, 257.5, 201.5)
    browser.mouse("mousePressed", x, y, clickCount=1)
    browser.mouse("mouseReleased", x, y, clickCount=1)
    browser.wait("!document.getElementById('delete').disabled")
    press(browser, "Delete")
    browser.wait("document.querySelector('#classes .count').textContent === '0'")
    browser.evaluate("document.getElementById('draw').click()")
    browser.mouse("mousePressed", *middle)
    for step in range(1, 11):
        browser.mouse("mouseMoved", middle[0] + 12 * step, middle[1])
    browser.mouse("mouseReleased", middle[0] + 120, middle[1])
    browser.wait("parseInt(document.querySelector('#classes .count').textContent) > 4")
    press(browser, "u", "u")
    browser.wait("document.querySelector('#classes .count').textContent === '0'")
    browser.evaluate("document.getElementById('draw').click()")
    click(browser, 5 + position(browser, 0, 0)[0], 300)
    browser.mouse("mousePressed", 300, 5, clickCount=1)  # above the scene
    browser.mouse("mouseReleased", 300, 5, clickCount=1)
    browser.wait("document.getElementById('status').textContent.includes('outside the scene')")
    assert count(browser) == 1
    assert browser.complaints == [
        "Failed to load resource: the server responded with a status of 409 (Conflict)"
    ]


def test_nothing_is_lost_by_who_is_faster_than_the_studio(browser: Browser, studio: Studio) -> None:
    names = ("trees", "town", "gravel")
    for name, places in zip(names, ([(60, 60)], [(220, 240)], [(330, 120), (420, 330)]), strict=True):
        browser.evaluate("document.getElementById('name').focus()")
        browser.call("Input.insertText", text=name)
        press(browser, "Enter", "\r")
        for column, row in places:
            x, y = position(browser, column, row)
            browser.mouse("mousePressed", x, y, clickCount=1)
            browser.mouse("mouseReleased", x, y, clickCount=1)
    browser.wait("document.querySelectorAll('#classes li').length === 3")
    browser.wait("document.querySelectorAll('#classes .count')[2].textContent[0] === '2'")
    assert [click["name"] for click in studio.state()["clicks"]] == [*names, "gravel"]
    assert browser.complaints == []


def test_places_are_suggested_again_after_a_click(browser: Browser, studio: Studio) -> None:
    for name, place in (("trees", [60, 60]), ("gravel", [330, 120])):
        studio.act("add", name=name, places=[place])
    browser.wait("!document.getElementById('map').disabled")
    browser.evaluate("document.getElementById('suggest').click()")
    browser.wait("document.getElementById('status').textContent.includes('would help')")
    asked = sum(address.endswith("/suggest") for address in browser.requests)
    click(browser, *position(browser, 220, 240))
    for _ in range(200):
        browser.evaluate("1")
        if sum(address.endswith("/suggest") for address in browser.requests) > asked:
            return
        time.sleep(0.05)
    raise AssertionError(browser.requests[-5:])


def test_a_tablet_in_portrait(browser: Browser, studio: Studio) -> None:
    browser.open(studio.address, 800, 1100, phone=True)
    assert browser.evaluate("canvas.clientWidth") == 800
    assert browser.evaluate("document.documentElement.scrollWidth") == 800
    add_class(browser, "trees")
    browser.touch("touchStart", (400, 300))
    browser.touch("touchEnd")
    browser.wait("document.querySelector('#classes .count').textContent === '1'")
    before = browser.evaluate(
        "document.getElementById('bar').textContent + document.getElementById('bar').style.width"
    )
    browser.touch("touchStart", (350, 300), (450, 300))
    browser.touch("touchMove", (250, 300), (550, 300))
    browser.touch("touchEnd")
    after = browser.evaluate(
        "document.getElementById('bar').textContent + document.getElementById('bar').style.width"
    )
    assert after != before
    assert count(browser) == 1
    heights = (
        "[...document.querySelectorAll('button, select')].map(each => each.offsetHeight).filter(Boolean)"
    )
    assert browser.evaluate(f"Math.min(...{heights})") >= 28


def test_every_control_has_a_name(browser: Browser, studio: Studio) -> None:
    assert browser.nameless_controls() == []


def test_questions_are_asked_without_showing_the_map(browser: Browser, studio: Studio) -> None:
    for name, places in (("trees", [(60, 60), (220, 240)]), ("gravel", [(330, 120), (420, 330)])):
        for column, row in places:
            studio.act("add", name=name, places=[[column, row]])
    browser.wait("!document.getElementById('map').disabled")
    browser.evaluate("document.getElementById('map').click()")
    browser.wait(
        "!document.getElementById('finished').hidden && !document.getElementById('ask').disabled", 3000
    )
    browser.evaluate("(document.getElementById('count').value = 10, document.getElementById('ask').click())")
    browser.wait("!document.getElementById('question').hidden")
    assert browser.evaluate("document.querySelector('#layers input:checked').value") == "none"
    for answered in range(1, 10):
        press(browser, "1", "1")
        browser.wait(f"document.getElementById('answered').textContent.startsWith('{answered} of 10')")
    press(browser, "u", "u")
    browser.wait("document.getElementById('asked').textContent.startsWith('Place 9 ')")
    press(browser, "2", "2")
    browser.wait("document.getElementById('asked').textContent.startsWith('Place 10 ')")
    for _ in range(100):
        if len({sample["name"] for sample in studio.state()["samples"][:9]}) == 2:
            break
        time.sleep(0.05)
    assert [sample["name"] for sample in studio.state()["samples"][:9]] == [*["gravel"] * 8, "trees"]
    press(browser, "u", "u")
    browser.evaluate("document.getElementById('answers').children[2].click()")  # cannot tell
    browser.wait("document.getElementById('answered').textContent.startsWith('8 of 10')")
    browser.evaluate("document.getElementById('answers').children[2].click()")  # cannot tell
    browser.wait("document.getElementById('question').hidden")
    browser.evaluate("document.getElementById('result').click()")
    browser.wait("document.getElementById('overall').textContent.includes('classified correctly')")


def test_what_the_bundled_model_has_not_seen_is_marked(browser: Browser, tmp_path: Path) -> None:
    scene, novelty = tmp_path / "scene.tif", tmp_path / "novelty.tif"
    with rasterio.open(EXAMPLE.with_name("sentinel2.tif")) as source:
        values, profile = source.read(), source.profile | {"driver": "GTiff"}
        names = source.descriptions
    values[0, 100:200, 200:400] = 9000  # nothing is that red
    with rasterio.open(scene, "w", **profile) as dataset:
        dataset.write(values)
        dataset.descriptions = names
    segment_raster(scene, tmp_path / "map.tif", novelty=novelty)
    with run_studio(scene, "-o", tmp_path / "folder") as running:
        browser.complaints.clear()
        browser.open(running.address, *SIZE)
        status, content, _ = running.request("api/0/labels/novelty/0/0/1/0")
        assert status == 200
        labels, measured = np.frombuffer(content, np.uint8).reshape(2, 256, 256)
        with rasterio.open(novelty) as dataset:
            assert np.array_equal(measured, dataset.read(1)[:256, 256:512])
        assert not labels.any()
        pink = (
            "[...canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data]"
            ".filter((value, index, all) => index % 4 === 0 "
            "&& value > 200 && all[index + 1] < 90 && all[index + 2] > 130).length"
        )
        assert browser.evaluate(pink) == 0
        assert browser.evaluate("document.getElementById('novelty').parentElement.offsetHeight > 0")
        browser.evaluate(
            "(document.getElementById('opacity').value = 0, document.getElementById('novelty').click())"
        )
        browser.wait(f"{pink} > 30000")
        x, y = browser.evaluate("[canvas.clientWidth / 2, canvas.clientHeight / 2]")
        browser.mouse("mouseMoved", x, y)
        browser.wait("document.getElementById('here').textContent.includes('has seen, 98 %')")
        # The test itself reads the canvas.
        assert [text for text in browser.complaints if "getImageData" not in text] == []
        browser.call("Page.navigate", url="about:blank")


def test_a_scene_of_unknown_reflectance_has_no_novelty(browser: Browser, studio: Studio) -> None:
    assert browser.evaluate("document.getElementById('novelty').parentElement.offsetHeight") == 0
    status, content, _ = studio.request("api/0/labels/novelty/0/0/0/0")
    assert status == 409
    assert b"no map novelty" in content


def test_a_page_that_is_left_sends_the_clicks_that_wait(browser: Browser, studio: Studio) -> None:
    """As on a machine so slow that the first click is not answered yet."""
    browser.evaluate(
        "(() => { window.sent = []; const real = fetch; window.fetch = (address, options) => options?.method === 'POST'"
        " ? (sent.push([address, options.keepalive]), new Promise(() => {})) : real(address, options); })()"
    )
    browser.evaluate("document.getElementById('name').focus()")
    browser.call("Input.insertText", text="water")
    press(browser, "Enter", "\r")
    for x in (300, 340):
        browser.mouse("mousePressed", x, 300, clickCount=1)
        browser.mouse("mouseReleased", x, 300, clickCount=1)
    assert len(browser.evaluate("sent")) == 1
    browser.evaluate("dispatchEvent(new Event('pagehide'))")
    sent = browser.evaluate("sent")
    assert [kept for _, kept in sent] == [False, True, True]
    assert all(address.endswith("/add") for address, _ in sent[1:])


def test_scenes_do_not_mix(browser: Browser, tmp_path: Path) -> None:
    scenes = [shutil.copy(EXAMPLE, tmp_path / name) for name in ("first.tif", "second.tif")]
    with run_studio(*scenes) as running:
        browser.complaints.clear()
        browser.open(running.address, *SIZE)
        for name, place in (("trees", [60, 60]), ("gravel", [330, 120])):
            running.act("add", name=name, places=[place])
        browser.wait("document.querySelectorAll('#classes li').length === 2")
        browser.mouse("mousePressed", 400, 300, clickCount=1)
        browser.mouse("mouseReleased", 400, 300, clickCount=1)
        browser.evaluate(
            "(document.getElementById('scenes').value = 1, document.getElementById('scenes').onchange())"
        )
        browser.wait("document.getElementById('title').textContent.startsWith('second.tif')")
        running.act("add_class", name="water")  # the page of the first scene would show it
        assert browser.evaluate("document.querySelectorAll('#classes li').length") == 0
        assert len(running.state()["clicks"]) == 3
        browser.evaluate(
            "(document.getElementById('scenes').value = 0, document.getElementById('scenes').onchange())"
        )
        browser.wait("document.querySelectorAll('#classes li').length === 3")
        assert browser.complaints == []
        browser.call("Page.navigate", url="about:blank")
