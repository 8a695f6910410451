"""What TensorRT's parser would refuse: every kind of network that is exported, and every rule of its table."""

from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from support.presets import DISTINCT_PRESETS
from torch import nn

from iic_export.tensorrt_graph import NEWEST_OPSET, list_problems
from iic_export.torch_to_onnx import quantise, served_head, to_onnx
from iic_train.models.networks import Network
from iic_train.models.registry import NETWORKS, NetworkConfig
from iic_train.recipes.presets import preset
from iic_train.views.settings import DensePairs

RGBI = ("red", "green", "blue", "nir")


def served_graph(config: NetworkConfig, pairs: Any, side: int) -> onnx.ModelProto:
    torch.manual_seed(0)
    network = Network(replace(config, clusters_a=None, sub_heads=1)).eval()
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.bias)  # a bias of 0 would be left out of the graph
    return to_onnx(served_head(network, pairs), len(config.channels), "uint8", (side, side))


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name == "coco-stuff-3" else pytest.mark.slow)
        for name in DISTINCT_PRESETS
    ],
)
def test_every_preset_can_become_an_engine(name: str) -> None:
    config = preset(name)
    narrow = replace(config.network, widths=tuple(4 for _ in config.network.widths))
    side = 38 if config.dense else {"stl10": 96}.get(name, 32)
    model = served_graph(narrow, config.pairs, side)
    assert list_problems(model) == []
    assert "GatherND" not in {node.op_type for node in model.graph.node}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "beside"),
    [("bank", "none"), ("local", "none"), ("context-small", "none")]
    # What stands beside the bands is computed before the network, the same for each.
    + [("edge-8", beside) for beside in ("none", "ratios", "log")],
)
def test_every_network_for_rasters_can_become_an_engine(name: str, beside: Any) -> None:
    assert name in NETWORKS
    model = served_graph(NetworkConfig(name, RGBI, 4, beside=beside), DensePairs(), 38)
    assert list_problems(model) == []


def test_biases_are_quantised_for_cpus_only() -> None:
    model = served_graph(NetworkConfig("edge-8", RGBI, 3), DensePairs(), 38)
    images = [np.random.default_rng(seed).integers(0, 256, (4, 40, 40), np.uint8) for seed in range(2)]
    quantised = quantise(model, images, symmetric=True)
    assert list_problems(quantised) == []
    inputs = {
        node.input[2]: node for node in quantised.graph.node if node.op_type == "Conv" and len(node.input) > 2
    }
    weights = {weight.name: weight for weight in quantised.graph.initializer}
    assert len(inputs) >= 6
    assert {weights[name].data_type for name in inputs} == {TensorProto.FLOAT}
    for_cpus = list_problems(quantise(model, images))
    assert any("DequantizeLinear" in problem and "int32" in problem for problem in for_cpus)


def graph(*nodes: onnx.NodeProto, opset: int = 20, **constants: Any) -> onnx.ModelProto:
    """A graph from `x` [1, 2, 8, 8] to `y`, both float32, with constants by name."""
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("x", "y")]
    values[0] = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 2, 8, 8])
    initializers = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    return helper.make_model(
        helper.make_graph(list(nodes), "g", values[:1], values[1:], initializers),
        opset_imports=[helper.make_opsetid("", opset)],
        ir_version=10,
    )


def node(kind: str, *inputs: str, output: str = "y", **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(kind, inputs, [output], **attributes)


ONE = np.float32(1.0)
POOL: dict[str, Any] = {"kernel_shape": [2, 2]}
SIZES = np.array([1, 2, 16, 16], np.int64)


@pytest.mark.parametrize(
    ("model", "problem"),
    [
        (graph(node("MaxPool", "x", **POOL, dilations=[2, 2])), "MaxPool y is dilated"),
        (
            graph(helper.make_node("MaxPool", ["x"], ["y", "places"], **POOL)),
            "MaxPool y returns indices",
        ),
        (
            graph(
                node("QuantizeLinear", "x", "scale", "zero", output="q"),
                node("DequantizeLinear", "q", "scale", "zero"),
                scale=ONE,
                zero=np.int8(3),
            ),
            "QuantizeLinear q has a zero point other than 0",
        ),
        (
            graph(
                node("DequantizeLinear", "bias", "scale", output="b"),
                node("Add", "x", "b"),
                bias=np.int32(3),
                scale=ONE,
            ),
            "DequantizeLinear b takes int32",
        ),
        (
            graph(node("Resize", "x", "", "", "sizes", mode="cubic"), sizes=SIZES),
            "Resize y has the mode cubic",
        ),
        (
            graph(node("Resize", "x", "", "", "sizes", mode="linear", antialias=1), sizes=SIZES),
            "Resize y is antialiased",
        ),
        (
            graph(
                node("Shape", "x", output="shape"),
                node("Slice", "shape", "one", "two", output="axes"),
                node("ReduceSum", "x", "axes"),
                one=np.array([1], np.int64),
                two=np.array([2], np.int64),
            ),
            "ReduceSum y has axes that are not constant",
        ),
        (graph(node("Relu", "x"), opset=NEWEST_OPSET + 1), f"operators of version {NEWEST_OPSET + 1}"),
        (graph(node("Hardmax", "x")), "the operator Hardmax"),
    ],
)
def test_restrictions_of_the_table(model: onnx.ModelProto, problem: str) -> None:
    assert problem in list_problems(model)


def test_what_the_table_allows() -> None:
    model = graph(
        node("MaxPool", "x", **POOL, dilations=[1, 1], output="pooled"),
        node("QuantizeLinear", "pooled", "scale", "zero", output="q"),
        node("DequantizeLinear", "q", "scale", "zero", output="d"),
        node("ReduceSum", "d", "axes", output="s"),
        node("Resize", "s", "", "", "sizes", mode="linear", coordinate_transformation_mode="half_pixel"),
        scale=ONE,
        zero=np.int8(0),
        axes=np.array([1], np.int64),
        sizes=np.array([1, 1, 16, 16], np.int64),
    )
    assert list_problems(model) == []
