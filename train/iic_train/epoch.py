"""An epoch under way: its figures, and how far it has come, so that hours of it are not lost when a run ends early."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from iic_geotools.progress import Progress
from iic_train.config import TrainConfig
from iic_train.losses.objective import Terms
from iic_train.watch import describe_heads


class HeadMeans:
    """Means over steps of the terms of a head, per sub-head."""

    def __init__(self, count: int = 0, sums: Tensor | None = None) -> None:
        self.count = count
        self._sums = sums

    def add(self, sub_heads: Sequence[Terms]) -> None:
        """Add the terms of a step."""
        rows = [torch.cat([torch.stack([t.loss, t.information, t.entropy]), t.masses]) for t in sub_heads]
        step = torch.stack(rows).detach().double()
        self._sums = step if self._sums is None else self._sums.to(step.device) + step
        self.count += 1

    def losses(self) -> list[float]:
        """Return the mean loss of each sub-head."""
        return list(self.to_json()["loss"])

    def best(self) -> int:
        """Return the sub-head of the lowest loss."""
        losses = self.losses()
        return losses.index(min(losses))

    def to_json(self) -> dict[str, Any]:
        """Return the means by name, each a list with one entry per sub-head."""
        if self._sums is None:
            return {"loss": [], "information": [], "entropy": [], "occupancy": []}
        means = (self._sums / self.count).cpu()
        return {
            "loss": means[:, 0].tolist(),
            "information": means[:, 1].tolist(),
            "entropy": means[:, 2].tolist(),
            "occupancy": means[:, 3:].tolist(),
        }

    def to_state(self) -> tuple[int, Tensor | None]:
        """Return what the means are made of."""
        return self.count, self._sums

    @classmethod
    def from_state(cls, state: tuple[int, Tensor | None]) -> "HeadMeans":
        """Make the same means from what `to_state` returned."""
        return cls(*state)


@dataclass
class Epoch:
    """An epoch under way.

    Attributes:
        number: Its number, from 1.
        passes: Number of passes that are finished.
        steps: Number of steps of the present pass that are finished.
        images: Number of images that all ranks have seen in it.
        seconds: Time that it took.
        means: Means over its steps for each head.
    """

    number: int
    passes: int = 0
    steps: int = 0
    images: int = 0
    seconds: float = 0.0
    means: dict[str, HeadMeans] = field(default_factory=lambda: {head: HeadMeans() for head in "ab"})

    def finish_step(self, images: int, last: bool) -> None:
        """Count a step over `images` images; the `last` one ends its pass."""
        self.images += images
        self.passes, self.steps = (self.passes + 1, 0) if last else (self.passes, self.steps + 1)

    def part_done(self, config: TrainConfig, steps: Sequence[int]) -> float:
        """Return how much of the run is done, from 0 to 1, if its passes have these numbers of steps."""
        passes = self.passes + self.steps / steps[self.passes]
        return (self.number - 1 + passes / len(steps)) / config.epochs

    def report(self, config: TrainConfig, steps: Sequence[int], images: int, heads: str) -> Progress:
        """Return how far the run is, the step under way included, with `images` images per step."""
        done = (self.number - 1) * sum(steps) + sum(steps[: self.passes]) + self.steps + 1
        figures = describe_heads({head: self.means[head].to_json() for head in heads}, config)
        note = f"epoch {self.number}/{config.epochs}  {figures}"
        return Progress("train", done * images, config.epochs * sum(steps) * images, "images", note)

    def figures(self) -> dict[str, Any]:
        """Return what metrics.jsonl holds about the steps of the epoch."""
        return {
            "seconds": round(self.seconds, 3),
            "images_per_second": round(self.images / self.seconds, 2),
            "train": {head: mean.to_json() for head, mean in self.means.items() if mean.count},
        }

    def to_state(self) -> dict[str, Any]:
        """Return tensors and plain values from which `from_state` makes the same epoch."""
        means = {head: mean.to_state() for head, mean in self.means.items()}
        return {**vars(self), "means": means}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> "Epoch":
        """Make an epoch from what `to_state` returned."""
        means = {head: HeadMeans.from_state(mean) for head, mean in state["means"].items()}
        return cls(**{**state, "means": means})
