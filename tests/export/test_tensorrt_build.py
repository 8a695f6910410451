"""TensorRT without a GPU: what can be known here. Tests marked `gpu` do the rest where there is one."""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from support import trt_names
from support.runs import TrainedScene
from typer.testing import CliRunner

import iic_runtime.engine.gpu
import iic_runtime.engine.tensorrt
import iic_runtime.engine.tensorrt_build
from iic_export import Exported, export
from iic_export.exporter import build_graph
from iic_export.tensorrt_graph import check_graph, list_problems, with_tensorrt_input
from iic_export.trained_head import TrainedHead
from iic_geotools.errors import DeviceError, IICError, ModelError, UsageError
from iic_geotools.tiling import largest_read
from iic_runtime.engine.open_engine import open_engine
from iic_runtime.model.card import Card
from iic_runtime.model.file import ModelFile, put_card
from iic_runtime.model.validate import validate_model
from iic_runtime.options import EngineOptions, EngineSettings
from iic_runtime.segmenter import Segmenter

SOURCES = [
    Path(str(module.__file__)) for module in (iic_runtime.engine.tensorrt_build, iic_runtime.engine.tensorrt)
]
# The wheels of the two major versions; "cu13" is CUDA's version.
BINDINGS = ["tensorrt-cu13-bindings==10.16.1.11", "tensorrt-cu13-bindings==11.4.0.106"]
ENTRY_POINTS = (
    *("createInferBuilder_INTERNAL", "createInferRefitter_INTERNAL", "createInferRuntime_INTERNAL"),
    *("createNvOnnxParserRefitter_INTERNAL", "createNvOnnxParser_INTERNAL", "getNvOnnxParserVersion"),
    *("getBuilderPluginRegistry", "getPluginRegistry", "initLibNvInferPlugins"),
)


def test_the_scanner_finds_the_names_used_in_the_source() -> None:
    build, run = ({(use.owner, use.name) for use in trt_names.uses(path.read_text())} for path in SOURCES)
    assert ("Builder", "build_serialized_network") in build
    assert ("", "NetworkDefinitionCreationFlag.STRONGLY_TYPED") in build
    assert ("IOptimizationProfile", "set_shape") in build
    assert ("IExecutionContext", "execute_async_v3") in run
    assert ("Runtime", "deserialize_cuda_engine") in run


