"""What can go wrong, as types: one root, and each class is also the builtin a caller would expect.

A message is one sentence that says what is wrong and what to do about it: commands print it as it is.
"""


class IICError(Exception):
    """Root of every error this project raises on purpose."""


class UsageError(IICError, ValueError):
    """An argument that cannot be right whatever the files hold; commands exit with code 2."""


class SceneError(IICError, OSError):
    """A raster or vector that cannot be read, or not as asked."""


class OutputError(IICError, OSError):
    """A result that cannot be written where it was asked for."""


class ModelError(IICError, ValueError):
    """A model file that is damaged, incomplete, or does not fit the scene."""


class DeviceError(IICError, RuntimeError):
    """A device or engine that was asked for and is not there."""


class MissingPackageError(IICError, ImportError):
    """An optional package that the work needs; the message names the extra that brings it."""


class DataError(IICError, OSError):
    """Training data that is missing or not laid out as its format says."""


class TrainingError(IICError, RuntimeError):
    """Training that cannot go on: a collapsed objective, a loss that is not finite, a broken run folder."""
