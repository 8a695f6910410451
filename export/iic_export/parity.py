"""The proof that a model file says what the trained network says."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from iic_geotools.errors import ModelError
from iic_runtime.card import Precision
from iic_runtime.engines import Engine
from iic_train.networks import Network
from iic_train.pairs import ImagePairs

MOST_DIFFERENCE = 1e-4
"""Largest difference in a probability that float32 may make."""
LEAST_AGREEMENT: dict[Precision, float] = {"fp32": 0.9999, "fp16": 0.99, "int8": 0.99}
"""Share of labels that must be equal."""

Floats = NDArray[np.float32]
Predict = Callable[[NDArray[Any]], Floats]


@dataclass(frozen=True)
class Parity:
    """How a model compares with the trained network.

    Attributes:
        difference: Largest difference in a probability.
        agreement: Share of equal labels.
        labels: How many labels were compared.
        own_data: Whether the pictures were the run's own data.
    """

    difference: float
    agreement: float
    labels: int
    own_data: bool

    def figures(self) -> dict[str, float]:
        """For the card."""
        return {
            "largest_probability_difference": self.difference,
            "label_agreement": self.agreement,
            "labels_compared": float(self.labels),
            "own_data": float(self.own_data),
        }

    def check(self, precision: Precision, least: float | None = None) -> None:
        """Refuse a model that does not say what the trained network says.

        Raises:
            ModelError: It does not.
        """
        floor = LEAST_AGREEMENT[precision] if least is None else least
        if self.agreement < floor:
            raise ModelError(
                f"Only {self.agreement:.3%} of the labels of the {precision} model are those of the trained network, "
                f"less than {floor:.2%}: nothing was written; use a higher precision or a lower --min-agreement."
            )
        if precision == "fp32" and not self.difference <= MOST_DIFFERENCE:
            raise ModelError(
                f"Probabilities of the exported model differ by up to {self.difference:.2g} from the trained "
                f"network's, more than {MOST_DIFFERENCE:g}: nothing was written; report this with the versions of "
                "torch and onnxruntime."
            )


def compare(expected: Predict, found: Predict, pictures: Sequence[NDArray[Any]], own_data: bool) -> Parity:
    """Compare two models' probabilities [k, ...] over pictures."""
    difference, equal, labels = 0.0, 0, 0
    for picture in pictures:
        a, b = expected(picture), found(picture)
        if a.shape != b.shape or not np.isfinite(b).all():
            raise ModelError(
                f"The exported model gives {b.shape} where the trained one gives {a.shape}, or values that are "
                "no numbers: nothing was written."
            )
        difference = max(difference, float(np.abs(a - b).max()))
        same = a.argmax(0) == b.argmax(0)
        equal += int(same.sum())
        labels += same.size
    return Parity(difference, equal / labels, labels, own_data)


def label_agreement(expected: Predict, engine: Engine, pictures: Sequence[NDArray[Any]]) -> float:
    """Share of an engine's labels that are the most probable ones of `expected`."""
    same = [expected(picture).argmax(0) == engine.run(picture[None], False)[0][0] for picture in pictures]
    return float(np.mean(np.concatenate([each.ravel() for each in same])))


def trained(network: Network, pairs: object, merge: torch.Tensor | None = None) -> Predict:
    """The trained network itself, untouched: [k, H, W] or [k] of a picture."""

    @torch.inference_mode()
    def predict(picture: NDArray[Any]) -> Floats:
        scaled = network.scale(torch.from_numpy(np.ascontiguousarray(picture))[None])
        if isinstance(pairs, ImagePairs):
            scaled = pairs.evaluation(scaled)
        found = network.classify(scaled)[0, 0]
        return (found if merge is None else torch.tensordot(merge, found, 1)).numpy()

    return predict


def served(model: bytes, threads: int | None = None) -> Predict:
    """An ONNX model with the output `probabilities`, on the CPU."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads or torch.get_num_threads()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])

    def predict(picture: NDArray[Any]) -> Floats:
        found: Floats = session.run(["probabilities"], {"image": picture[None]})[0][0]
        return found

    return predict
