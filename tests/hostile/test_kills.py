"""Fifty kills at random moments: every time, what stands under the map's name is whole or absent."""

import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support.scenes import landscape

MakeScene = Callable[..., Path]
COMMAND = (
    "import iic_runtime.raster.plan as plan; plan.PART_PIXELS = 4 * 64 * 64;"
    "from iic_runtime.cli.segment_raster import main; main()"
)
KILLS = 50


def start(*arguments: object) -> "subprocess.Popen[bytes]":
    return subprocess.Popen([sys.executable, "-c", COMMAND, *map(str, arguments)], stderr=subprocess.DEVNULL)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_fifty_kills(make_scene: MakeScene, model: Path, tmp_path: Path) -> None:
    scene = make_scene(landscape(500, 600), compress="deflate")
    options = ("--model", model, "--tile", 64, "--device", "cpu", "--threads", 1, "-q")
    begun = time.monotonic()
    assert start(scene, tmp_path / "whole.tif", *options).wait() == 0
    usual = time.monotonic() - begun
    whole = (tmp_path / "whole.tif").read_bytes()
    chance = random.Random(0)
    kills = finished = 0
    while kills < KILLS:
        out = tmp_path / f"map{finished}.tif"
        complete = out.exists()
        process = start(scene, out, *options)
        try:
            # A run that was killed after its last step has nothing left to do, and refuses to replace the map.
            assert process.wait(chance.uniform(0.2, 1.0) * usual) == 0 or complete
            finished += 1
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
            kills += 1
        if out.exists():
            assert out.read_bytes() == whole
    last = tmp_path / f"map{finished}.tif"
    assert start(scene, last, *options, "--overwrite").wait() == 0
    assert last.read_bytes() == whole
    left = {path.name for path in tmp_path.glob("map*")}
    assert not {name for name in left if name.endswith(".parts")}
