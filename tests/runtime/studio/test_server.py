"""What the studio answers to pages, and whom it refuses."""

import json
import signal
import time
from pathlib import Path

import pytest
from support.studio import EXAMPLE, Studio, run_studio

from iic_runtime.studio import Session


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "example"


def teach(studio: Studio) -> None:
    for column, row in ((60, 60), (220, 240), (40, 300)):
        studio.act("add", name="trees", places=[[column, row]])
    for column, row in ((330, 120), (420, 330), (380, 60)):
        studio.act("add", name="gravel", places=[[column, row]])


def wait(studio: Studio, key: str) -> dict:
    for _ in range(600):
        state = studio.state()
        if state[key]:
            return state
        time.sleep(0.1)
    raise AssertionError(state)


def test_a_page_and_what_it_asks_for(folder: Path) -> None:
    with run_studio(EXAMPLE, "-o", folder) as studio:
        status, content, headers = studio.request("")
        assert status == 200
        assert b"<canvas" in content
        assert "default-src 'none'" in headers["content-security-policy"]
        for name, kind in (("studio.js", "text/javascript"), ("studio.css", "text/css")):
            status, _, headers = studio.request(name)
            assert (status, headers["content-type"].partition(";")[0]) == (200, kind)
        (scene,) = json.loads(studio.request("api/scenes")[1])
        assert (scene["width"], scene["height"]) == (515, 403)
        assert scene["composites"] == ["colour", "infrared"]
        status, content, headers = studio.request("api/0/picture/infrared/0/1/1")
        assert (status, headers["content-type"]) == (200, "image/jpeg")
        status, content, _ = studio.request("api/0/labels/bundled/0/0/0/0")
        assert (status, len(content)) == (200, 2 * 256 * 256)
        teach(studio)
        state = wait(studio, "settled")
        assert state["taught"] == ["gravel", "trees"]
        assert state["clicks"][0] == {"number": 1, "name": "trees", "place": [60.5, 60.5]}
        status, content, headers = studio.request(f"api/0/labels/taught/{state['fit']}/0/2/1")
        assert (status, len(content)) == (200, 2 * (403 - 256) * (515 - 512))
        assert headers["x-stamp"] == str(state["fit"])
        places = studio.act("suggest", tiles=[[0, 0, 0], [0, 1, 0]])["places"]
        assert all(0 <= column < 515 and 0 <= row < 403 for column, row in places)


def test_others_are_refused(folder: Path) -> None:
    with run_studio(EXAMPLE, "-o", folder) as studio:
        port = studio.parts.port
        for headers, status in (
            ({"Host": "evil.example"}, 403),
            ({"Host": f"evil.example:{port}"}, 403),
            ({"Host": f"localhost:{port}"}, 200),
            ({"Origin": "https://evil.example"}, 403),
            ({"Origin": "null"}, 403),
            ({"Origin": f"http://127.0.0.1:{port}"}, 200),
        ):
            assert studio.request("api/0/state", headers=headers)[0] == status, headers
        assert studio.request("api/0/undo", {}, {"Content-Type": "text/plain"})[0] == 415
        studio.parts = studio.parts._replace(path="/")
        for path in ("", "api/0/state", "wrong-token/", "wrong-token/api/0/state", "studio.js"):
            assert studio.request(path)[0] == 404, path


@pytest.mark.parametrize(
    "path",
    [
        "../../../../etc/passwd",
        "..%2f..%2fsession.py",
        "index.html",
        "session.py",
        "page/studio.js",
        "api/0/picture/..%2f..%2fetc/0/0/0",
        "api/0/picture//etc/passwd",
        "api/0/labels/map.tif/0/0/0/0",
        "api/7/state",
    ],
)
def test_no_other_file_is_served(path: str, studio: Studio) -> None:
    status, content, _ = studio.request(path)
    assert status in (404, 405, 409), content


@pytest.fixture(scope="module")
def studio(tmp_path_factory: pytest.TempPathFactory):  # type: ignore[no-untyped-def]
    with run_studio(EXAMPLE, "-o", tmp_path_factory.mktemp("studio") / "example") as running:
        yield running


