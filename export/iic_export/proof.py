"""The proof that a model file gives the labels of the trained network, in any tiling."""

import copy
import logging
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from iic_export.trained_head import TrainedHead
from iic_geotools.errors import DataError, IICError, ModelError
from iic_runtime.engine.base import Engine, import_onnxruntime
from iic_runtime.model.card import Card, Precision
from iic_runtime.model.file import put_card
from iic_runtime.model.validate import check_matches_card, memory_per_pixel
from iic_train.data.rasters import Chips
from iic_train.data.survey import describe_scenes, fingerprint
from iic_train.data.training_data import open_dataset_of
from iic_train.runs import Run
from iic_train.views.pairs import central_views
from iic_train.views.settings import ImagePairs

_LOG = logging.getLogger(__name__)
SAMPLE_CHIPS = 8
"""Number of chips that a segmentation model is proven on."""
SAMPLE_SIDE = 256
"""Side of such a chip in pixels."""
SAMPLE_IMAGES = 256
"""Number of images that a clustering model is proven on."""


def sample_images(head: TrainedHead) -> tuple[list[NDArray[Any]], bool]:
    """Take images `[bands, H, W]` to prove a model on, and say whether they are the run's data or noise."""
    try:
        images = _images_of_run(head.run)
        if images:
            return images, True
        reason = "no pixel of it holds data"
    except IICError as error:
        reason = str(error)
    _LOG.warning("The model is proven on noise instead of the run's data: %s", reason)
    return _noise(head), False


def _images_of_run(run: Run) -> list[NDArray[Any]]:
    config, data = run.config, run.config.data
    if config.finetune is not None:
        chips = open_dataset_of(config).train_b
        chosen = _evenly_spaced(len(chips), SAMPLE_CHIPS)
        return [chips.image(index)[:, :SAMPLE_SIDE, :SAMPLE_SIDE] for index in chosen]
    if data.name == "rasters":
        scenes = describe_scenes(data, config.network.channels)
        _check_unchanged(run, fingerprint(scenes))
        chips = Chips(scenes, side=SAMPLE_SIDE)
        masks = {index: chips.valid(index) for index in _evenly_spaced(len(chips), 2 * SAMPLE_CHIPS)}
        with_data = [index for index, mask in masks.items() if mask is None or mask.any()]
        images = [chips.image(with_data[index]) for index in _evenly_spaced(len(with_data), SAMPLE_CHIPS)]
        chips.reader.close()
        return images
    dataset = open_dataset_of(config)
    _check_unchanged(run, dataset.fingerprint())
    part = dataset.train_b
    count = SAMPLE_CHIPS if config.dense else SAMPLE_IMAGES
    return [part.image(index)[:, :SAMPLE_SIDE, :SAMPLE_SIDE] for index in _evenly_spaced(len(part), count)]


def _check_unchanged(run: Run, fingerprint: str) -> None:
    if run.data.get("fingerprint", fingerprint) != fingerprint:
        raise DataError(f"the data is not what {run.path} was trained on; restore it")


