import io
from dataclasses import replace

from iic_train.config import DataConfig, TrainConfig
from iic_train.networks import NetworkConfig
from iic_train.pairs import DensePairs
from iic_train.progress import Progress
from iic_train.watch import Watch

CONFIG = TrainConfig(
    preset="rasters",
    data=DataConfig("rasters"),
    network=NetworkConfig("edge-8", ("grey",), 4),
    pairs=DensePairs(),
    size=32,
    passes=("b",),
)


def row(epoch=5, information=0.5, entropy=1.2, occupancy=(0.4, 0.3, 0.2, 0.1)):
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


def test_a_healthy_run_is_left_in_peace():
    assert Watch(CONFIG).look(row()) == []


def test_each_trouble_has_its_own_advice_and_is_said_once():
    watch = Watch(CONFIG)
    (collapsed,) = watch.look(row(entropy=0.01, occupancy=(0.999, 0.001, 0, 0)))
    assert "collapsed" in collapsed
    assert "100%" in collapsed
    assert "--lamb" in collapsed
    assert watch.look(row(entropy=0.01)) == []
    (nothing,) = watch.look(row(information=0.001))
    assert "learning rate" in nothing
    (few,) = watch.look(row(entropy=0.5))
    assert "1.6 of its 4 clusters" in few
    assert watch.look(row()) == []
    assert len(watch.look(row(entropy=0.01))) == 1


def test_the_first_epoch_is_not_judged():
    assert Watch(CONFIG).look(row(epoch=1, information=0.0, entropy=0.0)) == []


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_terminal_has_a_bar_that_is_wiped_before_the_next_line():
    stream = Terminal()
    progress = Progress(stream)

    class Means:
        def to_json(self):
            return row()["train"]["b"]

    config = replace(CONFIG, epochs=7)
    progress.step(2, config, 0, "b", 0, 10, {"b": Means()}, 8)
    assert "epoch 2/7 [##" in stream.getvalue()
    assert not stream.getvalue().endswith("\n")
    progress.epoch(row(epoch=2), config)
    assert "\r" in stream.getvalue()
    assert stream.getvalue().endswith("selection -0.5000 (sub-head 0) *\n")
