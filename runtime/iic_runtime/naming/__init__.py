"""From clicks to classes: a head fitted to people's labels and written into a model file, with numpy alone."""

SUGGESTED_PLACES = 10
"""Number of places to click that are suggested by default."""
SMOOTHING, MOST_SMOOTHING = 2, 16
"""Pixels in each direction over which the probabilities of named classes are averaged, by default and at most."""
