"""From clicks to classes: a head fitted to people's labels and written into a model file, with numpy alone."""

SUGGESTED_PLACES = 10
"""Number of places to click that are suggested by default."""
SMOOTHING, FINE_SMOOTHING, MOST_SMOOTHING = 2, 4, 16
"""Pixels in each direction over which the probabilities of named classes are averaged: by default, by default at most
where pixels are small, and at most."""
SMOOTHED_METRES = 0.8
"""What the default comes to on the ground where pixels are small."""


def default_smoothing(pixel: float | None) -> int:
    """Return the pixels in each direction over which probabilities are averaged, by a pixel's side in metres."""
    return SMOOTHING if pixel is None else min(max(round(SMOOTHED_METRES / pixel), SMOOTHING), FINE_SMOOTHING)
