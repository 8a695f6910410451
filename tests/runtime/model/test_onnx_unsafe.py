"""A model that refers to other files or has loops is refused before anything is read or run."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from support.tiny_onnx import make_card, make_model

from iic_geotools.errors import ModelError
from iic_runtime.model.file import ModelFile, put_card, refuse_unsafe_graph
from iic_runtime.model.file import encode as encode_field


def external(name: str = "scale") -> onnx.TensorProto:
    tensor = onnx.TensorProto(name=name, data_type=TensorProto.FLOAT, dims=[1])
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="etc/passwd")
    return tensor


def in_initializer(model: onnx.ModelProto) -> None:
    model.graph.initializer.append(external("extra"))


def in_constant(model: onnx.ModelProto) -> None:
    model.graph.node.append(helper.make_node("Constant", [], ["extra"], value=external()))


def in_branch(model: onnx.ModelProto) -> None:
    branch = helper.make_graph([], "branch", [], [], [external()])
    model.graph.node.append(
        helper.make_node("If", ["condition"], ["extra"], then_branch=branch, else_branch=branch)
    )


def in_function(model: onnx.ModelProto) -> None:
    node = helper.make_node("Constant", [], ["extra"], value=external())
    function = helper.make_function("own", "F", [], ["extra"], [node], [helper.make_opsetid("", 20)])
    model.functions.append(function)


def in_sparse(model: onnx.ModelProto) -> None:
    indices = numpy_helper.from_array(np.array([0]), "indices")
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(external(), indices, [4]))


def in_training(model: onnx.ModelProto) -> None:
    model.training_info.add().algorithm.initializer.append(external())


PLACES = (in_initializer, in_constant, in_branch, in_function, in_sparse, in_training)


@pytest.mark.parametrize("place", PLACES)
def test_external_data_is_refused(place: object, tmp_path: Path) -> None:
    model = onnx.load_from_string(make_model())
    place(model)  # type: ignore[operator]
    path = tmp_path / "model.onnx"
    path.write_bytes(put_card(model.SerializeToString(), make_card()))
    with pytest.raises(ModelError, match=r"cannot be used as a model: its weights are in another file"):
        ModelFile.read(path)


def test_a_compiled_engine_in_another_file_is_refused() -> None:
    model = onnx.load_from_string(make_model())
    node = helper.make_node("EPContext", [], ["extra"], domain="com.microsoft", ep_cache_context="x.engine")
    model.graph.node.append(node)
    with pytest.raises(ModelError, match="compiled engine"):
        refuse_unsafe_graph(model.SerializeToString())


def test_graphs_that_are_nested_without_end_are_refused() -> None:
    content = b""
    for number in [7, *[1, 5, 6] * 40][
        ::-1
    ]:  # node, attribute and graph of a loop, within a loop, within a loop
        content = encode_field(number, content)
    with pytest.raises(ModelError, match="nested too deeply"):
        refuse_unsafe_graph(content)


@pytest.mark.parametrize("within", [False, True])
@pytest.mark.parametrize("operator", ["Loop", "Scan", "SequenceMap"])
def test_loops_are_refused(operator: str, within: bool) -> None:
    """A loop of 2^62 steps ran until it was killed."""
    model = onnx.load_from_string(make_model())
    node = helper.make_node(operator, ["steps"], ["extra"], body=helper.make_graph([], "body", [], []))
    if within:
        branch = helper.make_graph([node], "branch", [], [])
        node = helper.make_node("If", ["condition"], ["extra"], then_branch=branch, else_branch=branch)
    model.graph.node.append(node)
    with pytest.raises(ModelError, match="has a loop"):
        refuse_unsafe_graph(model.SerializeToString())


def test_a_plain_model_is_not_refused() -> None:
    refuse_unsafe_graph(make_model())
