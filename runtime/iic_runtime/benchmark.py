"""Which engine, number of threads and tile are best for a model on this machine.

Each measurement runs in a process of its own, so that start-up and peak memory are its own:

    python -m iic_runtime.benchmark < SETTING.json

reads a `Setting` and prints a `Trial`, both as JSON; `run_trial` starts that process.

Energy is read where the machine has sensors that may be read. Linux has counters of the energy of x86 processors
(RAPL, under /sys/class/powercap; most kernels let only root read them), and NVIDIA's Jetson boards have sensors of
the power that the whole module takes (INA3221, under /sys/class/hwmon). Both are plain files.
"""

import json
import os
import platform
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import cycle
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from iic_geotools import __version__
from iic_geotools.errors import IICError, SceneError, UsageError
from iic_geotools.scene.info import describe
from iic_geotools.settings import checked
from iic_geotools.tiling import Tile, TileGrid
from iic_geotools.work import OnProgress, Progress, cores, map_ahead, silent
from iic_runtime.engine.base import CPU_DEVICES, cpu_name, peak_memory
from iic_runtime.engine.open_engine import open_engine
from iic_runtime.engine.openvino import PACKAGE as OPENVINO
from iic_runtime.engine.parity import EngineParity, noise, recorded_parity
from iic_runtime.model.file import ModelFile
from iic_runtime.model.select import find_model
from iic_runtime.options import BENCHMARK_SECONDS, Device, EngineSettings
from iic_runtime.raster.model_input import choose_reading
from iic_runtime.raster.segment import segment_raster
from iic_runtime.segmenter import Segmenter

MIN_TILES = 5
"""The fewest tiles that are timed, however long they take."""
KEPT_TILES = 8
"""Number of different tiles that are held in memory and run in turns."""

SYSTEM = Path("/sys")
JETSON_RAILS = ("VDD_IN", "POM_5V_IN")
"""The sensors of the power of a whole Jetson module, by what its generations call them."""
INTERVAL = 0.05

TILES = (256, 512, 768, 1024)
DEFAULT_TILE = 512
CLOSE = 0.95
"""Speeds above this share of the highest one count as equal: then less memory is better."""


@dataclass(frozen=True)
class Setting:
    """What is measured.

    Attributes:
        model: The model file.
        device: The device to compute on.
        threads: Number of threads; None for all cores.
        tile: Side of a tile in pixels; None for the default of the device.
        scene: The scene that the tiles are read from; None for noise.
        bands: The scene's bands for those of the model.
        seconds: How long tiles are run, at least.
        whole_map: Whether to map the whole scene, file to file, instead of running tiles in memory.
        begun: When the process was started, in seconds since the epoch.
    """

    model: str
    device: Device
    threads: int | None
    tile: int | None
    scene: str | None
    bands: Sequence[str | int] | None
    seconds: float
    whole_map: bool = False
    begun: float = 0.0


@dataclass(frozen=True)
class Trial:
    """What was measured of one engine, number of threads and tile.

    Attributes:
        device: The device.
        provider: The execution provider in use.
        threads: Number of threads of the engine; None if it has no such number.
        tile: Side of a tile in pixels, without halo.
        batch: Number of tiles that are run at once.
        lanes: Number of batches that are run side by side, each on its share of the threads.
        mpx_per_second: Speed in megapixels per second, halos not counted.
        p50_ms: Median of the time per batch in milliseconds; None for a whole map.
        p95_ms: Time in milliseconds that 95 % of the batches stay below; None for a whole map.
        start_seconds: From the start of the process to the labels of the first tile; None for a whole map.
        peak_mb: Peak memory of the process in megabytes.
        joules_per_mpx: Energy of the machine per megapixel; None where no sensor can be read.
        energy_source: The sensor.
    """

    device: Device
    provider: str
    threads: int | None
    tile: int
    batch: int
    lanes: int
    mpx_per_second: float
    p50_ms: float | None
    p95_ms: float | None
    start_seconds: float | None
    peak_mb: float
    joules_per_mpx: float | None
    energy_source: str | None


def run_trial(setting: Setting) -> Trial | str:
    """Measure in a new process; return the reason if it failed."""
    command = [sys.executable, "-m", "iic_runtime.benchmark"]
    text = json.dumps(asdict(setting) | {"begun": time.time()})
    process = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    if process.returncode:
        lines = process.stderr.strip().splitlines()
        return lines[-1] if lines else f"the process ended with code {process.returncode}"
    answer = json.loads(process.stdout.splitlines()[-1])
    return str(answer["error"]) if "error" in answer else Trial(**answer)


