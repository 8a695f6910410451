from dataclasses import fields

import pytest
import torch

from iic_train.views.light import change_light
from iic_train.views.random_numbers import Draw
from iic_train.views.settings import Light

RGBI = ("red", "green", "blue", "nir")
STRENGTHS = [field.name for field in fields(Light) if field.name not in ("plain", "varied")]


@pytest.mark.parametrize("name", STRENGTHS)
def test_every_setting_changes_something_and_stays_finite(name: str) -> None:
    images = torch.rand(4, 4, 24, 24)
    changed = change_light(Light(**{name: 0.9}), images, RGBI, Draw(0))
    assert changed.shape == images.shape
    assert changed.isfinite().all()
    assert not torch.equal(changed, images)


def test_without_strength_nothing_changes_and_some_images_stay_plain() -> None:
    images = torch.rand(40, 4, 6, 6)
    assert torch.equal(change_light(Light(), images, RGBI, Draw(0)), images)
    changed = change_light(Light(plain=0.5, gain=0.5), images, RGBI, Draw(0))
    unchanged = (changed == images).flatten(1).all(1)
    assert 5 < unchanged.sum() < 35


def test_the_same_seed_gives_the_same_light() -> None:
    images = torch.rand(3, 4, 8, 8)
    light = Light(gain=0.2, band_gain=0.1, haze=0.1, noise=0.1, shadow=0.5, mixing=0.1, varied=True)
    one, two, other = (change_light(light, images, RGBI, Draw(seed)) for seed in (1, 1, 2))
    assert torch.equal(one, two)
    assert not torch.equal(one, other)


def test_air_is_added_at_the_surface_and_removed_above_it() -> None:
    images = torch.full((2, 4, 4, 4), 0.5)
    changed = change_light(Light(air=1.0), images, RGBI, Draw(0), torch.tensor([False, True]))
    added = changed - images
    blue, nir = RGBI.index("blue"), RGBI.index("nir")
    assert (added[0, blue] > 0.01).all()
    assert (added[1, blue] <= 0.0).all()
    assert (added[:, nir].abs() < added[:, blue].abs() + 1e-6).all()


def test_bands_of_other_names_pass() -> None:
    images = torch.rand(2, 2, 8, 8)
    changed = change_light(Light(vegetation=0.5, saturation=0.5, haze=0.1), images, ("sar", "dem"), Draw(0))
    torch.testing.assert_close(changed, images)
