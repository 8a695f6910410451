"""How foreign a scene is to a model that takes reflectance: its spectra compared with those of the world."""

from functools import cache

import numpy as np
from numpy.typing import NDArray

from iic_geotools.errors import UsageError
from iic_geotools.scene.bands import COLOURS, canonical
from iic_geotools.scene.likelihood import NOVEL, Likelihood
from iic_geotools.scene.scene import SceneSource
from iic_runtime.model.card import Card

Floats = NDArray[np.float64]
PIXELS = 1 << 14
"""Number of pixels that are compared at once, so that they stay in the processor's cache."""
_likelihood = cache(Likelihood)


def known_spectra(card: Card, reading: SceneSource, values: NDArray[np.generic]) -> tuple[list[str], Floats]:
    """Return common names of the bands that the scene has, and their values [N, bands] as parts of the model's range.

    These are reflectances, if the model takes such. There are no bands if the scene is stretched: its values have no
    unit then.

    Args:
        card: The card of the model.
        reading: How the scene is read for it.
        values: Values [bands, N] as the model takes them, one row per band of the model.
    """
    positions = reading.positions
    own = [card.bands[position] for position in positions]
    targets = card.range_of(own)
    if card.values == "reflectance" and reading.rescale is not None and reading.rescale.targets != targets:
        return [], np.empty((values.shape[1], 0))
    low, high = np.array(targets, np.float64).T
    return [canonical(name) for name in own], (values[list(positions)].T - low) / (high - low)


def measure_novelty(
    card: Card, reading: SceneSource, values: NDArray[np.generic]
) -> NDArray[np.uint8] | None:
    """Return 255 x the probability that each spectrum is unlike those of the world; None if it is unknown.

    Args:
        card: The card of the model.
        reading: How the scene is read for it.
        values: Values [bands, H, W] as the model takes them, one row per band of the model.
    """
    names, _ = known_spectra(card, reading, values[:, 0, :0])
    known = [index for index, name in enumerate(names) if name in COLOURS]
    if card.values != "reflectance" or len(known) < 3:
        return None
    likelihood = _likelihood(tuple(names[index] for index in known))
    _, height, width = values.shape
    novelty = np.empty((height, width), np.uint8)
    rows = max(1, PIXELS // max(1, width))
    for row in range(0, height, rows):
        _, spectra = known_spectra(card, reading, values[:, row : row + rows].reshape(len(values), -1))
        measured = likelihood.novelty(spectra.T[known].astype(np.float32))
        novelty[row : row + rows] = measured.reshape(-1, width)
    return novelty


def foreign_share(card: Card, reading: SceneSource, values: NDArray[np.generic]) -> float | None:
    """Return the share of spectra [bands, N] that are unlike those of the world; None if it is unknown."""
    novelty = measure_novelty(card, reading, values[:, None])
    return None if novelty is None or not novelty.size else float((novelty >= NOVEL).mean())


def knows_novelty(card: Card, reading: SceneSource) -> bool:
    """Return whether spectra of a scene, as it is read for a model, can be compared with those of the world."""
    return measure_novelty(card, reading, np.zeros((len(card.bands), 1, 1), card.dtype)) is not None


def check_novelty(title: str, card: Card, reading: SceneSource) -> None:
    """Refuse `novelty` for scenes and models of which it is unknown.

    Raises:
        UsageError: The model does not take reflectance, or that of the scene is unknown.
    """
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
