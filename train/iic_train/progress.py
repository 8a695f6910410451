"""How far training is: a bar on a terminal, plain lines elsewhere."""

import math
import sys
import time
from collections.abc import Mapping
from typing import Any, TextIO

from iic_train.config import TrainConfig
from iic_train.step import HeadMeans

LINE_EVERY = 30.0
"""Seconds between lines within an epoch where there is no terminal."""
BAR = 24


class Progress:
    """Speaks to whoever started the training."""

    def __init__(self, stream: TextIO | None = None, *, quiet: bool = False) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._quiet = quiet
        self._live = self._stream.isatty()
        self._drawn = 0
        self._last = 0.0
        self._began = time.monotonic()

    def say(self, message: str) -> None:
        """Say something that matters even to the quiet."""
        self._clear()
        self._stream.write(message + "\n")
        self._stream.flush()

    def step(
        self,
        epoch: int,
        config: TrainConfig,
        index: int,
        heads: str,
        step: int,
        steps: int,
        means: Mapping[str, HeadMeans],
        images: int,
    ) -> None:
        """Note a step of a pass."""
        now = time.monotonic()
        if step == 0:
            self._began = now
        pause = 0.2 if self._live else LINE_EVERY
        if self._quiet or now - self._last < pause:
            return
        self._last = now
        done = (index + (step + 1) / steps) / len(config.passes)
        speed = f"  {step * images / (now - self._began):.0f} images/s" if step else ""
        figures = "  ".join(_head(head, means[head].to_json(), config) for head in heads)
        text = f"epoch {epoch}/{config.epochs}"
        if self._live:
            filled = int(BAR * done)
            self._clear()
            line = f"{text} [{'#' * filled}{'.' * (BAR - filled)}] {figures}{speed}"
            self._stream.write(line)
            self._drawn = len(line)
        else:
            self._stream.write(f"{text} {done:.0%}  {figures}{speed}\n")
        self._stream.flush()

    def epoch(self, row: Mapping[str, Any], config: TrainConfig) -> None:
        """Note a finished epoch."""
        if self._quiet:
            return
        figures = "  ".join(_head(head, values, config) for head, values in row["train"].items())
        accuracy = f"  accuracy {row['accuracy']['chosen']:.1%}" if "accuracy" in row else ""
        self.say(
            f"epoch {row['epoch']}/{config.epochs}  {figures}  {row['images_per_second']:.0f} images/s  "
            f"selection {row['loss']:.4f} (sub-head {row['sub_head']}){' *' if row['best'] else ''}{accuracy}"
        )

    def _clear(self) -> None:
        if self._drawn:
            self._stream.write("\r" + " " * self._drawn + "\r")
            self._drawn = 0


def _head(head: str, values: Mapping[str, Any], config: TrainConfig) -> str:
    """Loss, information and clusters in use of a head, of its best sub-head."""
    losses = values["loss"]
    best = losses.index(min(losses))
    clusters = config.network.clusters_a if head == "a" else config.network.clusters_b
    used = math.exp(values["entropy"][best])
    information = values["information"][best]
    return (
        f"{head.upper()} {losses[best]:.3f} (information {information:.3f}, {used:.1f}/{clusters} clusters)"
    )