def _noise(head: TrainedHead) -> list[NDArray[Any]]:
    """Make smooth and rough noise over the range of values that the network was trained on."""
    config, pairs = head.network.config, head.config.pairs
    side = pairs.crop if isinstance(pairs, ImagePairs) else SAMPLE_SIDE
    rng = np.random.default_rng(0)
    images = []
    for index in range(SAMPLE_IMAGES if isinstance(pairs, ImagePairs) else SAMPLE_CHIPS):
        grain = min(2 ** (index % 4), side)
        coarse = rng.random((len(config.channels), -(-side // grain), -(-side // grain)))
        unit = np.kron(coarse, np.ones((grain, grain)))[:, :side, :side]
        low = np.array(config.offset)[:, None, None]
        values = low + unit / np.array(config.scale)[:, None, None]
        if head.dtype != "float32":
            limits = np.iinfo(head.dtype)
            values = np.clip(np.rint(values), limits.min, limits.max)
        images.append(values.astype(head.dtype))
    return images


def _evenly_spaced(length: int, count: int) -> list[int]:
    return sorted({int(index) for index in np.linspace(0, length - 1, min(count, length)).round()})


MAX_DIFFERENCE = 1e-4
"""Largest difference in a probability that is taken for rounding of float32 in any network."""
ROUNDING = 8.0
"""How many times the rounding of torch, measured against double precision, an engine's may be: it sums in another
order."""
MOST_ROUNDING = 0.02
"""Largest difference in a probability that rounding may be the cause of, however sharp a head is."""
MIN_AGREEMENT: dict[Precision, float] = {"fp32": 0.0, "fp16": 0.99, "int8": 0.99}
"""Share of labels that must equal those of the trained network; in fp32 all whose margin is larger than rounding."""

Floats = NDArray[np.float32]
Predict = Callable[[NDArray[Any]], Floats]
"""A model as a function: an image `[bands, H, W]` to probabilities `[k, H, W]`, or `[k]` for clustering."""


@dataclass(frozen=True)
class Parity:
    """How a model compares with the trained network.

    Attributes:
        difference: Largest difference in a probability.
        agreement: Share of equal labels.
        labels: Number of labels compared.
        own_data: Whether the images were the run's own data.
        allowed: Largest difference in a probability that rounding may make.
        clear: Number of labels that differ although the two most probable classes are further apart than rounding.
    """

    difference: float
    agreement: float
    labels: int
    own_data: bool
    allowed: float = MAX_DIFFERENCE
    clear: int = 0

    def figures(self) -> dict[str, float]:
        """The figures as the card records them."""
        return {
            "largest_probability_difference": self.difference,
            "label_agreement": self.agreement,
            "labels_compared": float(self.labels),
            "own_data": float(self.own_data),
        }

    def check(self, precision: Precision, min_agreement: float | None = None) -> None:
        """Refuse a model whose labels differ from the trained network's."""
        floor = MIN_AGREEMENT[precision] if min_agreement is None else min_agreement
        if self.agreement < floor:
            raise ModelError(
                f"Only {self.agreement:.3%} of the labels of the {precision} model equal those of the trained "
                f"network, less than {floor:.2%}, so nothing was written; use a higher `precision` or a lower "
                "`min_agreement`."
            )
        if precision == "fp32" and (self.clear or not self.difference <= self.allowed):
            raise ModelError(
                f"The probabilities of the exported model differ by up to {self.difference:.2g} from those of the "
                f"trained network, and rounding explains {self.allowed:.2g}; {self.clear} labels differ clearly, so "
                "nothing was written; report this with your versions of torch and onnxruntime."
            )


def compare(
    reference: Predict,
    model: Predict,
    images: Sequence[NDArray[Any]],
    own_data: bool,
    exact: Predict | None = None,
) -> Parity:
    """Compare the probabilities of two models over images.

    Args:
        own_data: Whether these are the run's own data.
        exact: The trained network in double precision, which shows how much of a difference rounding makes.
    """
    pairs = []
    allowed = MAX_DIFFERENCE
    for image in images:
        expected, actual = reference(image), model(image)
        if expected.shape != actual.shape or not np.isfinite(actual).all():
            raise ModelError(
                f"The exported model gives {actual.shape} where the trained one gives {expected.shape}, or values "
                "that are not finite, so nothing was written; report this with your version of torch."
            )
        if exact is not None:
            allowed = max(allowed, ROUNDING * float(np.abs(expected - exact(image)).max()))
        pairs.append((expected, actual))
    allowed = min(allowed, MOST_ROUNDING)
    equal = [expected.argmax(0) == actual.argmax(0) for expected, actual in pairs]
    clear = [_margin(expected) > 2 * allowed for expected, _ in pairs]
    labels = sum(same.size for same in equal)
    return Parity(
        difference=max(float(np.abs(expected - actual).max()) for expected, actual in pairs),
        agreement=sum(int(same.sum()) for same in equal) / labels,
        labels=labels,
        own_data=own_data,
        allowed=allowed,
        clear=sum(int((~same & sure).sum()) for same, sure in zip(equal, clear, strict=True)),
    )


def _margin(probabilities: Floats) -> Floats:
    """Return by how much the most probable class is ahead of the next."""
    if len(probabilities) < 2:
        return np.ones(probabilities.shape[1:], np.float32)
    second, first = np.partition(probabilities, -2, 0)[-2:]
    return np.asarray(first - second)


def label_agreement(reference: Predict, engine: Engine, images: Sequence[NDArray[Any]]) -> float:
    """Share of an engine's labels that are the most probable ones of the reference."""
    same = [reference(image).argmax(0) == engine.run(image[None], False)[0][0] for image in images]
    return float(np.mean(np.concatenate([equal.ravel() for equal in same])))


def trained_model(head: TrainedHead, merge: Tensor | None = None, *, double: bool = False) -> Predict:
    """The trained network itself, not prepared for export in any way; in double precision if asked for."""
    network, pairs = head.network, head.config.pairs
    if double:
        network = copy.deepcopy(network).double()

    @torch.inference_mode()
    def predict(image: NDArray[Any]) -> Floats:
        scaled = network.scale(torch.from_numpy(np.ascontiguousarray(image))[None])
        if isinstance(pairs, ImagePairs):
            scaled = central_views(pairs, scaled)
        probabilities = network.classify(scaled)[0, 0]
        merged = (
            probabilities
            if merge is None
            else torch.tensordot(merge.to(probabilities.dtype), probabilities, 1)
        )
        return merged.numpy()

    return predict


def onnx_model(content: bytes) -> Predict:
    """An ONNX model with the output `probabilities`, on the CPU with as many threads as torch uses."""
    onnxruntime = import_onnxruntime()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])

    def predict(image: NDArray[Any]) -> Floats:
        probabilities: Floats = session.run(["probabilities"], {"image": image[None]})[0][0]
        return probabilities

    return predict


def prove_file(content: bytes, card: Card) -> tuple[bytes, Card]:
    """Run a finished graph: measure its memory and check that it matches its card, exact tiling included.

    Args:
        card: Its card, complete but for `memory_per_pixel`.

    Returns:
        The graph with its card as the bytes of one file, and the completed card.

    Raises:
        ModelError: The graph does not match its card, so its tiles would not equal the whole image.
    """
    with tempfile.TemporaryDirectory(prefix="iic-export-") as folder:
        path = Path(folder) / "model.onnx"
        content = put_card(content, card)
        path.write_bytes(content)
        if card.task == "segmentation":
            card = replace(card, memory_per_pixel=memory_per_pixel(path))
            content = put_card(content, card)
            path.write_bytes(content)
        check_matches_card(path)
    return content, card
