"""OpenVINO gives the labels of ONNX Runtime, in any tiling, or is refused."""

import json
import logging
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.scenes import landscape
from support.tiny_onnx import make_model

from iic_geotools.errors import DeviceError, MissingPackageError
from iic_geotools.tiling import TileGrid
from iic_runtime import Segmenter, segment_raster
from iic_runtime.engine.base import OUTPUTS, EngineSpec, LabelArray
from iic_runtime.engine.open_engine import open_engine
from iic_runtime.engine.parity import EngineParity, measure_parity, recorded_parity, trial_image
from iic_runtime.model.file import ModelFile
from iic_runtime.options import EngineSettings

MakeScene = Callable[..., Path]
EQUAL = EngineParity(pixels=1000, labels_differing=0, confidence_difference=1, tiles_equal=True, speed=1.5)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("IIC_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def file(model: Path) -> ModelFile:
    return ModelFile.read(model)


@pytest.fixture
def openvino() -> None:
    pytest.importorskip("openvino")


@pytest.mark.usefixtures("openvino")
@pytest.mark.parametrize("dtype", ["uint8", "int16"])
@pytest.mark.parametrize("threads", [1, 2])
def test_labels_equal_those_of_onnx_runtime_in_any_tiling(tmp_path: Path, dtype: str, threads: int) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(make_model(3, dtype=dtype, scale=1 / 255))
    image = landscape(151, 140).astype(dtype)
    whole = Segmenter(path, device="cpu", tile=512)(image)
    for tile, batch in ((512, 1), (48, 1), (33, 3)):
        result = Segmenter(path, device="openvino", tile=tile, batch=batch, threads=threads)(image)
        assert np.array_equal(result.labels, whole.labels)
        assert np.abs(result.confidence.astype(int) - whole.confidence).max() <= 1


@pytest.mark.usefixtures("openvino")
def test_a_map_by_openvino(make_scene: MakeScene, model: Path, tmp_path: Path) -> None:
    import rasterio

    scene = make_scene(landscape(90, 101))
    for device in ("cpu", "openvino"):
        segment_raster(scene, tmp_path / f"{device}.tif", model, device=device, tile=32)  # type: ignore[arg-type]
    with rasterio.open(tmp_path / "cpu.tif") as one, rasterio.open(tmp_path / "openvino.tif") as other:
        assert np.array_equal(one.read(), other.read())
        assert other.tags()["IIC_ENGINE"].startswith("OpenVINO 20")


@pytest.mark.usefixtures("openvino")
def test_the_comparison_is_made_once(file: ModelFile, cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    for _ in range(2):
        open_engine(file, EngineSettings(device="openvino", threads=1))
    assert caplog.text.count("Comparing OpenVINO") == 1
    (record,) = (cache / "parity").iterdir()
    parity = EngineParity(**json.loads(record.read_text()))
    assert parity == recorded_parity(file, "openvino")
    assert parity.equal
    record.write_text("{")
    assert recorded_parity(file, "openvino") is None


@pytest.mark.usefixtures("openvino")
def test_other_outputs_can_be_fetched(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(make_model(features=True))
    file, image = ModelFile.read(path), landscape(20, 30)[None]
    cpu = open_engine(file, EngineSettings(device="cpu"), outputs=(*OUTPUTS, "features"))
    openvino = open_engine(file, EngineSettings(device="openvino"), outputs=(*OUTPUTS, "features"))
    ours, theirs = (engine.fetch(image, ["features"])[0] for engine in (openvino, cpu))  # type: ignore[attr-defined]
    assert np.allclose(ours, theirs, atol=1e-4)


DROPPED_IN_A_THREAD = """
import gc, os, signal, sys, threading
from pathlib import Path
from iic_runtime import Segmenter

signal.signal(signal.SIGUSR1, lambda *_: print("handled"))
kept = [Segmenter(Path(sys.argv[1]), device="openvino")]

def drop():
    kept.clear()
    gc.collect()

thread = threading.Thread(target=drop)
thread.start()
thread.join()
os.kill(os.getpid(), signal.SIGUSR1)
"""


@pytest.mark.usefixtures("openvino")
def test_signals_are_handled_after_an_engine_went_in_another_thread(model: Path) -> None:
    """OpenVINO frees with its last core the stack on which signals are handled: Ctrl-C was a segmentation fault."""
    command = [sys.executable, "-c", DROPPED_IN_A_THREAD, model]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "handled")


@pytest.mark.usefixtures("openvino")
@pytest.mark.parametrize(("speed", "device"), [(1.5, "openvino"), (1.0, "cpu")])
def test_auto_takes_openvino_only_if_it_was_shown_to_be_equal_and_faster(
    file: ModelFile, monkeypatch: pytest.MonkeyPatch, speed: float, device: str
) -> None:
    assert open_engine(file, EngineSettings(threads=1)).spec.device == "cpu"
    monkeypatch.setattr(
        "iic_runtime.engine.open_engine.recorded_parity", lambda model, package: replace(EQUAL, speed=speed)
    )
    assert open_engine(file, EngineSettings(threads=1)).spec.device == device


def test_without_the_package_it_is_refused(file: ModelFile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "openvino", None)
    with pytest.raises(MissingPackageError, match=r"cpu,openvino"):
        open_engine(file, EngineSettings(device="openvino"))
    assert open_engine(file).spec.device == "cpu"


class Shifted:
    """An engine that is wrong in one way: it labels some pixels otherwise, or tiles otherwise than the whole."""

    provider = "Shifted"
    spec = EngineSpec("openvino", 512, 1)

    def __init__(self, file: ModelFile, wrong: str) -> None:
        self._engine, self._wrong = open_engine(file, EngineSettings(device="cpu", threads=1)), wrong

    def run(self, batch: np.ndarray, confidence: bool) -> tuple[LabelArray, LabelArray | None]:
        labels, values = self._engine.run(batch, confidence)
        labels = labels.copy()
        if self._wrong == "labels":
            labels[:, :5] = (labels[:, :5] + 1) % 4
        if self._wrong == "tiles" and batch.shape[2] < 256:
            labels[:] = 0
        return labels, values


@pytest.mark.parametrize(
    ("wrong", "sentence"), [("labels", r"gives 1280 of 65792 labels"), ("tiles", r"in tiles")]
)
def test_an_engine_that_is_not_equal_is_refused(file: ModelFile, wrong: str, sentence: str) -> None:
    parity = measure_parity(
        Shifted(file, wrong), open_engine(file, EngineSettings(device="cpu", threads=1)), file.card
    )
    assert not parity.equal
    assert not replace(parity, speed=9.0).preferred
    with pytest.raises(DeviceError, match=sentence):
        parity.check("Shifted", file.card.name)


def test_few_labels_between_two_classes_are_allowed_on_demand_and_never_by_default() -> None:
    parity = replace(EQUAL, pixels=100_000, labels_differing=3)
    parity.check("OpenVINO", "model")
    assert not parity.preferred


def test_the_trial_image_covers_the_range_of_the_model(file: ModelFile) -> None:
    image = trial_image(file.card, 257, 256, np.random.default_rng(0))
    assert image.shape == (4, 257, 256)
    assert image.dtype == file.card.dtype
    assert image.min() == 0
    assert image.max() >= 250
    assert len(list(TileGrid(256, 257, 85, file.card.halo, file.card.stride))) > 9
