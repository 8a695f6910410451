"""Killed at any moment, the same command goes on, and the map is the one of a run that was left alone."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import rasterio
from conftest import landscape
from tiny_onnx import make_model

from iic_runtime import job, segment_raster

MakeScene = Callable[..., Path]
# Small parts, so that a small scene has many; and what a shell starts in the background is deaf to SIGINT.
COMMAND = (
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler);"
    "import iic_runtime.job as job; job.PART_PIXELS = 8 * 64 * 64;"
    "from iic_runtime.cli.segment_raster import main; main()"
)


def start(*arguments: object, listen: bool = False) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", COMMAND, *map(str, arguments)],
        text=True,
        stdout=subprocess.PIPE if listen else subprocess.DEVNULL,
        stderr=subprocess.STDOUT if listen else None,
    )


@pytest.fixture
def slow_scene(make_scene: MakeScene) -> Path:
    return make_scene(landscape(900, 1000), compress="deflate")


@pytest.mark.slow
def test_killed_at_random_moments(slow_scene: Path, model: Path, tmp_path: Path) -> None:
    whole, out = tmp_path / "whole.tif", tmp_path / "map.tif"
    extras = ("--confidence", tmp_path / "c.tif")
    arguments = (slow_scene, out, "--model", model, "--tile", 64, "--device", "cpu", "--threads", 1, *extras)
    undisturbed = start(slow_scene, whole, "--model", model, "--tile", 64, "--device", "cpu", "--threads", 1)
    begun = time.monotonic()
    assert undisturbed.wait() == 0
    usual = time.monotonic() - begun

    chance = random.Random(0)
    process = start(*arguments)
    while not parts(out) and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not out.exists()
    kills = 1
    while kills < 40:
        process = start(*arguments)
        try:
            process.wait(chance.uniform(0.3, 1.05) * usual)
            assert process.returncode == 0
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
            kills += 1
        if out.exists():  # then it is whole, whenever the process ended
            break
    assert out.read_bytes() == whole.read_bytes()


class Stop(Exception):
    pass


def stop_after(tiles: int) -> Callable[[object], None]:
    seen = 0

    def progress(moment: object) -> None:
        nonlocal seen
        seen += 1
        if seen > tiles:
            raise Stop

    return progress


def parts(out: Path) -> set[str]:
    return {path.name for path in (out.parent / f"{out.name}.parts").glob("labels-*.tif")}


@pytest.fixture
def interrupted(
    slow_scene: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Path]:
    monkeypatch.setattr(job, "PART_PIXELS", 8 * 64 * 64)
    out = tmp_path / "map.tif"
    with pytest.raises(Stop):
        segment_raster(slow_scene, out, model, tile=64, device="cpu", progress=stop_after(60))
    assert len(parts(out)) >= 4
    assert not out.exists()
    return out


def test_parts_are_taken_up_again(slow_scene: Path, model: Path, interrupted: Path) -> None:
    before = parts(interrupted)
    summary = segment_raster(slow_scene, interrupted, model, tile=64, device="cpu", threads=1, batch=3)
    assert summary.parts_reused == len(before)
    assert summary.tiles_run + 8 * len(before) >= 15 * 16
    assert summary.tiles_run < 15 * 16


def test_parts_of_other_work_are_never_taken(
    slow_scene: Path, model: Path, interrupted: Path, tmp_path: Path
) -> None:
    def reused(scene: Path = slow_scene, model: Path = model, **options: object) -> int:
        with pytest.raises(Stop):
            segment_raster(
                scene, interrupted, model, **{"tile": 64, "device": "cpu"} | options, progress=count
            )
        return resumed[-1]

    resumed: list[int] = []

    def count(moment: object) -> None:
        resumed.append(len(parts(interrupted)))
        raise Stop

    other = tmp_path / "other.onnx"
    other.write_bytes(make_model(seed=1))
    folder = interrupted.parent / f"{interrupted.name}.parts"
    kept = {path.name: path.read_bytes() for path in folder.iterdir()}

    def restore() -> None:
        folder.mkdir(exist_ok=True)
        for name, content in kept.items():
            (folder / name).write_bytes(content)

    assert reused() == len(parts(interrupted)) > 0
    for change in (
        {"model": other},
        {"tile": 32},
        {"nodata": 3},
        {"rescale": "0,200"},
        {"rescale": "auto"},
        {"bands": ["4", "3", "2", "1"]},
        {"bounds": (500000, 5399900, 500100, 5400000)},
        {"confidence": tmp_path / "c.tif"},
        {"resume": False},
    ):
        restore()
        assert reused(**change) == 0, change
    restore()
    os.utime(slow_scene, ns=(0, 0))
    assert reused() == 0, "the scene was written again"


def test_ctrl_c_says_how_to_go_on(slow_scene: Path, model: Path, tmp_path: Path) -> None:
    out = tmp_path / "map.tif"
    process = start(
        slow_scene, out, "--model", model, "--tile", 64, "--device", "cpu", "--progress-json", listen=True
    )
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("{") and json.loads(line)["done"] > 200_000:
            process.send_signal(signal.SIGINT)
            break
    told = process.stdout.read()
    process.stdout.close()
    assert process.wait() == 130, told
    assert "the same command goes on from there" in told
    assert not out.exists()
    assert start(slow_scene, out, "--model", model, "--tile", 64, "--device", "cpu").wait() == 0


@pytest.mark.parametrize("placed", [0, 1, 2])
def test_killed_while_results_are_put_in_place(
    slow_scene: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, placed: int
) -> None:
    from iic_runtime import finish

    options = {"device": "cpu", "confidence": tmp_path / "c.tif", "tile": 256}
    put = finish.put_in_place
    count = iter(range(100))

    def put_some(made: Path, final: Path) -> None:
        if next(count) >= placed:
            raise Stop
        put(made, final)

    monkeypatch.setattr(finish, "put_in_place", put_some)
    with pytest.raises(Stop):
        segment_raster(slow_scene, tmp_path / "map.tif", model, **options)
    monkeypatch.undo()
    segment_raster(slow_scene, tmp_path / "map.tif", model, **options)
    assert sorted(path.name for path in tmp_path.glob("*.tif*")) == [
        "c.tif",
        "map.tif",
        "map.tif.aux.xml",
        "scene.tif",
    ]
    with pytest.raises(OSError, match=r"map.tif exists; .*--overwrite"):
        segment_raster(slow_scene, tmp_path / "map.tif", model, **options)


def test_two_runs_of_one_map_do_not_mix(slow_scene: Path, model: Path, tmp_path: Path) -> None:
    out = tmp_path / "map.tif"
    first = start(slow_scene, out, "--model", model, "--tile", 64, "--device", "cpu", "--threads", 1)
    folder = tmp_path / "map.tif.parts"
    while not (folder / "manifest.json").exists() and first.poll() is None:
        time.sleep(0.01)
    with pytest.raises(OSError, match="Another run holds"):
        segment_raster(slow_scene, out, model, tile=64, device="cpu")
    assert first.wait() == 0
    assert out.exists()


def test_a_failed_run_without_parts_leaves_nothing(slow_scene: Path, model: Path, tmp_path: Path) -> None:
    with pytest.raises(Stop):
        segment_raster(slow_scene, tmp_path / "map.tif", model, tile=64, device="cpu", progress=stop_after(0))
    assert not list(tmp_path.glob("map.tif*"))


def test_the_manifest_is_plain_data(slow_scene: Path, interrupted: Path) -> None:
    manifest = json.loads((interrupted.parent / f"{interrupted.name}.parts" / "manifest.json").read_text())
    assert manifest["source"]["bidx"] == [1, 2, 3, 4]
    assert manifest["files"][0][0] == str(slow_scene)
    assert np.isfinite(manifest["files"][0][2])


def test_regridded_parts_of_another_area_are_not_taken(
    make_scene: MakeScene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the model's resolution two areas may be one; on the scene's own grid they are not."""
    from iic_runtime import segment

    model = tmp_path / "model.onnx"
    model.write_bytes(make_model(gsd=1.0))
    scene = make_scene(landscape(80, 100))
    first = (500000.0, 5399960.0, 500049.5, 5400000.0)
    second = (500000.0, 5399960.0, 500050.0, 5400000.0)
    options = {"device": "cpu", "match_gsd": True}
    segment_raster(scene, tmp_path / "whole.tif", model, bounds=second, **options)

    def stop(*_: object) -> None:
        raise Stop

    with monkeypatch.context() as patched:
        patched.setattr(segment, "finish", stop)
        with pytest.raises(Stop):
            segment_raster(scene, tmp_path / "map.tif", model, bounds=first, **options)
    assert (tmp_path / "map.tif.parts").exists()
    segment_raster(scene, tmp_path / "map.tif", model, bounds=second, **options)
    with rasterio.open(tmp_path / "map.tif") as made, rasterio.open(tmp_path / "whole.tif") as whole:
        assert np.array_equal(made.read(), whole.read())
    kept = segment_raster(scene, tmp_path / "whole.tif", model, bounds=second, keep=True, **options)
    assert kept.made_before
    with pytest.raises(OSError, match="--overwrite"):
        segment_raster(scene, tmp_path / "whole.tif", model, bounds=first, keep=True, **options)