@pytest.fixture(params=BINDINGS)
def bindings(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, str]:
    """NVIDIA's own bindings of one version, linked against libraries that do nothing."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler to make empty libraries with")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
    command = [*pip, "--target", str(tmp_path), request.param]
    try:
        process = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    except subprocess.TimeoutExpired:
        pytest.skip(f"{request.param} did not come in time")
    if process.returncode:
        pytest.skip(f"{request.param} cannot be installed here")
    major = request.param.split("==")[1].split(".")[0]
    source = tmp_path / "empty.c"
    source.write_text("".join(f"void *{name}(void) {{ return 0; }}\n" for name in ENTRY_POINTS))
    for library in ("nvinfer", "nvinfer_plugin", "nvonnxparser"):
        name = f"lib{library}.so.{major}"
        subprocess.run(
            ["cc", "-shared", "-fPIC", f"-Wl,-soname,{name}", "-o", tmp_path / name, source], check=True
        )
    return tmp_path, major


@pytest.mark.slow
@pytest.mark.network
def test_every_name_and_signature_is_in_the_real_bindings(bindings: tuple[Path, str]) -> None:
    folder, major = bindings
    environment = {**os.environ, "LD_LIBRARY_PATH": str(folder), "PYTHONPATH": str(folder)}
    command = [sys.executable, trt_names.__file__, *map(str, SOURCES)]
    process = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert process.returncode == 0, process.stderr
    version, *problems = process.stdout.splitlines()
    assert version.startswith(f"{major}.")
    assert problems == []


@pytest.mark.slow
@pytest.mark.network
def test_a_name_that_does_not_exist_would_be_found(bindings: tuple[Path, str], tmp_path: Path) -> None:
    folder, _ = bindings
    source = tmp_path / "wrong.py"
    source.write_text(
        "def build(tensorrt, engine: 'trt.ICudaEngine'):\n"
        "    builder: trt.Builder = tensorrt.Builder()\n"
        "    builder.build_engine()\n"
        "    engine.get_tensor_name()\n"
        "    engine.get_tensor_name(1)\n"
        "    tensorrt.BuilderFlag.MAGIC\n"
    )
    environment = {**os.environ, "LD_LIBRARY_PATH": str(folder), "PYTHONPATH": str(folder)}
    command = [sys.executable, trt_names.__file__, str(source)]
    process = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    lines = [int(line.split(":")[1]) for line in process.stdout.splitlines()[1:]]
    assert lines == [2, 3, 4, 6]


def test_names_of_the_cuda_runtime() -> None:
    runtime = pytest.importorskip("cuda.bindings.runtime")
    source = "".join(path.read_text() for path in [*SOURCES, Path(str(iic_runtime.engine.gpu.__file__))])
    for name in ("cudaGetDeviceCount", "cudaGetDeviceProperties", "cudaMalloc", "cudaFree", "cudaMemcpyAsync",
                 "cudaStreamCreate", "cudaStreamDestroy", "cudaStreamSynchronize", "cudaHostAlloc"):  # fmt: skip
        assert f".{name}(" in source
        assert callable(getattr(runtime, name))
    assert {"cudaMemcpyHostToDevice", "cudaMemcpyDeviceToHost"} <= set(dir(runtime.cudaMemcpyKind))
    assert callable(runtime.cudaFreeHost)
    assert {"name", "major", "minor", "totalGlobalMem"} <= set(dir(runtime.cudaDeviceProp))


def test_tensorrt_accepts_the_exported_graph(exported: Exported) -> None:
    model = onnx.load(exported.path)
    assert list_problems(model) == []
    assert check_graph(model) == model


@pytest.fixture(scope="module")
def small_models(head: TrainedHead) -> dict[str, onnx.ModelProto]:
    return {
        "fp16": build_graph(head, "fp16").model,
        "int8 for TensorRT": build_graph(head, "int8", min_agreement=0.5, symmetric=True).model,
        "int8 for CPUs": build_graph(head, "int8", min_agreement=0.5).model,
    }


def test_graphs_of_other_precisions(small_models: dict[str, onnx.ModelProto]) -> None:
    assert list_problems(small_models["fp16"]) == []
    assert list_problems(small_models["int8 for TensorRT"]) == []
    assert any("uint8" in problem for problem in list_problems(small_models["int8 for CPUs"]))
    with pytest.raises(ModelError, match="TensorRT would not accept"):
        check_graph(small_models["int8 for CPUs"])


def graph(tensor_type: int, nodes: list[onnx.NodeProto]) -> onnx.ModelProto:
    values = [helper.make_tensor_value_info(name, tensor_type, ["n"]) for name in ("image", "labels")]
    return helper.make_model(
        helper.make_graph(nodes, "g", values[:1], values[1:]),
        opset_imports=[helper.make_opsetid("", 20)],
        ir_version=10,
    )


def cast(source: str, target: str, tensor_type: int) -> onnx.NodeProto:
    return helper.make_node("Cast", [source], [target], to=tensor_type)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (graph(TensorProto.FLOAT, [helper.make_node("Hardmax", ["image"], ["labels"])]), "operator Hardmax"),
        (graph(TensorProto.INT64, [helper.make_node("Erf", ["image"], ["labels"])]), "Erf labels takes int64"),
        (graph(TensorProto.INT8, [helper.make_node("Neg", ["image"], ["labels"])]), "Neg labels takes int8"),
        (graph(TensorProto.UINT8, [helper.make_node("Identity", ["image"], ["labels"])]), "uint8 other than as float"),
        (
            graph(TensorProto.UINT8, [cast("image", "a", TensorProto.INT64), cast("a", "labels", TensorProto.UINT8)]),
            "uint8 other than as float",
        ),
        (
            graph(TensorProto.FLOAT, [cast("image", "a", TensorProto.DOUBLE), cast("a", "labels", TensorProto.FLOAT)]),
            "a is double",
        ),
        (graph(TensorProto.UINT16, [helper.make_node("Identity", ["image"], ["labels"])]), "image is uint16"),
    ],
)  # fmt: skip
def test_what_tensorrt_would_refuse(model: onnx.ModelProto, message: str) -> None:
    assert any(message in problem for problem in list_problems(model))


def test_16_bit_pixels_come_as_floats() -> None:
    model = graph(TensorProto.UINT16, [cast("image", "labels", TensorProto.FLOAT)])
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.FLOAT
    assert list_problems(model) == ["image is uint16"]
    assert list_problems(with_tensorrt_input(model)) == []


def no_gpu() -> bool:
    try:
        iic_runtime.engine.tensorrt_build.find_tensorrt()
    except IICError:
        return True
    return False


@pytest.mark.skipif(not no_gpu(), reason="there is a GPU")
def test_without_a_gpu_it_says_so_at_once(trained: TrainedScene, tmp_path: Path) -> None:
    from iic_export.cli import app

    arguments = [str(trained.run), "--format", "tensorrt", "-o", str(tmp_path / "m.engine")]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 1
    assert "NVIDIA GPU" in result.output or "cuda-python" in result.output
    assert len(result.output.strip().splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("options", [{"tile": 8}, {"batch": 0}, {"workspace": 0}])
def test_impossible_engine_options(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="An engine needs"):
        EngineOptions(**options)


def test_with_the_cpu_in_its_place_an_engine_is_proven_on_images_that_fit_its_profile(
    trained: TrainedScene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Limited:
        """The graph on a CPU that takes no larger images than an engine's profile allows."""

        def __init__(self, content: bytes, card: Card, side: int) -> None:
            (tmp_path / "inner.onnx").write_bytes(put_card(content, card))
            self.side, self.inner = (
                side,
                open_engine(ModelFile.read(tmp_path / "inner.onnx"), EngineSettings(device="cpu")),
            )
            self.spec, self.provider = self.inner.spec, "TensorRT"

        def run(self, batch: Any, confidence: bool) -> Any:
            assert max(batch.shape[2:]) <= self.side
            return self.inner.run(batch, confidence)

    def write_engine(model: bytes, card: Card, out: Path, options: EngineOptions, prove: Any) -> Card:
        side = largest_read(options.tile, card.halo, card.stride)
        proven: Card = prove(Limited(model, card, side))
        return proven

    monkeypatch.setattr("iic_export.exporter.find_tensorrt", lambda: None)
    monkeypatch.setattr("iic_export.exporter.write_engine", write_engine)
    options = EngineOptions(tile=64, batch=2)
    exported = export(trained.run, tmp_path / "m.engine", format="tensorrt", engine=options)
    assert exported.card.parity["engine_label_agreement"] >= 0.9999
    assert exported.sentence().endswith("equal the trained network's, and 100.000% on the GPU")


