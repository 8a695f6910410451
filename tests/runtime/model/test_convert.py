"""Models in other precisions and for other engines, made without PyTorch."""

import importlib
import importlib.util
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto
from support.scenes import landscape
from support.tiny_onnx import make_classifier, make_model
from typer.testing import CliRunner

from iic_geotools.errors import IICError, ModelError, UsageError
from iic_geotools.tiling import largest_read
from iic_runtime import Segmenter
from iic_runtime.cli.model import app
from iic_runtime.engine import tensorrt_build
from iic_runtime.engine.open_engine import open_engine
from iic_runtime.model import convert
from iic_runtime.model.card import Card
from iic_runtime.model.convert import convert_model
from iic_runtime.model.file import ModelFile, put_card
from iic_runtime.model.onnx_precision import is_asymmetric, to_half, to_int8
from iic_runtime.model.triton import triton_config
from iic_runtime.options import EngineOptions, EngineSettings


def test_convolutions_compute_in_float16_and_labels_stay(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "half.onnx"
    converted = convert_model(model, out)
    assert converted.agreement > 0.99
    assert converted.next_command == f"iic-segment-raster scene.tif out.tif --model {out} --device cuda"
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
    assert "of the labels on a made image are those of the model" in result.output


def test_too_large_weights_are_refused() -> None:
    content = onnx.load_from_string(make_model())
    weight = next(weight for weight in content.graph.initializer if weight.name == "full0_w")
    weight.CopyFrom(onnx.numpy_helper.from_array(np.full((8, 4, 3, 3), 1e5, np.float32), "full0_w"))
    with pytest.raises(ModelError, match="full0_w are too large for fp16"):
        to_half(content.SerializeToString())


def test_clipped_activations_stay_in_float16() -> None:
    content = onnx.load_from_string(make_model(full=(4, 4), half=((4, 1),)))
    for name, value in (("low", 0.0), ("high", 6.0)):
        content.graph.initializer.append(onnx.numpy_helper.from_array(np.float32(value), name))
    for node in content.graph.node:
        if node.op_type == "Relu":
            node.op_type = "Clip"
            node.input.extend(["low", "high"])
    graph = onnx.load_from_string(to_half(content.SerializeToString())).graph
    clips = [node for node in graph.node if node.op_type == "Clip"]
    assert clips
    assert all(name.endswith("/half") for node in clips for name in node.input)


@pytest.mark.parametrize("symmetric", [False, True])
def test_inner_convolutions_compute_in_integers(symmetric: bool) -> None:
    content = make_model(full=(8, 8), half=((8, 1),))
    ranges: dict[str, tuple[float, float]] = {}

    def measure(graph: Any, tensors: Any) -> dict[str, tuple[float, float]]:
        ranges.update(dict.fromkeys(tensors, (-1.0, 3.0)))
        return ranges

    model = onnx.load_from_string(to_int8(content, measure, symmetric=symmetric))
    onnx.checker.check_model(model, full_check=True)
    assert is_asymmetric(model.SerializeToString()) is not symmetric
    zero = next(node.input[2] for node in model.graph.node if node.op_type == "QuantizeLinear")
    shifted = onnx.ModelProto.FromString(model.SerializeToString())
    (weight,) = (weight for weight in shifted.graph.initializer if weight.name == zero)
    weight.CopyFrom(onnx.numpy_helper.from_array(np.full_like(onnx.numpy_helper.to_array(weight), 3), zero))
    assert is_asymmetric(shifted.SerializeToString())
    assert sorted(ranges) == ["full0_relu", "full1_relu", "half0_relu", "pooled"]
    types = {weight.name: weight.data_type for weight in model.graph.initializer}
    made_by = {output: node for node in model.graph.node for output in node.output}
    weights = {
        node.output[0]: made_by[node.input[1]].input[0]
        for node in model.graph.node
        if node.op_type == "Conv" and node.input[1] in made_by
    }
    assert sorted(weights) == ["full1", "half0"]
    assert {types[name] for name in weights.values()} == {TensorProto.INT8}
    quantised = [node for node in model.graph.node if node.op_type == "QuantizeLinear"]
    zeros = {weight.name: onnx.numpy_helper.to_array(weight) for weight in model.graph.initializer}
    assert {zeros[node.input[2]].dtype.name for node in quantised} == {"int8" if symmetric else "uint8"}
    assert {int(zeros[node.input[2]]) for node in quantised} == {0 if symmetric else 64}
    biases = {made_by[name].op_type for name in (made_by["full1"].input[2],) if name in made_by}
    assert biases == (set() if symmetric else {"DequantizeLinear"})


def test_int8_is_calibrated_on_a_scene(model: Path, tmp_path: Path, make_scene: Any) -> None:
    scene = make_scene(landscape(700, 1100))
    out = tmp_path / "int8.onnx"
    converted = convert_model(model, out, precision="int8", scene=scene, min_agreement=0.95)
    assert converted.sentence().startswith(f"{out}: tiny in int8, 9")
    assert converted.compared_on == "the scene"
    assert "--device" not in converted.next_command
    image = landscape(200, 300)
    labels = [Segmenter(path, device="cpu")(image).labels for path in (model, out)]
    assert np.mean(labels[0] == labels[1]) > 0.95


def test_a_graph_without_inner_convolutions_has_no_integers() -> None:
    content = onnx.load_from_string(make_model(full=(4,)))
    convolutions = [node for node in content.graph.node if node.op_type == "Conv"]
    for node in convolutions[1:]:
        node.op_type = "ConvTranspose"
    with pytest.raises(ModelError, match="no convolutions to quantise"):
        to_int8(content.SerializeToString(), lambda *_: {})


@pytest.mark.skipif(
    importlib.util.find_spec("tensorrt") is not None, reason="there may be a GPU to build for"
)
def test_an_engine_needs_a_gpu(model: Path, tmp_path: Path) -> None:
    result = CliRunner().invoke(
        app, ["convert", str(model), "--format", "tensorrt", "-o", str(tmp_path / "m.engine")]
    )
    assert result.exit_code == 1
    assert len(result.output.strip().splitlines()) == 1
    assert "GPU" in result.output or "cuda-python" in result.output
    assert list(tmp_path.glob("*.engine*")) == []


@pytest.mark.parametrize("precision", [None, "fp16", "int8"])
def test_with_the_cpu_in_its_place_an_engine_is_compared_on_images_that_fit_its_profile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, precision: Any
) -> None:
    """The graph is built by something that runs it on the CPU, and takes no larger images than a profile allows."""
    model = tmp_path / "model.onnx"
    model.write_bytes(make_model(dtype="int16", scale=1 / 255))
    sides: list[int] = []

    def write_engine(content: bytes, card: Card, out: Path, options: EngineOptions, prove: Any) -> Card:
        graph = onnx.load_from_string(tensorrt_build.for_tensorrt(content, card)).graph
        assert graph.input[0].type.tensor_type.elem_type == TensorProto.FLOAT
        assert [output.name for output in graph.output] == ["labels", "confidence"]
        file = ModelFile.parse(tmp_path / "inner.onnx", put_card(content, card))
        engine = open_engine(file, EngineSettings(device="cpu"))
        run = engine.run

        def limited(images: Any, confidence: bool) -> Any:
            sides.extend(images.shape[2:])
            return run(images, confidence)

        engine.run = limited  # type: ignore[method-assign]
        proven: Card = prove(engine)
        return proven

    monkeypatch.setattr(convert, "find_tensorrt", lambda: None)
    monkeypatch.setattr(convert, "write_engine", write_engine)
    converted = convert_model(
        model,
        tmp_path / "m.engine",
        format="tensorrt",
        precision=precision,
        min_agreement=0.9,
        engine=EngineOptions(tile=64),
    )
    assert converted.card.precision == (precision or "fp32")
    assert converted.card.parity["engine_label_agreement"] == converted.agreement
    assert converted.agreement > 0.9
    assert max(sides) == largest_read(64, converted.card.halo, converted.card.stride)


