"""Pipes, sockets and devices where files are expected: one sentence at once, whoever holds the other end."""

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from support.hostile import check_result
from support.maps import make_classes, random_labels, write_map
from support.scenes import landscape, write_raster
from typer.testing import CliRunner

from iic_geotools.cli.map import app as map_app
from iic_runtime.cli.scenes import app as scenes_app
from iic_runtime.cli.segment_raster import app as segment_app

pytestmark = [pytest.mark.timeout(60), pytest.mark.skipif(os.name != "posix", reason="no pipes with names")]


def bind(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as end:
        end.bind(str(path))


KINDS: dict[str, Callable[[Path], None]] = {
    "pipe": os.mkfifo,
    "socket": bind,
    "device": lambda path: path.symlink_to("/dev/zero"),
}
COMMANDS = {
    "look": (scenes_app, "look odd"),
    "a mask": (segment_app, "scene.tif out.tif --mask odd:1"),
    "a band": (scenes_app, "look product"),
    "a sidecar": (scenes_app, "look scene.tif"),
    "an area of interest": (segment_app, "scene.tif out.tif --aoi odd"),
    "zones": (map_app, "stats map.tif odd out.csv"),
    "a map": (map_app, "clean odd out.tif --majority 1"),
    "a grid": (map_app, "change map.tif map.tif out.tif --like odd"),
    "labels of samples": (map_app, "assess map.tif odd"),
}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_file(kind: str, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_raster(Path("scene.tif"), landscape(60, 70))
    write_map(Path("map.tif"), random_labels(60, 70, 3, patch=5), classes=make_classes(3))
    odd = Path("odd")
    if command == "a band":
        Path("product").mkdir()
        for name in ("B02", "B03", "B08"):
            write_raster(Path(f"product/S_{name}.tif"), landscape(60, 70, 1))
        odd = Path("product/S_B04.tif")
    elif command == "a sidecar":
        odd = Path("scene.tif.msk")
    KINDS[kind](odd)
    before = {entry.name for entry in tmp_path.iterdir()}
    app, words = COMMANDS[command]
    result = CliRunner().invoke(app, words.split())
    check_result(result, tmp_path, before, f"{command}: {kind}\n{result.output}")
    assert result.exit_code == 1
