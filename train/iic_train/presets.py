"""The published settings by name, and training with them.

Every number is that of the authors' published commands; their learning rates and displacements differ from
the single values the paper states. Overclustering is the semi-supervised protocol with one head.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from iic_geotools.errors import UsageError
from iic_train.config import DataConfig, TrainConfig
from iic_train.loop import train
from iic_train.networks import NETWORKS, NetworkConfig
from iic_train.pairs import POTSDAM_JITTER, STRONG_JITTER, DensePairs, ImagePairs
from iic_train.runs import Run

RGB = ("red", "green", "blue")
RGBI = (*RGB, "nir")


@dataclass(frozen=True)
class Published:
    """Network, heads and rhythm of a published run."""

    network: str
    clusters_b: int
    clusters_a: int | None
    batch: int
    lr: float = 1e-4
    repeats: int = 1
    passes: tuple[str, ...] = ("a", "b")
    epochs: int = 2000
    lamb_b: float = 1.0
    radius: int = 10
    size: int | None = None
    """Side of the images that the network sees."""
    colour: bool = False


UNSUPERVISED = {
    "mnist": Published("6c", 10, 50, 700, repeats=5, passes=("b", "b", "a"), epochs=3200, size=24),
    "cifar10": Published("5g", 10, 70, 660, repeats=3, passes=("a", "b", "b"), size=32),
    "cifar100-20": Published("5g", 20, 140, 1000, repeats=5, passes=("b", "a"), size=32),
    "stl10": Published("5g", 10, 70, 700, repeats=5, size=64),
    "coco-stuff": Published("10a", 15, 45, 60, epochs=4800, size=128, colour=True),
    "coco-stuff-3": Published("10a", 3, 15, 120, epochs=4800, size=128, colour=True, lamb_b=1.5),
    "potsdam": Published("10a", 6, 36, 60, lr=1e-6, epochs=4800, size=200, radius=5),
    "potsdam-3": Published("10a", 3, 24, 75, lr=1e-5, epochs=4800, size=200, lamb_b=1.5),
}

OVERCLUSTERED = {
    "mnist": Published("6c", 25, None, 350, repeats=5, epochs=3200, size=24),
    "cifar10": Published("5g", 140, None, 1320, repeats=3, epochs=3200, size=32),
    "cifar100-20": Published("6c", 280, None, 2800, repeats=5, epochs=3200, size=24, colour=True),
    "stl10": Published("5g", 140, None, 1400, repeats=5, epochs=3200, size=64),
    "coco-stuff": Published("10a", 45, None, 90, epochs=4800, size=128, colour=True),
    "coco-stuff-3": Published("10a", 15, None, 180, epochs=4800, size=128, colour=True),
    "potsdam": Published("10a", 24, None, 60, lr=1e-5, epochs=4800, size=200),
    "potsdam-3": Published("10a", 9, None, 75, lr=1e-5, epochs=4800, size=200),
}

PRESETS = tuple(UNSUPERVISED)
"""Names that `preset` knows."""


def preset(name: str, *, overcluster: bool = False) -> TrainConfig:
    """The published settings for a data set.

    Raises:
        UsageError: The name is not known.
    """
    table = OVERCLUSTERED if overcluster else UNSUPERVISED
    if name not in table:
        raise UsageError(f"There is no preset {name}; choose one of {', '.join(PRESETS)}.")
    found = table[name]
    dense = NETWORKS[found.network][0] == "segmentation"
    channels = ("grey",) if name == "mnist" else RGBI if name.startswith("potsdam") else RGB
    network = NetworkConfig(
        found.network,
        channels,
        found.clusters_b,
        found.clusters_a,
        sub_heads=1 if dense else 5,
        sobel=channels == RGB,
        colour=found.colour,
        size=None if dense else found.size,
    )
    return TrainConfig(
        preset=name,
        data=DataConfig(name, overcluster=overcluster),
        network=network,
        pairs=_pairs(name, found.size or 0, dense=dense),
        size=found.size if dense else None,
        passes=("b",) if found.clusters_a is None else found.passes,
        epochs=found.epochs,
        batch=found.batch,
        repeats=found.repeats,
        lr=found.lr,
        lamb_b=found.lamb_b,
        radius=found.radius,
        evaluation_images=200 if dense else 2000,
    )


def _pairs(name: str, size: int, *, dense: bool) -> DensePairs | ImagePairs:
    if dense:
        return DensePairs(POTSDAM_JITTER if name.startswith("potsdam") else STRONG_JITTER)
    if name == "mnist":
        return ImagePairs(size, 20, (16, 20, 24), centred=0.5, rotation=25.0, flip=0.0)
    crop = 64 if name == "stl10" else 20
    return ImagePairs(size, crop, (crop,))


def train_preset(
    preset_name: str,
    *,
    data: Path | None = None,
    overcluster: bool = False,
    unlabelled: bool = True,
    network: str | None = None,
    clusters: int | None = None,
    clusters_a: int | None = None,
    sub_heads: int | None = None,
    repeats: int | None = None,
    epochs: int | None = None,
    steps: int | None = None,
    batch: int | None = None,
    lr: float | None = None,
    schedule: Literal["constant", "cosine"] | None = None,
    passes: Sequence[str] | None = None,
    lamb: float | None = None,
    seed: int = 0,
    amp: Literal["off", "bf16", "fp16"] = "off",
    compile: bool = False,
    **options: Any,
) -> Run:
    """Train on a data set of the paper with the published settings, changed where arguments say so.

    Args:
        preset_name: One of `PRESETS`.
        data: Folder that holds the data set; else `IIC_DATA`, else `./data`.
        overcluster: Semi-supervised overclustering: one head with many clusters, matched many to one.
        unlabelled: False leaves out images without labels (an ablation for STL10).
        network: Another network of the same kind.
        clusters: Clusters of head B.
        clusters_a: Clusters of head A; as many as classes is the ablation without overclustering.
        sub_heads: Sub-heads of each head; 1 is an ablation.
        repeats: Second views for each first one; 1 is an ablation.
        epochs: Epochs to train.
        steps: Most steps a pass takes.
        batch: Pairs a step.
        lr: Learning rate.
        schedule: Keep the learning rate, or let it fall to zero along a cosine.
        passes: Passes over the data that make an epoch, each naming the heads it trains: `a`, `b` or `ab`.
        lamb: Weight of the entropy in head B's loss.
        seed: Of everything random.
        amp: Precision on CUDA.
        compile: Compile the network.
        **options: `runs`, `name`, `device`, `workers`, `quiet`, as for `iic_train.loop.train`.
    """
    config = preset(preset_name, overcluster=overcluster)
    root = None if data is None else str(data.absolute())
    changed = _given(name=network, clusters_b=clusters, clusters_a=clusters_a, sub_heads=sub_heads)
    if network is not None:
        changed["widths"] = ()
    if overcluster and clusters_a is not None:
        raise UsageError("Overclustering has one head: --clusters-a does not go with --overcluster.")
    config = replace(
        config,
        data=replace(config.data, root=root, unlabelled=unlabelled),
        network=replace(config.network, **changed),
        seed=seed,
        amp=amp,
        compile=compile,
        **_given(repeats=repeats, epochs=epochs, steps=steps, batch=batch, lr=lr, lamb_b=lamb),
        **_given(schedule=schedule, passes=None if passes is None else tuple(passes)),
    )
    return train(config, **options)


def _given(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}
