"""Networks as ONNX graphs: the same labels at any size and precision."""

import numpy as np
import onnx
import onnxruntime
from hypothesis import given, settings
from hypothesis import strategies as st

from iic_export import Exported
from iic_export.proof import trained_model
from iic_export.trained_head import TrainedHead


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 3), st.integers(1, 21), st.integers(1, 21), st.integers(0, 99))
def test_images_of_any_number_and_size_are_labelled(
    head: TrainedHead, exported: Exported, count: int, height: int, width: int, seed: int
) -> None:
    images = np.random.default_rng(seed).integers(0, 256, (count, 4, height, width)).astype(np.uint8)
    session = onnxruntime.InferenceSession(str(exported.path), providers=["CPUExecutionProvider"])
    labels, confidence, probabilities, features = session.run(None, {"image": images})
    assert features.shape == (count, head.network.config.widths[-1], height, width)
    assert labels.shape == confidence.shape == (count, height, width)
    assert probabilities.shape == (count, 3, height, width)
    assert (labels.dtype, confidence.dtype) == (np.uint8, np.uint8)
    expected = np.stack([trained_model(head)(image) for image in images])
    assert np.abs(probabilities - expected).max() < 1e-4
    assert (labels == probabilities.argmax(1)).all()
    assert (confidence == np.round(255 * probabilities.max(1))).all()


def test_the_graph_holds_no_batch_norm_and_no_leftovers(exported: Exported) -> None:
    onnx.checker.check_model(str(exported.path), full_check=True)
    graph = onnx.load(exported.path).graph
    operators = [node.op_type for node in graph.node]
    assert "BatchNormalization" not in operators
    assert operators.count("Conv") == 7
    assert not {"Transpose", "Reshape", "Gather"} & set(operators)
    used = {name for node in graph.node for name in node.input}
    assert {weight.name for weight in graph.initializer} <= used
