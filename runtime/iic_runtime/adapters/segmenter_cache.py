"""Segmenters that stay open in a process, so that its next task finds its model ready."""

from collections import OrderedDict
from collections.abc import Callable
from threading import Lock

from iic_runtime.engine.base import EngineSpec
from iic_runtime.model.file import ModelFile
from iic_runtime.segmenter import Segmenter

CAPACITY = 2

_lock = Lock()
_segmenters: OrderedDict[tuple[str, EngineSpec], Segmenter] = OrderedDict()


def keep_segmenter(segmenter: Segmenter) -> None:
    """Keep a segmenter for `get_segmenter`."""
    with _lock:
        _keep((segmenter.model.digest, segmenter.spec), segmenter)


def get_segmenter(digest: str, spec: EngineSpec, read: Callable[[], ModelFile]) -> Segmenter:
    """Return the segmenter of a model; the first call in this process opens it.

    Args:
        digest: The digest of the model file.
        spec: How the model is run.
        read: Returns the model file; called only if the segmenter is not open.
    """
    key = (digest, spec)
    with _lock:
        segmenter = _segmenters.get(key)
        if segmenter is None:
            segmenter = Segmenter.from_spec(read(), spec)
        _keep(key, segmenter)
    return segmenter


def _keep(key: tuple[str, EngineSpec], segmenter: Segmenter) -> None:
    _segmenters[key] = segmenter
    _segmenters.move_to_end(key)
    while len(_segmenters) > CAPACITY:
        _segmenters.popitem(last=False)
