"""Kills at any moment: what stands under the map's name is whole or absent, and trainings end as if undisturbed."""

import json
import os
import random
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from support.runs import bright_and_dark_fields, train_on
from support.scenes import landscape, write_points, write_raster

MakeScene = Callable[..., Path]
FORKS = """
import json, os, sys
import onnxruntime
import iic_geotools.classmap.cog, iic_runtime.raster.plan, iic_runtime.raster.segment
from iic_runtime.cli.segment_raster import main
iic_runtime.raster.plan.PART_PIXELS = 4 * 64 * 64
while line := sys.stdin.readline():
    child = os.fork()
    if child == 0:
        sys.argv[1:] = json.loads(line)
        try:
            main()
        except SystemExit as end:
            os._exit(end.code)  # ONNX Runtime would wait for a thread that forks do not have
    print(child, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
"""Runs the command in forks of a process that has imported everything, so that kills hit its work, not its start."""
KILLS = 50


class Command:
    """Runs of the command, one after the other."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self._process = process

    def run(self, *arguments: object, kill_after: float | None = None) -> int:
        """Run the command, and return its exit code; -9 if it was killed after so many seconds."""
        commands, answers = self._process.stdin, self._process.stdout
        commands.write(json.dumps([*map(str, arguments)]).encode() + b"\n")
        child = int(answers.readline())
        if kill_after is not None and not select.select([answers.fileno()], [], [], kill_after)[0]:
            os.kill(child, signal.SIGKILL)
        return int(answers.readline())


@pytest.fixture
def command() -> Iterator[Command]:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen([sys.executable, "-c", FORKS], bufsize=0, **pipes) as process:  # type: ignore[call-overload]
        yield Command(process)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.skipif(not hasattr(os, "fork"), reason="Windows has no forks")
def test_fifty_kills(command: Command, make_scene: MakeScene, model: Path, tmp_path: Path) -> None:
    scene = make_scene(landscape(500, 600), compress="deflate")
    options = ("--model", model, "--tile", 64, "--device", "cpu", "--threads", 1, "-q")
    usual = 60.0
    for _ in range(2):
        begun = time.monotonic()
        assert command.run(scene, tmp_path / "whole.tif", *options, "--overwrite") == 0
        usual = min(usual, time.monotonic() - begun)
    whole = (tmp_path / "whole.tif").read_bytes()
    chance = random.Random(0)
    kills = finished = 0
    while kills < KILLS:
        out = tmp_path / f"map{finished}.tif"
        complete = out.exists()
        code = command.run(scene, out, *options, kill_after=chance.uniform(0, 1.0) * usual)
        if code == -signal.SIGKILL:
            kills += 1
        else:
            # A run that was killed after its last step has nothing left to do, and refuses to replace the map.
            assert code == 0 or complete
            finished += 1
        if out.exists():
            assert out.read_bytes() == whole
    last = tmp_path / f"map{finished}.tif"
    assert command.run(scene, last, *options, "--overwrite") == 0
    assert last.read_bytes() == whole
    left = {path.name for path in tmp_path.glob("map*")}
    assert not {name for name in left if name.endswith(".parts")}


SHORT = "--epochs 3 --device cpu --seed 1 --name r"
TRAININGS = {
    "rasters": f"rasters fields.tif --classes 3 --network edge-8 --size 32 --batch 4 --radius 1 --steps 12 {SHORT}",
    "finetune": f"finetune runs/fields --labels fields.gpkg --mode network --folds 0 --steps 2 {SHORT}",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", TRAININGS)
def test_a_killed_training_resumes_to_the_same_weights(name: str, tmp_path: Path) -> None:
    values, bright = bright_and_dark_fields(96, 96)
    fields = write_raster(tmp_path / "fields.tif", values)
    rows, columns = np.random.default_rng(0).integers(0, 96, (2, 20))
    kinds = ["bright" if is_bright else "dark" for is_bright in bright[rows, columns]]
    write_points(tmp_path / "fields.gpkg", rows, columns, kinds)
    train_on(fields, tmp_path / "runs")

    def start(line: str) -> "subprocess.Popen[bytes]":
        code = "from iic_train.cli import main; main()"
        return subprocess.Popen([sys.executable, "-c", code, *line.split(), "-q"], cwd=tmp_path)

    assert start(f"{TRAININGS[name]} --runs whole").wait() == 0
    process, state = start(f"{TRAININGS[name]} --runs killed"), tmp_path / "killed" / "r" / "state.pt"
    while process.poll() is None and not state.exists():
        time.sleep(0.001)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    assert len((state.parent / "metrics.jsonl").read_text().splitlines()) < 3
    assert start("resume killed/r").wait() == 0
    for weights in ("best", "last"):
        whole, resumed = (
            load_file(tmp_path / run / "r" / f"{weights}.safetensors") for run in ("whole", "killed")
        )
        assert whole.keys() == resumed.keys()
        assert all(torch.equal(whole[key], resumed[key]) for key in whole)
