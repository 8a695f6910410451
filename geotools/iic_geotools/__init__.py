"""Rasters and vectors under training and mapping: scenes to read, class maps to write, products made from them."""

import lazy_loader

__version__ = "0.1.0"
# The public names are listed once, in `__init__.pyi`; each is imported when it is first used.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
