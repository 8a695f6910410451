from dataclasses import replace

import numpy as np
import pytest
import torch

from iic_geotools.errors import DataError
from iic_train.config import DataConfig, TrainConfig
from iic_train.finetune.chips import Chip, LabelledChips
from iic_train.finetune.crops import Crops
from iic_train.finetune.learner import Learner
from iic_train.finetune.legend import Legend
from iic_train.finetune.linear_head import class_head, correct_logits
from iic_train.finetune.settings import FinetuneConfig, LabelSource
from iic_train.models.networks import Network
from iic_train.models.registry import NetworkConfig
from iic_train.views.settings import DensePairs, Light

RGBI = ("red", "green", "blue", "nir")


def example(**changes: object) -> tuple[LabelledChips, TrainConfig]:
    """Two chips whose red value says the class: 0 dark, 1 bright; the second chip is left out in fold 1."""
    legend = Legend(("dark", "bright"))
    dark, bright = legend.code(("dark",)), legend.code(("bright",))
    rng = np.random.default_rng(0)
    chips = []
    for fold in (0, 1):
        classes = np.kron(rng.integers(0, 2, (10, 10)), np.ones((8, 8))).astype(int)[:, : 80 - 30 * fold]
        pixels = np.stack([50 + 150 * classes] * 4).astype(np.uint8)
        codes = np.where(classes == 1, bright, dark).astype(np.uint8)
        chips.append(Chip(0, f"place {fold}", pixels, codes, fold))
    settings = FinetuneConfig(("dark", "bright"), (LabelSource("made", ("a", "b")),), **changes)  # type: ignore[arg-type]
    network = NetworkConfig(
        "pixel-context", RGBI, 2, beside="log", bias=True, family="pixel-context", widths=(6, 4, 4, 4, 4)
    )
    config = TrainConfig(
        "made", DataConfig("rasters"), network, DensePairs(), 48, ("b",), epochs=1, batch=4, steps=10,
        lr=1e-2, radius=1, finetune=settings,
    )  # fmt: skip
    return LabelledChips(chips, legend, "", None), config


@pytest.mark.parametrize(
    "changes", [{}, {"zoom": (0.6, 1.5)}, {"rotated": 1.0}, {"zoom": (1.2, 1.4), "rotated": 1.0}]
)
def test_labels_stay_on_their_pixels(changes: dict[str, object]) -> None:
    data, config = example(**changes)
    crop = Crops(data, config).read((1, 0), 12)
    assert crop.pixels.shape == (12, 4, 48, 48)
    bright = crop.pixels[:, 0] > 125
    allowed = torch.from_numpy(data.legend.members())[crop.codes.long()]
    labelled = crop.codes > 0
    assert labelled.any()
    assert not (labelled & ~crop.inside[:, 0]).any()
    right = (allowed[..., 1] == bright)[labelled].float().mean()
    assert right > (0.93 if changes else 0.999)  # resampled pixels mix at edges


def test_crops_follow_from_their_key_and_leave_a_fold_out() -> None:
    data, config = example()
    crops = Crops(data, config, fold=0)
    one, two, other = (crops.read(key) for key in ((1, 0), (1, 0), (1, 1)))
    assert torch.equal(one.pixels, two.pixels)
    assert not torch.equal(one.pixels, other.pixels)
    assert (one.inside.sum((1, 2, 3)) == 48 * 48).all()
    data.chips[1].folds = 0
    with pytest.raises(DataError, match="No labelled place is left"):
        Crops(data, config, fold=0)


def test_crops_around_a_class_hold_it() -> None:
    data, config = example(centred=(("bright", 1.0),))
    data.chips[0].codes[:] = 1
    data.chips[0].codes[3:5, 3:5] = 2
    crops = Crops(data, replace(config, size=8), fold=1)
    assert ((crops.read((1, 0), 20).codes == 2).flatten(1).any(1)).all()


