"""Raster work under training and serving: tile grid, windowed reading, masks, maps, colours, vectors."""

__version__ = "0.1.0"
