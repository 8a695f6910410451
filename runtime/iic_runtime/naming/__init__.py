"""From clicks to classes: a head fitted to people's labels and written into a model file, with numpy alone."""

SUGGESTED_PLACES = 10
"""Number of places to click that are suggested by default."""
SMOOTHING, FINE_SMOOTHING, MOST_SMOOTHING = 2, 4, 16
"""Pixels in each direction over which the probabilities of named classes are averaged: by default, by default at most
where pixels are small, and at most."""
SMOOTHED_METRES = 0.8
"""What the default comes to on the ground where pixels are small."""
COARSE_METRES, CERTAIN = 5.0, 0.95
"""Side of a pixel from which nothing is averaged by default if this share of the clicks is recognised: objects are few
pixels wide then, and single pixels are not noisy."""


def default_smoothing(pixel: float | None, accuracy: float | None = None) -> int:
    """Return the pixels in each direction over which probabilities are averaged.

    Args:
        pixel: Side of a pixel in metres, if it is known.
        accuracy: Share of the clicks that cross-validation recognises, if it is known.
    """
    if pixel is None:
        return SMOOTHING
    if pixel >= COARSE_METRES and accuracy is not None and accuracy >= CERTAIN:
        return 0
    return min(max(round(SMOOTHED_METRES / pixel), SMOOTHING), FINE_SMOOTHING)
