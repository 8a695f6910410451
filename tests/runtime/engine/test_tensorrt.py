"""TensorRT: engine files with their cards, the cache of ONNX Runtime's provider, and devices that are missing."""

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import onnxruntime
import pytest
from support import code_page
from support.tiny_onnx import make_card

from iic_geotools.errors import DeviceError, IICError, ModelError, UsageError
from iic_runtime.engine.base import EngineSpec
from iic_runtime.engine.gpu import Gpu
from iic_runtime.engine.onnx import _load_libraries, _open_session, _providers, provider_options
from iic_runtime.engine.open_engine import open_engine
from iic_runtime.engine.tensorrt import _check_fit
from iic_runtime.model.card import Precision
from iic_runtime.model.convert import convert_model
from iic_runtime.model.engine_card import EngineFacts, engine_card_path, write_engine_card
from iic_runtime.model.file import ModelFile
from iic_runtime.model.rename import rename_model as rename
from iic_runtime.options import Device, EngineSettings
from iic_runtime.segmenter import Segmenter

PLAN = b"a plan"


def facts(**changes: object) -> EngineFacts:
    known: dict[str, object] = {
        "tensorrt": "10.16.1",
        "gpu": "Orin",
        "capability": "8.7",
        "portable": False,
        "tile": 512,
        "batch": 2,
    }
    return EngineFacts(**{**known, "sha256": sha256(PLAN).hexdigest(), **changes})  # type: ignore[arg-type]


@pytest.fixture
def engine(tmp_path: Path) -> Path:
    path = tmp_path / "m.engine"
    path.write_bytes(PLAN)
    write_engine_card(path, make_card(), facts())
    return path


def test_card_and_facts_of_an_engine_are_next_to_it(engine: Path) -> None:
    model = ModelFile.read(engine)
    assert (model.card, model.engine, model.content) == (make_card(), facts(), PLAN)


def test_the_classes_of_an_engine_can_be_renamed(engine: Path) -> None:
    rename(engine, ["cluster 0=water"])
    assert ModelFile.read(engine).card.classes[0].name == "water"
    assert engine.read_bytes() == PLAN


def test_names_of_classes_do_not_depend_on_the_code_page(engine: Path) -> None:
    rename(engine, ["cluster 0=Gewässer"])
    code = "import sys; from iic_runtime.model.file import ModelFile; from pathlib import Path; "
    code += "print(ModelFile.read(Path(sys.argv[1])).card.classes[0].name)"
    assert code_page.run(code, engine) == "Gewässer\n"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: engine_card_path(path).unlink(), "not next to it"),
        (lambda path: engine_card_path(path).write_text("{"), "damaged"),
        (lambda path: engine_card_path(path).write_text(json.dumps({"card": {}, "engine": {}})), "damaged"),
        (lambda path: path.write_bytes(b"another"), "another engine"),
    ],
)
def test_a_card_of_another_engine_is_refused(
    engine: Path, damage: Callable[[Path], object], message: str
) -> None:
    damage(engine)
    with pytest.raises(ModelError, match=message):
        ModelFile.read(engine)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_an_engine_needs_its_own_device(engine: Path, device: Device) -> None:
    with pytest.raises(UsageError, match="use `device` tensorrt"):
        open_engine(ModelFile.read(engine), EngineSettings(device=device))


def test_an_engine_that_cannot_run_is_one_error(engine: Path) -> None:
    """Not a plan that any GPU would take: with or without one, one sentence."""
    with pytest.raises(IICError):
        Segmenter(engine)


@pytest.mark.parametrize("size", [{"tile": 1024}, {"batch": 3}])
def test_an_engine_refuses_more_than_it_was_built_for(engine: Path, size: dict[str, int]) -> None:
    with pytest.raises(UsageError, match="built for a `"):
        Segmenter(engine, **size)  # type: ignore[arg-type]


def test_tile_and_batch_default_to_those_of_the_engine() -> None:
    assert facts().fit(None, None) == (512, 2)
    assert facts().fit(100, 1) == (100, 1)


@pytest.mark.parametrize(
    ("changes", "version", "capability", "fits"),
    [
        ({}, "10.16.1", "8.7", True),
        ({}, "10.16.9", "8.7", True),
        ({}, "10.17.0", "8.7", False),
        ({}, "10.16.1", "8.6", False),
        ({"portable": True}, "11.4.0", "8.6", True),
        ({"portable": True}, "10.15.0", "8.6", False),
        ({"portable": True}, "11.4.0", "7.5", False),
    ],
)
def test_an_engine_runs_where_it_was_built_unless_it_is_portable(
    engine: Path, changes: dict[str, object], version: str, capability: str, fits: bool
) -> None:
    model = ModelFile.read(engine)
    if fits:
        _check_fit(model, facts(**changes), Gpu("here", capability), version)
    else:
        with pytest.raises(DeviceError, match="was built with TensorRT"):
            _check_fit(model, facts(**changes), Gpu("here", capability), version)


def test_the_engine_cache_is_keyed_by_model_and_shapes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IIC_CACHE", str(tmp_path))
    card = make_card()
    options = provider_options(card, "abc", 2, 544)
    assert options["trt_profile_min_shapes"] == "image:1x4x1x1"
    assert options["trt_profile_max_shapes"] == "image:2x4x544x544"
    folders = {
        provider_options(card, digest, batch, side)["trt_engine_cache_path"]
        for digest, batch, side in [
            ("abc", 2, 544),
            ("abc", 2, 544),
            ("abd", 2, 544),
            ("abc", 1, 544),
            ("abc", 2, 545),
        ]
    }
    assert len(folders) == 4
    assert all(folder.startswith(str(tmp_path)) for folder in folders)


