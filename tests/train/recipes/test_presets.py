"""The published commands, as far as a slip of the pen would change what a preset trains."""

from dataclasses import replace

import pytest
import torch

from iic_geotools.errors import UsageError
from iic_train.config import change
from iic_train.data.training_data import DATASETS
from iic_train.models.networks import Network
from iic_train.recipes.presets import OVERCLUSTERED, PRESETS, UNSUPERVISED, preset
from iic_train.views.settings import DensePairs, ImagePairs


def test_every_data_set_has_published_settings_of_both_protocols() -> None:
    assert set(PRESETS) == set(DATASETS) == set(UNSUPERVISED) == set(OVERCLUSTERED)


@pytest.mark.parametrize("overcluster", [False, True])
@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_has_the_form_that_was_published(name: str, overcluster: bool) -> None:
    config = preset(name, overcluster=overcluster)
    assert (config.collapsed, config.cells) == (False, False)
    assert config.network.sobel == (config.network.channels == ("red", "green", "blue"))
    assert (config.network.clusters_a is None) == overcluster
    if config.dense:
        assert isinstance(config.pairs, DensePairs)
        assert config.pairs.flip_vertical == config.pairs.turn == config.pairs.rotation == 0


@pytest.mark.parametrize(("name", "passes"), [("mnist", ("b", "b")), ("potsdam-3", ("b",))])
def test_no_clusters_leave_head_a_out(name: str, passes: tuple[str, ...]) -> None:
    config = change(preset(name), {"clusters_a": 0})
    assert config.network.clusters_a is None
    assert config.passes == passes
    with pytest.raises(UsageError, match="head a"):
        change(preset(name), {"clusters_a": 0, "passes": ("ab",)})
    with pytest.raises(UsageError, match="2 to 4096 clusters"):
        replace(config.network, clusters_a=0)


def test_settings_that_do_not_exist_are_refused() -> None:
    with pytest.raises(UsageError, match="no setting epoch: did you mean `epochs`"):
        change(preset("mnist"), {"epoch": 3})


def test_early_stopping_can_be_turned_off() -> None:
    assert preset("mnist").patience == 50
    assert change(preset("mnist"), {"patience": 0}).patience is None


PUBLISHED = {
    # id: preset, overclustering, network, clusters A and B, learning rate, batch, repeats, passes, weight, radius, size
    569: ("stl10", False, "5g", 70, 10, 1e-4, 700, 5, "a,b", 1.0, None, 64),
    640: ("cifar10", False, "5g", 70, 10, 1e-4, 660, 3, "a,b,b", 1.0, None, 32),
    579: ("cifar100-20", False, "5g", 140, 20, 1e-4, 1000, 5, "b,a", 1.0, None, 32),
    685: ("mnist", False, "6c", 50, 10, 1e-4, 700, 5, "b,b,a", 1.0, None, 24),
    653: ("stl10", True, "5g", None, 140, 1e-4, 1400, 5, "b", 1.0, None, 64),
    652: ("cifar10", True, "5g", None, 140, 1e-4, 1320, 3, "b", 1.0, None, 32),
    654: ("cifar100-20", True, "6c", None, 280, 1e-4, 2800, 5, "b", 1.0, None, 24),
    665: ("mnist", True, "6c", None, 25, 1e-4, 350, 5, "b", 1.0, None, 24),
    555: ("coco-stuff-3", False, "10a", 15, 3, 1e-4, 120, 1, "a,b", 1.5, 10, 128),
    512: ("coco-stuff", False, "10a", 45, 15, 1e-4, 60, 1, "a,b", 1.0, 10, 128),
    545: ("potsdam-3", False, "10a", 24, 3, 1e-5, 75, 1, "a,b", 1.5, 10, 200),
    544: ("potsdam", False, "10a", 36, 6, 1e-6, 60, 1, "a,b", 1.0, 5, 200),
    496: ("coco-stuff-3", True, "10a", None, 15, 1e-4, 180, 1, "b", 1.0, 10, 128),
    521: ("coco-stuff", True, "10a", None, 45, 1e-4, 90, 1, "b", 1.0, 10, 128),
    482: ("potsdam-3", True, "10a", None, 9, 1e-5, 75, 1, "b", 1.0, 10, 200),
    487: ("potsdam", True, "10a", None, 24, 1e-5, 60, 1, "b", 1.0, 10, 200),
}
"""The authors' 16 commands by the numbers of their models."""
EPOCHS_RUN = {569: 389, 640: 1447, 579: 1051, 685: 463, 555: 55, 512: 15, 545: 14, 544: 11}
"""Epochs in the authors' logs; those of segmentation are of one head, and count half."""


PARAMETERS = {
    569: 21481616, 640: 21481616, 579: 21686816, 685: 5687020, 653: 21635516, 652: 21635516, 654: 10763320,
    665: 4880445, 555: 4512960, 512: 4534464, 545: 4516992, 544: 4524672, 496: 4511424, 521: 4526784, 482: 4507776,
    487: 4515456,
}  # fmt: skip
"""Parameters of the networks that the authors' code builds for these commands."""


@pytest.mark.parametrize("number", PUBLISHED)
def test_a_preset_has_as_many_parameters_as_the_authors_network(number: int) -> None:
    name, overcluster = PUBLISHED[number][:2]
    with torch.device("meta"):
        network = Network(preset(name, overcluster=overcluster).network)
    assert sum(parameter.numel() for parameter in network.parameters()) == PARAMETERS[number]


@pytest.mark.parametrize("number", PUBLISHED)
def test_a_preset_has_the_settings_of_the_published_command(number: int) -> None:
    name, overcluster, network, clusters_a, clusters, lr, batch, repeats, passes, weight, radius, size = (
        PUBLISHED[number]
    )
    config = preset(name, overcluster=overcluster)
    trained = config.network
    assert (trained.name, trained.clusters_a, trained.clusters_b) == (network, clusters_a, clusters)
    assert (config.lr, config.batch, config.repeats, ",".join(config.passes)) == (lr, batch, repeats, passes)
    assert (config.entropy_weight, config.entropy_weight_a) == (weight, 1.0)
    assert radius in (None, config.radius)
    assert trained.sub_heads == (1 if config.dense else 5)
    assert (config.size or trained.size) == size
    if trained.sobel:  # with the colours next to their gradients, or without
        assert trained.colour == (config.dense or number == 654)
    if isinstance(config.pairs, ImagePairs):
        assert config.pairs.crop == (64 if name == "stl10" else 20)
        assert config.pairs.crops == ((16, 20, 24) if name == "mnist" else (config.pairs.crop,))
    assert config.schedule == "constant"
    if number in EPOCHS_RUN:
        assert config.epochs == EPOCHS_RUN[number]
