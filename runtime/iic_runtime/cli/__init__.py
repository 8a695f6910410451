"""The commands of the runtime, one module each; `tables` is imported when a command prints one."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
