"""Which tiles are run, and how many side by side, on machines of different size."""

from dataclasses import replace

import pytest
from support.tiny_onnx import make_card

from iic_geotools.errors import UsageError
from iic_runtime.engine import open_engine
from iic_runtime.engine.base import EngineSpec
from iic_runtime.engine.open_engine import choose_spec, estimate_memory
from iic_runtime.model.card import Card
from iic_runtime.model.select import find_model
from iic_runtime.options import EngineSettings

MIB, GIB = 1 << 20, 1 << 30


@pytest.fixture
def card() -> Card:
    """A network that looks far (64 px) and takes much memory."""
    return replace(find_model("aerial").card, halo=64, stride=16, memory_per_pixel=384)


def set_machine(monkeypatch: pytest.MonkeyPatch, cores: int, memory: int | None) -> None:
    monkeypatch.setattr(open_engine, "cores", lambda: cores)
    monkeypatch.setattr("iic_runtime.engine.base.cores", lambda: cores)
    monkeypatch.setattr(open_engine, "memory_of_machine", lambda: memory)


@pytest.mark.parametrize(("cores", "tile", "lanes"), [(1, 1024, 1), (2, 768, 2), (4, 512, 4), (16, 512, 4)])
def test_cores_are_shared_by_tiles_within_one_gib(
    monkeypatch: pytest.MonkeyPatch, card: Card, cores: int, tile: int, lanes: int
) -> None:
    set_machine(monkeypatch, cores, 32 * GIB)
    spec = choose_spec(card, EngineSettings(device="cpu"))
    assert (spec.tile, spec.lanes, spec.batch) == (tile, lanes, 1)
    assert estimate_memory(card, spec) <= GIB


def test_a_small_machine_gives_half_of_its_memory(monkeypatch: pytest.MonkeyPatch, card: Card) -> None:
    set_machine(monkeypatch, 4, GIB)
    spec = choose_spec(card, EngineSettings(device="cpu"))
    assert estimate_memory(card, spec) <= GIB // 2
    set_machine(monkeypatch, 4, 256 * MIB)
    with pytest.raises(UsageError, match="this machine has"):
        choose_spec(card, EngineSettings(device="cpu"))


def test_a_limit_decides_tile_and_lanes(monkeypatch: pytest.MonkeyPatch, card: Card) -> None:
    set_machine(monkeypatch, 2, 32 * GIB)
    tiles = []
    for limit in (400 * MIB, 600 * MIB, GIB, 4 * GIB):
        spec = choose_spec(card, EngineSettings(device="cpu", max_memory=limit))
        assert estimate_memory(card, spec) <= limit
        tiles.append((spec.tile, spec.lanes))
    assert tiles == [(256, 1), (512, 1), (768, 2), (1024, 2)]
    with pytest.raises(UsageError, match="is too little: this model needs about"):
        choose_spec(card, EngineSettings(device="cpu", max_memory=200 * MIB))


def test_large_tiles_are_for_networks_that_look_far(monkeypatch: pytest.MonkeyPatch) -> None:
    set_machine(monkeypatch, 2, 32 * GIB)
    near = replace(find_model("satellite").card, halo=16, stride=4, memory_per_pixel=416)
    spec = choose_spec(near, EngineSettings(device="cpu"))
    assert (spec.tile, spec.lanes) == (512, 2)


def test_a_tile_that_is_given_stays(monkeypatch: pytest.MonkeyPatch, card: Card) -> None:
    set_machine(monkeypatch, 2, 32 * GIB)
    assert choose_spec(card, EngineSettings(device="cpu", tile=256)) == EngineSpec("cpu", 256, 1, lanes=2)
    assert choose_spec(card, EngineSettings(device="cpu", tile=4096)) == EngineSpec("cpu", 4096, 1, lanes=1)
    with pytest.raises(UsageError, match=r"A `tile` of 4096 px .* more than the `max_memory`"):
        choose_spec(card, EngineSettings(device="cpu", tile=4096, max_memory=GIB))


def test_openvino_takes_more_memory(monkeypatch: pytest.MonkeyPatch, card: Card) -> None:
    set_machine(monkeypatch, 2, 32 * GIB)
    spec = choose_spec(card, EngineSettings(device="openvino"))
    assert estimate_memory(card, replace(spec, device="cpu")) < estimate_memory(card, spec) <= GIB
    assert (spec.tile, spec.lanes) == (512, 2)


def test_threads_limit_the_lanes(monkeypatch: pytest.MonkeyPatch, card: Card) -> None:
    set_machine(monkeypatch, 8, 32 * GIB)
    assert choose_spec(card, EngineSettings(device="cpu", threads=1, tile=512)).lanes == 1
    four = choose_spec(card, EngineSettings(device="cpu", threads=4, tile=512))
    assert (four.lanes, four.threads_per_lane) == (4, 1)
    assert four.with_threads(2) == replace(four, threads=2, lanes=2)
    assert four.with_threads(None).lanes == 4


@pytest.mark.parametrize(
    ("memory", "tile", "batch"), [(None, 512, 1), (8, 1024, 1), (24, 2048, 1), (80, 2048, 2)]
)
def test_tiles_and_batches_follow_the_memory_of_a_gpu(
    monkeypatch: pytest.MonkeyPatch, memory: int | None, tile: int, batch: int
) -> None:
    set_machine(monkeypatch, 8, 64 * GIB)
    monkeypatch.setattr(open_engine, "gpu_memory", lambda: memory and memory * GIB)
    far = replace(make_card(), halo=64, stride=16, memory_per_pixel=624)
    assert choose_spec(far, EngineSettings(device="cuda")) == EngineSpec("cuda", tile, batch, lanes=3)


def test_what_is_given_on_a_gpu_stays(monkeypatch: pytest.MonkeyPatch, card: Card) -> None:
    set_machine(monkeypatch, 2, 8 * GIB)
    monkeypatch.setattr(open_engine, "gpu_memory", lambda: 8 * GIB)
    spec = choose_spec(card, EngineSettings(device="tensorrt", tile=256, batch=3, threads=1))
    assert spec == EngineSpec("tensorrt", 256, 3, threads=1, lanes=3)
    assert spec.with_threads(1).lanes == 3
    with pytest.raises(UsageError, match=r"this model needs about .* with the smallest tiles"):
        choose_spec(card, EngineSettings(device="cuda", max_memory=GIB))
