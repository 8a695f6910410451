"""Accuracy and calibration of a network on places left out of training."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from iic_train.finetune.chips import LabelledChips
from iic_train.models.networks import Network

KEPT_PIXELS = 2000
"""Number of labelled pixels of a chip whose probabilities are kept to find the temperature."""
TEMPERATURES = np.linspace(0.5, 4.0, 36)
BINS = 15
"""Number of bins of the calibration error."""


@dataclass
class HeldOut:
    """What was counted on places left out; labels that allow several classes are not counted.

    Attributes:
        classes: Names of the classes.
        counts: How often `[label, predicted]` occurred.
        logs: Logarithms of probabilities `[M, classes]` of some of these pixels.
        labels: Their classes `[M]`.
    """

    classes: tuple[str, ...]
    counts: NDArray[np.int64] = field(init=False)
    logs: list[NDArray[np.float32]] = field(default_factory=list)
    labels: list[NDArray[np.int64]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.counts = np.zeros((len(self.classes), len(self.classes)), np.int64)

    def add(self, logs: NDArray[np.float32], labels: NDArray[np.int64], rng: np.random.Generator) -> None:
        """Count pixels: logarithms of probabilities `[M, classes]` and classes `[M]`."""
        np.add.at(self.counts, (labels, logs.argmax(1)), 1)
        kept = rng.permutation(len(labels))[:KEPT_PIXELS]
        self.logs.append(logs[kept])
        self.labels.append(labels[kept])

    @property
    def count(self) -> int:
        """Number of pixels counted."""
        return int(self.counts.sum())

    def accuracy(self) -> float:
        """Return the share of the pixels that were labelled right."""
        return float(np.trace(self.counts) / max(1, self.counts.sum()))

    def recall(self) -> list[float | None]:
        """Return the share of each class that was recognised; None for a class that does not occur."""
        return [_share(self.counts[i, i], self.counts[i].sum()) for i in range(len(self.classes))]

    def precision(self) -> list[float | None]:
        """Return the share of what was called a class that is one; None for a class that was not called."""
        return [_share(self.counts[i, i], self.counts[:, i].sum()) for i in range(len(self.classes))]

    def mean_iou(self) -> float:
        """Return intersection over union, mean over the classes that occur."""
        right = np.diag(self.counts)
        union = self.counts.sum(0) + self.counts.sum(1) - right
        occurs = self.counts.sum(1) > 0
        return float((right[occurs] / np.maximum(union[occurs], 1)).mean()) if occurs.any() else 0.0

    def temperature(self) -> float:
        """Return what logits must be divided by so that probabilities fit the labels best."""
        logs, labels = self._kept()
        if not len(labels):
            return 1.0
        losses = [_log_loss(logs / value, labels) for value in TEMPERATURES]
        return float(TEMPERATURES[int(np.argmin(losses))])

    def calibration_error(self, temperature: float = 1.0) -> float:
        """Return the mean distance between confidence and accuracy over bins of confidence."""
        logs, labels = self._kept()
        if not len(labels):
            return 0.0
        confidence, predicted = (logs / temperature).softmax(1).max(1)
        right = (predicted == labels).double()
        bins = (confidence * BINS).long().clamp_max(BINS - 1)
        gaps = [
            float((right[bins == index].mean() - confidence[bins == index].double().mean()).abs())
            * float((bins == index).double().mean())
            for index in range(BINS)
            if (bins == index).any()
        ]
        return float(sum(gaps))

    def to_json(self, temperature: float | None = None) -> dict[str, Any]:
        """Return all figures."""
        temperature = self.temperature() if temperature is None else temperature
        return {
            "classes": list(self.classes),
            "pixels": self.count,
            "accuracy": self.accuracy(),
            "mean_iou": self.mean_iou(),
            "precision": self.precision(),
            "recall": self.recall(),
            "counts": self.counts.tolist(),
            "temperature": temperature,
            "calibration_error": self.calibration_error(temperature),
        }

    def _kept(self) -> tuple[Tensor, Tensor]:
        if not self.labels:
            return torch.zeros(0, len(self.classes)), torch.zeros(0, dtype=torch.long)
        return torch.from_numpy(np.concatenate(self.logs)).float(), torch.from_numpy(
            np.concatenate(self.labels)
        )


def _share(part: int, whole: int) -> float | None:
    return float(part / whole) if whole else None


def _log_loss(logs: Tensor, labels: Tensor) -> float:
    return float(torch.nn.functional.cross_entropy(logs, labels))


@torch.no_grad()
def score_fold(
    network: Network, data: LabelledChips, fold: int, held_out: HeldOut, source: int | None = None
) -> None:
    """Count how a network labels the places of a fold, perhaps of one source only."""
    members = data.legend.members()
    single = members.sum(1) == 1
    class_of = np.where(single, members.argmax(1), -1)
    rng = np.random.default_rng(fold)
    network.eval()
    for chip in data.chips:
        codes = chip.codes_of(fold)
        chosen = single[codes] & (codes > 0)
        if not chosen.any() or (source is not None and chip.source != source):
            continue
        logs = pixel_logs(network, chip.pixels)[:, chosen].T
        held_out.add(logs, class_of[codes[chosen]], rng)


@torch.no_grad()
def pixel_logs(network: Network, pixels: NDArray[Any]) -> NDArray[np.float32]:
    """Return the logarithms of the class probabilities `[classes, H, W]` of a chip."""
    device = next(network.parameters()).device
    raw = torch.from_numpy(np.ascontiguousarray(pixels))[None].to(device)
    return class_logs(network, network.scale(raw))[0].cpu().numpy()


def class_logs(network: Network, scaled: Tensor, features: Tensor | None = None) -> Tensor:
    """Return the logarithms of the class probabilities `[N, classes, H, W]` of scaled pixels."""
    if features is None:
        features = network.features(scaled)
    if network.cell == 1:
        logits: Tensor = network.heads["b"](features)
        return logits.log_softmax(1)
    cells = network.probabilities(features)
    return network.upsample(cells, scaled.shape[-2], scaled.shape[-1])[:, 0].clamp_min(1e-8).log()


def describe_choice(figures: Mapping[str, Any]) -> str:
    """Return in a sentence which mode was chosen, why, and how good it is on places left out."""
    names = {
        "head": "a linear head on the features learnt without labels",
        "network": "the whole network trained on the labels",
    }
    scores = [
        f"{names[mode]}: {result['accuracy']:.1%} right, mean IoU {result['mean_iou']:.1%}"
        for mode, result in figures["modes"].items()
    ]
    chosen = f"; chosen: {names[figures['mode']]}" if len(scores) > 1 else ""
    return f"On places left out in turn ({figures['folds']} parts): {'; '.join(scores)}{chosen}."