def test_integers_for_cpus_are_refused(model: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    out = tmp_path / "int8.onnx"
    convert_model(model, out, precision="int8", min_agreement=0.9)
    monkeypatch.setenv("IIC_CACHE", str(tmp_path))
    with pytest.raises(
        ModelError, match="unsigned or have zero points, for CPUs, and TensorRT takes signed ones"
    ):
        _providers(ModelFile.read(out), EngineSpec("tensorrt", 64, 1))
    assert _providers(ModelFile.read(out), EngineSpec("cpu", 64, 1)) == ["CPUExecutionProvider"]
    with pytest.raises(ModelError, match="TensorRT takes signed ones around zero"):
        convert_model(out, tmp_path / "int8.engine", format="tensorrt")


@pytest.mark.parametrize(("precision", "option"), [("fp16", "trt_fp16_enable"), ("int8", "trt_int8_enable")])
def test_tensorrt_may_compute_in_the_precision_of_the_card(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, precision: Precision, option: str
) -> None:
    monkeypatch.setenv("IIC_CACHE", str(tmp_path))
    single = provider_options(make_card(), "abc", 2, 544)
    assert not {"trt_fp16_enable", "trt_int8_enable"} & set(single)
    options = provider_options(make_card(precision=precision), "abc", 2, 544)
    assert {name for name in options if options[name] == "True" and name not in single} == {option}
    assert options["trt_engine_cache_path"] != single["trt_engine_cache_path"]


def test_models_of_images_have_one_shape_and_no_profile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IIC_CACHE", str(tmp_path))
    options = provider_options(make_card(task="clustering"), "abc", 64, 1)
    assert not [name for name in options if "profile" in name]


@pytest.mark.parametrize("part", ["_versions", "describe_gpus"])
def test_the_engine_cache_is_keyed_by_versions_and_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    from iic_runtime.engine import onnx as cache

    monkeypatch.setenv("IIC_CACHE", str(tmp_path))
    before = provider_options(make_card(), "abc", 2, 544)["trt_engine_cache_path"]
    monkeypatch.setattr(cache, part, lambda: ["other"] if part == "_versions" else "other")
    assert provider_options(make_card(), "abc", 2, 544)["trt_engine_cache_path"] != before


def test_the_provider_is_not_there_without_the_gpu_build(model: Path) -> None:
    if "TensorrtExecutionProvider" in onnxruntime.get_available_providers():
        pytest.skip("onnxruntime-gpu is installed")
    with pytest.raises(DeviceError, match="onnxruntime-gpu"):
        Segmenter(model, device="tensorrt")


@pytest.mark.parametrize("device", ["cpu", "cuda", "tensorrt"])
def test_floats_on_a_gpu_are_float32(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: Device
) -> None:
    monkeypatch.setenv("IIC_CACHE", str(tmp_path / "cache"))
    providers = _providers(ModelFile.read(model), EngineSpec(device, 64, 1))
    names = [provider if isinstance(provider, str) else provider[0] for provider in providers]
    assert names[-1] == "CPUExecutionProvider"
    cuda = [provider for provider in providers if provider[0] == "CUDAExecutionProvider"]
    assert cuda == ([] if device == "cpu" else [("CUDAExecutionProvider", {"use_tf32": "0"})])


def test_a_session_does_not_go_on_with_another_provider(model: Path) -> None:
    session = _open_session(
        onnxruntime, ModelFile.read(model), ["AzureExecutionProvider", "CPUExecutionProvider"], None
    )
    assert not session._enable_fallback


def test_libraries_that_came_as_packages_are_loaded_without_a_word(
    capsys: pytest.CaptureFixture[str],
) -> None:
    class Runtime:
        loaded = 0

        def preload_dlls(self) -> None:
            self.loaded += 1
            sys.stdout.write("cudnn is not here\n")

    runtime = Runtime()
    devices: tuple[Device, ...] = ("cuda", "tensorrt")
    for device in devices:
        _load_libraries(runtime, device, make_card())
    assert runtime.loaded == 2
    assert capsys.readouterr().out == ""
    _load_libraries(object(), "cuda", make_card())  # before 1.21 it was up to the system


def test_tensorrt_refuses_pixels_of_16_bits() -> None:
    with pytest.raises(DeviceError, match="has no int16"):
        _load_libraries(object(), "tensorrt", replace(make_card(), dtype="int16"))


@pytest.mark.gpu
@pytest.mark.parametrize("device", ["cuda", "tensorrt"])
def test_onnx_runtime_on_the_gpu_says_what_the_cpu_says(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: Device
) -> None:
    import numpy as np

    monkeypatch.setenv("IIC_CACHE", str(tmp_path / "cache"))
    try:
        on_gpu = Segmenter(model, device=device, tile=64, batch=2)
    except DeviceError as error:
        pytest.skip(str(error))
    image = np.random.default_rng(0).integers(0, 256, (4, 130, 150)).astype(np.uint8)
    assert (on_gpu(image).labels == Segmenter(model, device="cpu")(image).labels).mean() > 0.999
    if device == "tensorrt":
        assert list((tmp_path / "cache").rglob("*.engine"))


def test_options_of_the_tensorrt_provider(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IIC_CACHE", str(tmp_path))
    first, second, third = _providers(ModelFile.read(model), EngineSpec("tensorrt", 78, 3))
    assert first[0] == "TensorrtExecutionProvider"
    assert first[1]["trt_profile_opt_shapes"] == "image:3x4x100x100"
    assert (second[0], third) == ("CUDAExecutionProvider", "CPUExecutionProvider")