def test_rare_classes_weigh_more() -> None:
    data, config = example(balance=0.5)
    for chip in data.chips:
        chip.codes = np.where(np.arange(chip.codes.shape[1])[None] < 8, 2, 1).repeat(80, 0).astype(np.uint8)
    weights = Crops(data, config).class_weights()
    assert weights[1] > 1.5 * weights[0]


def test_the_pixel_path_is_learnt_first_and_then_kept() -> None:
    light = Light(gain=0.02)
    data, config = example(pixel_steps=120, pixel_batch=256, light=light, around=Light(gain=0.3))
    learner = Learner(Network(config.network), data, config)
    learner.train_pixel_path()
    weight, _ = class_head(learner.network)
    assert weight[:, 4:].abs().sum() == 0
    kept = {
        name: value.clone() for name, value in learner.network.state_dict().items() if "trunk.pixel" in name
    }
    pixel_weight = weight[:, :4].detach().clone()
    learner.train_epoch(1)
    assert all(torch.equal(value, learner.network.state_dict()[name]) for name, value in kept.items())
    assert torch.equal(weight[:, :4], pixel_weight)
    assert weight[:, 4:].abs().sum() > 0
    network = learner.averaged()
    logs = network(torch.from_numpy(data.chips[0].pixels)[None])[0, 0]
    right = (logs.argmax(0).numpy() == (data.chips[0].codes == 2)).mean()
    assert right > 0.95


def test_pixel_and_context_are_two_opinions() -> None:
    data, config = example(pixel_steps=60, pixel_batch=128, pixel_share=0.25, light=Light(), around=Light())
    learner = Learner(Network(config.network), data, config)
    learner.train_pixel_path()
    weight, bias = class_head(learner.network)
    pixel_weight = weight[:, :4].detach().clone()
    assert learner.pixel_bias.abs().sum() > 0
    assert bias.abs().sum() == 0
    learner.train_epoch(1)
    assert torch.equal(weight[:, :4], pixel_weight)
    context_weight, context_bias = (learner.mean[f"heads.b.{name}"] for name in ("weight", "bias"))
    joined, joined_bias = class_head(learner.averaged())
    torch.testing.assert_close(joined[:, :4], 0.25 * pixel_weight)
    torch.testing.assert_close(joined[:, 4:], 0.75 * context_weight[:, 4:])
    torch.testing.assert_close(joined_bias, 0.25 * learner.pixel_bias + 0.75 * context_bias)
    again = Learner(Network(config.network), data, config)
    again.restore(learner.state())
    torch.testing.assert_close(class_head(again.averaged())[1], joined_bias)


def test_the_opinion_of_pixels_is_shared_between_one_and_many() -> None:
    data, config = example(pixel_steps=60, pixel_batch=128, pixel_share=0.6, smoothed_share=0.75)
    config = replace(config, network=replace(config.network, smoothed=True))
    learner = Learner(Network(config.network), data, config)
    learner.train_pixel_path()
    weight, _ = class_head(learner.network)
    first = learner.network.pixel_features
    pixel_weight = weight[:, :first].detach().clone()
    learner.train_epoch(1)
    assert torch.equal(weight[:, :first], pixel_weight)
    assert weight[:, first : 2 * first].abs().sum() == 0
    network = learner.averaged()
    joined, _ = class_head(network)
    torch.testing.assert_close(joined[:, :first], 0.6 * 0.25 * pixel_weight)
    torch.testing.assert_close(joined[:, first : 2 * first], 0.6 * 0.75 * pixel_weight)
    torch.testing.assert_close(joined[:, 2 * first :], 0.4 * learner.mean["heads.b.weight"][:, 2 * first :])


def test_bias_and_temperature_are_in_the_weights() -> None:
    torch.manual_seed(0)
    network = Network(example()[1].network).eval()
    image = torch.randint(0, 256, (1, 4, 9, 9))
    features = network.features(network.scale(image))
    logits = network.heads["b"](features)
    correct_logits(network, (0.5, -0.5), 2.0)
    expected = (logits + torch.tensor([0.5, -0.5]).view(1, 2, 1, 1)) / 2.0
    torch.testing.assert_close(network.heads["b"](features), expected)
