"""The land-cover trunk: what it says of missing bands, and that tiles of it equal the whole image."""

from typing import Any

import numpy as np
import pytest
import torch

from iic_geotools.errors import DataError, UsageError
from iic_train.finetune.land_cover import imagenet_weights
from iic_train.models.context import PretrainedContext
from iic_train.models.land_cover import SQUARES, LocalPath, local_statistics
from iic_train.models.layers import CameraFront, ReflectanceFront
from iic_train.models.networks import Network
from iic_train.models.registry import MISSING_REFLECTANCE, STRETCH, NetworkConfig

torch.set_num_threads(1)
RGBI = ("red", "green", "blue", "nir")
KINDS: dict[str, dict[str, Any]] = {
    "reflectance": {"scale": (1e-4,) * 4, "beside": "reflectance", "widths": (6, 5)},
    "camera": {"beside": "camera", "widths": (0, 0, 4, 4, 4)},
}


def config(kind: str) -> NetworkConfig:
    return NetworkConfig("land-cover", RGBI, 3, family="land-cover", bias=True, **KINDS[kind])


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_tiles_equal_the_whole_image(kind: str) -> None:
    torch.manual_seed(0)
    network = Network(config(kind)).double().eval()
    rows, columns = 331, 350
    pixels = torch.rand(1, 4, rows, columns, dtype=torch.double) * (255 if kind == "camera" else 4000)
    halo, stride = network.halo, network.stride
    with torch.no_grad():
        whole = network(pixels)
        for row, col in ((0, 0), (9 * stride, 11 * stride), (19 * stride, 20 * stride)):
            top, left = max(0, row - halo), max(0, col - halo)
            tile = network(pixels[..., top : row + 32 + halo, left : col + 48 + halo])
            height, width = min(32, rows - row), min(48, columns - col)
            core = tile[..., row - top : row - top + height, col - left : col - left + width]
            np.testing.assert_allclose(
                core, whole[..., row : row + height, col : col + width], rtol=0, atol=1e-6
            )


def test_statistics_are_means_and_deviations_of_squares() -> None:
    image = torch.arange(12 * 12, dtype=torch.float32).view(1, 1, 12, 12) / 100
    mean, deviation = local_statistics(image, 1, (3,))[0]
    square = image[0, 0, 4:10, 2:8]
    assert mean[3, 2] == pytest.approx(float(square.mean()), rel=1e-5)
    assert deviation[3, 2] == pytest.approx(4 * float(square.var(correction=0) + 1e-4) ** 0.5, rel=1e-4)


def test_a_missing_infrared_band_says_nothing() -> None:
    front = ReflectanceFront(RGBI)
    scaled = torch.rand(1, 4, 3, 3) * 0.4
    scaled[:, 3] = MISSING_REFLECTANCE * 1e-4
    channels = front(scaled)
    infrared = [3, 7, 8, 10, 12]
    assert not channels[:, infrared].any()
    again = scaled.clone()
    again[:, 3] = -2.0
    assert torch.equal(front(again), channels)
    camera = CameraFront(RGBI)(torch.rand(1, 4, 3, 3) * torch.tensor([1.0, 1, 1, 0]).view(1, 4, 1, 1))
    assert not camera[:, infrared].any()


def test_stretched_values_are_taken_for_typical_reflectance_and_flagged() -> None:
    low, high = (value * 1e-4 for value in STRETCH)
    scaled = torch.tensor([low, (low + high) / 2, high, low]).view(1, 4, 1, 1)
    values, infrared, stretched = ReflectanceFront(RGBI).decode(scaled)
    assert infrared.item() == stretched.item() == 1.0
    dark, span = ReflectanceFront.TYPICAL
    np.testing.assert_allclose(values.flatten(), [dark, dark + span / 2, dark + span, dark], atol=1e-5)
    assert ReflectanceFront(RGBI).decode(torch.full((1, 4, 1, 1), 0.9))[2].item() == 0.0


def test_a_fitted_perceptron_becomes_the_local_path() -> None:
    torch.manual_seed(1)
    squares = SQUARES
    local = LocalPath(14, (6, 5), squares).eval()
    image = torch.randn(2, 14, 20, 24)
    inputs = local.inputs(image)
    described = 6 * 2 * sum(len(sides) for _, sides in squares)
    assert inputs.shape[1] == 14 + described
    first, second = torch.nn.Linear(inputs.shape[1], 6), torch.nn.Linear(6, 5)
    local.load_perceptron((first.weight, second.weight), (first.bias, second.bias))
    flat = inputs.permute(0, 2, 3, 1)
    with torch.no_grad():
        expected = second(first(flat).relu()).relu().permute(0, 3, 1, 2)
        np.testing.assert_allclose(local(image), expected, atol=1e-4)


def test_other_bands_are_refused() -> None:
    with pytest.raises(UsageError, match="takes red, green, blue, nir"):
        CameraFront(("red", "green", "blue"))


def test_the_context_starts_at_efficientnet_lite0() -> None:
    weights = imagenet_weights()
    context = PretrainedContext(14, (4, 4, 4), 8).eval()
    context.load_imagenet(weights)
    assert torch.equal(context.stem[1].weight[:, :3], weights["_conv_stem.weight"])
    assert not context.stem[1].weight[:, 3:].any()
    last = context.stages[-1][-1].layers[-1]
    assert torch.equal(last[0].weight, weights["_blocks.7._project_conv.weight"])
    assert torch.equal(last[1].running_var, weights["_blocks.7._bn2.running_var"])
    with pytest.raises(DataError, match="not those of EfficientNet-Lite0"):
        context.load_imagenet({name: value[:1] for name, value in weights.items() if value.ndim})
