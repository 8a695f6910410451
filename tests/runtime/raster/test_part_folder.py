"""A run that is killed at any moment resumes, and its map equals that of an undisturbed run."""

import json
import os
import random
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import rasterio
from support.scenes import landscape
from support.tiny_onnx import make_model

from iic_geotools.errors import OutputError, SceneError
from iic_runtime import segment_raster
from iic_runtime.raster import plan
from iic_runtime.raster.part_folder import PartFolder

MakeScene = Callable[..., Path]
# Small parts, so that a small scene has many; and what a shell starts in the background is deaf to SIGINT.
COMMAND = (
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler);"
    "import iic_runtime.raster.plan as plan; plan.PART_PIXELS = 8 * 64 * 64;"
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
def interrupted(slow_scene: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(plan, "PART_PIXELS", 8 * 64 * 64)
    out = tmp_path / "map.tif"
    with pytest.raises(Stop):
        segment_raster(slow_scene, out, model, tile=64, device="cpu", progress=stop_after(60))
    assert len(parts(out)) >= 4
    assert not out.exists()
    return out


def test_parts_are_reused(slow_scene: Path, model: Path, interrupted: Path) -> None:
    before = parts(interrupted)
    summary = segment_raster(slow_scene, interrupted, model, tile=64, device="cpu", threads=1, batch=3)
    assert summary.parts_reused == len(before)
    assert summary.tiles_run + 8 * len(before) >= 15 * 16
    assert summary.tiles_run < 15 * 16


def test_parts_of_another_plan_are_never_reused(
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


def test_parts_of_another_scene_in_the_same_archive_are_not_reused(
    slow_scene: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "PART_PIXELS", 8 * 64 * 64)
    archive, out = tmp_path / "scenes.zip", tmp_path / "map.tif"
    options = {"tile": 64, "device": "cpu"}

    def pack(values: np.ndarray) -> None:
        with rasterio.open(slow_scene, "r+") as dataset:
            dataset.write(values)
        with zipfile.ZipFile(archive, "w") as file:
            file.write(slow_scene, "scene.tif")

    pack(landscape(900, 1000))
    with pytest.raises(Stop):
        segment_raster(f"zip://{archive}!scene.tif", out, model, **options, progress=stop_after(60))
    pack(landscape(900, 1000, seed=1))
    summary = segment_raster(f"zip://{archive}!scene.tif", out, model, **options)
    assert summary.parts_reused == 0


def test_a_scene_that_cannot_be_identified_is_never_resumed(
    slow_scene: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "PART_PIXELS", 8 * 64 * 64)
    monkeypatch.setattr(plan, "identify_sources", lambda path, files: None)
    out = tmp_path / "map.tif"
    with pytest.raises(Stop):
        segment_raster(slow_scene, out, model, tile=64, device="cpu", progress=stop_after(60))
    assert not list(tmp_path.glob("map.tif*")), "parts that no run may use are kept"
    segment_raster(slow_scene, out, model, tile=64, device="cpu")
    with pytest.raises(OSError, match="`overwrite`"):
        segment_raster(slow_scene, out, model, tile=64, device="cpu", keep=True)


@pytest.mark.parametrize("workers", [None, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("rename", [False, True])
def test_a_scene_that_changes_during_a_run_fails_it(
    slow_scene: Path, model: Path, tmp_path: Path, workers: int | None, rename: bool
) -> None:
    out, other = tmp_path / "map.tif", tmp_path / "other.tif"
    changed = False

    def change(moment: object) -> None:
        nonlocal changed
        if changed:
            return
        changed = True
        other.write_bytes(slow_scene.read_bytes())
        if rename:
            status = slow_scene.stat()
            os.utime(other, ns=(status.st_atime_ns, status.st_mtime_ns))
            other.replace(slow_scene)
        else:
            slow_scene.write_bytes(other.read_bytes())

    with pytest.raises(SceneError, match=r"scene.tif changed while it was being mapped.* again"):
        segment_raster(slow_scene, out, model, tile=256, device="cpu", workers=workers, progress=change)
    assert not list(tmp_path.glob("map.tif*"))


def cut(part: Path) -> None:
    part.write_bytes(b"")


def shorten(part: Path) -> None:
    part.write_bytes(part.read_bytes()[:-1])


def flip(part: Path) -> None:
    content = bytearray(part.read_bytes())
    content[len(content) // 2] ^= 1
    part.write_bytes(content)


@pytest.mark.parametrize("damage", [cut, shorten, flip])
def test_a_damaged_part_is_made_again(
    slow_scene: Path,
    model: Path,
    interrupted: Path,
    damage: Callable[[Path], None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    whole = segment_raster(slow_scene, interrupted.with_name("whole.tif"), model, tile=64, device="cpu").map
    part = interrupted.with_name(f"{interrupted.name}.parts") / sorted(parts(interrupted))[1]
    damage(part)
    segment_raster(slow_scene, interrupted, model, tile=64, device="cpu")
    assert f"{part} is damaged and is made again" in caplog.text
    assert interrupted.read_bytes() == whole.read_bytes()


def test_ctrl_c_says_how_to_resume(slow_scene: Path, model: Path, tmp_path: Path) -> None:
    out = tmp_path / "map.tif"
    process = start(
        slow_scene, out, "--model", model, "--tile", 64, "--device", "cpu", "--progress-json", listen=True
    )
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("{") and json.loads(line)["done"] > 200_000:
            process.send_signal(signal.SIGINT)
            break
    output = process.stdout.read()
    process.stdout.close()
    assert process.wait() == 130, output
    assert "run the same command again to resume" in output
    assert not out.exists()
    assert start(slow_scene, out, "--model", model, "--tile", 64, "--device", "cpu").wait() == 0


@pytest.mark.parametrize("resume", [True, False])
def test_an_interrupted_run_says_a_way_to_resume_that_works(
    slow_scene: Path,
    model: Path,
    interrupted: Path,
    caplog: pytest.LogCaptureFixture,
    resume: bool,
) -> None:
    caplog.clear()
    options = {"tile": 64, "device": "cpu"}
    with pytest.raises(Stop):
        segment_raster(slow_scene, interrupted, model, **options, resume=resume, progress=stop_after(60))
    advice = "again to resume." if resume else "again with `resume` to use it."
    assert f"run the same command {advice}" in caplog.text
    assert segment_raster(slow_scene, interrupted, model, **options).parts_reused


@pytest.mark.parametrize("placed", [0, 1, 2])
def test_killed_while_results_are_put_in_place(
    slow_scene: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, placed: int
) -> None:
    from iic_runtime.raster import segment

    options = {"device": "cpu", "confidence": tmp_path / "c.tif", "tile": 256}
    put = segment.put_in_place
    count = iter(range(100))

    def put_some(made: Path, final: Path) -> None:
        if next(count) >= placed:
            raise Stop
        put(made, final)

    monkeypatch.setattr(segment, "put_in_place", put_some)
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
    with pytest.raises(OSError, match=r"map.tif exists; .*`overwrite`"):
        segment_raster(slow_scene, tmp_path / "map.tif", model, **options)


def test_killed_while_the_parts_are_removed(make_scene: MakeScene, model: Path, tmp_path: Path) -> None:
    """The map is whole, so that it is not replaced, and what is left of the folder goes."""
    scene, out = make_scene(landscape(150, 130)), tmp_path / "map.tif"
    segment_raster(scene, out, model, device="cpu")
    folder = PartFolder(tmp_path / "map.tif.parts", ["labels"])
    folder.path.mkdir()
    folder.write(3, None)
    for name in ("lock", "placing"):
        (folder.path / name).touch()
    with pytest.raises(OutputError, match="exists"):
        segment_raster(scene, out, model, device="cpu")
    assert not folder.path.exists()


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


def test_regridded_parts_of_another_area_are_not_reused(
    make_scene: MakeScene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the model's resolution two areas may be one; on the scene's own grid they are not."""
    from iic_runtime.raster import segment

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
        patched.setattr(segment, "write_outputs", stop)
        with pytest.raises(Stop):
            segment_raster(scene, tmp_path / "map.tif", model, bounds=first, **options)
    assert (tmp_path / "map.tif.parts").exists()
    segment_raster(scene, tmp_path / "map.tif", model, bounds=second, **options)
    with rasterio.open(tmp_path / "map.tif") as made, rasterio.open(tmp_path / "whole.tif") as whole:
        assert np.array_equal(made.read(), whole.read())
    kept = segment_raster(scene, tmp_path / "whole.tif", model, bounds=second, keep=True, **options)
    assert kept.made_before
    with pytest.raises(OSError, match="`overwrite`"):
        segment_raster(scene, tmp_path / "whole.tif", model, bounds=first, keep=True, **options)


@pytest.mark.parametrize("link", ["lock", ""])
def test_links_in_place_of_parts_or_their_lock_are_not_followed(
    make_scene: MakeScene, model: Path, tmp_path: Path, link: str
) -> None:
    scene, folder, precious = make_scene(landscape(50, 60)), tmp_path / "map.tif.parts", tmp_path / "precious"
    precious.mkdir()
    (precious / "lock").write_bytes(b"years of work")
    if link:
        folder.mkdir()
        (folder / link).symlink_to(precious / "lock")
    else:
        folder.symlink_to(precious)
    with pytest.raises(OutputError, match="choose another output"):
        segment_raster(scene, tmp_path / "map.tif", model, device="cpu")
    assert (precious / "lock").read_bytes() == b"years of work"
