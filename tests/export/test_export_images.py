"""Clustering networks: an image in, its class and probabilities out."""

import numpy as np
import onnxruntime
import pytest
import torch

from iic_export import export
from iic_runtime.modelfile import ModelFile
from iic_runtime.validate import validate_model
from iic_train.config import DataConfig, TrainConfig
from iic_train.networks import NetworkConfig
from iic_train.pairs import ImagePairs
from iic_train.runs import Choice, create_run

FAMILIES = {
    "vgg": NetworkConfig("6c", ("grey",), 4, 6, 2, size=8, widths=(4, 8, 8, 8), family="vgg"),
    "resnet": NetworkConfig(
        "5g", ("red", "green", "blue"), 4, 6, 2, sobel=True, size=8, widths=(4, 4, 8, 8), family="resnet"
    ),
}


@pytest.fixture(params=FAMILIES)
def run(request, tmp_path):
    """A run that never trained, its batch norm not trivial; the data set it names is nowhere."""
    from iic_train.networks import Network

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


def test_an_image_s_class_and_probabilities(run, tmp_path):
    made = export(run.path, tmp_path / "m.onnx")
    card = ModelFile.read(made.path).card
    assert (card.task, card.origin.subhead, len(card.classes)) == ("clustering", 1, 4)
    assert all(check.kept for check in validate_model(made.path))
    session = onnxruntime.InferenceSession(str(made.path), providers=["CPUExecutionProvider"])
    images = np.random.default_rng(0).integers(0, 256, (5, len(card.bands), 10, 10)).astype(np.uint8)
    labels, confidence, probabilities = session.run(None, {"image": images})
    network = run.network()
    with torch.inference_mode():
        view = run.config.pairs.evaluation(network.scale(torch.from_numpy(images)))
        expected = network.classify(view)[:, 1].numpy()
    assert np.abs(probabilities - expected).max() < 1e-4
    assert (labels == expected.argmax(1)).all()
    assert (confidence == np.round(255 * probabilities.max(1))).all()
    assert len(np.unique(np.round(probabilities, 3))) > 4
