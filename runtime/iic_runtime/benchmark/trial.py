"""One measurement in a process of its own, so that start-up and peak memory are its own.

    python -m iic_runtime.benchmark.trial < SETTING.json

reads a `Setting` and prints a `Trial`, both as JSON. `run_trial` starts that process.
"""

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from itertools import cycle
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from iic_geotools.errors import IICError
from iic_geotools.threads import map_ahead

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from iic_geotools.tiling import Tile
    from iic_runtime.options import Device
    from iic_runtime.segmenter import Segmenter

MIN_TILES = 5
"""The fewest tiles that are timed, however long they take."""
KEPT_TILES = 8
"""Number of different tiles that are held in memory and run in turns."""


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
    device: "Device"
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
        provider: What really computed, in the engine's own words.
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

    device: "Device"
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
    command = [sys.executable, "-m", "iic_runtime.benchmark.trial"]
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
    import numpy as np

    from iic_runtime.benchmark.energy import measure_energy
    from iic_runtime.engine.machine import peak_memory
    from iic_runtime.segmenter import Segmenter

    segmenter = Segmenter(setting.model, device=setting.device, threads=setting.threads, tile=setting.tile)
    engine, lanes = segmenter.lane_engine, segmenter.spec.lanes
    tile, noise = _noise_tile(segmenter)
    engine.run(noise, False)
    start = time.time() - setting.begun
    work = [(tile, noise)] if setting.scene is None else _scene_tiles(segmenter, setting)
    times: list[float] = []
    pixels = 0

    def run(item: "tuple[Tile, NDArray[Any]]") -> tuple[float, int]:
        (tile, batch), begun = item, time.perf_counter()
        engine.run(batch, False)
        return time.perf_counter() - begun, len(batch) * tile.core.area

    def until_end() -> "Iterator[tuple[Tile, NDArray[Any]]]":
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
    from iic_runtime.benchmark.energy import measure_energy
    from iic_runtime.engine.machine import peak_memory
    from iic_runtime.raster.segment import segment_raster
    from iic_runtime.segmenter import Segmenter

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


def _description(segmenter: "Segmenter") -> dict[str, Any]:
    spec = segmenter.spec
    return {
        "device": spec.device,
        "provider": segmenter.provider,
        "threads": spec.threads,
        "tile": spec.tile,
        "batch": spec.batch,
        "lanes": spec.lanes,
    }


def _noise_tile(segmenter: "Segmenter") -> "tuple[Tile, NDArray[Any]]":
    """Return an inner tile of a large scene, and noise for a batch of such tiles."""
    import numpy as np

    from iic_geotools.tiling import TileGrid
    from iic_runtime.engine.parity import noise

    card, spec = segmenter.card, segmenter.spec
    tile = max(
        TileGrid(3 * spec.tile, 3 * spec.tile, spec.tile, card.halo, card.stride),
        key=lambda candidate: candidate.read.area,
    )
    image = noise(card, tile.read.height, tile.read.width, np.random.default_rng(0))
    return tile, np.repeat(image[None], spec.batch, 0)


def _scene_tiles(segmenter: "Segmenter", setting: Setting) -> "list[tuple[Tile, NDArray[np.generic]]]":
    """Return batches of tiles of a scene, spread over it, with the pixels that a map would be made of."""
    import numpy as np

    from iic_geotools.errors import SceneError
    from iic_geotools.scene.info import describe
    from iic_geotools.tiling import TileGrid
    from iic_runtime.raster.model_input import choose_reading

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


def _main() -> None:
    answer: dict[str, Any]
    try:
        answer = asdict(measure(Setting(**json.loads(sys.stdin.read()))))
    except IICError as error:
        answer = {"error": str(error)}
    sys.stdout.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    _main()
