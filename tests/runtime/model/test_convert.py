"""Models in half precision, made without PyTorch."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto
from support.scenes import landscape
from support.tiny_onnx import make_classifier, make_model
from typer.testing import CliRunner

from iic_geotools.errors import IICError, ModelError, UsageError
from iic_runtime import Segmenter
from iic_runtime.cli.model import app
from iic_runtime.model.convert import convert_model, to_half
from iic_runtime.model.file import ModelFile


def test_convolutions_compute_in_float16_and_labels_stay(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "half.onnx"
    assert convert_model(model, out) > 0.99
    graph = onnx.load(out).graph
    onnx.checker.check_model(onnx.load(out), full_check=True)
    types = {weight.name: weight.data_type for weight in graph.initializer}
    convolutions = [node for node in graph.node if node.op_type == "Conv"]
    assert convolutions
    assert {types[name] for node in convolutions for name in node.input[1:]} == {TensorProto.FLOAT16}
    card = ModelFile.read(out).card
    assert card.precision == "fp16"
    assert card.parity["agreement_with_fp32"] > 0.99
    image = landscape(200, 300)
    labels = [Segmenter(path, device="cpu")(image).labels for path in (model, out)]
    assert np.mean(labels[0] == labels[1]) > 0.99


def test_activations_stay_in_float16_between_convolutions() -> None:
    graph = onnx.load_from_string(to_half(make_model(full=(4, 4), half=((4, 1),)))).graph
    casts = [node for node in graph.node if node.op_type == "Cast" and node.output[0].endswith("/half")]
    assert len(casts) == 1


@pytest.mark.parametrize("name", ["aerial", "satellite"])
def test_bundled_models_can_be_converted(name: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["convert", name, "-o", str(tmp_path / "half.onnx")])
    assert result.exit_code == 0, result.output
    assert f"of the labels are those of {name}" in result.output


def test_too_large_weights_are_refused() -> None:
    content = onnx.load_from_string(make_model())
    weight = next(weight for weight in content.graph.initializer if weight.name == "full0_w")
    weight.CopyFrom(onnx.numpy_helper.from_array(np.full((8, 4, 3, 3), 1e5, np.float32), "full0_w"))
    with pytest.raises(ModelError, match="full0_w are too large for fp16"):
        to_half(content.SerializeToString())


def test_what_cannot_be_converted_is_refused(model: Path, tmp_path: Path) -> None:
    images = tmp_path / "images.onnx"
    images.write_bytes(make_classifier())
    out = tmp_path / "half.onnx"
    with pytest.raises(ModelError, match="model of pixels in fp32"):
        convert_model(images, out)
    with pytest.raises(UsageError, match="between 0 and 1"):
        convert_model(model, out, min_agreement=2)
    with pytest.raises(IICError, match=r"\.onnx"):
        convert_model(model, tmp_path / "half.engine")
    assert not out.exists()
    convert_model(model, out)
    with pytest.raises(ModelError, match="model of pixels in fp32"):
        convert_model(out, tmp_path / "again.onnx")
    with pytest.raises(IICError, match="exists"):
        convert_model(model, out)