def test_a_repository_for_triton(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "models"
    result = CliRunner().invoke(app, ["convert", str(model), "--format", "triton", "-o", str(out)])
    assert result.output.splitlines() == [
        f"{out}: tiny in fp32, the same graph",
        f"Next: tritonserver --model-repository {out}",
    ]
    assert sorted(str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()) == [
        "tiny/1/model.onnx",
        "tiny/config.pbtxt",
    ]
    graph = onnx.load(out / "tiny/1/model.onnx").graph
    assert [output.name for output in graph.output] == ["labels", "confidence"]
    with pytest.raises(IICError, match="exists"):
        convert_model(model, out, format="triton")
    convert_model(model, out, format="triton", precision="fp16", overwrite=True)
    assert ModelFile.read(out / "tiny/1/model.onnx").card.precision == "fp16"
    assert [path.name for path in out.iterdir()] == ["tiny"]


@pytest.fixture
def triton_schema(tmp_path: Path) -> Any:
    """The messages of Triton's model configuration, of NVIDIA's own client."""
    pytest.importorskip("google.protobuf")
    folder = tmp_path / "client"
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder)]
    try:
        process = subprocess.run(
            [*pip, "--only-binary=:all:", "tritonclient==2.73.0"],
            capture_output=True,
            check=False,
            timeout=120,
        )
    except subprocess.TimeoutExpired:
        pytest.skip("tritonclient did not come in time")
    if process.returncode:
        pytest.skip("tritonclient cannot be downloaded here")
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        source = archive.extract("tritonclient/grpc/model_config_pb2.py", tmp_path)
    spec = importlib.util.spec_from_file_location("model_config_pb2", source)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.network
