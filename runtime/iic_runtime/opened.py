"""Models that stay open in a process: a task that comes again finds its model ready."""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock
from typing import cast

from iic_runtime.engines import Device
from iic_runtime.modelfile import ModelFile
from iic_runtime.segmenter import Segmenter

KEPT = 2


@dataclass(frozen=True)
class Opening:
    """How a model is opened; plain data for other processes."""

    device: str
    threads: int | None
    tile: int
    batch: int

    @classmethod
    def of(cls, segmenter: Segmenter, threads: int | None) -> "Opening":
        """As `segmenter` was, on its kind of device."""
        return cls(segmenter.engine.device, threads, segmenter.sizing.tile, segmenter.sizing.batch)


_lock = Lock()
_open: OrderedDict[tuple[str, Opening], Segmenter] = OrderedDict()


def keep_open(segmenter: Segmenter, opening: Opening) -> None:
    """Let `opened` find this one."""
    with _lock:
        _keep((segmenter.model.digest, opening), segmenter)


def opened(digest: str, opening: Opening, read: Callable[[], ModelFile]) -> Segmenter:
    """The model of that digest, read and opened by the first who asks in this process; the last few stay open."""
    key = (digest, opening)
    with _lock:
        segmenter = _open.get(key)
        if segmenter is None:
            segmenter = Segmenter(
                read(),
                device=cast(Device, opening.device),
                threads=opening.threads,
                tile=opening.tile,
                batch=opening.batch,
            )
        _keep(key, segmenter)
    return segmenter


def _keep(key: tuple[str, Opening], segmenter: Segmenter) -> None:
    _open[key] = segmenter
    _open.move_to_end(key)
    while len(_open) > KEPT:
        _open.popitem(last=False)
