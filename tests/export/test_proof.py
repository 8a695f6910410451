"""What is proven of a model before it is written: parity, exact tiling, memory."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from support.runs import TrainedScene
from torch import nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from iic_export import Exported, export, proof
from iic_export.proof import sample_images
from iic_export.trained_head import TrainedHead
from iic_geotools.errors import ModelError
from iic_runtime.model.file import ModelFile
from iic_runtime.model.validate import memory_per_pixel, validate_model
from iic_train.models.networks import Network


def test_the_model_file_keeps_every_promise_of_its_card(exported: Exported) -> None:
    assert [check.promise for check in validate_model(exported.path) if not check.kept] == []


def test_a_graph_that_differs_is_not_written(
    trained: TrainedScene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fold that forgets the batch norm's shift stands for any mistake between network and graph."""

    def fuse_wrongly(conv: nn.Conv2d, norm: nn.BatchNorm2d) -> nn.Conv2d:
        fused = fuse_conv_bn_eval(conv, norm)
        with torch.no_grad():
            assert fused.bias is not None
            fused.bias += 0.05
        return fused

    monkeypatch.setattr("iic_export.torch_to_onnx.fuse_conv_bn_eval", fuse_wrongly)
    with pytest.raises(ModelError, match="nothing was written"):
        export(trained.run, tmp_path / "m.onnx")
    assert list(tmp_path.iterdir()) == []


def test_a_network_that_cannot_be_tiled_is_refused(
    trained: TrainedScene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Network, "halo", property(lambda self: 6))
    with pytest.raises(ModelError, match="halo of 6 px"):
        export(trained.run, tmp_path / "m.onnx")
    assert list(tmp_path.iterdir()) == []


def test_without_the_run_s_data_it_is_proven_on_noise(
    trained: TrainedScene, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = shutil.copytree(trained.run, tmp_path / "run")
    record = json.loads((folder / "config.json").read_text())
    record["config"]["data"]["scenes"] = [str(tmp_path / "gone.tif")]
    (folder / "config.json").write_text(json.dumps(record))
    exported = export(folder, tmp_path / "m.onnx")
    assert exported.card.parity["own_data"] == 0
    assert "noise" in caplog.text


def test_values_that_are_not_finite_are_refused() -> None:
    image = np.zeros((4, 3, 3), np.uint8)
    uniform, broken = np.full((2, 3, 3), 0.5, np.float32), np.full((2, 3, 3), np.nan, np.float32)
    with pytest.raises(ModelError, match="not finite"):
        proof.compare(lambda _: uniform, lambda _: broken, [image], own_data=True)


def test_a_model_that_cannot_be_run_has_no_memory(exported: Exported, tmp_path: Path) -> None:
    """The card's measurement is repeatable within a few steps, and fails with a sentence."""
    card = ModelFile.read(exported.path).card
    assert abs(memory_per_pixel(exported.path) - card.memory_per_pixel) <= 0.2 * card.memory_per_pixel
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(exported.path.read_bytes()[:1000])
    with pytest.raises(ModelError, match="cannot be run to measure its memory"):
        memory_per_pixel(broken)


def test_data_that_changed_is_not_proof(head: TrainedHead, caplog: pytest.LogCaptureFixture) -> None:
    assert sample_images(head)[1]
    changed = replace(head.run, data={**head.run.data, "fingerprint": "another"})
    assert not sample_images(replace(head, run=changed))[1]
    assert "is not what" in caplog.text
