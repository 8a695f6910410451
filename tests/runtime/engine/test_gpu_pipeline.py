"""Batches in flight on a GPU, simulated: order, exactness, shapes, and what is read of a scene for it."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio
from support.scenes import landscape, write_raster
from support.simulated_gpu import SimulatedGpu, nothing, on_simulated_gpu
from support.tiny_onnx import make_classifier

from iic_geotools.errors import DeviceError, ModelError
from iic_runtime import Segmenter, segment_raster
from iic_runtime.engine.base import OUTPUTS, EngineSpec
from iic_runtime.engine.gpu import Buffers, pinned
from iic_runtime.engine.onnx import BoundSlot, OnnxEngine
from iic_runtime.model.file import ModelFile
from iic_runtime.raster import stages

MakeScene = Callable[..., Path]


def layers(path: Path, confidence: Path) -> list[bytes]:
    found = []
    for file in (path, confidence):
        with rasterio.open(file) as dataset:
            found.append(dataset.read(1).tobytes())
    return found


@pytest.mark.parametrize("size", [(400, 500), (401, 503), (90, 700), (50, 40)])
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("cut", [False, True])
def test_the_map_of_a_simulated_gpu_is_that_of_the_cpu(
    make_scene: MakeScene,
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    size: tuple[int, int],
    batch: int,
    cut: bool,
) -> None:
    monkeypatch.setattr(
        "iic_runtime.raster.plan.PART_PIXELS", 3 * 64 * 64
    )  # batches hold tiles of several parts
    values = landscape(*size)
    values[:, 130:330, 60:260] = 0  # parts without data, between others
    scene = make_scene(values, nodata=0)
    options: dict[str, Any] = {}
    if cut:
        with rasterio.open(scene) as dataset:
            left, bottom, right, top = dataset.bounds
        options["bounds"] = (left + 0.1 * (right - left), bottom, right, top - 0.15 * (top - bottom))
    maps = []
    for segmenter in (Segmenter(model, device="cpu", tile=64), on_simulated_gpu(model, tile=64, batch=batch)):
        name = segmenter.provider
        out, sure = tmp_path / f"{name}.tif", tmp_path / f"{name}-sure.tif"
        summary = segment_raster(scene, out, segmenter, confidence=sure, **options)
        maps.append((layers(out, sure), summary.tiles_run, summary.tiles_without_data))
    assert maps[0] == maps[1]


def test_arrays_on_a_simulated_gpu_have_the_labels_of_the_cpu_in_batches_of_one_shape(model: Path) -> None:
    image = landscape(300, 420)
    alone = Segmenter(model, device="cpu")
    gpu = SimulatedGpu(alone.engine.fetch)  # type: ignore[attr-defined]
    result = on_simulated_gpu(model, gpu, tile=64, batch=4)(image)
    assert result.labels.tobytes() == alone(image).labels.tobytes()
    assert len({shape[1:] for shape in gpu.batches}) == 1
    assert sorted(shape[0] for shape in gpu.batches) == [3] + [4] * 8


def test_three_batches_are_in_flight_on_a_simulated_gpu(model: Path) -> None:
    together = threading.Barrier(3, timeout=60)

    def compute(batch: Any, names: Any) -> Any:
        together.wait()  # breaks unless two more batches were submitted before this one is collected
        return nothing(batch, names)

    assert on_simulated_gpu(model, SimulatedGpu(compute), tile=64)(landscape(192, 256)).labels.shape == (
        192,
        256,
    )


def test_what_fails_on_a_simulated_gpu_ends_the_run(
    make_scene: MakeScene, model: Path, tmp_path: Path
) -> None:
    calls = []

    def fail_late(batch: Any, names: Any) -> Any:
        calls.append(batch)
        if len(calls) > 4:
            raise ModelError("the model failed")
        return nothing(batch, names)

    segmenter = on_simulated_gpu(model, SimulatedGpu(fail_late), tile=64)
    with pytest.raises(ModelError, match="the model failed"):
        segment_raster(make_scene(landscape(400, 500)), tmp_path / "map.tif", segmenter)
    assert not (tmp_path / "map.tif").exists()


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="the system does not count what is read")
@pytest.mark.parametrize("tile", [96, 256])
def test_no_block_of_a_scene_is_decoded_twice(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tile: int
) -> None:
    values = np.random.default_rng(0).integers(0, 256, (4, 1500, 2000), np.uint8)
    blocks = {"tiled": True, "blockxsize": 256, "blockysize": 256, "compress": "deflate"}
    scene = write_raster(tmp_path / "scene.tif", values, **blocks)
    segmenter = on_simulated_gpu(model, SimulatedGpu(nothing), tile=tile, batch=2)

    def read() -> int:
        return int(Path("/proc/self/io").read_text().split("rchar:")[1].split()[0])

    def label_parts(*arguments: Any, **options: Any) -> None:
        before = read()
        stages.label_parts(*arguments, **options)
        counts.append(read() - before)

    counts: list[int] = []
    # Before the map, a few tiles are sampled, which are read once more.
    monkeypatch.setattr("iic_runtime.raster.segment.label_parts", label_parts)
    segment_raster(scene, tmp_path / "map.tif", segmenter)
    assert scene.stat().st_size / 2 < sum(counts) < 1.2 * scene.stat().st_size


def test_the_sample_of_a_map_is_small_on_a_simulated_gpu(
    make_scene: MakeScene, model: Path, tmp_path: Path
) -> None:
    gpu = SimulatedGpu(nothing)
    segment_raster(
        make_scene(landscape(900, 1100)), tmp_path / "map.tif", on_simulated_gpu(model, gpu, tile=512)
    )
    sampled = [count * height * width for count, _, height, width in gpu.batches if height < 512]
    assert 0 < sum(sampled) < 0.3 * 900 * 1100


@pytest.mark.parametrize("names", [OUTPUTS, OUTPUTS[:1]])
def test_bound_buffers_hold_the_outputs_of_each_batch(model: Path, names: tuple[str, ...]) -> None:
    file = ModelFile.read(model)
    engine = OnnxEngine(file, EngineSpec("cpu", 64, 1))
    slot = BoundSlot(
        engine._session, engine._options, file.card, Buffers(lambda size: np.empty(size, np.uint8))
    )
    kept = []
    for seed, shape in enumerate([(2, 4, 40, 50), (1, 4, 64, 64), (3, 4, 20, 22)]):
        batch = np.random.default_rng(seed).integers(0, 256, shape, np.uint8)
        slot.submit(batch, names)
        kept.append((slot.collect(), engine.fetch(batch, names)))
    for bound, fetched in kept:
        assert [values.tobytes() for values in bound] == [values.tobytes() for values in fetched]


def test_bound_buffers_hold_the_classes_of_images(tmp_path: Path) -> None:
    path = tmp_path / "classifier.onnx"
    path.write_bytes(make_classifier())
    file = ModelFile.read(path)
    engine = OnnxEngine(file, EngineSpec("cpu", 64, 1))
    slot = BoundSlot(
        engine._session, engine._options, file.card, Buffers(lambda size: np.empty(size, np.uint8))
    )
    batch = np.random.default_rng(0).integers(0, 256, (5, len(file.card.bands), *engine.image_size), np.uint8)
    slot.submit(batch, OUTPUTS)
    assert [values.tolist() for values in slot.collect()] == [
        values.tolist() for values in engine.fetch(batch, OUTPUTS)
    ]


def test_buffers_grow_and_are_used_again() -> None:
    sizes: list[int] = []

    def allocate(size: int) -> Any:
        sizes.append(size)
        return np.empty(size, np.uint8)

    buffers = Buffers(allocate)
    for shape in ((2, 3), (1, 3), (4, 3)):
        assert buffers.take("image", shape, "uint16").shape == shape
    assert sizes == [12, 24]


@pytest.mark.gpu
def test_pinned_memory_can_be_written() -> None:
    try:
        memory = pinned(1000)
    except DeviceError as error:
        pytest.skip(str(error))
    memory[:] = 7
    assert memory.sum() == 7000
