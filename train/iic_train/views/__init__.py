"""Pairs of views of the same content."""
