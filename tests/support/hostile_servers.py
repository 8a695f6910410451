"""Web servers that lie, stall, drip or break off, and what must hold for whoever reads from them."""

import atexit
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch
from urllib.parse import quote

import numpy as np
import rasterio
from hypothesis import strategies as st
from typer.testing import CliRunner

from iic_geotools import addresses
from iic_runtime.cli import model as model_commands
from iic_runtime.cli import scenes as scene_commands
from iic_runtime.cli import segment_raster as segment_command
from iic_runtime.model.remote import address as downloads
from support import lying_server
from support.hostile import check_result
from support.scenes import landscape, write_raster
from support.tiny_onnx import make_model

READERS = {
    "model": (model_commands, "get {}/m.onnx"),
    "index": (model_commands, "list --index {}/index.json"),
    "model of an index": (model_commands, "get forest --index {}/index.json"),
    "scene": (segment_command, "{}/scene.tif =map.tif --model @m.onnx --device cpu --threads 1 -q --tile 64"),
    "look": (scene_commands, "look {}/scene.tif"),
    "item": (segment_command, "{}/item.json =map.tif --model @m.onnx --device cpu --threads 1 -q"),
    "search": (
        scene_commands,
        "search =found.json --api {}/api.json --collection c --bbox 0,0,1,1 --dates 2024",
    ),
}
_USERS = count()
_SLOW = {"GDAL_HTTP_LOW_SPEED_TIME": "1", "GDAL_HTTP_CONNECTTIMEOUT": "1", "GDAL_HTTP_MAX_RETRY": "1",
         "GDAL_HTTP_RETRY_DELAY": "0.1", "GDAL_HTTP_LOW_SPEED_LIMIT": "50", "no_proxy": "127.0.0.1",
         "NO_PROXY": "127.0.0.1", "VSI_CACHE": "FALSE"}  # fmt: skip


@dataclass(frozen=True)
class ServerCase:
    """Who reads, the lie, and from which request on it is told."""

    reader: str
    lie: str
    after: int


def server_cases() -> st.SearchStrategy[ServerCase]:
    """Servers that begin to lie at some request."""
    return st.builds(
        ServerCase,
        reader=st.sampled_from(list(READERS)),
        lie=st.sampled_from(lying_server.LIES),
        after=st.sampled_from([0, 0, 0, 1, 2, 5]),
    )


@cache
def _files() -> dict[str, bytes]:
    model = make_model(gsd=0.5, name="forest")
    with TemporaryDirectory() as folder:
        scene = write_raster(
            Path(folder) / "scene.tif", landscape(300, 320), tiled=True, blockxsize=64, blockysize=64
        )
        content = scene.read_bytes()
    item: dict[str, Any] = {
        "type": "Feature", "stac_version": "1.0.0", "id": "i", "geometry": None, "links": [],
        "properties": {"datetime": "2024-06-12T10:56:00Z"},
        "assets": {"image": {"href": "./scene.tif", "roles": ["data"], "type": "image/tiff; application=geotiff"}},
    }  # fmt: skip
    search = {"rel": "search", "href": "search", "type": "application/geo+json", "method": "GET"}
    parts = ["core", "item-search"]
    api = {
        "type": "Catalog",
        "id": "x",
        "stac_version": "1.0.0",
        "description": "x",
        "links": [search],
        "conformsTo": [f"https://api.stacspec.org/v1.0.0/{part}" for part in parts],
    }
    return {
        "m.onnx": model,
        "scene.tif": content,
        "item.json": json.dumps(item).encode(),
        "api.json": json.dumps(api).encode(),
        "index.json": _index(model),
    }


def _index(model: bytes) -> bytes:
    with TemporaryDirectory() as folder:
        (Path(folder) / "m.onnx").write_bytes(model)
        out = Path(folder) / "index.json"
        result = CliRunner().invoke(model_commands.app, ["index", f"{folder}/m.onnx", "-o", str(out)])
        assert not result.exit_code, result.output
        return out.read_bytes()


@cache
def _server() -> str:
    """Start the server, which ends with this process, and return its address."""
    folder = TemporaryDirectory()
    for name, content in _files().items():
        (Path(folder.name) / name).write_bytes(content)
    command = [sys.executable, lying_server.__file__, folder.name]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert process.stdout is not None
    atexit.register(process.communicate)
    atexit.register(folder.cleanup)
    return f"http://127.0.0.1:{process.stdout.readline().strip()}"


def check_server(case: ServerCase, folder: Path) -> bool:
    """Read from a server: what is taken is right, all else is one sentence. Return whether it was taken.

    Raises:
        AssertionError: It is neither.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "m.onnx").write_bytes(_files()["m.onnx"])
    module, words = READERS[case.reader]
    environment = _SLOW | {"IIC_CACHE": str(folder / "cache")}
    (folder / "cache").mkdir()
    before = {entry.name for entry in folder.iterdir()}
    address = f"{_server()}/{quote(case.lie)}/{case.after}/{next(_USERS)}"
    limits: dict[str, Any] = {"TIMEOUT": 1.0, "LONGEST": 5.0}
    small: dict[str, Any] = {"LARGEST": 1 << 22, "RETRY_AFTER": (0.1,)}
    with (
        patch.dict(os.environ, environment),
        patch.multiple(addresses, **limits, **small),
        patch.multiple(downloads, **limits),
    ):
        folders = {"@": folder, "=": folder}
        arguments = [
            str(folders[word[0]] / word[1:]) if word[0] in folders else word
            for word in words.format(address).split()
        ]
        result = CliRunner().invoke(module.app, arguments)
    context = f"{case}\n{result.output}"
    check_result(result, folder, before, context)
    kept = [path for path in (folder / "cache").rglob("*") if path.suffix == ".onnx"]
    assert all(path.read_bytes() == _files()["m.onnx"] for path in kept), context
    if (folder / "map.tif").exists():
        with rasterio.open(folder / "map.tif") as dataset:
            assert np.array_equal(dataset.read(1), _expected(folder)), context
    return not result.exit_code


def _expected(folder: Path) -> np.ndarray:
    (folder / "scene.tif").write_bytes(_files()["scene.tif"])
    words = [str(folder / "scene.tif"), str(folder / "expected.tif"), "--model", str(folder / "m.onnx")]
    result = CliRunner().invoke(segment_command.app, [*words, "--device", "cpu", "--threads", "1", "-q"])
    assert not result.exit_code, result.output
    with rasterio.open(folder / "expected.tif") as dataset:
        return np.asarray(dataset.read(1))
