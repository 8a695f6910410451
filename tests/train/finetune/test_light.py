from dataclasses import fields

import pytest
import torch

from iic_train.finetune.learner import change_light
from iic_train.views.random_numbers import Draw
from iic_train.views.settings import Light

STRENGTHS = [field.name for field in fields(Light) if field.name not in ("plain", "varied")]


@pytest.mark.parametrize("name", STRENGTHS)
def test_every_setting_changes_something_and_stays_finite(name: str) -> None:
    images = torch.rand(4, 4, 24, 24)
    changed = change_light(Light(**{name: 0.9}), images, Draw(0))
    assert changed.shape == images.shape
    assert changed.isfinite().all()
    assert not torch.equal(changed, images)


def test_without_strength_nothing_changes_and_some_images_stay_plain() -> None:
    images = torch.rand(40, 4, 6, 6)
    assert torch.equal(change_light(Light(), images, Draw(0)), images)
    changed = change_light(Light(plain=0.5, gain=0.5), images, Draw(0))
    unchanged = (changed == images).flatten(1).all(1)
    assert 5 < unchanged.sum() < 35


def test_the_same_seed_gives_the_same_light() -> None:
    images = torch.rand(3, 4, 8, 8)
    light = Light(gain=0.2, band_gain=0.1, noise=0.1, offset=0.1, varied=True)
    one, two, other = (change_light(light, images, Draw(seed)) for seed in (1, 1, 2))
    assert torch.equal(one, two)
    assert not torch.equal(one, other)
