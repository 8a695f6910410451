"""A map must not depend on how it was tiled: labels and confidence equal the whole image's, bit for bit."""

import pickle
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.scenes import landscape
from support.tiny_onnx import make_model, write_card

from iic_geotools.classmap.classes import NODATA
from iic_geotools.errors import ModelError, UsageError
from iic_runtime import Segmenter
from iic_runtime.engine.base import OUTPUTS
from iic_runtime.engine.onnx import OnnxEngine
from iic_runtime.engine.open_engine import open_engine
from iic_runtime.model.file import ModelFile
from iic_runtime.options import EngineSettings

WHOLE = 4096
NETWORKS = (
    {"full": (8, 8), "half": ((8, 1), (8, 2))},
    {"full": (8, 16), "half": ((32, 1), (32, 1), (64, 2), (64, 2)), "classes": 3},
    {"full": (5,), "half": ((7, 3),), "classes": 7},
    {"full": (16, 24), "half": ((24, 1), (40, 2)), "dtype": "uint16"},
)


@cache
def segmenter(network: int, tile: int, batch: int = 1, threads: int = 1) -> Segmenter:
    path = Path(mkdtemp()) / "model.onnx"
    path.write_bytes(make_model(network, **NETWORKS[network]))
    return Segmenter(path, device="cpu", tile=tile, batch=batch, threads=threads)


