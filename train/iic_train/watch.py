"""Signs that a run goes wrong, said in words with what to try."""

import math
from collections.abc import Iterator
from typing import Any

from iic_train.config import TrainConfig

FEW = 1.1
"""Clusters in use below which a head has collapsed."""
NOTHING = 0.01
"""Share of the possible information below which views are told apart by nothing."""


class Watch:
    """Looks at an epoch's metrics; says each thing once until it is over."""

    def __init__(self, config: TrainConfig) -> None:
        self.config = config
        self._said: set[str] = set()

    def look(self, row: dict[str, Any]) -> list[str]:
        """What is wrong after this epoch and was not said before."""
        found = dict(self._signs(row))
        news = [message for sign, message in found.items() if sign not in self._said]
        self._said = set(found)
        return news

    def _signs(self, row: dict[str, Any]) -> Iterator[tuple[str, str]]:
        best = row["sub_head"]
        head = row["selection"]
        used = math.exp(head["entropy"][best])
        clusters = self.config.network.clusters_b
        information = head["information"][best]
        if row["epoch"] < 2:
            return
        if used < FEW:
            yield (
                "collapsed",
                f"Head B has collapsed: one cluster holds {max(head['occupancy'][best]):.0%} of everything. Try an "
                f"entropy weight above {self.config.lamb_b:g} (--lamb), a larger batch, a lower learning rate, or "
                "another seed.",
            )
        elif information < NOTHING * math.log(clusters):
            yield (
                "nothing",
                f"Head B finds nothing that paired views share (information {information:.4f} of at most "
                f"{math.log(clusters):.2f}). Try a higher learning rate, weaker photometric changes, a larger batch, "
                "or more data.",
            )
        elif used < 0.5 * clusters:
            yield (
                "few",
                f"Head B uses about {used:.1f} of its {clusters} clusters. If that is not what the images hold, try an "
                f"entropy weight above {self.config.lamb_b:g} (--lamb).",
            )
