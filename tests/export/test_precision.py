from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, numpy_helper
from support.runs import TrainedScene

from iic_export import Exported, export
from iic_export.torch_to_onnx import quantise
from iic_geotools.errors import ModelError
from iic_runtime.model.file import ModelFile
from iic_runtime.model.validate import validate_model
from iic_runtime.segmenter import Segmenter


@pytest.fixture(scope="module", params=["fp16", "int8"])
def small(
    request: pytest.FixtureRequest, trained: TrainedScene, tmp_path_factory: pytest.TempPathFactory
) -> Exported:
    """The run's model in fp16 and in int8."""
    out = tmp_path_factory.mktemp(request.param) / "m.onnx"
    return export(trained.run, out, precision=request.param, min_agreement=0.9)


def test_pixels_and_labels_stay_8_bit(small: Exported) -> None:
    graph = onnx.load(small.path).graph
    assert graph.input[0].type.tensor_type.elem_type == TensorProto.UINT8
    types = {output.name: output.type.tensor_type.elem_type for output in graph.output}
    assert types == {
        "labels": TensorProto.UINT8,
        "confidence": TensorProto.UINT8,
        "features": TensorProto.FLOAT,
    }


def test_the_trunk_has_the_precision_asked_for(small: Exported) -> None:
    graph = onnx.load(small.path).graph
    weights = {weight.name: weight for weight in graph.initializer}
    if small.card.precision == "fp16":
        convolved = [weights[node.input[1]].data_type for node in graph.node if node.op_type == "Conv"]
        assert set(convolved) == {TensorProto.FLOAT16}
        assert len(convolved) == 7
    else:
        makers = {output: node for node in graph.node for output in node.output}
        convolutions = [node for node in graph.node if node.op_type == "Conv"]
        assert len(convolutions) == 7
        for node in convolutions[1:-1]:
            assert [makers[name].op_type for name in node.input[:2]] == ["DequantizeLinear"] * 2
            scales = weights[makers[node.input[1]].input[1]].dims
            assert list(scales) == [weights[makers[node.input[1]].input[0]].dims[0]]
        for node in (convolutions[0], convolutions[-1]):
            assert node.input[1] in weights


def test_tiles_equal_the_whole(small: Exported) -> None:
    assert all(check.kept for check in validate_model(small.path))


def test_figures_are_in_the_card(small: Exported) -> None:
    figures = ModelFile.read(small.path).card.parity
    assert 0.9 <= figures["label_agreement"] <= 1
    assert 0.9 <= figures["agreement_with_fp32"] <= 1
    assert figures["cpu_speed_against_fp32"] > 0


def test_its_labels_are_those_of_the_float32_model(small: Exported, exported: Exported) -> None:
    image = np.random.default_rng(3).integers(40, 200, (4, 90, 90)).astype(np.uint8)
    image[:, 45:] //= 2
    labels = Segmenter(small.path, device="cpu", threads=1)(image).labels
    expected = Segmenter(exported.path, device="cpu", threads=1)(image).labels
    assert (labels == expected).mean() > 0.9


def test_a_floor_that_is_not_reached_leaves_no_file(
    trained: TrainedScene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A head of the opposite sign prefers the least likely cluster: however well quantised, its labels are wrong."""

    def quantise_wrongly(
        model: onnx.ModelProto, images: Sequence[NDArray[Any]], *, symmetric: bool
    ) -> onnx.ModelProto:
        head = next(weight for weight in model.graph.initializer if weight.name == "head.weight")
        head.CopyFrom(numpy_helper.from_array(-numpy_helper.to_array(head), head.name))
        return quantise(model, images, symmetric=symmetric)

    monkeypatch.setattr("iic_export.exporter.quantise", quantise_wrongly)
    with pytest.raises(ModelError, match=r"less than 99\.00%, so nothing was written"):
        export(trained.run, tmp_path / "m.onnx", precision="int8")
    assert list(tmp_path.iterdir()) == []