def image(height: int, width: int, dtype: str, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    top = 255 if dtype == "uint8" else 10000
    return rng.integers(0, top, (4, height, width)).astype(dtype)


@settings(max_examples=60, deadline=None)
@given(
    network=st.integers(0, len(NETWORKS) - 1),
    height=st.integers(1, 150),
    width=st.integers(1, 150),
    tile=st.sampled_from([9, 16, 33, 64, 100]),
    batch=st.sampled_from([1, 3]),
    threads=st.sampled_from([1, 2]),
    seed=st.integers(0, 99),
)
def test_tiles_equal_the_whole(
    network: int, height: int, width: int, tile: int, batch: int, threads: int, seed: int
) -> None:
    pixels = image(height, width, NETWORKS[network].get("dtype", "uint8"), seed)
    whole = segmenter(network, WHOLE)(pixels)
    tiled = segmenter(network, tile, batch, threads)(pixels)
    assert np.array_equal(whole.labels, tiled.labels)
    assert np.array_equal(whole.confidence, tiled.confidence)


@pytest.mark.parametrize("network", range(len(NETWORKS)))
def test_a_halo_one_pixel_short_would_show(network: int, tmp_path: Path) -> None:
    """The halo of the test networks is the least that is exact: so the test above can fail."""
    from dataclasses import replace

    from iic_runtime.model.file import ModelFile

    path = tmp_path / "model.onnx"
    path.write_bytes(make_model(network, **NETWORKS[network]))
    card = ModelFile.read(path).card
    write_card(path, replace(card, halo=card.halo - 2))
    pixels = image(150, 150, card.dtype, 0)
    short = Segmenter(path, device="cpu", tile=16)(pixels)
    whole = segmenter(network, WHOLE)(pixels)
    assert not np.array_equal(whole.confidence, short.confidence)


def test_pixels_without_data_cannot_leak(tmp_path: Path) -> None:
    """The values of pixels without data do not influence other pixels."""
    pixels = image(70, 90, "uint8", 1)
    valid = np.ones((70, 90), bool)
    valid[20:40, 30:50] = False
    other = pixels.copy()
    other[:, ~valid] = 255 - other[:, ~valid]
    for tile in (WHOLE, 33):
        a, b = segmenter(0, tile)(pixels, valid), segmenter(0, tile)(other, valid)
        assert np.array_equal(a.labels, b.labels)
        assert (a.labels[~valid] == 255).all()
        assert (a.labels[valid] < 4).all()
        assert (a.confidence[~valid] == 0).all()
        assert (a.confidence[valid] > 0).all()
    assert np.array_equal(segmenter(0, WHOLE)(pixels, valid).labels, segmenter(0, 33)(pixels, valid).labels)


def test_too_few_bands_are_a_sentence_also_if_the_model_rescales(tmp_path: Path) -> None:
    path = tmp_path / "auto.onnx"
    path.write_bytes(make_model(rescale="auto"))
    with pytest.raises(
        ModelError, match=r"takes \[4, H, W\] \(red, green, blue, nir\), not shape \(3, 40, 50\)"
    ):
        Segmenter(path, device="cpu")(landscape(40, 50, bands=3))


@pytest.mark.parametrize(
    "image",
    [None, [[[1]]], np.zeros((4, 5, 6), complex), np.zeros((4, 5, 6), object), np.zeros((4, 0, 6), np.uint8)],
)
def test_what_is_not_an_image_is_a_sentence(image: np.ndarray) -> None:
    with pytest.raises(ModelError, match=r"takes arrays of numbers \[4, H, W\]|no pixel"):
        segmenter(0, 64)(image)


def test_masked_arrays_hold_no_data_where_they_are_masked() -> None:
    """As rasterio reads them with `masked=True`."""
    values = landscape(30, 40)
    hidden = np.zeros(values.shape, bool)
    hidden[1, 5:9, 7:20] = True
    labels = segmenter(0, 64)(np.ma.MaskedArray(values, hidden)).labels
    assert np.array_equal(labels, segmenter(0, 64)(values, ~hidden.any(0)).labels)
    assert np.array_equal(labels == NODATA, hidden.any(0))


def test_an_unknown_way_to_rescale_is_refused() -> None:
    with pytest.raises(UsageError, match='`rescale` of an array is "auto" or "off"'):
        segmenter(0, 64)(landscape(30, 40), rescale="0,255")  # type: ignore[arg-type]


def test_outputs_that_are_not_wanted_are_not_in_the_session(tmp_path: Path) -> None:
    path = tmp_path / "telling.onnx"
    path.write_bytes(make_model(features=True))
    model = ModelFile.read(path)
    image = landscape(20, 30)[None]
    settings = EngineSettings(device="cpu")
    engine, telling = open_engine(model, settings), open_engine(model, settings, (*OUTPUTS, "features"))
    assert isinstance(engine, OnnxEngine)
    assert isinstance(telling, OnnxEngine)
    assert telling.fetch(image, ["features"])[0].shape == (1, 8, 20, 30)
    assert (telling.run(image, False)[0] == engine.run(image, False)[0]).all()
    with pytest.raises(ModelError, match="features"):
        engine.fetch(image, ["features"])


@pytest.mark.parametrize(
    "mask", [np.full((20, 30), 256), np.full((20, 30), 0.5), np.full((20, 30), -1), [[True] * 30] * 20, "all"]
)
def test_masks_of_other_values_are_refused(mask: object) -> None:
    """256 and 0.5 were taken as 0, and everything was nodata."""
    with pytest.raises(UsageError, match="`valid` must"):
        segmenter(0, 64)(image(20, 30, "uint8", 0), mask)  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", [bool, np.uint8, np.int64, np.float32])
def test_masks_of_zeros_and_ones(dtype: type) -> None:
    mask: np.ndarray = np.ones((20, 30), dtype)
    mask[:5] = 0
    labels = segmenter(0, 64)(image(20, 30, "uint8", 0), mask).labels
    np.testing.assert_array_equal(labels == NODATA, mask == 0)


@pytest.mark.parametrize("value", ["a", 1.5, True])
@pytest.mark.parametrize("name", ["tile", "batch"])
def test_sizes_are_whole_numbers(name: str, value: object, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(make_model())
    with pytest.raises(UsageError, match=f"`{name}` must be a whole number"):
        Segmenter(path, device="cpu", **{name: value})  # type: ignore[arg-type]


def test_a_segmenter_can_be_pickled() -> None:
    segment = segmenter(0, 64)
    image = landscape(90, 80)
    copied = pickle.loads(pickle.dumps(segment))
    assert copied.spec == segment.spec
    assert np.array_equal(copied(image).labels, segment(image).labels)
