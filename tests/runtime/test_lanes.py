"""Tiles side by side: the same maps as one after the other, and errors that end the run as ever."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.maps import read_band
from support.scenes import landscape

from iic_geotools.errors import ModelError
from iic_runtime import Segmenter, segment_raster

MakeScene = Callable[..., Path]
DEVICES = ["cpu", "openvino"]


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What OpenVINO is found to do here must not decide which engine other tests get."""
    monkeypatch.setenv("IIC_CACHE", str(tmp_path / "cache"))


def open_lanes(model: Path, threads: int, device: Any = "cpu", batch: int = 1) -> Segmenter:
    if device == "openvino":
        pytest.importorskip("openvino")
    segmenter = Segmenter(model, device=device, tile=64, threads=threads, batch=batch)
    assert segmenter.spec.lanes == threads
    return segmenter


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("device", DEVICES)
def test_the_map_is_the_same(
    make_scene: MakeScene,
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    device: str,
    batch: int,
) -> None:
    monkeypatch.setattr("iic_runtime.raster.plan.PART_PIXELS", 5 * 64 * 64)  # many parts, some without data
    values = landscape(400, 500)
    values[:, 130:330, 60:260] = 0  # tiles without data, between others
    scene = make_scene(values, nodata=0)
    layers = []
    for threads in (1, 2):
        segmenter = open_lanes(model, threads, device, batch)
        out, sure = tmp_path / f"{threads}.tif", tmp_path / f"{threads}-sure.tif"
        summary = segment_raster(scene, out, segmenter, confidence=sure)
        assert (summary.tiles_run, summary.tiles_without_data) == (50, 6)
        layers.append((read_band(out), read_band(sure)))
    assert np.array_equal(layers[0][0], layers[1][0])
    assert np.array_equal(layers[0][1], layers[1][1])


@pytest.mark.parametrize("device", DEVICES)
def test_tiles_really_run_side_by_side(model: Path, device: str) -> None:
    segmenter = open_lanes(model, 2, device)
    run, together = segmenter.lane_engine.run, threading.Barrier(2, timeout=60)

    def run_together(*arguments: Any) -> Any:
        together.wait()  # breaks unless another thread comes here, too
        return run(*arguments)

    segmenter.lane_engine.run = run_together  # type: ignore[method-assign, assignment]
    assert segmenter(landscape(128, 128)).labels.shape == (128, 128)


def test_a_few_tiles_have_all_threads(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    segmenter = open_lanes(model, 2)
    monkeypatch.setattr("iic_runtime.segmenter.open_lanes", lambda *_: pytest.fail("a second engine"))
    segmenter(landscape(64, 128))


@pytest.mark.parametrize("error", [ModelError("the model failed"), KeyboardInterrupt()])
def test_what_fails_in_a_lane_ends_the_run(
    make_scene: MakeScene, model: Path, tmp_path: Path, error: BaseException
) -> None:
    segmenter = open_lanes(model, 2)
    run, calls = segmenter.lane_engine.run, []

    def fail_late(*arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) > 6:
            raise error
        return run(*arguments)

    segmenter.lane_engine.run = fail_late  # type: ignore[method-assign, assignment]
    scene, before = make_scene(landscape(400, 500)), set(threading.enumerate())
    with pytest.raises(type(error)):
        segment_raster(scene, tmp_path / "map.tif", segmenter)
    assert not (tmp_path / "map.tif").exists()
    for thread in set(threading.enumerate()) - before:
        thread.join(60)  # an interrupt does not wait for the reader, which ends after the tile it is at
        assert not thread.is_alive()
    assert len(calls) <= 6 + 4  # what was under way, but none of the rest
