"""Scenes of every kind can be exported after training on them: what rounding changes is no reason to refuse."""

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from scipy import ndimage
from support.scenes import write_raster
from support.tiny_onnx import make_card

from iic_export import export
from iic_export.proof import Parity, compare
from iic_geotools.errors import ModelError
from iic_runtime.model.onnx_head import Bank as GraphBank
from iic_runtime.model.onnx_head import bank_graph
from iic_train import train_rasters
from iic_train.models.bank import AXES, Bank

SIDE = 160


def made_scene(kind: str) -> np.ndarray:
    """Patches of a few materials with noise, brought to the values of some sensor."""
    rng = np.random.default_rng(0)
    materials = rng.random((12, 4))
    patches = ndimage.zoom(rng.integers(0, 12, (10, 10)), SIDE // 10, order=0)
    noise = {"low noise": 0.002, "flat": 0.3}.get(kind, 0.03)
    unit = np.moveaxis(materials[patches], -1, 0) + noise * rng.normal(size=(4, SIDE, SIDE))
    if kind == "flat":
        unit = 0.5 + 0.01 * unit
    values: dict[str, np.ndarray] = {
        "16 bits": 3000 + 9000 * unit,
        "dark": 20 + 30 * unit,
        "reflectance": 0.4 * unit,
        "decibels": 10 * np.log10(np.maximum(unit, 0.01) * rng.gamma(4, 0.25, unit.shape)),
    }
    scaled = values.get(kind, 255 * unit)
    if kind in ("reflectance", "decibels"):
        return scaled.astype(np.float32)
    kept = np.uint16 if kind in ("16 bits", "dark") else np.uint8
    return np.clip(scaled, 0, np.iinfo(kept).max).astype(kept)


@pytest.mark.parametrize(
    "kind", ["8 bits", "low noise", "flat", "16 bits", "dark", "reflectance", "decibels"]
)
def test_a_scene_of_any_kind_is_exported(tmp_path: Path, kind: str) -> None:
    scene = write_raster(tmp_path / "scene.tif", made_scene(kind))
    run = train_rasters([str(scene)], 12, epochs=1, steps=2, runs=tmp_path, name="run")
    exported = export(run.path, tmp_path / "model.onnx")
    assert exported.parity.clear == 0
    assert exported.parity.difference < 5e-3


@pytest.mark.parametrize("bands", [("red", "green", "blue", "nir"), ("vv", "vh")])
def test_the_bank_of_a_network_is_that_of_a_graph_without_torch(bands: tuple[str, ...]) -> None:
    image = made_scene("8 bits")[: len(bands), :90, :100]
    card = make_card(2, bands)
    constants = GraphBank.of(card, image.reshape(len(bands), -1))
    session = onnxruntime.InferenceSession(bank_graph(constants, "uint8")[0])
    (graph,) = session.run(["features"], {"image": image[None]})
    torch.manual_seed(0)
    bank = Bank(bands, (8, 8, 8)).eval()
    x = torch.from_numpy(image[None] / np.float32(255))
    bank.standardise([x])
    with torch.inference_mode():
        parts = torch.cat(bank.wide(x, bank.learnt(x)), 1)[0].numpy()
    axes = [
        bank.own + level * (bank.own + AXES + bank.textures) + bank.own + axis
        for level in range(4)
        for axis in range(AXES)
    ]
    assert np.abs(np.delete(parts, axes, 0) - graph[0]).max() < 1e-3


def test_what_rounding_cannot_explain_is_refused() -> None:
    rng = np.random.default_rng(0)
    image = np.zeros((1, 40, 40), np.float32)
    sure = rng.dirichlet([0.1] * 3, (40, 40)).transpose(2, 0, 1).astype(np.float32)
    off = np.roll(sure, 1, 0)
    compare(lambda _: sure, lambda _: sure + np.float32(1e-6), [image], True).check("fp32")
    with pytest.raises(ModelError, match="labels differ clearly"):
        compare(lambda _: sure, lambda _: off, [image], True).check("fp32")
    with pytest.raises(ModelError, match="rounding explains"):
        Parity(2e-3, 1.0, 1600, True).check("fp32")
    tied = np.full((2, 40, 40), 0.5, np.float32)
    tilted = tied + np.array([-1e-7, 1e-7], np.float32)[:, None, None]
    compare(lambda _: tied, lambda _: tilted, [image], True).check("fp32")
