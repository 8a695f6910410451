"""Which head is taken from a run, and clustering heads: an image in, its class and probabilities out."""

import shutil
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from support.runs import TrainedScene

from iic_export import export
from iic_geotools.errors import TrainingError
from iic_runtime.model.file import ModelFile
from iic_runtime.model.validate import validate_model
from iic_train.config import DataConfig, TrainConfig
from iic_train.models.networks import Network
from iic_train.models.registry import NetworkConfig
from iic_train.runs import Choice, Run, create_run
from iic_train.views.pairs import central_views
from iic_train.views.settings import ImagePairs

FAMILIES = {
    "vgg": NetworkConfig("6c", ("grey",), 4, 6, 2, size=8, widths=(4, 8, 8, 8), family="vgg"),
    "resnet": NetworkConfig(
        "5g", ("red", "green", "blue"), 4, 6, 2, sobel=True, size=8, widths=(4, 4, 8, 8), family="resnet"
    ),
}


def test_a_run_without_weights(trained: TrainedScene, tmp_path: Path) -> None:
    shutil.copytree(trained.run, tmp_path / "run", ignore=shutil.ignore_patterns("*.safetensors"))
    with pytest.raises(TrainingError, match="no weights yet"):
        export(tmp_path / "run", tmp_path / "m.onnx")
    assert not (tmp_path / "m.onnx").exists()


@pytest.mark.parametrize("damage", ["cut", "noise", "not finite"])
def test_damaged_weights(trained: TrainedScene, tmp_path: Path, damage: str) -> None:
    folder = shutil.copytree(trained.run, tmp_path / "run")
    file = folder / "best.safetensors"
    if damage == "not finite":
        with safe_open(file, framework="pt") as opened:
            metadata = opened.metadata()
        weights = load_file(file)
        weights["heads.b.weight"] = weights["heads.b.weight"] * float("nan")
        save_file(weights, file, metadata)
    else:
        content = file.read_bytes()
        file.write_bytes(content[: len(content) // 2] if damage == "cut" else b"\x80" + content[1:])
    with pytest.raises(TrainingError, match="weights"):
        export(folder, tmp_path / "m.onnx")
    assert not (tmp_path / "m.onnx").exists()


@pytest.fixture(params=FAMILIES)
def clustering_run(request: pytest.FixtureRequest, tmp_path: Path) -> Run:
    """A run of random weights whose batch norm is not trivial, and whose data set is missing."""
    config = TrainConfig(
        "images",
        DataConfig("mnist", root=str(tmp_path)),
        FAMILIES[request.param],
        ImagePairs(8, 10, (8, 10)),
        None,
        passes=("b", "a"),
        epochs=1,
        batch=4,
    )
    run = create_run(config, {"fingerprint": ""}, tmp_path / "runs")
    torch.manual_seed(0)
    network = Network(config.network)
    with torch.no_grad():
        for _ in range(3):
            network(torch.randint(0, 256, (16, len(config.network.channels), 8, 8)).float())
        for name, weights in network.named_parameters():
            if name.startswith("heads"):
                weights.mul_(30)
    run.save_weights(network, "best", Choice(1, 1, -1.0))
    return run


def test_the_class_and_probabilities_of_an_image(clustering_run: Run, tmp_path: Path) -> None:
    exported = export(clustering_run.path, tmp_path / "m.onnx")
    card = ModelFile.read(exported.path).card
    assert (card.task, card.origin.subhead, len(card.classes)) == ("clustering", 1, 4)
    assert all(check.kept for check in validate_model(exported.path))
    session = onnxruntime.InferenceSession(str(exported.path), providers=["CPUExecutionProvider"])
    images = np.random.default_rng(0).integers(0, 256, (5, len(card.bands), 10, 10)).astype(np.uint8)
    labels, confidence, probabilities = session.run(None, {"image": images})
    network, pairs = clustering_run.network(), clustering_run.config.pairs
    assert isinstance(pairs, ImagePairs)
    with torch.inference_mode():
        view = central_views(pairs, network.scale(torch.from_numpy(images)))
        expected = network.classify(view)[:, 1].numpy()
    assert np.abs(probabilities - expected).max() < 1e-4
    assert (labels == expected.argmax(1)).all()
    assert (confidence == np.round(255 * probabilities.max(1))).all()
    assert len(np.unique(np.round(probabilities, 3))) > 4
