import json
from hashlib import sha256

import onnxruntime
import pytest
from tiny_onnx import make_card

from iic_geotools.errors import DeviceError, IICError, ModelError, UsageError
from iic_runtime.enginefile import EngineFacts, side_path, write_side
from iic_runtime.engines import Largest, open_engine
from iic_runtime.gpu import Gpu
from iic_runtime.modelfile import ModelFile
from iic_runtime.renaming import rename
from iic_runtime.segmenter import Segmenter
from iic_runtime.tensorrt_engine import _check_fit
from iic_runtime.trtcache import provider_options

PLAN = b"a plan"


def facts(**changes):
    known = {
        "tensorrt": "10.16.1",
        "gpu": "Orin",
        "capability": "8.7",
        "portable": False,
        "tile": 512,
        "batch": 2,
    }
    return EngineFacts(**{**known, "sha256": sha256(PLAN).hexdigest(), **changes})


@pytest.fixture
def engine(tmp_path):
    path = tmp_path / "m.engine"
    path.write_bytes(PLAN)
    write_side(path, make_card(), facts())
    return path


def test_card_and_facts_stand_beside_it(engine):
    model = ModelFile.read(engine)
    assert (model.card, model.engine, model.content) == (make_card(), facts(), PLAN)


def test_its_classes_can_be_renamed(engine):
    rename(engine, ["cluster 0=water"])
    assert ModelFile.read(engine).card.classes[0].name == "water"
    assert engine.read_bytes() == PLAN


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: side_path(path).unlink(), "not beside it"),
        (lambda path: side_path(path).write_text("{"), "damaged"),
        (lambda path: side_path(path).write_text(json.dumps({"card": {}, "engine": {}})), "damaged"),
        (lambda path: path.write_bytes(b"another"), "another engine"),
    ],
)
def test_a_card_that_does_not_belong(engine, damage, message):
    damage(engine)
    with pytest.raises(ModelError, match=message):
        ModelFile.read(engine)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_an_engine_needs_its_own_device(engine, device):
    with pytest.raises(UsageError, match="--device tensorrt"):
        open_engine(ModelFile.read(engine), device)


def test_where_it_cannot_run_it_says_so(engine):
    """Not a plan that any GPU would take: with or without one, one sentence."""
    with pytest.raises(IICError):
        Segmenter(engine)


@pytest.mark.parametrize("size", [{"tile": 1024}, {"batch": 3}])
def test_more_than_it_was_built_for(engine, size):
    with pytest.raises(UsageError, match="built for --"):
        Segmenter(engine, **size)


def test_tile_and_batch_are_what_it_was_built_for():
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
def test_an_engine_runs_where_it_was_built_unless_it_may_travel(engine, changes, version, capability, fits):
    model = ModelFile.read(engine)
    if fits:
        _check_fit(model, facts(**changes), Gpu("here", capability), version)
    else:
        with pytest.raises(DeviceError, match="was built with TensorRT"):
            _check_fit(model, facts(**changes), Gpu("here", capability), version)


def test_the_engine_cache_is_keyed_by_model_and_shapes(tmp_path, monkeypatch):
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


@pytest.mark.parametrize("part", ["_versions", "describe_gpus"])
def test_and_by_versions_and_gpu(tmp_path, monkeypatch, part):
    from iic_runtime import trtcache

    monkeypatch.setenv("IIC_CACHE", str(tmp_path))
    before = provider_options(make_card(), "abc", 2, 544)["trt_engine_cache_path"]
    monkeypatch.setattr(trtcache, part, lambda: ["other"] if part == "_versions" else "other")
    assert provider_options(make_card(), "abc", 2, 544)["trt_engine_cache_path"] != before


def test_the_provider_is_not_there_without_the_gpu_build(model):
    if "TensorrtExecutionProvider" in onnxruntime.get_available_providers():
        pytest.skip("onnxruntime-gpu is installed")
    with pytest.raises(DeviceError, match="onnxruntime-gpu"):
        Segmenter(model, device="tensorrt")


@pytest.mark.gpu
@pytest.mark.parametrize("device", ["cuda", "tensorrt"])
def test_onnx_runtime_on_the_gpu_says_what_the_cpu_says(model, tmp_path, monkeypatch, device):
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


def test_what_the_provider_is_given(model, tmp_path, monkeypatch):
    from iic_runtime.engines import _providers

    monkeypatch.setenv("IIC_CACHE", str(tmp_path))
    first, second, third = _providers(ModelFile.read(model), "tensorrt", Largest(3, 100))
    assert first[0] == "TensorrtExecutionProvider"
    assert first[1]["trt_profile_opt_shapes"] == "image:3x4x100x100"
    assert (second, third) == ("CUDAExecutionProvider", "CPUExecutionProvider")
