"""Invariant Information Clustering: objective, networks, data, views, trainer, evaluation, run folders."""

import lazy_loader

from iic_geotools import __version__ as __version__

# The public names are listed once, in `__init__.pyi`; each is imported when it is first used.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