def measure(setting: Setting) -> Trial:
    """Measure in this process.

    Raises:
        IICError: The model cannot be run, or the scene cannot be read for it.
    """
    return _map_scene(setting) if setting.whole_map else _run_tiles(setting)


def _run_tiles(setting: Setting) -> Trial:
    segmenter = Segmenter(setting.model, device=setting.device, threads=setting.threads, tile=setting.tile)
    engine, lanes = segmenter.lane_engine, segmenter.spec.lanes
    tile, noise = _noise_tile(segmenter)
    engine.run(noise, False)
    start = time.time() - setting.begun
    work = [(tile, noise)] if setting.scene is None else _scene_tiles(segmenter, setting)
    times: list[float] = []
    pixels = 0

    def run(item: tuple[Tile, NDArray[Any]]) -> tuple[float, int]:
        (tile, batch), begun = item, time.perf_counter()
        engine.run(batch, False)
        return time.perf_counter() - begun, len(batch) * tile.core.area

    def until_end() -> Iterator[tuple[Tile, NDArray[Any]]]:
        for count, item in enumerate(cycle(work)):
            if count >= MIN_TILES * lanes and time.perf_counter() - begun >= setting.seconds:
                return
            yield item

    with ThreadPoolExecutor(lanes) as pool:
        list(pool.map(run, work * lanes))  # engines prepare for a shape when they first see it
        with measure_energy() as energy:
            begun = time.perf_counter()
            for seconds, area in map_ahead(pool, run, until_end(), lanes):
                times.append(seconds)
                pixels += area
            elapsed = time.perf_counter() - begun
    p50, p95 = np.percentile(times, (50, 95)) * 1e3
    return Trial(
        **_description(segmenter),
        mpx_per_second=pixels / 1e6 / elapsed,
        p50_ms=float(p50),
        p95_ms=float(p95),
        start_seconds=start,
        peak_mb=peak_memory() / 1e6,
        joules_per_mpx=None if energy.joules is None else energy.joules / (pixels / 1e6),
        energy_source=energy.source,
    )


def _map_scene(setting: Setting) -> Trial:
    segmenter = Segmenter(setting.model, device=setting.device, threads=setting.threads, tile=setting.tile)
    with TemporaryDirectory(prefix="iic-benchmark-") as folder, measure_energy() as energy:
        out = Path(folder) / "map.tif"
        summary = segment_raster(setting.scene or "", out, segmenter, bands=setting.bands)
    return Trial(
        **_description(segmenter),
        mpx_per_second=summary.pixels / 1e6 / summary.seconds,
        p50_ms=None,
        p95_ms=None,
        start_seconds=None,
        peak_mb=peak_memory() / 1e6,
        joules_per_mpx=None if energy.joules is None else energy.joules / (summary.pixels / 1e6),
        energy_source=energy.source,
    )


def _description(segmenter: Segmenter) -> dict[str, Any]:
    spec = segmenter.spec
    return {
        "device": spec.device,
        "provider": segmenter.provider,
        "threads": spec.threads,
        "tile": spec.tile,
        "batch": spec.batch,
        "lanes": spec.lanes,
    }


def _noise_tile(segmenter: Segmenter) -> tuple[Tile, NDArray[Any]]:
    """Return an inner tile of a large scene, and noise for a batch of such tiles."""
    card, spec = segmenter.card, segmenter.spec
    tile = max(
        TileGrid(3 * spec.tile, 3 * spec.tile, spec.tile, card.halo, card.stride),
        key=lambda candidate: candidate.read.area,
    )
    image = noise(card, tile.read.height, tile.read.width, np.random.default_rng(0))
    return tile, np.repeat(image[None], spec.batch, 0)


