"""Serve a model: the card, the engines, array to labels, scene to map. Never imports torch."""
