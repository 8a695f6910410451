"""The bank's graph, written without torch or onnx: what it computes, in any tiling, for any values."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import ndimage
from support.tiny_onnx import BANDS, make_card, make_model

from iic_geotools.errors import ModelError
from iic_geotools.scene.multiscale import LEAST_SPREAD, LIMIT, OFFSET, REACH, SIDES, SMOOTH, TEXTURE
from iic_runtime.model.card import Card
from iic_runtime.model.file import ModelFile, put_card
from iic_runtime.model.onnx_graph import OnnxGraph
from iic_runtime.model.onnx_head import NEAREST, Bank, Codebook, bank_graph
from iic_runtime.model.validate import validate_model


def features(content: bytes, image: np.ndarray) -> np.ndarray:
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(["features"], {"image": image[None]})[0][0])


def bank_of(image: np.ndarray, bands: tuple[str, ...] = BANDS, **card: object) -> tuple[Card, Bank]:
    made = make_card(2, bands, dtype=str(image.dtype), **card)
    return made, Bank.of(made, image.reshape(len(image), -1))


def expected(bank: Bank, image: np.ndarray) -> np.ndarray:
    """The definition of the bank in double precision: means over the part of a square that is on the scene."""
    x = (image - np.reshape(bank.offset, (-1, 1, 1))) * np.reshape(bank.scale, (-1, 1, 1))
    roots = np.sqrt(np.maximum(x + OFFSET, 0)) - np.reshape(bank.mean, (-1, 1, 1))
    factors = [1 / deviation if deviation > LEAST_SPREAD else 0.0 for deviation in bank.deviation]
    values = np.clip(roots * np.reshape(factors, (-1, 1, 1)), -LIMIT, LIMIT)
    own = [*values]
    grey = values.mean(0)
    if bank.index_bands:
        nir, red = (x[band] for band in bank.index_bands)
        own.append((nir - red) / (np.abs(nir) + np.abs(red) + 0.1))
    textured = [*own[len(values) :], grey]

    def box(values: np.ndarray, step: int) -> np.ndarray:
        kernel = np.zeros((2 * step + 1, 2 * step + 1))
        kernel[::step, ::step] = 1 / 9
        return ndimage.convolve(values, kernel, mode="constant")

    weight, ones = np.ones(grey.shape), np.ones(grey.shape)
    sums, out = [*own, grey], list(own)
    means, energies = [*own, grey], [np.zeros(grey.shape) for _ in textured]
    for level in range(len(SIDES)):
        step = 3**level
        sums, weight, before = [box(values, step) for values in sums], box(weight, step), weight
        finer, means = means, [values / weight for values in sums]
        last = level == len(SIDES) - 1
        for index in range(len(textured)):
            place = len(own) + 1 - len(textured) + index
            change = 0 * ones if last else (finer[place] - means[place]) ** 2
            energies[index] = box(energies[index] + change * before, step)
        out += means[: len(own)]
        out += [TEXTURE * (energy / weight + SMOOTH**2) ** 0.125 for energy in energies]
    return np.stack(out)


@pytest.mark.parametrize(
    "bands", [BANDS, ("red", "green", "blue"), ("vv",), tuple(f"band{i}" for i in range(1, 9))]
)
def test_features_are_those_of_the_definition(bands: tuple[str, ...]) -> None:
    rng = np.random.default_rng(0)
    image = ndimage.gaussian_filter(rng.random((len(bands), 60, 70)), (0, 2, 2)).astype(np.float32)
    card, bank = bank_of(image, bands)
    content, size = bank_graph(bank, card.dtype)
    onnx.checker.check_model(onnx.load_from_string(content), full_check=True)
    assert size == bank.size == sum(group.size for group in bank.groups)
    seen = features(content, image)
    assert seen.shape == (size, 60, 70)
    assert np.abs(seen - expected(bank, image.astype(np.float64))).max() < 1e-4


@given(st.integers(110, 150), st.integers(110, 150), st.integers(0, 80), st.integers(1, 30))
@settings(max_examples=5, deadline=None)
def test_a_tile_with_its_reach_equals_the_whole(height: int, width: int, first: int, side: int) -> None:
    image = np.random.default_rng(height).integers(0, 256, (4, height, width)).astype(np.uint8)
    card, bank = bank_of(image)
    content, _ = bank_graph(bank, card.dtype)
    top, left = max(0, first - REACH), max(0, first - REACH)
    tile = image[:, top : first + side + REACH, left : first + side + REACH]
    core = features(content, tile)[:, first - top :, first - left :][:, :side, :side]
    assert np.array_equal(core, features(content, image)[:, first : first + side, first : first + side])


@pytest.mark.parametrize(
    "kind",
    ["uint8", "dark uint16", "bright and flat", "decibels", "constant", "tiny range", "one bright pixel"],
)
def test_rounding_is_not_taken_for_texture(kind: str) -> None:
    """Features of float32 are those of double precision wherever the variance is next to nothing."""
    rng = np.random.default_rng(1)
    unit = ndimage.gaussian_filter(rng.random((4, 80, 80)), (0, 1, 1))
    made: dict[str, np.ndarray] = {
        "uint8": (255 * unit).astype(np.uint8),
        "dark uint16": (40 * unit).astype(np.uint16),
        "bright and flat": (60000 + 3 * unit).astype(np.uint16),
        "decibels": (-25 + 20 * unit).astype(np.float32),
        "constant": np.full((4, 80, 80), 700, np.int16),
        "tiny range": (1e-4 * unit).astype(np.float32),
        "one bright pixel": np.where(unit == unit.max(), 200, 10).astype(np.uint8),
    }
    image = made[kind]
    low = image.min((1, 2)).astype(float)
    span = np.maximum(image.max((1, 2)) - low, 1e-9)
    card, bank = bank_of(image, offset=tuple(low), scale=tuple(1 / span))
    seen = features(bank_graph(bank, card.dtype)[0], image)
    assert np.isfinite(seen).all()
    assert np.abs(seen - expected(bank, image.astype(np.float64))).max() < 2e-3


@pytest.mark.parametrize("half", [((8, 1),), ()])
def test_a_model_next_to_the_bank(half: tuple[tuple[int, int], ...]) -> None:
    base = ModelFile.parse(make_path(), make_model(3, classes=5, full=(6, 12), half=half, features=True))
    image = np.random.default_rng(0).integers(0, 256, (4, 71, 53)).astype(np.uint8)
    _, bank = bank_of(image)
    content, size = bank_graph(bank, "uint8", base.content, 5)
    onnx.checker.check_model(onnx.load_from_string(content), full_check=True)
    wide = OnnxGraph.parse(base.content).channels_of("features")
    assert size == bank.size + wide + 5
    seen = features(content, image)
    assert np.array_equal(seen[: bank.size], features(bank_graph(bank, "uint8")[0], image))
    assert np.array_equal(seen[bank.size : -5], features(base.content, image))
    assert np.allclose(seen[-5:].sum(0), 1, atol=1e-5)
    card = make_card(2, halo=max(REACH, base.card.halo), stride=base.card.stride, memory_per_pixel=900)
    assert all(check.kept for check in validate_model(ModelFile.parse(make_path(), put_card(content, card))))


def test_codebooks_say_how_near_a_pixel_is_to_their_centres() -> None:
    rng = np.random.default_rng(0)
    image = rng.integers(0, 256, (4, 120, 130)).astype(np.uint8)
    card, bank = bank_of(image)
    rotation, centres = rng.normal(size=(3, 5)), rng.normal(size=(6, 3))
    book = Codebook(5, 3, rotation, rng.normal(size=3), centres)
    coded = replace(bank, codebooks=(book, book))
    content, size = bank_graph(coded, card.dtype)
    assert size == bank.size + 12
    seen = features(content, image)
    points = np.moveaxis(seen[5:10].astype(np.float64), 0, -1) @ rotation.T + book.shift
    distances = np.sqrt(((points[:, :, None] - centres) ** 2).sum(-1) + NEAREST)
    expected_codes = np.maximum(distances.mean(-1, keepdims=True) - distances, 0)
    assert np.abs(np.moveaxis(seen[bank.size : -6], 0, -1) - expected_codes).max() < 1e-3
    assert np.allclose(book.encode(points.reshape(-1, 3)), expected_codes.reshape(-1, 6))
    core = features(content, image[:, : 40 + REACH, : 60 + REACH])[:, :40, :60]
    assert np.array_equal(core, seen[:, :40, :60])


def test_codes_are_averaged_over_the_squares_that_a_codebook_names() -> None:
    rng = np.random.default_rng(1)
    image = rng.integers(0, 256, (4, 60, 70)).astype(np.uint8)
    card, bank = bank_of(image)
    axes = rng.normal(size=(2, 6))
    book = Codebook(
        0, 3, rng.normal(size=(3, 12)), rng.normal(size=3), rng.normal(size=(6, 3)), (9, 27), axes
    )
    coded = replace(bank, codebooks=(book,))
    assert [(group.size, group.side) for group in coded.groups[-3:]] == [(6, 3), (2, 9), (2, 27)]
    content, _ = bank_graph(coded, card.dtype)
    codes, *pooled = np.split(features(content, image)[bank.size :], (6, 8))
    inside = np.ones(image.shape[1:])
    for reach, seen in zip((4, 13), pooled, strict=True):
        window = (2 * reach + 1,) * 2
        expected_means = [
            ndimage.uniform_filter(code.astype(np.float64), window, mode="constant")
            / ndimage.uniform_filter(inside, window, mode="constant")
            for code in np.tensordot(axes, codes, 1)
        ]
        away = slice(reach, -reach)  # at the edge, a mean of means is not that of the square
        assert np.abs(seen - expected_means)[:, away, away].max() < 1e-4


def test_a_model_that_does_not_tell_what_it_sees_cannot_be_joined() -> None:
    _, bank = bank_of(np.zeros((4, 8, 8), np.uint8))
    with pytest.raises(ModelError, match="head cannot be replaced"):
        bank_graph(bank, "uint8", make_model(3), 4)


def make_path() -> Path:
    return Path("model.onnx")
