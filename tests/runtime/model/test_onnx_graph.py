"""Graphs changed without the onnx package, judged by the onnx package and by ONNX Runtime."""

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import numpy_helper
from support.scenes import landscape
from support.tiny_onnx import make_model

from iic_geotools.errors import ModelError
from iic_runtime.model.onnx_graph import Node, OnnxGraph

MODEL = make_model(classes=4)
IMAGE = landscape(31, 45)[None]


def run(content: bytes, *outputs: str) -> list[np.ndarray]:
    onnx.checker.check_model(onnx.load_from_string(content), full_check=True)
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    results: list[np.ndarray] = session.run(list(outputs), {"image": IMAGE})
    return results


def test_a_graph_that_is_not_changed_stays_the_same() -> None:
    again = onnx.load_from_string(OnnxGraph.parse(MODEL).serialise())
    original = onnx.load_from_string(MODEL)
    assert again.graph.node == original.graph.node
    assert again.graph.initializer == original.graph.initializer
    assert again.graph.output == original.graph.output
    assert again.metadata_props == original.metadata_props


def test_weights_are_read_as_the_onnx_package_reads_them() -> None:
    graph = OnnxGraph.parse(MODEL)
    for weight in onnx.load_from_string(MODEL).graph.initializer:
        assert np.array_equal(graph.weight(weight.name), numpy_helper.to_array(weight))


@pytest.mark.parametrize("dtype", [onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16])
def test_weights_are_read_however_they_are_stored(dtype: int) -> None:
    model = onnx.load_from_string(MODEL)
    values = [0.5, -2.0, 8.0]
    model.graph.initializer.append(onnx.helper.make_tensor("extra", dtype, [3, 1], values))
    if dtype == onnx.TensorProto.FLOAT16:
        model.graph.initializer[-1].CopyFrom(
            numpy_helper.from_array(np.array(values, np.float16)[:, None], "extra")
        )
    assert OnnxGraph.parse(model.SerializeToString()).weight("extra").ravel().tolist() == values


def test_a_head_with_other_weights_and_more_classes() -> None:
    graph = OnnxGraph.parse(MODEL)
    rng = np.random.default_rng(1)
    weight = rng.normal(size=(7, 8, 1, 1)).astype(np.float32)
    changed = graph.with_weights({"head_w": weight, "head_b": np.zeros(7, np.float32)})
    labels = run(changed.serialise(), "labels")[0]
    assert labels.shape == IMAGE.shape[:1] + IMAGE.shape[2:]
    assert labels.max() > 3
    assert np.array_equal(changed.weight("head_w"), weight)


def test_other_nodes_make_a_tensor_and_what_is_not_needed_goes() -> None:
    graph = OnnxGraph.parse(MODEL)
    head = np.zeros((2, 8, 1, 1), np.float32)
    nodes = [Node.make("Conv", ["half1_relu", "new"], "wide"), Node.make("Relu", ["wide"], "logits")]
    changed = graph.with_weights({"new": head}).remake("logits", nodes)
    assert not changed.makes("head")
    assert "head_w" not in changed.weights
    labels, confidence = run(changed.serialise(), "labels", "confidence")
    assert (labels == 0).all()
    assert (confidence == 128).all()


def test_a_tensor_is_passed_through_more_nodes() -> None:
    graph = OnnxGraph.parse(MODEL)
    node = Node.make(
        "AveragePool", ["raw"], "probabilities", kernel_shape=[3, 3], pads=[1, 1, 1, 1], count_include_pad=0
    )
    changed = graph.rework("probabilities", "raw", [node]).declare_output("raw", "n", 4, "h", "w")
    changed = changed.declare_output("probabilities", "n", 4, "h", "w")
    raw, smooth, labels = run(changed.serialise(), "raw", "probabilities", "labels")
    assert np.allclose(smooth[0, :, 1, 1], raw[0, :, :3, :3].mean((1, 2)), atol=1e-6)
    assert np.allclose(smooth[0, :, 0, 0], raw[0, :, :2, :2].mean((1, 2)), atol=1e-6)
    assert (labels == smooth.argmax(1)).all()


def test_fewer_outputs() -> None:
    graph = OnnxGraph.parse(MODEL).with_outputs(["labels"])
    assert "full_scale" not in graph.weights
    assert np.array_equal(run(graph.serialise(), "labels")[0], run(MODEL, "labels")[0])


def test_what_is_not_there() -> None:
    graph = OnnxGraph.parse(MODEL)
    with pytest.raises(ModelError, match="no weights named nothing"):
        graph.weight("nothing")
    with pytest.raises(ModelError, match="makes nothing"):
        graph.producer("nothing")


@given(st.binary(max_size=200))
def test_other_bytes_are_not_a_graph(data: bytes) -> None:
    with pytest.raises(ModelError, match="not an ONNX model"):
        OnnxGraph.parse(data)
