"""The graph of a sub-head in the precision asked for, compared with the trained network."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import onnx
import torch
from numpy.typing import NDArray

from iic_export.deploy import deployable
from iic_export.graph import to_onnx
from iic_export.parity import Parity, compare, served, trained
from iic_export.quantise import quantise
from iic_export.subject import Subject, chips
from iic_runtime.card import Precision

EXAMPLE_SIDE = 38
"""Side of what a segmentation network is traced with; any would do."""
TIMED = 3


@dataclass(frozen=True)
class Made:
    """A graph with all outputs, and how it compares.

    Attributes:
        model: The graph.
        parity: Against the trained network.
        against_fp32: Against the same graph in fp32; empty for fp32 itself.
    """

    model: onnx.ModelProto
    parity: Parity
    against_fp32: Mapping[str, float] = field(default_factory=dict)

    def figures(self) -> dict[str, float]:
        """For the card."""
        return {**self.parity.figures(), **self.against_fp32}


def make_model(
    subject: Subject,
    precision: Precision = "fp32",
    merge: torch.Tensor | None = None,
    min_agreement: float | None = None,
    *,
    symmetric: bool = False,
) -> Made:
    """Trace a sub-head, quantise it if asked to, and prove it.

    Args:
        subject: What to export.
        precision: Of trunk and head.
        merge: `[classes, clusters]` of 0 and 1, if clusters are merged into classes.
        min_agreement: Share of labels that must be the trained network's.
        symmetric: Quantise as TensorRT wants it.

    Raises:
        ModelError: The graph does not say what the trained network says.
    """
    pictures, own_data = chips(subject)
    # what calibrates is not what proves
    calibrating, proving = (pictures[::2], pictures[1::2]) if len(pictures) > 1 else (pictures, pictures)
    if precision != "int8":
        proving = pictures
    reference = trained(subject.network, subject.config.pairs, merge)
    size = (EXAMPLE_SIDE, EXAMPLE_SIDE) if subject.config.dense else pictures[0].shape[-2:]

    def traced(half: bool) -> onnx.ModelProto:
        module = deployable(subject.network, subject.config.pairs, merge, half=half)
        return to_onnx(module, len(subject.network.config.channels), subject.dtype, size)

    plain = traced(half=False)
    model = plain
    if precision == "fp16":
        model = traced(half=True)
    elif precision == "int8":
        model = quantise(plain, calibrating, symmetric=symmetric)
    found = served(model.SerializeToString())
    parity = compare(reference, found, proving, own_data)
    parity.check(precision, min_agreement)
    if precision == "fp32":
        return Made(model, parity)
    float32 = served(plain.SerializeToString())
    again = compare(float32, found, proving, own_data)
    speed = _seconds(float32, proving) / _seconds(found, proving)
    return Made(
        model, parity, {"agreement_with_fp32": again.agreement, "cpu_speed_against_fp32": round(speed, 3)}
    )


def _seconds(predict: Any, pictures: Sequence[NDArray[Any]]) -> float:
    """CPU seconds for all pictures, the least of a few times: other work on the machine does not count."""
    taken = []
    for _ in range(TIMED):
        begun = time.process_time()
        for picture in pictures:
            predict(picture)
        taken.append(time.process_time() - begun)
    return min(taken)
