"""What labels mean: sets of classes, and the codes that stand for them in memory."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from iic_geotools.errors import DataError
from iic_geotools.scene.labels import NOT_LABELLED, SceneLabels
from iic_train.finetune.settings import Meaning
from iic_train.models.registry import NetworkConfig

Codes = NDArray[np.uint8]
"""A code per pixel `[H, W]`, each standing for a set of classes; 0 for pixels without a label."""


class Legend:
    """The classes, and the sets of classes that labels allow: a code per set, 0 for pixels without a label."""

    def __init__(self, classes: Sequence[str]) -> None:
        self.classes = tuple(classes)
        self._codes: dict[frozenset[str], int] = {frozenset(): 0}

    def code(self, classes: Sequence[str]) -> int:
        """Return the code of a set of classes.

        Raises:
            DataError: There are more than 255 different sets.
        """
        code = self._codes.setdefault(frozenset(classes), len(self._codes))
        if code > np.iinfo(np.uint8).max:
            raise DataError("The labels allow more than 255 different sets of classes: group their values.")
        return code

    def members(self) -> NDArray[np.bool_]:
        """Return which classes each code allows, `[codes, classes]`."""
        members = np.zeros((len(self._codes), len(self.classes)), bool)
        for allowed, code in self._codes.items():
            members[code, [self.classes.index(name) for name in allowed]] = True
        return members


class Coder:
    """From values of labels, and the pixels under them, to codes of sets of classes."""

    def __init__(self, legend: Legend, meanings: Sequence[Meaning], network: NetworkConfig) -> None:
        self.legend, self.meanings, self.network = legend, meanings, network
        self.entries = [(meaning, legend.code(meaning.classes)) for meaning in meanings]
        self.anywhere = any(not meaning.values for meaning in meanings)

    def codes(
        self, values: NDArray[np.int64] | None, labels: SceneLabels | None, pixels: NDArray[Any]
    ) -> Codes:
        """Return the codes of a chip; `values` is None for a scene without labels."""
        codes = np.zeros(pixels.shape[-2:], np.uint8)
        present = [] if values is None else [int(v) for v in np.unique(values) if v != NOT_LABELLED]
        for meaning, code in self.entries:
            chosen = np.ones(codes.shape, bool)
            if meaning.values:
                if values is None or labels is None:
                    continue
                numbers = [value for value in present if _means(meaning, value, labels)]
                chosen = np.isin(values, numbers)
            if meaning.where and chosen.any():
                chosen = chosen & self._where(meaning, pixels)
            codes[chosen] = code
        return codes

    def _where(self, meaning: Meaning, pixels: NDArray[Any]) -> NDArray[np.bool_]:
        network = self.network
        shape = (-1, 1, 1)
        scaled = (pixels.astype(np.float32) - np.reshape(network.offset, shape)) * np.reshape(
            network.scale, shape
        )
        bands = dict(zip(network.channels, scaled, strict=True))
        chosen = np.ones(pixels.shape[-2:], bool)
        for quantity, low, high in meaning.where:
            value = _quantity(quantity, bands)
            chosen &= (value >= low) & (value <= high)
        return chosen


def _quantity(name: str, bands: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
    pair = {"ndvi": ("nir", "red"), "ndwi": ("green", "nir")}.get(name)
    if pair is None:
        return bands[name]
    first, second = (bands[band] for band in pair)
    return np.asarray((first - second) / np.maximum(first + second, 1e-3))


def _means(meaning: Meaning, value: int, labels: SceneLabels) -> bool:
    """Whether a value of the labels, or the class it names, is among the values of a meaning."""
    name = labels.name(value)
    for token in meaning.values:
        low, dash, high = token.partition("-")
        if labels.numbered and token.isdigit() and int(token) == value:
            return True
        if labels.numbered and dash and low.isdigit() and high.isdigit() and int(low) <= value <= int(high):
            return True
        if name in (token, f"class {token}"):
            return True
    return False
