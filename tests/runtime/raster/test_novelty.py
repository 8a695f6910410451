"""How foreign each pixel is to a model of reflectance, as a raster."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.maps import read_band
from support.tiny_onnx import make_model

from iic_geotools.errors import AssumptionWarning, UsageError
from iic_geotools.scene.bands import COLOURS
from iic_geotools.scene.likelihood import BRIGHTEST, DARKEST, NOVEL, Likelihood
from iic_geotools.work import Progress
from iic_runtime import segment_raster

pytestmark = pytest.mark.filterwarnings("ignore::iic_geotools.errors.DoubtWarning")
MakeScene = Callable[..., Path]
WATER, WHEAT, PAINT = (0.03, 0.04, 0.05, 0.01), (0.04, 0.08, 0.04, 0.40), (0.9, 0.05, 0.05, 0.05)
SCALE = {"reflectance": (1e-4, 0.0)}


def stripes(noise: float = 0.004) -> np.ndarray:
    """Water, wheat and what nothing reflects, as a scene of Sentinel-2 of 150 x 130 pixels."""
    spectra = np.repeat(np.array([WATER, WHEAT, PAINT]), 50, axis=0).T[:, :, None]
    return np.asarray((spectra + np.random.default_rng(0).normal(0, noise, (4, 150, 130))) * 1e4, np.int16)


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """A small model that takes reflectance."""
    path = tmp_path / "tiny.onnx"
    path.write_bytes(make_model(dtype="int16", scale=1e-4, values="reflectance"))
    return path


def measure(scene: Path, model: Path, name: str, **options: Any) -> np.ndarray:
    """Map a scene, and return the novelty of its pixels."""
    folder = scene.with_name(name)
    folder.mkdir()
    segment_raster(
        scene, folder / "map.tif", model, **{"device": "cpu", **options}, novelty=folder / "novelty.tif"
    )
    return read_band(folder / "novelty.tif")


def test_novelty_is_the_probability_of_another_world(
    make_scene: MakeScene, tiny: Path, caplog: pytest.LogCaptureFixture
) -> None:
    values = stripes()
    with caplog.at_level("INFO"):
        novelty = measure(make_scene(values), tiny, "a", **SCALE)
    logs = Likelihood(COLOURS).log_density(values.reshape(4, -1).T / 1e4)
    even = -4 * np.log(BRIGHTEST - DARKEST)
    expected = np.minimum(255 / (1 + np.exp(np.minimum(logs - even, 500))), 254).reshape(150, 130)
    assert np.abs(novelty - expected).max() <= 1
    assert (novelty[:100] >= NOVEL).mean() < 0.1
    assert (novelty[100:] >= NOVEL).all()
    assert "Novelty: 255 x the probability" in caplog.text


@pytest.mark.parametrize("options", [{"tile": 32}, {"tile": 50, "batch": 3}, {"tile": 4096}])
def test_novelty_does_not_depend_on_tiles(make_scene: MakeScene, tiny: Path, options: dict[str, int]) -> None:
    values = stripes()
    values[:, 40:60, 20:90] = -9999
    scene = make_scene(values, nodata=-9999)
    whole = measure(scene, tiny, "whole", **SCALE)
    assert np.array_equal(measure(scene, tiny, "tiles", **SCALE, **options), whole)
    assert np.array_equal(whole == 255, (values == -9999).all(0))
    assert np.array_equal(read_band(scene.parent / "whole" / "map.tif") == 255, whole == 255)


def test_labels_are_the_same_with_novelty(make_scene: MakeScene, tiny: Path, tmp_path: Path) -> None:
    scene = make_scene(stripes())
    measure(scene, tiny, "with", **SCALE)
    segment_raster(scene, tmp_path / "map.tif", tiny, device="cpu", **SCALE)
    assert (tmp_path / "map.tif").read_bytes() == (tmp_path / "with" / "map.tif").read_bytes()


def test_an_interrupted_run_resumes_with_its_novelty(make_scene: MakeScene, tiny: Path) -> None:
    scene = make_scene(np.tile(stripes(), (1, 2, 2)))
    options = {**SCALE, "tile": 16, "confidence": scene.with_name("c.tif")}

    def interrupt(progress: Progress) -> None:
        if progress.stage == "write":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measure(scene, tiny, "cut", progress=interrupt, **options)
    folder = scene.with_name("cut")
    assert not (folder / "novelty.tif").exists()
    summary = segment_raster(
        scene, folder / "map.tif", tiny, device="cpu", novelty=folder / "novelty.tif", **options
    )
    assert summary.parts_reused > 0
    assert summary.tiles_run == 0
    assert np.array_equal(read_band(folder / "novelty.tif"), measure(scene, tiny, "whole", **SCALE))


def test_novelty_of_a_scene_that_is_read_coarser_has_the_grid_of_the_scene(
    make_scene: MakeScene, tmp_path: Path
) -> None:
    path = tmp_path / "coarse.onnx"
    path.write_bytes(make_model(dtype="int16", scale=1e-4, values="reflectance", gsd=1.0))
    novelty = measure(make_scene(stripes(0.0)), path, "a", match_gsd=True, **SCALE)
    assert novelty.shape == (150, 130)
    assert (novelty[:99] < NOVEL).all()
    assert (novelty[101:] >= NOVEL).all()


def test_a_scene_without_infrared_has_a_novelty_of_three_bands(make_scene: MakeScene, tiny: Path) -> None:
    scene = make_scene(stripes()[:3])
    model = tiny.with_name("rgb.onnx")
    card = {"values": "reflectance", "optional": {"nir": -32768}}
    model.write_bytes(make_model(dtype="int16", scale=1e-4, **card))
    novelty = measure(scene, model, "a", **SCALE)
    assert (novelty[100:] >= NOVEL).all()
    assert (novelty[:100] >= NOVEL).mean() < 0.1


def test_models_of_other_values_have_no_novelty(make_scene: MakeScene, model: Path, tmp_path: Path) -> None:
    scene = make_scene(np.zeros((4, 40, 40), np.uint8))
    with pytest.raises(UsageError, match=r"`novelty` compares reflectances .*, and tiny takes other values"):
        measure(scene, model, "a")
    assert not list((tmp_path / "a").iterdir())


def test_a_stretched_scene_has_no_novelty(make_scene: MakeScene, tmp_path: Path) -> None:
    path = tmp_path / "tiny.onnx"
    path.write_bytes(make_model(dtype="int16", scale=1e-4, values="reflectance", stretch=(20000.0, 30000.0)))
    values = np.random.default_rng(0).integers(0, 255, (4, 90, 90), np.uint8)
    with (
        pytest.warns(AssumptionWarning),
        pytest.raises(UsageError, match=r"that of .*scene\.tif is not known; give `reflectance`"),
    ):
        measure(make_scene(values), path, "a")
