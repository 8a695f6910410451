import numpy as np
import pytest
import torch

from iic_geotools.errors import DataError
from iic_train.config import DataConfig, TrainConfig
from iic_train.finetune.chips import Chip, LabelledChips, Legend
from iic_train.finetune.learner import Crops
from iic_train.finetune.linear_head import correct_logits
from iic_train.finetune.settings import FinetuneConfig, LabelSource
from iic_train.models.networks import Network
from iic_train.models.registry import NetworkConfig
from iic_train.views.settings import DensePairs

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
    network = NetworkConfig("context", RGBI, 2, beside="log", bias=True, family="context", widths=(4, 4, 4))
    config = TrainConfig(
        "made", DataConfig("rasters"), network, DensePairs(), 48, ("b",), epochs=1, batch=4, steps=10,
        lr=1e-2, radius=1, finetune=settings,
    )  # fmt: skip
    return LabelledChips(chips, legend, "", None), config


def test_labels_stay_on_their_pixels() -> None:
    data, config = example()
    crop = Crops(data, config).read((1, 0), 12)
    assert crop.pixels.shape == (12, 4, 48, 48)
    bright = crop.pixels[:, 0] > 125
    allowed = torch.from_numpy(data.legend.members())[crop.codes.long()]
    labelled = crop.codes > 0
    assert labelled.any()
    assert not (labelled & ~crop.inside[:, 0]).any()
    right = (allowed[..., 1] == bright)[labelled].float().mean()
    assert right == 1


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


def test_rare_classes_weigh_more() -> None:
    data, config = example(balance=0.5)
    for chip in data.chips:
        chip.codes = np.where(np.arange(chip.codes.shape[1])[None] < 8, 2, 1).repeat(80, 0).astype(np.uint8)
    weights = Crops(data, config).class_weights()
    assert weights[1] > 1.5 * weights[0]


def test_bias_and_temperature_are_in_the_weights() -> None:
    torch.manual_seed(0)
    network = Network(example()[1].network).eval()
    image = torch.randint(0, 256, (1, 4, 9, 9))
    features = network.features(network.scale(image))
    logits = network.heads["b"](features)
    correct_logits(network, (0.5, -0.5), 2.0)
    expected = (logits + torch.tensor([0.5, -0.5]).view(1, 2, 1, 1)) / 2.0
    torch.testing.assert_close(network.heads["b"](features), expected)