@pytest.mark.slow
def test_triton_reads_the_configuration(model: Path, tmp_path: Path, triton_schema: Any) -> None:
    text_format = importlib.import_module("google.protobuf.text_format")
    images = tmp_path / "images.onnx"
    images.write_bytes(make_classifier(size=8, name='say "so"'))
    for path in (model, images):
        file = ModelFile.read(path)
        config = text_format.Parse(triton_config(file, 8), triton_schema.ModelConfig())
        assert (config.name, config.backend, config.max_batch_size) == (file.card.name, "onnxruntime", 8)
        names = [entry.name for entry in config.output]
        session = open_engine(file, EngineSettings(device="cpu"), names)._session
        for tensors, described in (
            (session.get_inputs(), config.input),
            (session.get_outputs(), config.output),
        ):
            shapes = {tensor.name: tensor.shape[1:] for tensor in tensors}
            types = {tensor.name: tensor.type for tensor in tensors}
            for entry in described:
                dims = list(entry.reshape.shape) if entry.HasField("reshape") else list(entry.dims)
                expected = [size if isinstance(size, int) else -1 for size in shapes[entry.name]]
                assert dims == expected
                kind = triton_schema.DataType.Name(entry.data_type).removeprefix("TYPE_").lower()
                assert types[entry.name] == f"tensor({kind.replace('fp32', 'float')})"
    assert config.parameters["classes"].string_value == "cluster 0,cluster 1,cluster 2"


def test_what_cannot_be_converted_is_refused(model: Path, tmp_path: Path) -> None:
    images = tmp_path / "images.onnx"
    images.write_bytes(make_classifier())
    out = tmp_path / "half.onnx"
    with pytest.raises(ModelError, match="model of pixels"):
        convert_model(images, out)
    with pytest.raises(UsageError, match="between 0 and 1"):
        convert_model(model, out, min_agreement=2)
    with pytest.raises(UsageError, match="`precision` must be one of"):
        convert_model(model, out, precision="fp8")
    with pytest.raises(IICError, match=r"\.onnx"):
        convert_model(model, tmp_path / "half.engine")
    with pytest.raises(UsageError, match="is in fp32 already"):
        convert_model(model, out, precision="fp32")
    with pytest.raises(ModelError, match="In int8 only"):
        convert_model(model, out, precision="int8", min_agreement=1)
    assert not out.exists()
    convert_model(model, out)
    with pytest.raises(ModelError, match="model of pixels in fp32"):
        convert_model(out, tmp_path / "again.onnx", precision="int8")
    with pytest.raises(IICError, match="exists"):
        convert_model(model, out)
    slash = tmp_path / "slash.onnx"
    slash.write_bytes(make_model(name="../up"))
    with pytest.raises(ModelError, match="cannot be the name of a folder"):
        convert_model(slash, tmp_path / "models", format="triton")
    with pytest.raises(IICError, match="is a file"):
        convert_model(model, model, format="triton")
