"""Run models: model files, engines, array to labels, scene to map. Never imports torch."""

import lazy_loader

from iic_geotools import __version__ as __version__

# The public names are declared in `__init__.pyi` and imported when they are first used.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
