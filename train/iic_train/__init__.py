"""Invariant Information Clustering: objective, networks, data, views, trainer, evaluation, run folders."""

import os

import lazy_loader

from iic_geotools import __version__ as __version__

# Spinning OpenMP threads starve other processes: next to other programs, training was five times as slow. OpenMP reads
# this once, when torch is imported, which happens later than this.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# The public names are listed once, in `__init__.pyi`; each is imported when it is first used.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
