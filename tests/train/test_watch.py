from dataclasses import replace
from typing import Any

from iic_train.config import DataConfig, TrainConfig
from iic_train.models.registry import NetworkConfig
from iic_train.views.settings import DensePairs
from iic_train.watch import Watch, describe_duration, describe_epoch, describe_plan, stops_early

CONFIG = TrainConfig(
    preset="rasters",
    data=DataConfig("rasters"),
    network=NetworkConfig("edge-8", ("grey",), 4),
    pairs=DensePairs(),
    size=32,
    passes=("b",),
)


def row(
    epoch: int = 5,
    information: float = 0.5,
    entropy: float = 1.2,
    occupancy: tuple[float, ...] = (0.4, 0.3, 0.2, 0.1),
) -> dict[str, Any]:
    head = {
        "loss": [-information],
        "information": [information],
        "entropy": [entropy],
        "occupancy": [list(occupancy)],
    }
    return {
        "epoch": epoch,
        "sub_head": 0,
        "loss": -information,
        "best": True,
        "images_per_second": 10.0,
        "train": {"b": head},
        "selection": head,
    }


def test_a_healthy_run_is_left_in_peace() -> None:
    assert Watch(CONFIG).look(row()) == []


def test_a_head_that_only_learns_features_may_leave_clusters_unused() -> None:
    network = NetworkConfig("bank", ("grey",), 4, 64, bias=True)
    features_only = replace(CONFIG, network=network, passes=("a",), start="kmeans")
    assert Watch(features_only).look(row(entropy=2.5)) == []


def test_each_trouble_has_its_own_advice_and_is_said_once() -> None:
    watch = Watch(CONFIG)
    (collapsed,) = watch.look(row(entropy=0.01, occupancy=(0.999, 0.001, 0, 0)))
    assert "collapsed" in collapsed
    assert "100%" in collapsed
    assert "`entropy_weight` above 1" in collapsed
    assert watch.look(row(entropy=0.01)) == []
    (nothing,) = watch.look(row(information=0.001))
    assert "learning rate" in nothing
    (few,) = watch.look(row(entropy=0.5))
    assert "1.6 of its 4 clusters" in few
    assert watch.look(row()) == []
    assert len(watch.look(row(entropy=0.01))) == 1


def test_the_first_epoch_is_not_judged() -> None:
    assert Watch(CONFIG).look(row(epoch=1, information=0.0, entropy=0.0)) == []


def test_an_epoch_is_described_in_a_line() -> None:
    line = describe_epoch(row(epoch=2), replace(CONFIG, epochs=7))
    assert line.startswith("epoch 2/7, learning  B -0.500 (information 0.500, 3.3/4 clusters)")
    assert line.endswith("selection -0.5000 (sub-head 0) *")


def test_a_slow_epoch_that_learns_nothing_has_no_zeros_for_its_speed_and_none_below_zero() -> None:
    line = describe_epoch(row(information=1e-6) | {"images_per_second": 0.24}, CONFIG)
    assert "B 0.000 (information 0.000, 3.3/4 clusters)  0.24 images/s  selection 0.0000" in line


def test_a_line_says_in_words_whether_it_is_learning() -> None:
    assert "no longer improving" in describe_epoch(row() | {"best": False}, CONFIG)
    assert "nothing learnt yet" in describe_epoch(row(information=0.001), CONFIG)
    assert "collapsed" in describe_epoch(row(entropy=0.01), CONFIG)


def test_a_loss_stops_early_when_the_last_epochs_hardly_lowered_it() -> None:
    assert not stops_early([-1.0, -1.0, -1.0], None)
    assert not stops_early([-1.0, -1.0], 2)
    assert stops_early([-1.0, -0.9, -1.004], 2)
    assert not stops_early([-1.0, -0.9, -1.006], 2)
    assert not stops_early([-0.5, -1.0, -0.9], 2)
    assert stops_early([0.0, 0.0], 1)


def test_the_plan_states_epochs_steps_and_patience() -> None:
    plan = describe_plan(replace(CONFIG, epochs=11, patience=5), [143, 143])
    assert (
        "up to 11 epochs of 143 + 143 steps of 60 pairs, early stopping with a patience of 5 epochs" in plan
    )
    assert "do not change" not in plan


def test_the_duration_is_in_words() -> None:
    for seconds, words in ((30, "less than two minutes"), (5400, "about 90 minutes"), (4e6, "about 46 days")):
        assert f"100 epochs take {words}. Ctrl-C stops" in describe_duration(seconds, CONFIG)
