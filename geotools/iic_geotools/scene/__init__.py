"""Reading scenes: their description, bands, masks, values, and the part of them that is mapped."""

MOST_SCENES = 100
"""The most scenes that a search lists by default; here, because commands show it without importing what searches."""