def test_mistakes_are_sentences(studio: Studio) -> None:
    assert "outside the scene" in studio.refuse("add", name="trees", places=[[-5, 10]])
    assert "not a name" in studio.refuse("add_class", name="")
    assert "no class" in studio.refuse("remove_class", name="mud")
    assert "cannot fly" in studio.refuse("fly")
    assert "unknown or missing" in studio.refuse("add", places=[[1, 1]])
    assert "unknown or missing" in studio.refuse("add", name="trees", places=[["a", "b"]])
    assert "unknown or missing" in studio.refuse("add", name="trees", places=7)
    assert "unknown or missing" in studio.refuse("add", name=["trees"], places=[[1, 1]])
    assert "unknown or missing" in studio.refuse("remove", numbers=[float("inf")])
    assert "unknown or missing" in studio.refuse("suggest", tiles=[None])
    assert "outside the scene" in studio.refuse("add", name="a", places=[[1, 1], [1e15, 1]], stroke=True)
    assert "shorter" in studio.refuse("add", name="a", places=[[1, 1], [500, 1]] * 999, stroke=True)
    assert "Map the whole scene first" in studio.refuse("draw", count=10)
    status, content, _ = studio.request("api/0/labels/taught/0/0/99/99")
    assert status in (200, 409), content
    assert studio.state()["clicks"] == []


def test_numbers_and_requests_without_end(studio: Studio) -> None:
    for level in (10**12, 10**9, int("9" * 4000)):
        status, content, _ = studio.request(f"api/0/picture/colour/{level}/0/0")
        assert status in (404, 409), content
    status, content, _ = studio.request("api/0/undo", b"[" * 99_000)
    assert (status, json.loads(content)) == (409, {"error": "The request is not JSON."})


def test_files_damaged_meanwhile_leave_the_page(tmp_path: Path) -> None:
    with run_studio(EXAMPLE, "-o", tmp_path / "example") as studio:
        (tmp_path / "example" / "samples.gpkg").write_bytes(b"nonsense")
        teach(studio)
        assert studio.state()["samples"] == []
        assert studio.request("api/0/answer", {"number": 1, "name": "trees"})[0] == 409


def test_a_kill_loses_no_click(folder: Path) -> None:
    with run_studio(EXAMPLE, "-o", folder) as studio:
        teach(studio)
        studio.process.send_signal(signal.SIGKILL)
        studio.process.wait()
    with Session(EXAMPLE, folder) as session:
        assert len(session.clicks) == 6


def test_a_second_page_sees_the_same_session(folder: Path) -> None:
    from http.client import HTTPConnection

    with run_studio(EXAMPLE, "-o", folder) as studio:
        other = HTTPConnection(studio.parts.netloc, timeout=30)
        other.request("GET", f"{studio.parts.path}api/0/events")
        events = other.getresponse()

        def next_state() -> dict:
            while not (line := events.readline()).startswith(b"data: "):
                pass
            return dict(json.loads(line.removeprefix(b"data: ")))

        assert next_state()["clicks"] == []
        studio.act("add", name="trees", places=[[60, 60]])
        while not (clicks := next_state()["clicks"]):
            pass
        assert clicks[0]["name"] == "trees"
        other.close()


def test_mapping_reports_progress_and_ends(folder: Path) -> None:
    with run_studio(EXAMPLE, "-o", folder) as studio:
        teach(studio)
        assert studio.act("map")["job"] is not None
        finished = wait(studio, "finished")["finished"]
        assert [row["name"] for row in finished["areas"]] == ["gravel", "trees"]
        assert sum(row["share"] for row in finished["areas"]) == pytest.approx(1)
        assert studio.request("api/0/labels/finished/1/1/0/0")[0] == 200
        samples = studio.act("draw", count=12)["samples"]
        assert len(samples) == 12
        for sample in samples:
            studio.act("answer", number=sample["number"], name="trees")
        assessment = studio.act("assess")["assessment"]
        assert 0 <= assessment["overall"]["value"] <= 1


def test_a_port_that_is_taken_and_a_missing_scene(studio: Studio, tmp_path: Path) -> None:
    with (
        pytest.raises(AssertionError, match=r"port \d+ cannot be used .*; give another --port"),
        run_studio(EXAMPLE, "-o", tmp_path / "other", "--port", str(studio.parts.port)),
    ):
        pass
    with pytest.raises(AssertionError, match="There is no file"), run_studio(tmp_path / "none.tif"):
        pass
    assert not (tmp_path / "none.studio").exists()
