"""Exported graphs keep what it takes to give them another head: on the fine and the coarse grid, in every precision."""

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from support.scenes import landscape

from iic_export.torch_to_onnx import quantise, served_head, to_onnx, with_outputs
from iic_runtime.model.onnx_head import Head, has_features, merge_classes, replace_head, smooth_probabilities
from iic_train.models.networks import Network
from iic_train.models.registry import NetworkConfig

BANDS = ("red", "green", "blue", "nir")
IMAGE = landscape(37, 52)[None]


def graph(network: str, merge: torch.Tensor | None = None, half: bool = False) -> onnx.ModelProto:
    torch.manual_seed(0)
    config = NetworkConfig(network, BANDS, clusters_b=5, sub_heads=1)
    return to_onnx(served_head(Network(config).eval(), None, merge, half=half), 4, "uint8", (38, 38))


def run(content: bytes, *outputs: str) -> list[np.ndarray]:
    onnx.checker.check_model(onnx.load_from_string(content), full_check=True)
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    results: list[np.ndarray] = session.run(list(outputs), {"image": IMAGE})
    return results


def random_head(features: int, classes: int, units: int = 0) -> Head:
    rng = np.random.default_rng(0)

    def draw(*shape: int) -> np.ndarray:
        return rng.normal(size=shape).astype(np.float32)

    hidden = (draw(units, features), draw(units), draw(classes, units)) if units else (None, None, None)
    return Head(draw(classes, features), draw(classes), *hidden)


def softmax(logits: np.ndarray) -> np.ndarray:
    masses = np.exp(logits - logits.max(-1, keepdims=True))
    return masses / masses.sum(-1, keepdims=True)


@pytest.mark.parametrize("units", [0, 6])
@pytest.mark.parametrize("merged", [False, True])
def test_the_head_of_a_fine_network(units: int, merged: bool) -> None:
    merge = torch.tensor([[1.0, 0, 1, 0, 0], [0, 1, 0, 1, 1]]) if merged else None
    content = graph("local", merge).SerializeToString()
    assert has_features(content)
    features, before = run(content, "features", "probabilities")
    assert before.shape[1] == (2 if merged else 5)
    head = random_head(features.shape[1], 7, units)
    probabilities, labels = run(replace_head(content, head), "probabilities", "labels")
    expected = softmax(head.logits(np.moveaxis(features[0], 0, -1).reshape(-1, features.shape[1])))
    assert np.allclose(probabilities[0].reshape(7, -1).T, expected, atol=1e-5)
    assert (labels == probabilities.argmax(1)).all()


@pytest.mark.parametrize("precision", ["fp32", "fp16", "int8"])
def test_the_head_of_a_coarse_network_in_any_precision(precision: str) -> None:
    model = graph("edge-8", half=precision == "fp16")
    if precision == "int8":
        model = quantise(model, [IMAGE[0]])
    content = with_outputs(model, ["labels", "confidence", "features"]).SerializeToString()
    (features,) = run(content, "features")
    assert features.shape[2:] == IMAGE.shape[2:]
    assert features.dtype == np.float32
    head = random_head(features.shape[1], 3)
    labels, confidence = run(replace_head(content, head), "labels", "confidence")
    expected = softmax(head.logits(np.moveaxis(features[0], 0, -1)))
    # Probabilities are computed on the coarse grid and upsampled, features are upsampled first.
    sure = expected.max(-1) > 0.8
    assert sure.mean() > 0.1
    assert np.mean(labels[0][sure] == expected.argmax(-1)[sure]) > 0.97
    assert confidence.min() >= 255 // 3


def test_smoothed_probabilities() -> None:
    content = graph("local").SerializeToString()
    (features,) = run(content, "features")
    head = random_head(features.shape[1], 3)
    replaced = replace_head(content, head)
    rough, smooth = (run(smooth_probabilities(replaced, reach), "probabilities")[0][0] for reach in (0, 2))
    assert np.allclose(smooth[:, 5, 9], rough[:, 3:8, 7:12].mean((1, 2)), atol=1e-5)
    assert np.allclose(smooth[:, 0, 0], rough[:, :3, :3].mean((1, 2)), atol=1e-5)


@pytest.mark.parametrize("network", ["local", "edge-8", "context-small"])
@pytest.mark.parametrize("merged", [False, True])
def test_classes_are_merged(network: str, merged: bool) -> None:
    merge = torch.tensor([[1.0, 0, 0, 1, 0], [0, 1, 0, 0, 1], [0, 0, 1, 0, 0]]) if merged else None
    content = graph(network, merge).SerializeToString()
    (before,) = run(content, "probabilities")
    matrix = np.zeros((2, before.shape[1]), np.float32)
    matrix[0, ::2] = matrix[1, 1::2] = 1
    probabilities, labels = run(merge_classes(content, matrix), "probabilities", "labels")
    assert np.allclose(probabilities, np.einsum("kc,nchw->nkhw", matrix, before), atol=1e-6)
    assert (labels == probabilities.argmax(1)).all()
