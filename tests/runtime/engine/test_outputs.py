"""What a graph returns is checked before it is believed."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from support.scenes import landscape
from support.tiny_onnx import make_card
from typer.testing import CliRunner

from iic_geotools.errors import ModelError
from iic_runtime import Segmenter, segment_raster
from iic_runtime.cli.model import app
from iic_runtime.model.file import put_card

MakeScene = Callable[..., Path]


def graph(kind: str) -> bytes:
    """A graph whose labels and confidence are wrong in one way."""
    nodes: list[onnx.NodeProto] = []
    weights: list[onnx.TensorProto] = []

    def constant(name: str, value: np.ndarray) -> str:
        weights.append(numpy_helper.from_array(value, name))
        return name

    axis = constant("axis", np.array([1]))
    nodes.append(helper.make_node("Cast", ["image"], ["float"], to=TensorProto.FLOAT))
    nodes.append(helper.make_node("ReduceMax", ["float", axis], ["plane"], keepdims=0))
    match kind:
        case "scalar":
            nodes.append(helper.make_node("ReduceMax", ["plane"], ["shaped"], keepdims=1))
        case "double":
            nodes.append(helper.make_node("Concat", ["plane", "plane"], ["shaped"], axis=1))
        case "half":
            slices = [
                constant(n, np.array([v]))
                for n, v in (("start", 0), ("end", 1 << 30), ("axes", 1), ("step", 2))
            ]
            nodes.append(helper.make_node("Slice", ["plane", *slices], ["shaped"]))
        case _:
            nodes.append(helper.make_node("Identity", ["plane"], ["shaped"]))
    value = {"nodata": 255.0, "class": 4.0}.get(kind, 1.0)
    nodes.append(helper.make_node("Mul", ["shaped", constant("zero", np.array(0, np.float32))], ["zeros"]))
    nodes.append(helper.make_node("Add", ["zeros", constant("value", np.array(value, np.float32))], ["sum"]))
    nodes.append(helper.make_node("Cast", ["sum"], ["labels"], to=TensorProto.UINT8))
    nodes.append(helper.make_node("Identity", ["labels"], ["confidence"]))
    outputs = [helper.make_tensor_value_info(n, TensorProto.UINT8, None) for n in ("labels", "confidence")]
    inputs = [helper.make_tensor_value_info("image", TensorProto.UINT8, ["n", 4, "h", "w"])]
    made = helper.make_model(
        helper.make_graph(nodes, "wrong", inputs, outputs, weights),
        opset_imports=[helper.make_opsetid("", 20)],
        ir_version=10,
    )
    return put_card(made.SerializeToString(), make_card())


WRONG = {
    "scalar": r"labels of shape \(1, 1, 1\)",
    "double": "labels of shape",
    "half": "labels of shape",
    "nodata": "the label 255, and its card has 4 classes",
    "class": "the label 4, and its card has 4 classes",
}


@pytest.mark.parametrize("kind", WRONG)
def test_wrong_outputs_never_reach_a_map(make_scene: MakeScene, tmp_path: Path, kind: str) -> None:
    model = tmp_path / "wrong.onnx"
    model.write_bytes(graph(kind))
    with pytest.raises(ModelError, match=WRONG[kind]):
        Segmenter(model, device="cpu")(landscape(40, 50))
    with pytest.raises(ModelError, match=WRONG[kind]):
        segment_raster(make_scene(landscape(40, 50)), tmp_path / "map.tif", model, device="cpu")
    assert not list(tmp_path.glob("map.tif*"))
    result = CliRunner().invoke(app, ["validate", str(model)])
    assert result.exit_code == 1
    assert "FAIL" in result.output


def test_right_outputs_are_taken(tmp_path: Path) -> None:
    model = tmp_path / "right.onnx"
    model.write_bytes(graph("right"))
    assert (Segmenter(model, device="cpu")(landscape(40, 50)).labels == 1).all()
