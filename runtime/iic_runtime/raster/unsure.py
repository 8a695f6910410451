"""Pixels whose label has too low a confidence: nodata in the map, or a class of their own."""

from dataclasses import dataclass

import numpy as np

from iic_geotools.classmap.classes import MAX_CLASSES, NODATA, UNSURE_NAME, MapClass, least_confidence
from iic_geotools.errors import UsageError
from iic_runtime.engine.base import LabelArray
from iic_runtime.model.card import Card
from iic_runtime.options import UnsureSettings
from iic_runtime.segmenter import Segmentation

UNSURE = MapClass(UNSURE_NAME, "#808080")
"""The class of unsure pixels, the last one of a map that has it."""


@dataclass(frozen=True)
class Unsure:
    """What becomes of unsure pixels.

    Attributes:
        min_confidence: The probability below which a pixel is unsure.
        label: The value of unsure pixels in the map.
    """

    min_confidence: float
    label: int

    @property
    def extra_classes(self) -> tuple[MapClass, ...]:
        """The classes that a map has besides those of the model."""
        return () if self.label == NODATA else (UNSURE,)

    def mark(self, result: Segmentation) -> LabelArray:
        """The labels of a result, with unsure pixels marked; pixels without data stay so."""
        unsure = (result.confidence < least_confidence(self.min_confidence)) & (result.labels != NODATA)
        return np.where(unsure, np.uint8(self.label), result.labels)


def choose_unsure(card: Card, settings: UnsureSettings) -> Unsure | None:
    """Choose what becomes of unsure pixels; None if every pixel keeps its label.

    Raises:
        UsageError: The probability is not between 0 and 1, or a class of unsure pixels does not fit into the legend.
    """
    min_confidence, unsure_class = settings.min_confidence, settings.unsure_class
    if not 0 <= min_confidence <= 1:
        raise UsageError(f"`min_confidence` must be between 0 and 1, not {min_confidence:g}.")
    if min_confidence == 0:
        if unsure_class:
            raise UsageError("`unsure_class` applies only to `min_confidence`: give both or neither.")
        return None
    if not unsure_class:
        return Unsure(min_confidence, NODATA)
    if len(card.classes) >= MAX_CLASSES or UNSURE.name in {map_class.name for map_class in card.classes}:
        raise UsageError(
            f"{card.name} has {len(card.classes)} classes, and there is no room for another or one is called "
            f"{UNSURE.name} already; leave out `unsure_class`, so that unsure pixels become nodata."
        )
    return Unsure(min_confidence, len(card.classes))
