"""The examples for pipelines: a folder that is watched, and the orthophoto of a WebODM task."""

import json
import os
import runpy
import shutil
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import numpy as np
import pytest
import rasterio
from rasterio.transform import from_origin
from support.scenes import landscape

ROOT = Path(__file__).resolve().parent.parent
TASK = "/api/projects/1/tasks/4a5b-6c/download/orthophoto.tif"


@pytest.fixture
def orthophoto(tmp_path: Path) -> Path:
    """Three bands and an alpha band, tiled and compressed, with pixels of 5 cm, as OpenDroneMap writes them."""
    path = tmp_path / "odm_orthophoto.tif"
    alpha = np.full((1, 300, 400), 255, np.uint8)
    alpha[..., :40] = 0
    options: dict[str, Any] = {"tiled": True, "blockxsize": 512, "blockysize": 512, "compress": "deflate"}
    options |= {"photometric": "RGB", "alpha": "YES", "crs": "EPSG:32633"}
    options["transform"] = from_origin(500000, 5400000, 0.05, 0.05)
    with rasterio.open(
        path, "w", driver="GTiff", width=400, height=300, count=4, dtype="uint8", **options
    ) as dataset:
        dataset.write(np.concatenate([landscape(300, 400)[:3], alpha]))
    return path


def test_the_orthophoto_of_a_webodm_task_is_mapped(orthophoto: Path, tmp_path: Path) -> None:
    asked: list[str] = []

    class WebOdm(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
            known = self.path == "/api/token-auth/" and form == {"username": ["me"], "password": ["secret"]}
            self.answer(json.dumps({"token": "abc"}).encode() if known else None)

        def do_GET(self) -> None:
            asked.append(self.path)
            known = self.path == TASK and self.headers["Authorization"] == "JWT abc"
            self.answer(orthophoto.read_bytes() if known else None)

        def answer(self, content: bytes | None) -> None:
            self.send_response(404 if content is None else 200)
            self.end_headers()
            self.wfile.write(content or b"")

        def log_message(self, *_: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), WebOdm)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        map_task = runpy.run_path(str(ROOT / "examples/webodm.py"))["map_task"]
        arguments = (
            f"http://127.0.0.1:{server.server_port}",
            "1",
            "4a5b-6c",
            "me",
            "secret",
            tmp_path / "out",
        )
        first, second = map_task(*arguments), map_task(*arguments)
    finally:
        server.shutdown()
        server.server_close()
    assert asked == [TASK]
    assert (first.made_before, second.made_before) == (False, True)
    with rasterio.open(tmp_path / "out/map.tif") as result:
        labels = result.read(1)
    assert (labels[:, :40] == 255).all()
    assert (labels[:, 40:] != 255).all()
    names = {"orthophoto.tif", "areas.csv", "map.gpkg", "map.html", "map.json", "map.tif"}
    assert names <= {path.name for path in (tmp_path / "out").iterdir()}


@pytest.mark.skipif(os.name != "posix", reason="a shell script")
def test_a_watched_folder(orthophoto: Path, tmp_path: Path) -> None:
    commands, incoming, maps = (tmp_path / name for name in ("bin", "incoming", "maps"))
    for folder in (commands, incoming):
        folder.mkdir()
    program = commands / "iic-segment-raster"
    program.write_text(f"#!{sys.executable}\nfrom iic_runtime.cli.segment_raster import main\nmain()\n")
    program.chmod(0o755)
    environment = {**os.environ, "PATH": f"{commands}{os.pathsep}{os.environ['PATH']}", "PAUSE": "0.2"}
    command = ["sh", str(ROOT / "deploy/watch.sh"), str(incoming), str(maps), "--sieve", "1"]
    watch = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, start_new_session=True)
    try:
        for name in ("first", "second"):
            shutil.copy(orthophoto, incoming / f"{name}.part")
            (incoming / f"{name}.part").rename(incoming / f"{name}.tif")
            expected = maps / f"{name}.tif"
            while not expected.exists():
                assert watch.poll() is None
                time.sleep(0.1)
    finally:
        os.killpg(watch.pid, 9)
        watch.communicate()
