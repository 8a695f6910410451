import numpy as np
import onnx
import pytest
from onnx import TensorProto

from iic_export import export
from iic_geotools.errors import ModelError, UsageError
from iic_runtime.modelfile import ModelFile
from iic_runtime.segmenter import Segmenter
from iic_runtime.validate import validate_model


@pytest.fixture(scope="module", params=["fp16", "int8"])
def small(request, trained, tmp_path_factory):
    out = tmp_path_factory.mktemp(request.param) / "m.onnx"
    return export(trained.run, out, precision=request.param, min_agreement=0.9)


def test_pixels_and_labels_stay_8_bit(small):
    graph = onnx.load(small.path).graph
    assert graph.input[0].type.tensor_type.elem_type == TensorProto.UINT8
    assert {output.type.tensor_type.elem_type for output in graph.output} == {TensorProto.UINT8}


def test_the_trunk_is_what_was_asked_for(small):
    graph = onnx.load(small.path).graph
    weights = {weight.name: weight for weight in graph.initializer}
    if small.card.precision == "fp16":
        convolved = [weights[node.input[1]].data_type for node in graph.node if node.op_type == "Conv"]
        assert set(convolved) == {TensorProto.FLOAT16}
        assert len(convolved) == 7
    else:
        made = {output: node for node in graph.node for output in node.output}
        convolutions = [node for node in graph.node if node.op_type == "Conv"]
        assert len(convolutions) == 7
        for node in convolutions[1:-1]:
            assert [made[name].op_type for name in node.input[:2]] == ["DequantizeLinear"] * 2
            scales = weights[made[node.input[1]].input[1]].dims
            assert list(scales) == [weights[made[node.input[1]].input[0]].dims[0]]
        for node in (convolutions[0], convolutions[-1]):
            assert node.input[1] in weights


def test_tiles_equal_the_whole(small):
    assert all(check.kept for check in validate_model(small.path))


def test_figures_are_in_the_card(small):
    card = ModelFile.read(small.path).card
    assert card.parity["label_agreement"] >= 0.9
    assert {"agreement_with_fp32", "cpu_speed_against_fp32"} <= set(card.parity)


def test_it_says_what_the_float32_model_says(small, exported):
    image = np.random.default_rng(3).integers(40, 200, (4, 90, 90)).astype(np.uint8)
    image[:, 45:] //= 2
    a, b = (Segmenter(each.path, device="cpu", threads=1)(image).labels for each in (small, exported))
    assert (a == b).mean() > 0.9


def test_a_floor_that_is_not_reached_leaves_no_file(trained, tmp_path, monkeypatch):
    """A head of the opposite sign prefers the least likely cluster: quantised ever so well, its labels are wrong."""
    from onnx import numpy_helper

    from iic_export import making

    right = making.quantise

    def wrong(model, pictures, symmetric):
        head = next(weight for weight in model.graph.initializer if weight.name == "head.weight")
        head.CopyFrom(numpy_helper.from_array(-numpy_helper.to_array(head), head.name))
        return right(model, pictures, symmetric=symmetric)

    monkeypatch.setattr(making, "quantise", wrong)
    with pytest.raises(ModelError, match=r"less than 99\.00%: nothing was written"):
        export(trained.run, tmp_path / "m.onnx", precision="int8")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("options", [{"precision": "int4"}, {"min_agreement": 99}])
def test_what_cannot_be(trained, tmp_path, options):
    with pytest.raises(UsageError):
        export(trained.run, tmp_path / "m.onnx", **options)
