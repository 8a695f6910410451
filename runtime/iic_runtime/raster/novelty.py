"""Novelty of a scene for a model of reflectance: its spectra compared with those of the world."""

from functools import cache

import numpy as np
from numpy.typing import NDArray

from iic_geotools.errors import UsageError
from iic_geotools.scene.bands import COLOURS
from iic_geotools.scene.likelihood import NOVEL, Likelihood
from iic_geotools.scene.scene import SceneSource
from iic_runtime.model.card import Card
from iic_runtime.raster.model_input import known_spectra

Floats = NDArray[np.float64]
PIXELS = 1 << 14
"""Number of pixels that are compared at once, so that they stay in the processor's cache."""
GAIN_PIXELS = 2000
"""Number of pixels by which it is judged whether reflectance is read too dark or too bright."""
_likelihood = cache(Likelihood)


def _compared(card: Card, reading: SceneSource) -> tuple[str, ...]:
    """Return common names of the bands that are compared with the world's spectra; none if that means nothing."""
    names, _ = known_spectra(card, reading, np.empty((len(card.bands), 0)))
    known = tuple(name for name in names if name in COLOURS)
    return known if card.values == "reflectance" and len(known) > 2 else ()


def measure_novelty(
    card: Card, reading: SceneSource, values: NDArray[np.generic]
) -> NDArray[np.uint8] | None:
    """Return 255 x the probability that each spectrum is unlike those of the world; None if it is unknown.

    Args:
        values: Values [bands, H, W] as the model takes them, one row per band of the model.
    """
    names = _compared(card, reading)
    if not names:
        return None
    _, height, width = values.shape
    novelty = np.empty((height, width), np.uint8)
    rows = max(1, PIXELS // max(1, width))
    for row in range(0, height, rows):
        every, spectra = known_spectra(card, reading, values[:, row : row + rows].reshape(len(values), -1))
        compared = spectra.T[[every.index(name) for name in names]]
        measured = _likelihood(names).novelty(compared.astype(np.float32))
        novelty[row : row + rows] = measured.reshape(-1, width)
    return novelty


def foreign_share(card: Card, reading: SceneSource, values: NDArray[np.generic]) -> float | None:
    """Return the share of spectra [bands, N] that are unlike those of the world; None if it is unknown."""
    novelty = measure_novelty(card, reading, values[:, None])
    return None if novelty is None or not novelty.size else float((novelty >= NOVEL).mean())


def wrong_gain(card: Card, reading: SceneSource, values: NDArray[np.generic]) -> float:
    """Return the power of ten that spectra [bands, N] seem to be too dark by, below 1 if too bright; 1 if unknown."""
    names = _compared(card, reading)
    if not names or not values.size:
        return 1.0
    step = max(1, values.shape[1] // GAIN_PIXELS)
    every, spectra = known_spectra(card, reading, values[:, ::step])
    return _likelihood(names).gain(spectra[:, [every.index(name) for name in names]])


def knows_novelty(card: Card, reading: SceneSource) -> bool:
    """Return whether spectra of a scene, as it is read for a model, can be compared with those of the world."""
    return bool(_compared(card, reading))


def check_novelty(title: str, card: Card, reading: SceneSource) -> None:
    """Refuse `novelty` for scenes and models of which it is unknown."""
    if knows_novelty(card, reading):
        return
    if card.values != "reflectance":
        raise UsageError(
            f"`novelty` compares reflectances with those of the world, and {card.name} takes other values; leave it "
            "out, or use the model satellite."
        )
    raise UsageError(
        f"`novelty` needs the reflectance of red, green and blue or more, and that of {title} is not known; give "
        "`reflectance`, or leave out `novelty`."
    )