@pytest.fixture(scope="module")
def built(trained: TrainedScene, tmp_path_factory: pytest.TempPathFactory) -> Exported:
    if no_gpu() or importlib.util.find_spec("tensorrt") is None:
        pytest.skip("no NVIDIA GPU with TensorRT")
    out = tmp_path_factory.mktemp("engine") / "m.engine"
    return export(trained.run, out, format="tensorrt", engine=EngineOptions(tile=64, batch=2))


@pytest.mark.gpu
def test_the_labels_of_an_engine_are_those_of_the_onnx_file(built: Exported, exported: Exported) -> None:
    image = np.random.default_rng(0).integers(0, 256, (4, 200, 150)).astype(np.uint8)
    segment = Segmenter(built.path, device="tensorrt")
    assert segment.spec.tile == 64
    assert segment.provider.startswith("TensorRT")
    expected = Segmenter(exported.path, device="cpu")(image)
    assert (segment(image).labels == expected.labels).mean() >= 0.9999
    assert all(check.kept for check in validate_model(built.path))
    assert built.card.parity["engine_label_agreement"] >= 0.9999


@pytest.mark.gpu
def test_an_engine_for_another_gpu_is_refused(built: Exported, tmp_path: Path) -> None:
    path = Path(shutil.copy(built.path, tmp_path))
    side = Path(f"{built.path}.json").read_text()
    facts = ModelFile.read(built.path).engine
    assert facts is not None
    Path(f"{path}.json").write_text(side.replace(f'"{facts.capability}"', '"1.0"'))
    with pytest.raises(DeviceError, match="was built with"):
        Segmenter(path, device="tensorrt")
