"""The bank: fixed features of wide surroundings that tile exactly."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from iic_geotools.scene.multiscale import REACH
from iic_train.models.bank import Bank
from iic_train.models.networks import Network
from iic_train.models.registry import NetworkConfig

BANDS = ("red", "green", "blue", "nir")


def network(bands: tuple[str, ...] = BANDS) -> Network:
    torch.manual_seed(0)
    config = NetworkConfig("bank", bands, 3, 8, scale=(1.0,) * len(bands), bias=True)
    made = Network(config).eval()
    assert isinstance(made.trunk, Bank)
    made.trunk.standardise([torch.rand(1, len(bands), 120, 110)])
    return made


@given(st.integers(90, 130), st.integers(90, 130), st.integers(0, 60), st.integers(1, 30))
@settings(max_examples=6)
def test_a_tile_with_its_halo_equals_the_whole(height: int, width: int, first: int, side: int) -> None:
    made = network()
    image = torch.rand(1, 4, height, width)
    top, left = first % (height - side), first % (width - side)
    low_row, low_column = max(0, top - made.halo), max(0, left - made.halo)
    tile = image[:, :, low_row : top + side + made.halo, low_column : left + side + made.halo]
    with torch.inference_mode():
        whole = made.features(image)[:, :, top : top + side, left : left + side]
        core = made.features(tile)[:, :, top - low_row :, left - low_column :][:, :, :side, :side]
    assert torch.allclose(whole, core, atol=2e-5)


def test_features_see_as_far_as_the_halo_and_no_further() -> None:
    made = network()
    image = torch.rand(1, 4, 130, 130)

    def reaches(distance: int) -> bool:
        changed = image.clone()
        changed[..., 65, 65 - distance] = 5.0
        with torch.inference_mode():
            return bool((made.features(image) != made.features(changed))[0, :, 65, 65].any())

    assert made.halo == REACH
    assert reaches(made.halo)
    assert not reaches(made.halo + 1)


@pytest.mark.parametrize("bands", [BANDS, ("red", "green", "blue"), ("band1",)])
def test_every_channel_of_the_bank_is_standardised(bands: tuple[str, ...]) -> None:
    torch.manual_seed(1)
    made = network(bands)
    windows = [torch.rand(1, len(bands), 96, 96) ** 2]
    assert isinstance(made.trunk, Bank)
    made.trunk.standardise(windows)
    with torch.inference_mode():
        features = made.features(windows[0])[0, made.learnt_features :].flatten(1)
    assert features.mean(1).abs().max() < 1e-3
    assert (features.std(1) - 1).abs().max() < 0.05


def test_calibrating_changes_only_the_means_of_learnt_features() -> None:
    made = network()
    trunk = made.trunk
    assert isinstance(trunk, Bank)
    before = trunk.factor.clone()
    trunk.learnt[0][0].weight.data.mul_(3.0)
    trunk.calibrate([torch.rand(1, 4, 100, 100)])
    changed = (trunk.factor != before).flatten().nonzero().squeeze(1).tolist()
    assert changed
    assert not set(changed) & {
        channel for group in trunk.clustered for channel in range(group.start, group.stop)
    }
    assert not set(changed) & set(trunk.texture)


def test_head_a_sees_learnt_features_only() -> None:
    made = network()
    features = made.features(torch.rand(1, 4, 40, 40))
    wider = features.clone()
    wider[:, made.learnt_features :] += 1.0
    assert torch.equal(made.probabilities(features, "a"), made.probabilities(wider, "a"))


def test_smooth_areas_have_the_same_features_in_any_precision() -> None:
    """Calm water has hardly any variance: what rounding leaves of it must not be taken for texture."""
    made = network()
    windows = [torch.rand(1, 4, 96, 96)]
    windows[0][..., :48] = 0.9 + 1e-4 * torch.rand(1, 4, 96, 48)
    assert isinstance(made.trunk, Bank)
    made.trunk.standardise(windows)
    with torch.inference_mode():
        single, double = made.features(windows[0]), made.double().features(windows[0].double())
    assert (single - double).abs().max() < 1e-3
