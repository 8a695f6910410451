"""Open a model on a device, with tiles and lanes that are about the fastest within the memory a run may take."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from itertools import product
from typing import get_args

import numpy as np

from iic_geotools.errors import DeviceError, MissingPackageError, SceneError, UsageError
from iic_geotools.geobox import GeoBox
from iic_geotools.settings import check_values
from iic_geotools.work import cores, memory_of_machine
from iic_runtime.engine.base import (
    CPU_DEVICES,
    OUTPUTS,
    Engine,
    EngineSpec,
    usable_devices,
)
from iic_runtime.engine.gpu import gpu_memory
from iic_runtime.engine.onnx import OnnxEngine
from iic_runtime.engine.openvino import PACKAGE, OpenVinoEngine, open_openvino
from iic_runtime.engine.parity import recorded_parity
from iic_runtime.engine.tensorrt import TensorRTEngine
from iic_runtime.model.card import Card
from iic_runtime.model.file import ModelFile
from iic_runtime.options import Device, EngineSettings

_LOG = logging.getLogger(__name__)
# More threads than any machine has cores only fight each other.
MAX_THREADS = 256

DEFAULT_MEMORY, DEFAULT_GPU_MEMORY = 1 << 30, 4 << 30
TILES = (1024, 768, 512, 256, 128)
GPU_TILES = (4096, 2048, *TILES)
CPU_BATCH, GPU_BATCHES = 1, (1, 2, 4, 8, 16)
# Batches in flight on a GPU: one is copied in, one computed, one copied out.
GPU_LANES = 3
UNKNOWN_GPU = 4 << 30
# On paper, not measured: the share of a GPU's memory that a run takes, what its libraries take of that, what an
# engine takes more per pixel than ONNX Runtime on a CPU, by which cards state it, and the pixels that a GPU would label
# in the time that it takes to start a batch.
GPU_SHARE, GPU_LIBRARIES, GPU_FACTOR, GPU_START = 0.6, 1 << 30, 1.5, 1 << 17
# The share of a network that one thread computes while the others wait: measured at 0.1 to 0.26.
SERIAL_SHARE = 0.25
# What is nearly as fast with less memory and work is better.
CLOSE = 0.93
# Interpreter, libraries, GDAL's block cache and the part that is being written: measured at about 250 MB.
BASE_MEMORY = 300 << 20
# What OpenVINO takes more, as a whole and as a factor per pixel: cards state the memory that ONNX Runtime takes.
OPENVINO_MEMORY, OPENVINO_FACTOR = 100 << 20, 1.3
QUEUED_TILES = 3
# A million pixels on each side: about two days of work at 5 Mpx/s, if all of them hold data.
MAX_PIXELS = 10**12


def open_engine(
    model: ModelFile, settings: EngineSettings | None = None, outputs: Sequence[str] = OUTPUTS
) -> Engine:
    """Open a model on a device.

    The device "auto" is the GPU if it can be used, else OpenVINO if it was used with this model before and gave equal
    labels faster, else ONNX Runtime on the CPU.

    Args:
        outputs: The outputs of an ONNX graph that are fetched, labels and confidence included.

    Raises:
        UsageError: A setting makes no sense, or does not fit the model.
        MissingPackageError: No engine is installed.
        DeviceError: The device does not exist.
        ModelError: The graph does not match its card.
    """
    settings = settings or EngineSettings()
    device, threads = settings.device, settings.threads
    if device not in get_args(Device):
        raise UsageError(f"`device` must be one of {', '.join(get_args(Device))}, not {device}.")
    most = max(MAX_THREADS, cores())
    if threads is not None and not 1 <= threads <= most:
        raise UsageError(
            f"`threads` must be 1 to {most}, not {threads}; this process may use {cores()} cores."
        )
    if model.engine is not None:
        if device not in ("auto", "tensorrt"):
            raise UsageError(
                f"{model.path} is a TensorRT engine and cannot run on {device}; use `device` tensorrt, or the "
                ".onnx file."
            )
        tile, batch = model.engine.fit(settings.tile, settings.batch)
        settings = replace(settings, device="tensorrt", tile=tile, batch=batch)
        return open_spec(model, choose_spec(model.card, settings))

    def open_on(device: Device) -> Engine:
        return open_spec(model, choose_spec(model.card, replace(settings, device=device)), outputs)

    if device != "auto":
        return open_on(device)
    *candidates, cpu = usable_devices()
    if find_spec(PACKAGE) is not None and (parity := recorded_parity(model, PACKAGE)) and parity.preferred:
        candidates.append("openvino")
    for candidate in candidates:
        try:
            return open_on(candidate)
        except (DeviceError, MissingPackageError) as error:
            _LOG.warning("%s Using the CPU.", error)
    return open_on(cpu)


def open_spec(model: ModelFile, spec: EngineSpec, outputs: Sequence[str] = OUTPUTS) -> Engine:
    """Open a model as a spec says; the exceptions are those of `open_engine`."""
    if model.engine is not None:
        return TensorRTEngine(model, spec)
    if spec.device == "openvino":
        return open_openvino(model, spec)
    return OnnxEngine(model, spec, outputs)


def open_lanes(model: ModelFile, spec: EngineSpec) -> Engine:
    """Open a model once more, for `spec.lanes` threads that each run batches of their own.

    On a CPU, tiles side by side are faster than one after the other on all threads: some operations of a graph have
    one thread whatever there is, and at the end of the others the fastest thread waits for the slowest.
    """
    if spec.device == "openvino":
        return OpenVinoEngine(model, spec, streams=spec.lanes)
    return open_spec(model, replace(spec, threads=spec.threads_per_lane))


def choose_spec(card: Card, settings: EngineSettings) -> EngineSpec:
    """Choose tile, batch and lanes, as far as they are not given, so that the estimated memory stays below a limit.

    Args:
        settings: How it is run, on a device that is not "auto".
    """
    device, threads = settings.device, settings.threads
    tile, batch, max_memory = settings.tile, settings.batch, settings.max_memory
    check_values(EngineSettings, settings.values())
    on_cpu = device in CPU_DEVICES
    tiles = (TILES if on_cpu else GPU_TILES) if tile is None else (tile,)
    batches = ((CPU_BATCH,) if on_cpu else GPU_BATCHES) if batch is None else (batch,)
    batch = batches[0]
    smallest = EngineSpec(device, tiles[-1], batch, threads, lanes=1 if on_cpu else GPU_LANES)
    # A scene may be smaller than a tile, but not than the smallest one that is worth running.
    check_machine(card, smallest, TILES[-1])
    budget = max_memory
    if budget is None:
        most, present = DEFAULT_MEMORY if on_cpu else DEFAULT_GPU_MEMORY, memory_of_machine()
        budget = most if present is None else min(most, present // 2)
    room = 0.0 if on_cpu else GPU_SHARE * (gpu_memory() or UNKNOWN_GPU)
    lane_counts = range(1, (threads or cores()) + 1) if on_cpu else (GPU_LANES,)
    specs = [
        EngineSpec(device, side, count, threads, lanes)
        for side, count, lanes in product(tiles, batches, lane_counts)
    ]
    fitting = [
        spec
        for spec in specs
        if estimate_memory(card, spec) <= budget and (on_cpu or estimate_gpu_memory(card, spec) <= room)
    ]
    if fitting:
        fast = CLOSE * max(_expected_speed(card, spec) for spec in fitting)
        close = [spec for spec in fitting if _expected_speed(card, spec) >= fast]
        memory = estimate_memory if on_cpu else estimate_gpu_memory
        return min(close, key=lambda spec: memory(card, spec) / _useful_share(card, spec))
    if max_memory is None:
        return smallest
    needed = estimate_memory(card, smallest) >> 20
    if tile is not None:
        raise UsageError(
            f"A `tile` of {tile} px with a `batch` of {batch} needs about {needed} MiB, more than the `max_memory` of "
            f"{max_memory >> 20} MiB; leave out `tile` or allow more memory."
        )
    raise UsageError(
        f"A `max_memory` of {max_memory >> 20} MiB is too little: this model needs about {needed} MiB with the "
        f"smallest tiles and a `batch` of {batch}."
    )


def _expected_speed(card: Card, spec: EngineSpec) -> float:
    """Return a figure by which specs compare: the work that is done at once, as far as it is not for halos."""
    if not spec.on_cpu:
        pixels = spec.batch * _side(card, spec.tile) ** 2
        return pixels / (pixels + GPU_START) * _useful_share(card, spec)
    slowness = SERIAL_SHARE + (1 - SERIAL_SHARE) / spec.threads_per_lane
    return spec.lanes / slowness * _useful_share(card, spec)


def _useful_share(card: Card, spec: EngineSpec) -> float:
    return (spec.tile / _side(card, spec.tile)) ** 2


def check_machine(card: Card, spec: EngineSpec, longest: int) -> None:
    """Refuse what needs more memory than the machine has.

    Args:
        longest: The longer side of the scene in pixels, which no tile exceeds.
    """
    spec = replace(spec, tile=min(spec.tile, longest))
    needed, present = estimate_memory(card, spec), memory_of_machine()
    if present is not None and needed > present:
        raise UsageError(
            f"A `tile` of {spec.tile} px with a `batch` of {spec.batch} needs about {needed / (1 << 30):.3g} GiB with "
            f"the model {card.name}, and this machine has {present / (1 << 30):.3g} GiB; give less."
        )


def check_work(pixels: int, grid: GeoBox) -> None:
    """Refuse more pixels than a run could ever label."""
    if pixels > MAX_PIXELS:
        raise SceneError(
            f"{pixels:.3g} pixels of {grid.width} x {grid.height} would have to be labelled, and {MAX_PIXELS:.3g} are "
            "the most; map a part of the scene with `bounds` or `aoi`, or at a coarser resolution."
        )


def estimate_memory(card: Card, spec: EngineSpec) -> int:
    """Return the bytes of the machine's memory that a run takes at its peak."""
    raw = len(card.bands) * np.dtype(card.dtype).itemsize
    if not spec.on_cpu:
        # Each batch as it was read, stacked and pinned, with its labels; what is read ahead; GDAL's block cache.
        tiles = spec.batch * (3 * spec.lanes + QUEUED_TILES)
        return int(BASE_MEMORY + GPU_LIBRARIES + _side(card, spec.tile) ** 2 * tiles * (raw + 2))
    base, factor = (OPENVINO_MEMORY, OPENVINO_FACTOR) if spec.device == "openvino" else (0, 1.0)
    running = spec.lanes * spec.batch * (factor * card.memory_per_pixel + raw)
    pixels = _side(card, spec.tile) ** 2
    return int(BASE_MEMORY + base + pixels * (running + (QUEUED_TILES + spec.lanes) * raw))


def estimate_gpu_memory(card: Card, spec: EngineSpec) -> int:
    """Return the bytes of a GPU's memory that a run takes at its peak."""
    raw = len(card.bands) * np.dtype(card.dtype).itemsize
    pixels = spec.lanes * spec.batch * _side(card, spec.tile) ** 2
    return int(GPU_LIBRARIES + pixels * (GPU_FACTOR * card.memory_per_pixel + raw))


def _side(card: Card, tile: int) -> int:
    return tile + 2 * card.halo