def _scene_tiles(segmenter: Segmenter, setting: Setting) -> list[tuple[Tile, NDArray[np.generic]]]:
    """Return batches of tiles of a scene, spread over it, with the pixels that a map would be made of."""
    card, spec = segmenter.card, segmenter.spec
    info = describe(setting.scene or "")
    reading = choose_reading(info, card, bands=setting.bands)
    grid = reading.grid or info.grid
    tiles = list(TileGrid(grid.width, grid.height, spec.tile, card.halo, card.stride))
    step = max(1, len(tiles) // (2 * KEPT_TILES))
    batches: list[tuple[Tile, NDArray[np.generic]]] = []
    with reading.open() as scene:
        for tile in tiles[::step]:
            if len(batches) == KEPT_TILES:
                break
            if scene.may_hold_data(tile.core):
                batches.append((tile, np.repeat(scene.read(tile.read).values[None], spec.batch, 0)))
    if not batches:
        raise SceneError(f"{info.path} holds no data to measure with; give another scene.")
    return batches


@dataclass
class Energy:
    """The energy and the time that a block took.

    Attributes:
        source: The sensor; None if there is none that may be read.
        joules: The energy, known when the work is done; None without a sensor.
    """

    source: str | None = None
    joules: float | None = None


@contextmanager
def measure_energy(system: Path = SYSTEM) -> Iterator[Energy]:
    """Measure the energy that the machine takes during a block, for all that runs on it.

    Args:
        system: Where the files of the kernel are.
    """
    counters = _rapl_counters(system)
    power = None if counters else _jetson_power(system)
    if counters:
        energy = Energy("RAPL, processor packages")
        before = [counter.read() for counter in counters]
        yield energy
        energy.joules = sum(counter.since(start) for counter, start in zip(counters, before, strict=True))
    elif power is not None:
        energy = Energy("INA3221, whole module")
        with _integral(power) as joules:
            yield energy
        energy.joules = joules[0]
    else:
        yield Energy()


@dataclass(frozen=True)
class _Counter:
    """A counter of microjoules that starts again at 0 after its highest value."""

    file: Path
    highest: int

    def read(self) -> int:
        return int(self.file.read_text())

    def since(self, start: int) -> float:
        """Return the joules since the counter stood at `start`."""
        difference = self.read() - start
        return (difference if difference >= 0 else difference + self.highest) / 1e6


def _rapl_counters(system: Path) -> list[_Counter]:
    """Return the counters of whole processors; those of their cores and memory are parts of them."""
    counters = []
    for zone in sorted((system / "class/powercap").glob("intel-rapl:*")):
        try:
            if (zone / "name").read_text().startswith("package"):
                counter = _Counter(zone / "energy_uj", int((zone / "max_energy_range_uj").read_text()))
                counter.read()
                counters.append(counter)
        except (OSError, ValueError):  # not for this user
            return []
    return counters


def _jetson_power(system: Path) -> Callable[[], float] | None:
    """Return a function that reads the power in watts that a Jetson module takes."""
    for label in sorted((system / "class/hwmon").glob("hwmon*/in*_label")):
        if label.read_text().strip() not in JETSON_RAILS:
            continue
        number = label.name.removeprefix("in").removesuffix("_label")
        voltage, current = label.with_name(f"in{number}_input"), label.with_name(f"curr{number}_input")
        if voltage.exists() and current.exists():
            return lambda: int(voltage.read_text()) * int(current.read_text()) / 1e6
    return None


@contextmanager
def _integral(power: Callable[[], float]) -> Iterator[list[float]]:
    """Yield a list whose only number is, after the block, the integral of a power over its time."""
    joules, done = [0.0], threading.Event()

    def sample() -> None:
        last, watts = time.perf_counter(), power()
        while not done.wait(INTERVAL):
            now, latest = time.perf_counter(), power()
            joules[0] += (watts + latest) / 2 * (now - last)
            last, watts = now, latest
        joules[0] += watts * (time.perf_counter() - last)

    thread = threading.Thread(target=sample, daemon=True)
    thread.start()
    try:
        yield joules
    finally:
        done.set()
        thread.join()


@dataclass(frozen=True)
class Benchmark:
    """How fast a model runs on this machine.

    Attributes:
        model: Name of the model.
        sha256: Digest of the model file.
        scene: The scene that tiles were read from; None for noise.
        machine: The processor.
        cores: Number of cores that this process may use.
        load: Number of processes that wanted a core in the minute before; None if unknown.
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


@checked
def benchmark_model(
    model: str | os.PathLike[str],
    scene: str | os.PathLike[str] | None = None,
    *,
    bands: Sequence[str | int] | None = None,
    seconds: float = BENCHMARK_SECONDS,
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


def _main() -> None:
    answer: dict[str, Any]
    try:
        answer = asdict(measure(Setting(**json.loads(sys.stdin.read()))))
    except IICError as error:
        answer = {"error": str(error)}
    sys.stdout.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    _main()
