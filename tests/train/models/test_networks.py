import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from iic_geotools.errors import UsageError
from iic_geotools.tiling import TileGrid
from iic_train.models.layers import Front
from iic_train.models.networks import Network
from iic_train.models.registry import DENSE, NETWORKS, NetworkConfig

RGBI = ("red", "green", "blue", "nir")
NARROW: dict[str, dict[str, Any]] = {
    "edge-8": {},
    "local": {},
    "context": {"family": "context", "widths": (4, 4, 4, 4)},
    "context-deep": {"family": "context", "widths": (2, 4, 4, 2, 2)},
    "context-half": {"family": "context", "widths": (0, 4, 4, 2, 2)},
}
"""Networks of every dense family, narrow enough for tests."""


def parameters(module: torch.nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def lively(config: NetworkConfig, seed: int = 0) -> Network:
    """A network in eval mode whose batch norms are not the identity."""
    torch.manual_seed(seed)
    network = Network(config)
    for module in network.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.running_mean.uniform_(-0.5, 0.5)
            module.running_var.uniform_(0.5, 2.0)
            torch.nn.init.uniform_(module.weight, 0.5, 1.5)
            torch.nn.init.uniform_(module.bias, -0.5, 0.5)
    return network.eval()


def exact(config: NetworkConfig, seed: int) -> Network:
    """A network whose sums are whole numbers (and halvings), so that no order of summing rounds."""
    network = Network(config).double().eval()
    generator = torch.Generator().manual_seed(seed)
    for name, module in network.named_modules():
        if isinstance(module, torch.nn.Conv2d):
            drawn = torch.randint(-8, 9, module.weight.shape, generator=generator)
            module.weight.data = drawn.div(8, rounding_mode="trunc").double()
            if name.startswith("heads"):
                module.weight.data /= 2**10
        elif isinstance(module, torch.nn.BatchNorm2d):
            module.eps = 0.0
            module.running_mean = torch.randint(
                -3, 4, module.running_mean.shape, generator=generator
            ).double()
    return network


def test_published_trunks_have_their_published_sizes() -> None:
    five = Network(NetworkConfig("5g", ("grey",), 10, 70, 5, size=32))
    six = Network(NetworkConfig("6c", ("grey",), 10, 50, 5, size=24))
    ten = Network(NetworkConfig("10a", RGBI, 3, 24))
    assert round(parameters(five.trunk) / 1e6, 2) == 21.28
    assert round(parameters(six.trunk) / 1e6, 2) == 4.30
    assert round(parameters(ten.trunk) / 1e6, 2) == 4.50
    assert parameters(ten.heads["a"]) == 512 * 24
    assert (six.receptive_field, six.stride) == (68, 8)
    assert (ten.receptive_field, ten.stride, ten.halo) == (30, 2, 16)
    assert five.receptive_field == 448


def test_sobel_widens_halo() -> None:
    network = Network(NetworkConfig("edge-8", RGBI, 3, sobel=True))
    assert (network.receptive_field, network.halo) == (32, 18)


@pytest.mark.parametrize("size", [32, 64, 96])
def test_residual_trunk_keeps_its_published_sizes(size: int) -> None:
    network = Network(
        NetworkConfig("5g", ("red", "green", "blue"), 10, 70, 2, sobel=True, colour=False, size=size)
    )
    x = torch.rand(2, 3, size, size)
    assert network.penultimate(x).shape == (2, 256, *{32: (5, 5), 64: (9, 9), 96: (13, 13)}[size])
    for head, clusters in (("a", 70), ("b", 10)):
        probabilities = network.classify(x, head)
        assert probabilities.shape == (2, 2, clusters)
        torch.testing.assert_close(probabilities.sum(2), torch.ones(2, 2))


def test_initial_weights_are_the_published_ones() -> None:
    six = Network(NetworkConfig("6c", ("grey",), 10, 50, 5, size=24))
    assert six.heads["a"].weight.std().item() == pytest.approx(0.01, rel=0.02)
    assert six.trunk[2][0].weight.std().item() == pytest.approx((2 / (64 * 25)) ** 0.5, rel=0.02)  # fan in
    five = Network(NetworkConfig("5g", ("grey",), 10, size=32))
    assert five.trunk[0][0].weight.std().item() == pytest.approx((2 / (64 * 9)) ** 0.5, rel=0.1)  # fan out
    ten = Network(NetworkConfig("10a", RGBI, 3, 24))
    assert ten.heads["a"].weight.std().item() == pytest.approx((2 / 512) ** 0.5, rel=0.02)


@pytest.mark.parametrize("name", [name for name, (family, _) in NETWORKS.items() if family in DENSE])
def test_segmentation_networks_run_at_any_size(name: str) -> None:
    network = Network(NetworkConfig(name, ("grey",), 3, 5, 2)).eval()
    for height, width in ((1, 1), (2, 3), (9, 16)):
        probabilities = network(torch.randint(0, 256, (1, 1, height, width)), "a")
        assert probabilities.shape == (1, 2, 5, height, width)
        torch.testing.assert_close(probabilities.sum(2), torch.ones(1, 2, height, width))


@settings(max_examples=40)
@given(
    width=st.integers(1, 170),
    height=st.integers(1, 170),
    tile=st.integers(1, 60),
    sobel=st.booleans(),
    name=st.sampled_from(list(NARROW)),
    seed=st.integers(0, 10),
)
def test_tiles_with_halo_equal_the_whole_image(
    *, width: int, height: int, tile: int, sobel: bool, name: str, seed: int
) -> None:
    network = exact(NetworkConfig(name, RGBI, 3, sobel=sobel, scale=(1.0,) * 4, **NARROW[name]), seed)
    image = torch.randint(0, 8, (1, 4, height, width), generator=torch.Generator().manual_seed(seed))
    grid = TileGrid(width, height, max(tile, max(width, height) // 4), network.halo, network.stride)
    rows, columns = grid.shape
    with torch.no_grad():
        whole = network(image)
        for piece in (grid.at(row, column) for row in range(rows) for column in range(columns)):
            core = network(image[(..., *piece.read.slices)])[(..., *piece.crop)]
            # logits are equal bit for bit; the exponential of a vector unit and of a scalar one are not
            torch.testing.assert_close(core, whole[(..., *piece.core.slices)], rtol=0, atol=1e-15)


@pytest.mark.parametrize("name", NARROW)
def test_halo_is_not_larger_than_it_must_be(name: str) -> None:
    network = lively(NetworkConfig(name, RGBI, 3, **NARROW[name])).double()
    for module in network.trunk.modules():
        if isinstance(module, torch.nn.Conv2d):
            module.weight.data.abs_()  # so that no unit is silent and hides what lies behind it
    image = torch.rand(1, 4, 240, 240, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    start = 160 - network.halo + network.stride
    with torch.no_grad():
        whole = network.features(image)[..., 160 // network.cell - 1 :]
        tile = network.features(image[..., start:])[..., (160 - start) // network.cell - 1 :]
    # the cell before the core counts where upsampling mixes it in
    first = 0 if network.cell > 1 else 1
    assert not torch.equal(tile[..., first:], whole[..., first:])


def test_context_networks_see_far_and_label_every_pixel() -> None:
    context = Network(NetworkConfig("context", RGBI, 5))
    deep = Network(NetworkConfig("context-deep", RGBI, 5))
    assert (context.receptive_field, context.halo, context.stride, context.cell) == (70, 32, 8, 1)
    assert (deep.receptive_field, deep.halo, deep.stride, deep.cell) == (142, 64, 16, 1)


def test_a_context_may_begin_at_half_the_resolution() -> None:
    half = Network(NetworkConfig("context", RGBI, 5, family="context", widths=(0, 6, 4, 4, 4)))
    assert (half.receptive_field, half.halo, half.stride, half.cell) == (137, 64, 16, 1)
    assert half.features(torch.rand(1, 4, 37, 51)).shape == (1, 6, 37, 51)


@pytest.mark.parametrize(("beside", "channels"), [("log", 8), ("ratios", 8), ("none", 4)])
def test_quantities_next_to_the_bands_follow_from_each_pixel_alone(beside: Any, channels: int) -> None:
    front = Front(RGBI, (0.0,) * 4, (1.0,) * 4, sobel=False, colour=True, beside=beside)
    image = torch.rand(1, 4, 3, 3)
    image[..., 0, 0] = torch.tensor([-0.3, 0.0, 1.7, 0.0])  # beyond the usual range
    filtered = front.filter(image)
    assert filtered.shape[1] == front.out_channels == channels
    assert filtered.isfinite().all()
    torch.testing.assert_close(front.filter(image[..., 1:2, 1:2]), filtered[..., 1:2, 1:2])
    assert front.reach == 0
    with pytest.raises(UsageError, match="choose one"):
        NetworkConfig("context", RGBI, 3, sobel=True, beside="log")


def test_ratios_need_their_bands() -> None:
    with pytest.raises(UsageError, match="blue"):
        Network(NetworkConfig("context", ("red", "green", "nir"), 3, beside="ratios"))


def test_probabilities_not_logits_are_upsampled() -> None:
    network = lively(NetworkConfig("edge-8", ("grey",), 3))
    x = network.scale(torch.randint(0, 256, (1, 1, 12, 12)))
    small = network.heads["b"](network.features(x)).softmax(1)
    assert small.shape[-2:] == (6, 6)
    classified = network.classify(x)[0, 0]
    above = 0.75 * small[0, :, 0, 2] + 0.25 * small[0, :, 0, 1]
    below = 0.75 * small[0, :, 1, 2] + 0.25 * small[0, :, 1, 1]
    torch.testing.assert_close(classified[:, 2, 4], 0.25 * above + 0.75 * below)


def test_config_survives_json() -> None:
    config = NetworkConfig(
        "edge-4", RGBI, 6, 30, 3, sobel=True, offset=(1.0, 2.0, 3.0, 4.0), scale=(0.1,) * 4
    )
    assert NetworkConfig.from_json(json.loads(json.dumps(config.to_json()))) == config
    with pytest.raises(UsageError, match="the one that wrote it"):
        NetworkConfig.from_json({**config.to_json(), "attention": True})


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": "11b"},
        {"scale": (1.0,)},
        {"size": 24},
        {"name": "6c"},
        {"clusters_b": 1},
        {"sub_heads": 0},
    ],
)
def test_impossible_configs_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        NetworkConfig(**{"name": "10a", "channels": RGBI, "clusters_b": 3, **wrong})


def test_scaling_is_part_of_the_network_and_takes_any_dtype() -> None:
    config = NetworkConfig("edge-8", ("red", "nir"), 3, offset=(100.0, 0.0), scale=(0.01, 0.5))
    scaled = Network(config).scale(torch.tensor([[[[300]], [[4]]]], dtype=torch.uint16))
    assert scaled.flatten().tolist() == pytest.approx([2.0, 2.0])


def test_sobel_sees_luminance_only_and_infrared_passes() -> None:
    front = Front(RGBI, (0.0,) * 4, (1.0,) * 4, sobel=True, colour=True)
    image = torch.zeros(1, 4, 5, 5)
    image[:, :3, :, 3:] = 1.0  # an edge to the right of column 2
    image[:, 3] = torch.arange(5.0)
    filtered = front.filter(image)
    assert filtered.shape[1] == front.out_channels == 6
    assert torch.equal(filtered[:, :3], image[:, :3])
    assert torch.equal(filtered[:, 5], image[:, 3])
    torch.testing.assert_close(filtered[0, 3, 2], torch.tensor([0.0, 0.0, -4.0, -4.0, 4.0]))
    torch.testing.assert_close(filtered[0, 4, 1:4], torch.zeros(3, 5))
    assert Front(RGBI, (0.0,) * 4, (1.0,) * 4, sobel=True, colour=False).filter(image).shape[1] == 3
    with pytest.raises(UsageError, match="needs red"):
        Front(("nir",), (0.0,), (1.0,), sobel=True, colour=True)


def test_one_sub_head_can_be_taken_out() -> None:
    network = lively(NetworkConfig("edge-8", RGBI, 3, 7, 4, bias=True))
    torch.nn.init.normal_(network.heads["b"].bias)
    image = torch.randint(0, 256, (1, 4, 9, 9))
    single = network.with_sub_head(2)
    torch.testing.assert_close(single(image)[:, 0], network(image)[:, 2])
    assert single.config.clusters_a is None
    with pytest.raises(UsageError, match="no sub-head 4"):
        network.with_sub_head(4)


@pytest.mark.parametrize(
    "config",
    [
        NetworkConfig("edge-8", RGBI, 3, 7, 2, sobel=True),
        NetworkConfig("context", RGBI, 3, 7, 2, beside="log", bias=True, **NARROW["context"]),
    ],
)
def test_onnx_export_with_dynamic_shapes(config: NetworkConfig, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    network = lively(config).with_sub_head(1)
    path = tmp_path / "network.onnx"
    dynamic = {0: torch.export.Dim("n"), 2: torch.export.Dim("h"), 3: torch.export.Dim("w")}
    example = torch.randint(0, 256, (2, 4, 37, 52), dtype=torch.uint8)
    torch.onnx.export(network, (example,), path, dynamo=True, dynamic_shapes=(dynamic,), verbose=False)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    for shape in ((1, 4, 1, 1), (1, 4, 33, 8), (3, 4, 64, 41)):
        image = torch.randint(0, 256, shape, dtype=torch.uint8)
        output = session.run(None, {session.get_inputs()[0].name: image.numpy()})[0]
        np.testing.assert_allclose(output, network(image).detach().numpy(), atol=1e-5)
