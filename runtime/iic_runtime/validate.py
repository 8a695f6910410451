"""Does a model file keep what its card promises? Found out by running it."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from iic_geotools.errors import ModelError
from iic_geotools.grid import Grid
from iic_runtime.bundled import Model, find_model
from iic_runtime.card import Card
from iic_runtime.engines import Device, Labels, open_engine


@dataclass(frozen=True)
class Check:
    """One promise and whether it was kept."""

    promise: str
    kept: bool
    found: str = ""


def validate_model(model: Model, device: Device = "cpu", seed: int = 0) -> list[Check]:
    """Check graph and card of a model file or a bundled model.

    Raises:
        ModelError: it cannot even be opened as a model.
    """
    file = find_model(model)
    card = file.card
    engine = open_engine(file, device if file.engine is None else "tensorrt")
    if card.task != "segmentation":
        return [Check("the graph takes and gives what the card says", True)]

    def run(image: NDArray[Any]) -> tuple[Labels, Labels]:
        labels, confidence = engine.run(image[None], True)
        if confidence is None:
            raise ModelError(f"{file.path} gives no confidence; export it again.")
        return labels[0], confidence[0]

    side = 2 * card.halo + 2 * card.stride + 33
    image = _noise(card, side + 1, side, np.random.default_rng(seed))
    whole = run(image)
    largest = int(whole[0].max())
    tiled = _tiled(run, image, card)
    small = run(image[:, :1, :1])[0].shape
    return [
        Check("the graph takes and gives what the card says", True),
        Check(
            "labels have the image's size, odd sides too",
            whole[0].shape == image.shape[1:],
            str(whole[0].shape),
        ),
        Check("a single pixel is labelled", small == (1, 1), str(small)),
        Check("every label is a class of the card", largest < len(card.classes), f"largest label {largest}"),
        Check("confidence is never 0", bool((whole[1] > 0).all()), f"least {int(whole[1].min())}"),
        Check(
            f"tiles with a halo of {card.halo} px at multiples of {card.stride} px equal the whole image",
            all((a == b).all() for a, b in zip(whole, tiled, strict=True)),
            f"{np.mean(whole[0] == tiled[0]):.4%} of labels equal",
        ),
    ]


def _noise(card: Card, height: int, width: int, rng: np.random.Generator) -> NDArray[Any]:
    """Noise over the range of values the model was trained on."""
    unit = rng.random((len(card.bands), height, width))
    bands = [low + (high - low) * band for band, (low, high) in zip(unit, card.value_range, strict=True)]
    return np.stack(bands).astype(card.dtype)


def _tiled(run: Any, image: NDArray[Any], card: Card) -> tuple[Labels, Labels]:
    _, height, width = image.shape
    out = np.zeros((height, width), np.uint8), np.zeros((height, width), np.uint8)
    for tile in Grid(width, height, 2 * card.stride + 7, card.halo, card.stride):
        for target, values in zip(out, run(image[:, *tile.read.slices]), strict=True):
            target[tile.core.slices] = values[tile.crop]
    return out
