"""Changes to the settings of a recipe."""

from dataclasses import dataclass, replace
from typing import TypeVar

from iic_geotools.errors import UsageError
from iic_train.config import Amp, Schedule, TrainConfig

Value = TypeVar("Value")


@dataclass(frozen=True)
class Changes:
    """Settings that replace those of a recipe; None keeps what the recipe says.

    Attributes:
        network: Another network of the same kind.
        clusters: Number of clusters of head B.
        clusters_a: Number of clusters of head A; as many as classes is the ablation without overclustering, and 0
            leaves the head and its passes out.
        sub_heads: Number of sub-heads of each head; 1 is an ablation.
        repeats: Number of second views for each first one; 1 is an ablation.
        epochs: Number of epochs to train.
        steps: Largest number of steps per pass.
        patience: Early-stopping patience in epochs; 0 trains all epochs.
        batch: Number of pairs per step, over all processes.
        micro_batch: Number of pairs that a process puts through the network at once.
        lr: Learning rate.
        schedule: Whether the learning rate stays constant or falls to zero along a cosine.
        passes: Passes over the data that make an epoch, each naming the heads it trains: `a`, `b` or `ab`.
        entropy_weight: Weight of the entropy in the loss of head B.
        seed: Seed of everything that is random.
        amp: Precision on CUDA.
        compile: Whether the network is compiled.
    """

    network: str | None = None
    clusters: int | None = None
    clusters_a: int | None = None
    sub_heads: int | None = None
    repeats: int | None = None
    epochs: int | None = None
    steps: int | None = None
    patience: int | None = None
    batch: int | None = None
    micro_batch: int | None = None
    lr: float | None = None
    schedule: Schedule | None = None
    passes: tuple[str, ...] | None = None
    entropy_weight: float | None = None
    seed: int | None = None
    amp: Amp | None = None
    compile: bool | None = None

    def apply(self, config: TrainConfig) -> TrainConfig:
        """Return a config with these changes.

        Raises:
            UsageError: The changed settings do not go together.
        """
        if config.network.clusters_a is None and self.clusters_a is not None:
            raise UsageError("Overclustering has one head: `clusters_a` does not go with `overcluster`.")
        network = replace(
            config.network,
            name=_given(self.network, config.network.name),
            widths=config.network.widths if self.network is None else (),
            clusters_b=_given(self.clusters, config.network.clusters_b),
            clusters_a=_given(self.clusters_a, config.network.clusters_a) or None,
            sub_heads=_given(self.sub_heads, config.network.sub_heads),
        )
        passes = config.passes
        if self.clusters_a == 0:
            passes = tuple(heads for heads in (heads.replace("a", "") for heads in passes) if heads)
        return replace(
            config,
            network=network,
            repeats=_given(self.repeats, config.repeats),
            epochs=_given(self.epochs, config.epochs),
            steps=_given(self.steps, config.steps),
            patience=_given(self.patience, config.patience) or None,
            batch=_given(self.batch, config.batch),
            micro_batch=_given(self.micro_batch, config.micro_batch),
            lr=_given(self.lr, config.lr),
            schedule=_given(self.schedule, config.schedule),
            passes=_given(self.passes, passes),
            entropy_weight=_given(self.entropy_weight, config.entropy_weight),
            seed=_given(self.seed, config.seed),
            amp=_given(self.amp, config.amp),
            compile=_given(self.compile, config.compile),
        )


def _given(value: Value | None, default: Value) -> Value:
    return default if value is None else value
