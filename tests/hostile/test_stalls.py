"""Servers that stall, and streams that are closed or full."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import rasterio.shutil
from support.scenes import landscape

MakeScene = Callable[..., Path]
COMMAND = (
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler);"
    "from iic_runtime.cli.segment_raster import main; main()"
)


class StallingServer:
    """Serves the beginning of a file, and then nothing more."""

    def __init__(self, content: bytes, whole: int) -> None:
        self.stalled, self.release = threading.Event(), threading.Event()
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_HEAD(self) -> None:
                if self.path == "/scene.tif":
                    self._head(len(content), 200)
                else:
                    self.send_error(404)

            def do_GET(self) -> None:
                if self.path != "/scene.tif":  # GDAL looks for sidecars and lists the folder
                    self.send_error(404)
                    return
                first, _, last = self.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")
                start, end = int(first), min(int(last or len(content)), len(content) - 1)
                if end > whole:
                    server.stalled.set()
                    server.release.wait(120)
                    return
                self._head(end - start + 1, 206, f"bytes {start}-{end}/{len(content)}")
                self.wfile.write(content[start : end + 1])

            def _head(self, length: int, code: int, place: str = "") -> None:
                self.send_response(code)
                self.send_header("Content-Length", str(length))
                self.send_header("Accept-Ranges", "bytes")
                self.send_header("ETag", '"1"')
                if place:
                    self.send_header("Content-Range", place)
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.http.server_port}/scene.tif"


@pytest.fixture
def server(make_scene: MakeScene) -> Iterator[StallingServer]:
    scene = make_scene(landscape(1000, 1000))
    # A file with its directory at the beginning, as those on servers are: it can be opened before anything stalls.
    rasterio.shutil.copy(scene, scene.with_name("cog.tif"), driver="COG", BLOCKSIZE=128, OVERVIEWS="NONE")
    content = scene.with_name("cog.tif").read_bytes()
    stalling = StallingServer(content, len(content) // 2)
    yield stalling
    stalling.release.set()
    stalling.http.shutdown()
    stalling.http.server_close()


def start(*arguments: object) -> "subprocess.Popen[str]":
    environment = os.environ | {"no_proxy": "127.0.0.1", "NO_PROXY": "127.0.0.1"}
    return subprocess.Popen(
        [sys.executable, "-c", COMMAND, *map(str, arguments)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )


def test_one_interrupt_ends_a_run_that_waits_for_a_server(
    server: StallingServer, model: Path, tmp_path: Path
) -> None:
    out = tmp_path / "map.tif"
    process = start(server.address, out, "--model", model, "--tile", 128, "--device", "cpu", "--threads", 1)
    assert server.stalled.wait(60)
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    _, output = process.communicate(timeout=15)  # GDAL itself gives up after 20 s
    assert process.returncode == 130, output
    assert "Interrupted." in output
    assert not out.exists()


@pytest.mark.slow
def test_a_server_that_stalls_is_a_sentence(
    server: StallingServer, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GDAL_HTTP_LOW_SPEED_TIME", "1")  # GDAL waits that long for each of several requests
    process = start(server.address, tmp_path / "map.tif", "--model", model, "--tile", 128, "--device", "cpu")
    _, output = process.communicate(timeout=120)
    assert process.returncode == 1, output
    assert output.splitlines()[-1].startswith("Error: Cannot read rows")


@pytest.mark.parametrize(
    "closed", ["2>&-", ">&- 2>&-", ">/dev/full 2>/dev/full", "--progress-json >/dev/full"]
)
def test_closed_and_full_streams_do_not_end_a_run(
    make_scene: MakeScene, model: Path, tmp_path: Path, closed: str
) -> None:
    scene = make_scene(landscape(40, 50))
    command = (
        f"{sys.executable} -c '{COMMAND}' {scene} {tmp_path}/map.tif --model {model} --device cpu {closed}"
    )
    assert subprocess.run(command, shell=True, executable="/bin/bash", check=False).returncode == 0
    assert (tmp_path / "map.tif").exists()
