"""Which engine, number of threads and tile are best for a model on this machine: the function behind the command."""

import json
import os
import platform
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import get_args

from iic_geotools import __version__
from iic_geotools.errors import IICError, UsageError
from iic_geotools.progress import OnProgress, Progress, silent
from iic_geotools.threads import cores
from iic_runtime.benchmark import SECONDS
from iic_runtime.benchmark.trial import Setting, Trial, run_trial
from iic_runtime.engine.base import CPU_DEVICES
from iic_runtime.engine.machine import cpu_name
from iic_runtime.engine.open_engine import open_engine
from iic_runtime.engine.openvino import PACKAGE as OPENVINO
from iic_runtime.engine.parity import EngineParity, recorded_parity
from iic_runtime.model.file import ModelFile
from iic_runtime.model.select import find_model
from iic_runtime.options import Device, EngineSettings

TILES = (256, 512, 768, 1024)
DEFAULT_TILE = 512
CLOSE = 0.95
"""Speeds above this share of the highest one count as equal: then less memory is better."""


@dataclass(frozen=True)
class Benchmark:
    """How fast a model runs on this machine.

    Attributes:
        model: Name of the model.
        sha256: Digest of the model file.
        scene: The scene that tiles were read from; None for noise.
        machine: The processor.
        cores: Number of cores that this process may use.
        load: Number of processes that wanted a core in the minute before; None where the system does not tell.
        version: Version of this package.
        trials: What was measured, in the order of measurement.
        best: The fastest; of those nearly as fast, the one with the least memory. None if nothing could be run.
        whole_map: The scene mapped with the best settings, file to file; None without a scene.
        parity: How OpenVINO compares with ONNX Runtime; None if it was not run.
        problems: Sentences about engines and settings that could not be run.
    """

    model: str
    sha256: str
    scene: str | None
    machine: str
    cores: int
    load: float | None
    version: str
    trials: tuple[Trial, ...]
    best: Trial | None
    whole_map: Trial | None
    parity: EngineParity | None
    problems: tuple[str, ...]

    def to_json(self) -> str:
        """Return all of it as JSON."""
        return json.dumps(asdict(self), indent=1, ensure_ascii=False)


def benchmark_model(
    model: str | os.PathLike[str],
    scene: str | os.PathLike[str] | None = None,
    *,
    bands: Sequence[str | int] | None = None,
    seconds: float = SECONDS,
    progress: OnProgress = silent,
) -> Benchmark:
    """Measure how fast a model runs on this machine, on every engine that is installed.

    Tiles of 256 to 1024 px are run with all cores, tiles of 512 px also with fewer threads; each setting in a
    process of its own. Reading and writing are not part of it, except in `whole_map`.

    Args:
        model: A model file, or the name of a bundled model.
        scene: A scene to take the tiles from, and to map at the end with the best settings. By default tiles are noise.
        bands: The scene's bands for those of the model, by name or number; by default matched by name.
        seconds: How long each setting is run, at least.
        progress: Called with the number of settings that were measured.

    Raises:
        IICError: The model or the scene cannot be read, or an argument makes no sense.
    """
    if not 0 < seconds <= 3600:
        raise UsageError(f"`seconds` must be above 0 and at most 3600, not {seconds:g}.")
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    file = find_model(model)
    if file.card.task != "segmentation":
        raise UsageError(f"{file.path} labels whole images, not pixels; give a segmentation model.")
    common = Setting(
        str(file.path), "cpu", None, None, None if scene is None else os.fspath(scene), bands, seconds
    )
    devices, problems = _usable_devices(file)
    settings = [setting for device in devices for setting in _settings(common, device, file)]
    total = len(settings) + (scene is not None)
    trials: list[Trial] = []
    for done, setting in enumerate(settings):
        progress(Progress("measure", done, total))
        trial = run_trial(setting)
        if isinstance(trial, str):
            problems.append(f"{setting.device}, tiles of {setting.tile} px: {trial}")
        else:
            trials.append(trial)
    parity = recorded_parity(file, OPENVINO) if "openvino" in devices else None
    best = choose_best(trials, parity)
    whole_map = None
    if scene is not None and best is not None:
        progress(Progress("measure", total - 1, total))
        whole_map = _measure_map(common, best, problems)
    progress(Progress("measure", total, total))
    return Benchmark(
        model=file.card.name,
        sha256=file.digest,
        scene=common.scene,
        machine=cpu_name() or platform.machine(),
        cores=cores(),
        load=load,
        version=__version__,
        trials=tuple(trials),
        best=best,
        whole_map=whole_map,
        parity=parity,
        problems=tuple(problems),
    )


def choose_best(trials: Sequence[Trial], parity: EngineParity | None = None) -> Trial | None:
    """Return the fastest setting; of those nearly as fast, the one with the least memory.

    OpenVINO counts only if every label was equal.
    """
    equal = parity is None or parity.equal
    candidates = [trial for trial in trials if equal or trial.device != "openvino"]
    if not candidates:
        return None
    fastest = max(trial.mpx_per_second for trial in candidates)
    close = [trial for trial in candidates if trial.mpx_per_second >= CLOSE * fastest]
    return min(close, key=lambda trial: trial.peak_mb)


def _usable_devices(file: ModelFile) -> tuple[list[Device], list[str]]:
    """Return the devices that open a model, and a sentence about each of the others.

    Opening also makes the comparison of OpenVINO with ONNX Runtime, which is not part of its start-up.
    """
    if file.engine is not None:
        open_engine(file, EngineSettings(device="tensorrt"))
        return ["tensorrt"], []
    devices: list[Device] = []
    problems = []
    for device in get_args(Device):
        if device == "auto":
            continue
        try:
            open_engine(file, EngineSettings(device=device))
            devices.append(device)
        except IICError as error:
            problems.append(f"{device}: {error}")
    return devices, problems


def _settings(common: Setting, device: Device, file: ModelFile) -> Iterator[Setting]:
    """Yield the settings to measure on a device."""
    if file.engine is not None:
        yield replace(common, device=device)
    elif device not in CPU_DEVICES:
        for tile in TILES:
            yield replace(common, device=device, tile=tile)
    else:
        for threads in thread_counts(cores()):
            yield replace(common, device=device, threads=threads, tile=DEFAULT_TILE)
        for tile in TILES:
            if tile != DEFAULT_TILE:
                yield replace(common, device=device, threads=cores(), tile=tile)


def thread_counts(most: int) -> list[int]:
    """Return the numbers of threads that are tried: powers of two, and all cores."""
    return sorted({most, *(1 << power for power in range(most.bit_length()))})


def _measure_map(common: Setting, best: Trial, problems: list[str]) -> Trial | None:
    """Map the scene, file to file, with the best settings."""
    setting = replace(common, device=best.device, threads=best.threads, tile=best.tile, whole_map=True)
    trial = run_trial(setting)
    if isinstance(trial, str):
        problems.append(f"The scene cannot be mapped: {trial}")
        return None
    return trial
