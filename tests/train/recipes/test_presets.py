"""The published commands, as far as a slip of the pen would change what a preset trains."""

from dataclasses import replace

import pytest

from iic_geotools.errors import UsageError
from iic_train.data import DATASETS
from iic_train.recipes.changes import Changes
from iic_train.recipes.presets import OVERCLUSTERED, PRESETS, UNSUPERVISED, preset
from iic_train.views.settings import DensePairs


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
    config = Changes(clusters_a=0).apply(preset(name))
    assert config.network.clusters_a is None
    assert config.passes == passes
    with pytest.raises(UsageError, match="head a"):
        Changes(clusters_a=0, passes=("ab",)).apply(preset(name))
    with pytest.raises(UsageError, match="two clusters"):
        replace(config.network, clusters_a=0)


def test_potsdam_3_is_the_published_run() -> None:
    config = preset("potsdam-3")
    assert (config.network.clusters_a, config.network.clusters_b) == (24, 3)
    assert (config.lr, config.batch, config.entropy_weight_a, config.entropy_weight) == (1e-5, 75, 1.0, 1.5)
    assert (config.size, config.passes) == (200, ("a", "b"))
