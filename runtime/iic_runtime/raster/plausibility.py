"""Whether a finished map looks right: cheap checks on a sample of it, each one sentence that says what to do next.

The thresholds were chosen on sources that the bundled models learn from (`benchmarks/plausibility.py`).
"""

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import rasterio
from numpy.typing import NDArray
from rasterio.enums import Resampling

from iic_geotools.classmap.classes import NODATA, usual_colour
from iic_geotools.errors import DoubtWarning
from iic_runtime.raster.model_input import known_spectra
from iic_runtime.raster.novelty import foreign_share, wrong_gain
from iic_runtime.raster.plan import Plan
from iic_runtime.raster.stages import LabelSample, label_sample
from iic_runtime.segmenter import Segmenter

Floats = NDArray[np.float64]
LOOKED_AT = 1000
"""Longest side in pixels of the reduced map whose shares are compared."""
DOMINANT = 0.85
"""Share of the area above which one of three or more classes is suspicious."""
SURE = 0.88
"""Mean probability of the labels from which such a class is believed, unless it is water, which all dark is."""
GREEN, GREEN_WATER = 0.35, 0.1
"""NDVI that water does not have, and the share of it above which it is suspicious."""
LEAST_WATER = 0.01
"""Share of the sample below which water is not judged."""
FOREIGN = 0.25
"""Share of spectra that the models have seen nothing like, from which a scene is called foreign."""
UNSURE = 0.6
"""Mean probability of the labels below which a map is doubtful."""
CURE = "check it, or label some points with iic-studio {}"


@dataclass(frozen=True)
class Figures:
    """What the checks look at; None for what cannot be measured.

    Attributes:
        dominant: Value of the largest class of the map.
        share: Its share of the area.
        green_water: Share of the water whose NDVI is that of plants.
        novelty: Share of the spectra that are unlike those of the world.
        confidence: Mean probability of the labels.
        gain: Power of ten that reflectance seems to be too dark by; 1 if it does not.
    """

    dominant: int | None
    share: float
    green_water: float | None
    novelty: float | None
    confidence: float | None
    gain: float = 1.0


def check_map(plan: Plan, segmenter: Segmenter, sample: LabelSample | None = None) -> tuple[str, ...]:
    """Check a finished map, warn of what looks wrong, and return the sentences.

    Args:
        sample: Pixels that the run has labelled; by default tiles spread over the scene are labelled again.
    """
    doubts = describe_doubts(plan, measure_map(plan, segmenter, sample))
    for doubt in doubts:
        warnings.warn(doubt, DoubtWarning, stacklevel=4)
    return doubts


def describe_doubts(plan: Plan, figures: Figures) -> tuple[str, ...]:
    """Describe each problem of a map in one sentence."""
    title = plan.scene.title
    cure = CURE.format(Path(title).name or title)
    doubts = []
    sure = figures.confidence is not None and figures.confidence >= SURE
    if (
        figures.dominant is not None
        and figures.share > DOMINANT
        and len(plan.card.classes) > 2
        and (not sure or figures.dominant in _waters(plan))
    ):
        name = plan.classes[figures.dominant].name
        doubts.append(f"{100 * figures.share:.0f} % of the map is {name}: if that is not so, {cure}.")
    if figures.green_water is not None and figures.green_water > GREEN_WATER:
        share = 100 * figures.green_water
        doubts.append(f"{share:.0f} % of the water has the NDVI of plants (above {GREEN:g}): {cure}.")
    if figures.novelty is not None and figures.novelty > FOREIGN:
        share = 100 * figures.novelty
        doubts.append(f"{share:.0f} % of the spectra are unlike any that the model knows: {cure}.")
    if figures.gain != 1:
        doubts.append(describe_gain(figures.gain))
    if figures.confidence is not None and figures.confidence < UNSURE:
        doubts.append(
            f"The model is unsure of this scene (mean confidence {figures.confidence:.2f}): {cure}."
        )
    return tuple(doubts)


def measure_map(plan: Plan, segmenter: Segmenter, sample: LabelSample | None = None) -> Figures:
    """Measure what the checks look at: shares on the finished map, all else on a sample of its pixels."""
    dominant, share = _dominant(plan.outputs.map, len(plan.classes))
    sample = sample or label_sample(plan, segmenter)
    if not sample.labels.size:
        return Figures(dominant, share, None, None, None)
    figures = Figures(dominant, share, None, None, float(sample.confidence.mean()) / 255)
    names, spectra = known_spectra(plan.card, plan.reading, sample.values)
    if not names:
        return figures
    return replace(
        figures,
        green_water=_green_water(plan, names, spectra, sample.labels),
        novelty=foreign_share(plan.card, plan.reading, sample.values),
        gain=wrong_gain(plan.card, plan.reading, sample.values),
    )


def describe_gain(gain: float) -> str:
    """Describe reflectance that seems too dark or too bright by a factor."""
    factor, how = (gain, "dark") if gain > 1 else (1 / gain, "bright")
    return (
        f"Reflectance seems to be read {factor:g} times too {how}, by the spectra of the scene: check its scale, and "
        "give `reflectance` if it is wrong."
    )


def _dominant(map_file: Path, count: int) -> tuple[int | None, float]:
    with rasterio.open(map_file) as dataset:
        shrink = min(1.0, LOOKED_AT / max(dataset.shape))
        shape = (math.ceil(dataset.height * shrink), math.ceil(dataset.width * shrink))
        values = dataset.read(1, out_shape=shape, resampling=Resampling.nearest)
    pixels = np.bincount(values.ravel(), minlength=NODATA + 1)[:count]
    if not pixels.any():
        return None, 0.0
    return int(pixels.argmax()), float(pixels.max() / pixels.sum())


def _waters(plan: Plan) -> list[int]:
    """Return the values of the classes that are water by their names, in any language."""
    blue = usual_colour("water")
    return [value for value, entry in enumerate(plan.classes) if usual_colour(entry.name) == blue]


def _green_water(
    plan: Plan, names: Sequence[str], spectra: Floats, labels: NDArray[np.uint8]
) -> float | None:
    """Return the share of water with the NDVI of plants; None if there is hardly any, or no such bands."""
    water = np.isin(labels, _waters(plan))
    if not {"red", "nir"} <= set(names) or water.mean() < LEAST_WATER:
        return None
    red, nir = (np.maximum(spectra[water, names.index(name)], 1e-3) for name in ("red", "nir"))
    return float(((nir - red) / (nir + red) > GREEN).mean())
