"""Networks that see far: their graphs tile exactly too, in every precision."""

from pathlib import Path

import onnx
import pytest
import torch
from support.runs import bright_and_dark_fields
from support.scenes import BANDS, write_raster

from iic_export import export
from iic_runtime.model.card import Precision
from iic_runtime.model.validate import validate_model
from iic_train.config import DataConfig, TrainConfig
from iic_train.models.networks import Network
from iic_train.models.registry import NetworkConfig
from iic_train.runs import Choice, create_run
from iic_train.views.settings import DensePairs


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of random weights whose batch norm is not trivial."""
    folder = tmp_path_factory.mktemp("context")
    scene = write_raster(folder / "scene.tif", bright_and_dark_fields(133, 151)[0])
    network = NetworkConfig(
        "context",
        BANDS,
        clusters_b=3,
        beside="log",
        bias=True,
        family="context",
        widths=(4, 6, 6, 8),
    )
    config = TrainConfig(
        "fields", DataConfig("rasters", scenes=(str(scene),)), network, DensePairs(), 24, ("b",), epochs=1
    )
    made = create_run(config, {"fingerprint": ""}, folder / "runs")
    torch.manual_seed(0)
    trained = Network(network)
    with torch.no_grad():
        for _ in range(3):
            trained(torch.randint(0, 256, (4, 4, 64, 64)))
    made.save_weights(trained, "best", Choice(1, 0, -1.0))
    made.append_metrics({"epoch": 1})
    return made.path


@pytest.mark.parametrize("precision", ["fp32", "fp16", "int8"])
def test_context_networks_are_exported_with_their_own_halo_and_stride(
    run: Path, precision: Precision, tmp_path: Path
) -> None:
    exported = export(run, tmp_path / "m.onnx", precision=precision, min_agreement=0.9)
    assert (exported.card.halo, exported.card.stride) == (32, 8)
    assert all(check.kept for check in validate_model(exported.path))
    graph = onnx.load(exported.path).graph
    # those of the trunk, none for the labels
    assert sum(node.op_type == "Resize" for node in graph.node) == 3
