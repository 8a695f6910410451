"""Real worker processes, some of them killed, make the same map as a single process."""

import json
import logging
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from support.scenes import landscape

from iic_geotools.errors import DeviceError
from iic_geotools.work import Progress
from iic_runtime import segment_raster, segment_rasters
from iic_runtime.raster import plan
from iic_runtime.raster.part_folder import PartFolder

MakeScene = Callable[..., Path]
TILE = {"tile": 64, "device": "cpu"}


class Stop(Exception):
    pass


@pytest.fixture
def scene(make_scene: MakeScene, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A scene of 8 x 10 tiles in 40 parts, with a hole."""
    monkeypatch.setattr(plan, "PART_PIXELS", 2 * 64 * 64)
    values = landscape(500, 600)
    values[:, 100:300, 100:400] = 0
    return make_scene(values, nodata=0)


@pytest.fixture
def alone(scene: Path, model: Path, tmp_path: Path) -> Callable[[str], bytes]:
    """The maps of a single process."""
    segment_raster(
        scene, tmp_path / "alone.tif", model, confidence=tmp_path / "alone-c.tif", threads=1, **TILE
    )
    return lambda name: (tmp_path / name).read_bytes()


def once(action: Callable[[], None], after: float) -> Callable[[Progress], None]:
    """Do something once when a share of the pixels is labelled."""
    done: list[bool] = []

    def progress(moment: Progress) -> None:
        if not done and moment.stage == "segment" and moment.done > after * moment.total:
            done.append(True)
            action()

    return progress


def stop() -> None:
    raise Stop


def parts(out: Path) -> int:
    return len(list((out.parent / f"{out.name}.parts").glob("labels-*.tif")))


def test_local_workers_one_killed(
    scene: Path, model: Path, tmp_path: Path, alone: Callable[[str], bytes]
) -> None:
    killed = []

    def kill_one() -> None:
        worker = next(child for child in multiprocessing.active_children() if "Dask Worker" in child.name)
        killed.append(worker.pid)
        os.kill(worker.pid or 0, signal.SIGKILL)

    out, sure = tmp_path / "map.tif", tmp_path / "c.tif"
    summary = segment_raster(
        scene, out, model, confidence=sure, workers=2, progress=once(kill_one, 0.2), **TILE
    )
    assert killed
    assert out.read_bytes() == alone("alone.tif")
    assert sure.read_bytes() == alone("alone-c.tif")
    assert summary.tiles_run + summary.tiles_without_data == 8 * 10
    assert summary.tiles_without_data >= 4
    assert not (tmp_path / "map.tif.parts").exists()
    assert not multiprocessing.active_children()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[tuple[str, list["subprocess.Popen[bytes]"]]]:
    """A scheduler and two workers, as people start them; they work in another folder."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    path = os.pathsep.join(str(Path(entry).resolve()) for entry in sys.path if entry)
    environment = os.environ | {"PYTHONPATH": path, "DASK_LOGGING__DISTRIBUTED": "error"}
    file = elsewhere / "scheduler.json"

    def start(kind: str, *options: str) -> "subprocess.Popen[bytes]":
        command = [
            sys.executable,
            "-m",
            f"distributed.cli.dask_{kind}",
            "--scheduler-file",
            str(file),
            *options,
        ]
        return subprocess.Popen(command, cwd=elsewhere, env=environment)

    started = [start("scheduler", "--no-dashboard", "--host", "127.0.0.1", "--port", "0")]
    try:
        while not file.exists():
            assert started[0].poll() is None
            time.sleep(0.05)
        single = ("--no-nanny", "--nthreads", "2", "--no-dashboard", "--local-directory", str(elsewhere))
        started += [start("worker", *single) for _ in range(2)]
        address = json.loads(file.read_text())["address"]
        wait_for_workers(address, 2)
        yield address, started[1:]
    finally:
        for process in reversed(started):
            process.terminate()
            process.wait()


def wait_for_workers(address: str, count: int) -> None:
    from distributed import Client

    with Client(address) as client:
        client.wait_for_workers(count, timeout=120)


def test_a_running_cluster_in_every_way(
    cluster: tuple[str, list["subprocess.Popen[bytes]"]],
    make_scene: MakeScene,
    scene: Path,
    model: Path,
    tmp_path: Path,
    alone: Callable[[str], bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One cluster for several tests: starting it takes longest."""
    address, workers = cluster
    monkeypatch.chdir(tmp_path)
    relative = scene.relative_to(tmp_path)

    many = segment_rasters([relative], "maps", "model.onnx", scheduler=address, **TILE)
    assert many[0].error is None
    assert Path("maps/scene.tif").read_bytes() == alone("alone.tif")

    # A run that the cluster began is resumed by this process alone, and that one by the cluster.
    out = Path("map.tif")
    with pytest.raises(Stop):
        segment_raster(relative, out, model, scheduler=address, progress=once(stop, 0.3), **TILE)
    begun = parts(out)
    assert 0 < begun < 40
    with pytest.raises(Stop):
        segment_raster(relative, out, model, progress=once(stop, 0.6), **TILE)
    assert begun < parts(out) < 40
    summary = segment_raster(relative, out, model, scheduler=address, **TILE)
    assert summary.parts_reused > begun
    assert out.read_bytes() == alone("alone.tif")

    # A worker's failure is the caller's, in a sentence; nothing is left under the map's name.
    broken = make_scene(landscape(500, 600), "broken.tif", compress="deflate")
    with broken.open("r+b") as file:
        file.seek(broken.stat().st_size // 2)
        file.write(bytes(100_000))
    with pytest.raises(OSError, match=r"Cannot read rows .* of .*broken\.tif"):
        segment_raster(broken, "b.tif", model, scheduler=address, **TILE)
    assert not Path("b.tif").exists()

    # A worker that is killed, and that nothing starts again.
    second = Path("second.tif")
    kill = once(workers[0].kill, 0.2)
    segment_raster(relative, second, model, scheduler=address, confidence="c.tif", progress=kill, **TILE)
    assert workers[0].wait() == -signal.SIGKILL
    assert second.read_bytes() == alone("alone.tif")
    assert Path("c.tif").read_bytes() == alone("alone-c.tif")


def test_late_workers_do_not_write_into_a_folder_of_other_work(tmp_path: Path) -> None:
    """A worker that is late writes nothing into a folder that was given to other work, or is gone."""
    folder = PartFolder(tmp_path / "parts", ["labels"])
    with folder.claim({"a": 1}, True, lambda: None):
        late = PartFolder(folder.path, ["labels"], folder.ticket())
        late.write(0, None)
        assert folder.has(0)
    with folder.claim({"a": 2}, True, lambda: None):
        with pytest.raises(OSError, match="used for other work"):
            late.write(1, None)
        assert not folder.has(1)
    folder.remove()
    with pytest.raises(OSError, match="disk that all workers share"):
        late.write(1, None)


def test_wrong_usage(scene: Path, model: Path, tmp_path: Path) -> None:
    def fails(**options: object) -> str:
        with pytest.raises((ValueError, RuntimeError)) as caught:
            segment_raster(scene, tmp_path / "map.tif", model, **TILE, **options)  # type: ignore[arg-type]
        assert not list(tmp_path.glob("map.tif*"))
        return str(caught.value)

    assert "give one of them" in fails(workers=1, scheduler="tcp://127.0.0.1:1")
    assert "`workers` must be 1 to" in fails(workers=0)
    assert "`workers` must be 1 to" in fails(workers=1_000_000)
    assert "no Dask scheduler at abacus" in fails(scheduler="abacus://127.0.0.1:1")


def test_a_process_opens_a_model_once(model: Path) -> None:
    from iic_runtime.engine.base import EngineSpec
    from iic_runtime.model.file import ModelFile
    from iic_runtime.segmenter import get_segmenter

    file = ModelFile.read(model)
    reads = []

    def read() -> ModelFile:
        reads.append(file)
        return file

    spec = EngineSpec("cpu", 64, 1, 1)
    first = get_segmenter(file.digest, spec, read)
    assert get_segmenter(file.digest, EngineSpec("cpu", 64, 1, 1), read) is first
    assert len(reads) == 1
    assert get_segmenter(file.digest, EngineSpec("cpu", 32, 1, 1), read).spec.tile == 32


@pytest.mark.slow
def test_a_scheduler_that_dies_is_a_sentence(
    cluster: tuple[str, list["subprocess.Popen[bytes]"]], scene: Path, model: Path, tmp_path: Path
) -> None:
    address, _ = cluster
    (scheduler,) = [
        process for process in psutil.Process().children() if "dask_scheduler" in " ".join(process.cmdline())
    ]
    with pytest.raises(DeviceError, match=r"connection to the Dask scheduler was lost .* again to resume"):
        segment_raster(
            scene, tmp_path / "map.tif", model, scheduler=address, progress=once(scheduler.kill, 0.1), **TILE
        )
    assert not (tmp_path / "map.tif").exists()


@pytest.mark.slow
def test_a_run_without_workers_gives_up(
    cluster: tuple[str, list["subprocess.Popen[bytes]"]],
    scene: Path,
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    address, workers = cluster
    monkeypatch.setattr("iic_runtime.raster.cluster.WORKER_TIMEOUT", 3.0)
    monkeypatch.setattr("iic_runtime.raster.cluster.LOOK_EVERY", 0.5)

    def kill() -> None:
        for worker in workers:
            worker.kill()

    with pytest.raises(DeviceError, match=r"no worker for 3 s; .* again to resume"):
        segment_raster(
            scene, tmp_path / "map.tif", model, scheduler=address, progress=once(kill, 0.1), **TILE
        )
    assert not (tmp_path / "map.tif").exists()


def test_tls_without_certificates_is_a_sentence(scene: Path, model: Path, tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match=r"scheduler at tls://127\.0\.0\.1:1 needs certificates; name them"):
        segment_raster(scene, tmp_path / "map.tif", model, scheduler="tls://127.0.0.1:1", **TILE)


def test_tracebacks_of_dask_are_for_debugging(caplog: pytest.LogCaptureFixture) -> None:
    pytest.importorskip("distributed")
    from iic_runtime.raster.cluster import _without_tracebacks

    log = logging.getLogger("distributed.utils")
    with caplog.at_level(logging.DEBUG), _without_tracebacks():
        logging.getLogger("iic_runtime").setLevel(logging.DEBUG)
        log.propagate = True
        try:
            raise ConnectionRefusedError
        except ConnectionRefusedError:
            log.exception("lost")
            log.warning("a word")
    levels = {(record.levelname, record.getMessage()) for record in caplog.records}
    assert ("WARNING", "a word") in levels
    assert not any(level == "ERROR" for level, _ in levels)
