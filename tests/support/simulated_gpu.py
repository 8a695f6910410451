"""A GPU that is not there: it takes the time that it is told, and gives the labels of a function."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from iic_runtime import Segmenter
from iic_runtime.engine.base import OUTPUTS, EngineSpec, Images
from iic_runtime.engine.gpu import Buffers, Slots

Compute = Callable[[NDArray[Any], Sequence[str]], list[NDArray[Any]]]


class SimulatedGpu:
    """Three stages that each take one batch at a time: copying in, computing, copying out.

    Args:
        compute: Returns the outputs of a batch; its own time is not counted.
        seconds: How long each stage takes for a batch.
    """

    def __init__(self, compute: Compute, seconds: tuple[float, float, float] = (0.0, 0.0, 0.0)) -> None:
        self.compute, self.seconds = compute, seconds
        self.batches: list[tuple[int, ...]] = []
        self._free = [0.0, 0.0, 0.0]
        self._lock = Lock()

    def queue(self, shape: tuple[int, ...]) -> float:
        """Return when a batch that is submitted now will be ready."""
        with self._lock:
            self.batches.append(shape)
            ready = time.perf_counter()
            for stage, seconds in enumerate(self.seconds):
                ready = self._free[stage] = max(ready, self._free[stage]) + seconds
            return ready


class SimulatedSlot:
    """A slot of a simulated GPU."""

    def __init__(self, gpu: SimulatedGpu) -> None:
        self._gpu, self._buffers = gpu, Buffers(lambda size: np.empty(size, np.uint8))
        self._batch: NDArray[Any] = np.empty(0)
        self._names: Sequence[str] = ()
        self._ready = 0.0

    def submit(self, images: Images, names: Sequence[str]) -> None:
        """Copy the batch to where a real one would be pinned, and queue it."""
        self._batch, self._names = self._buffers.fill(images, images[0].dtype), names
        self._ready = self._gpu.queue(self._batch.shape)

    def collect(self) -> list[NDArray[Any]]:
        """Wait for the time that was told."""
        outputs = self._gpu.compute(self._batch, self._names)
        time.sleep(max(0.0, self._ready - time.perf_counter()))
        return outputs


class SimulatedEngine:
    """An engine on a simulated GPU."""

    provider = "simulated GPU"

    def __init__(self, gpu: SimulatedGpu, spec: EngineSpec) -> None:
        self.spec = spec
        self._slots = Slots(SimulatedSlot(gpu) for _ in range(spec.lanes))

    def run(self, images: Images, confidence: bool) -> tuple[NDArray[Any], NDArray[Any] | None]:
        """Return labels and, if asked for, confidence."""
        outputs = self._slots.run(images, OUTPUTS if confidence else OUTPUTS[:1])
        return outputs[0], outputs[1] if confidence else None


def nothing(batch: NDArray[Any], names: Sequence[str]) -> list[NDArray[Any]]:
    """Return labels and confidence that cost nothing."""
    return [np.zeros((len(batch), *batch.shape[2:]), np.uint8) for _ in names]


def on_simulated_gpu(
    model: Path, gpu: SimulatedGpu | None = None, *, tile: int, batch: int = 1, lanes: int = 3
) -> Segmenter:
    """Return a segmenter whose engine is a simulated GPU, by default with the labels of the model."""
    segmenter = Segmenter(model, device="cpu", tile=tile, threads=1)
    if gpu is None:
        gpu = SimulatedGpu(segmenter.engine.fetch)  # type: ignore[attr-defined]
    segmenter.engine = SimulatedEngine(gpu, EngineSpec("cuda", tile, batch, lanes=lanes))
    return segmenter
