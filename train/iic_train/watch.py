"""Progress of a run in words: the figures of an epoch, and warnings with advice."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from iic_geotools.work import format_speed
from iic_train.config import TrainConfig

COLLAPSED = 1.1
"""Number of clusters in use below which a head has collapsed."""
NO_INFORMATION = 0.01
"""Share of the possible information below which paired views have nothing in common."""
FIXED_CLUSTERS = (
    "The clusters of the map are those of the start: k-means on a bank of features, refined by IIC on neighbouring "
    "pixels; training does not change them."
)
"""The note on runs that train head A alone."""
FEATURES = "`epochs` 4 and `steps` 75 learn features for clicks in a minute."
SETTLED = 0.005
"""Part of its size by which a loss must fall to count as falling."""


def stops_early(losses: Sequence[float], patience: int | None) -> bool:
    """Early stopping: return whether the loss on the fixed pairs stopped falling `patience` epochs ago; None: never."""
    if patience is None or len(losses) <= patience:
        return False
    before, since = min(losses[:-patience]), min(losses[-patience:])
    return since >= before - SETTLED * abs(before)


def describe_plan(config: TrainConfig, steps: Sequence[int]) -> str:
    """Return how long a run may take in epochs and steps, before its speed is known."""
    passes = " + ".join(map(str, steps))
    until = "" if config.patience is None else f", early stopping with a patience of {config.patience} epochs"
    plan = (
        f"Training for up to {config.epochs} epochs of {passes} steps of {config.batch} pairs{until}; "
        "an estimate of the time follows after a minute."
    )
    if config.trains_clusters:
        return plan
    if config.only_starts:
        return f"{FIXED_CLUSTERS} Training is left out; {FEATURES}"
    return f"{FIXED_CLUSTERS} It learns features for clicks: {plan}"


def describe_duration(seconds: float, config: TrainConfig) -> str:
    """Return how long all epochs take at the present speed, and how to shorten that."""
    return (
        f"At this speed {config.epochs} epochs take {_in_words(seconds)}. Ctrl-C stops: iic-export takes the best "
        "epoch so far, and iic-train resume continues."
    )


def _in_words(seconds: float) -> str:
    for unit, length in (("days", 86_400), ("hours", 3_600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"about {seconds / length:.0f} {unit}"
    return "less than two minutes"


def memory_advice(config: TrainConfig, pairs: int) -> str:
    """Return what to change if the memory of a GPU is full with this number of pairs in the network at once."""
    fewer = max(config.repeats, pairs // 2)
    return (
        f"{pairs} pairs pass the network at once, try a `micro_batch` of {fewer}, which leaves loss and gradient "
        "those of the batch, or `amp` bf16"
    )


class Watch:
    """Checks the metrics of each epoch; each warning is given once until its cause is over."""

    def __init__(self, config: TrainConfig) -> None:
        self.config = config
        self._given: set[str] = set()

    def look(self, row: Mapping[str, Any]) -> list[str]:
        """Return the warnings after this epoch that were not given before."""
        warnings = dict(self._warnings(row))
        news = [message for sign, message in warnings.items() if sign not in self._given]
        self._given = set(warnings)
        return news

    def _warnings(self, row: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        sub_head, head = row["sub_head"], row["selection"]
        letter = self.config.selecting_head
        name, clusters = f"Head {letter.upper()}", self.config.clusters_of(letter)
        used, information = _used_and_information(row)
        weight = f"an `entropy_weight` above {self.config.entropy_weight:g}"
        if row["epoch"] < 2:
            return
        if used < COLLAPSED:
            yield (
                "collapsed",
                f"{name} has collapsed: one cluster holds {max(head['occupancy'][sub_head]):.0%} of everything. "
                f"Try {weight}, a larger batch, a lower learning rate, or another seed.",
            )
        elif information < NO_INFORMATION * math.log(clusters):
            yield (
                "no information",
                f"{name} finds nothing that paired views share (information {information:.4f} of at most "
                f"{math.log(clusters):.2f}). Try a higher learning rate, weaker photometric changes, a larger batch, "
                "or more data.",
            )
        elif (
            letter == "b" and used < 0.5 * clusters
        ):  # head A alone learns features; its clusters are not served
            yield (
                "few clusters",
                f"{name} uses about {used:.1f} of its {clusters} clusters. If the images hold more than that, try "
                f"{weight}.",
            )


def _used_and_information(row: Mapping[str, Any]) -> tuple[float, float]:
    """Return the number of clusters in use and the information of the sub-head that selects."""
    sub_head, head = row["sub_head"], row["selection"]
    return math.exp(head["entropy"][sub_head]), head["information"][sub_head]


def describe_learning(row: Mapping[str, Any], config: TrainConfig) -> str:
    """Describe in words whether training makes progress."""
    used, information = _used_and_information(row)
    if config.only_starts:
        return "clusters found"
    if used < COLLAPSED:
        return "collapsed"
    if information < NO_INFORMATION * math.log(config.clusters_of(config.selecting_head)):
        return "nothing learnt yet"
    what = "" if config.trains_clusters else "features "
    return f"{what}learning" if row["best"] else f"{what}no longer improving"


def describe_epoch(row: Mapping[str, Any], config: TrainConfig) -> str:
    """Return the figures of a finished epoch in a line."""
    accuracy = f"  accuracy {row['accuracy']['chosen']:.1%}" if "accuracy" in row else ""
    if config.only_starts:
        return f"{describe_learning(row, config)}{accuracy}"
    return (
        f"epoch {row['epoch']}/{config.epochs}, {describe_learning(row, config)}  "
        f"{describe_heads(row['train'], config)}  {format_speed(row['images_per_second'])} images/s  "
        f"selection {row['loss']:z.4f} (sub-head {row['sub_head']}){' *' if row['best'] else ''}{accuracy}"
        f"{'  settled' if row.get('settled') else ''}"
    )


def describe_heads(heads: Mapping[str, Mapping[str, Any]], config: TrainConfig) -> str:
    """Return loss, information and number of clusters in use of each head, for its best sub-head."""
    figures = []
    for head, means in heads.items():
        best = means["loss"].index(min(means["loss"]))
        clusters = config.clusters_of(head)
        figures.append(
            f"{head.upper()} {means['loss'][best]:z.3f} (information {means['information'][best]:.3f}, "
            f"{math.exp(means['entropy'][best]):.1f}/{clusters} clusters)"
        )
    return "  ".join(figures)
