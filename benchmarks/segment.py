"""End to end against the engine alone, and against GeoDeep, on one scene; and memory as scenes grow.

    python benchmarks/segment.py [--scene SCENE.tif] [--side 6144]   # throughput and memory
    python benchmarks/segment.py --bundled [--scene SCENE.tif]       # the bundled models: speed and memory
    python benchmarks/segment.py --sentinel2 [--side 10980]          # a tile of Sentinel-2, as COG and as JPEG 2000
    python benchmarks/segment.py --memory                            # peak memory from 16 Mpx to 1.6 Gpx
    python benchmarks/segment.py --sparse                            # 100 Gpx, 0.1 % of it data
    python benchmarks/segment.py --start                             # processor time of commands that do little
    python benchmarks/segment.py --free-engine                       # all but the engine, as for a GPU of no time
    python benchmarks/segment.py --simulated-gpu                     # copying and computing side by side

Every measurement runs in a process of its own, so that peak memory is its own; ratios are what counts. Each is given by
the clock and by processor time, which other programs change less, each from the best of a few runs in turns. "Engine's
share" is the part of a run's own processor time that its engine took: what file to file is to the engine alone, as far
as processors decide it. GeoDeep (`pip install geodeep`) and OpenVINO are left out where they are not installed.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import numpy as np
import rasterio
import rasterio.shutil
from rasterio.transform import from_origin
from rasterio.windows import Window

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

NETWORK: dict[str, Any] = {"full": (8, 16), "half": ((32, 1), (32, 1), (64, 2), (64, 2)), "classes": 3}
GEODEEP_TILE = 512
ONE = "one at a time"


def make_scene(path: Path, side: int) -> Path:
    """A compressed 4-band scene of smooth fields and noise, written block by block."""
    from support.scenes import landscape

    profile = {
        "driver": "GTiff",
        "width": side,
        "height": side,
        "count": 4,
        "dtype": "uint8",
        "crs": "EPSG:32631",
    }
    tiling = {
        "tiled": True,
        "blockxsize": 512,
        "blockysize": 512,
        "compress": "deflate",
        "bigtiff": "if_safer",
    }
    patch = landscape(1024, 1024)
    where = from_origin(500000, 5400000, 0.2, 0.2)
    with rasterio.open(path, "w", **profile, **tiling, transform=where, photometric="MINISBLACK") as scene:
        scene.descriptions = ("red", "green", "blue", "nir")
        for row in range(0, side, 1024):
            for col in range(0, side, 1024):
                height, width = min(1024, side - row), min(1024, side - col)
                scene.write(patch[:, :height, :width], window=Window(col, row, width, height))
    return path


def make_tile(path: Path, side: int) -> Path:
    """A scene of Sentinel-2 of 16 bits, which repeats the example in mirror images: COG, or JPEG 2000 without loss."""
    with rasterio.open(Path(__file__).parent.parent / "examples" / "sentinel2.tif") as example:
        patch, profile = example.read(), example.profile | {"width": side, "height": side, "tiled": True}
        descriptions = example.descriptions
    patch = np.concatenate([patch, patch[:, ::-1]], 1)
    patch = np.concatenate([patch, patch[:, :, ::-1]], 2)
    plain = path.with_name("plain.tif")
    with rasterio.open(plain, "w", **profile | {"compress": None, "bigtiff": "if_safer"}) as scene:
        scene.descriptions = descriptions
        for row in range(0, side, patch.shape[1]):
            for col in range(0, side, patch.shape[2]):
                height, width = min(patch.shape[1], side - row), min(patch.shape[2], side - col)
                scene.write(patch[:, :height, :width], window=Window(col, row, width, height))
    lossless = {"QUALITY": "100", "REVERSIBLE": "YES", "YCBCR420": "NO"}
    drivers: dict[str, dict[str, str]] = {
        ".tif": {"driver": "COG", "COMPRESS": "DEFLATE", "PREDICTOR": "YES"},
        ".jp2": {"driver": "JP2OpenJPEG", **lossless},
    }
    rasterio.shutil.copy(plain, path, **drivers[path.suffix])
    plain.unlink()
    return path


def make_models(folder: Path) -> None:
    """The same small network for four bands, for three, and for three as GeoDeep wants it."""
    import onnx
    from onnx import TensorProto, helper
    from support.tiny_onnx import make_model

    (folder / "four.onnx").write_bytes(make_model(**NETWORK))
    three = make_model(**NETWORK, bands=("red", "green", "blue"))
    (folder / "three.onnx").write_bytes(three)
    other = onnx.load_from_string(three)
    # GeoDeep divides by 255 itself, runs squares of one size and takes the argmax outside the graph.
    other.graph.ClearField("input")
    shape = [1, 3, GEODEEP_TILE, GEODEEP_TILE]
    other.graph.input.append(helper.make_tensor_value_info("image", TensorProto.FLOAT, shape))
    for weight in other.graph.initializer:
        if weight.name == "scale":
            weight.CopyFrom(onnx.numpy_helper.from_array(np.array(1, np.float32), "scale"))
    keep = [
        node
        for node in other.graph.node
        if node.output[0] not in ("argmax", "labels", "top", "top255", "rounded", "confidence")
    ]
    other.graph.ClearField("node")
    other.graph.node.extend(keep)
    other.graph.ClearField("output")
    other.graph.output.append(
        helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, [1, 3, None, None])
    )
    other.ClearField("metadata_props")
    settings = {
        "model_type": '"Segmentor"',
        "resolution": "20",
        "tiles_overlap": "5",
        "seg_thresh": "0",
        "seg_small_segment": "0",
    }
    helper.set_model_props(other, settings)
    onnx.save(other, folder / "geodeep.onnx")


class Clock:
    """Seconds by the clock and of the processor, of this process, from now on."""

    def __init__(self) -> None:
        self._begun = time.perf_counter(), time.process_time()

    def read(self) -> dict[str, float]:
        """Return both."""
        wall, cpu = self._begun
        return {"seconds": time.perf_counter() - wall, "cpu_seconds": time.process_time() - cpu}


def thread_seconds() -> dict[str, float]:
    """Return the processor time of each thread of this process, by number; empty if unknown."""
    tasks = Path("/proc/self/task")
    files = [task / "schedstat" for task in tasks.iterdir()] if tasks.exists() else []
    return {file.parent.name: int(file.read_text().split()[0]) / 1e9 for file in files if file.exists()}


def engine_alone(
    folder: Path, scene: Path, model: str, device: str = "cpu", how: str = "as chosen"
) -> dict[str, Any]:
    """The tiles of the scene, in memory, through the engine and nothing else; ONE if so asked."""
    from iic_geotools.tiling import TileGrid
    from iic_runtime import Segmenter

    segmenter = Segmenter(folder / model, device=device)  # type: ignore[arg-type]
    with rasterio.open(scene) as dataset:
        image = dataset.read(list(range(1, len(segmenter.card.bands) + 1)))
    _, height, width = image.shape
    grid = TileGrid(width, height, segmenter.spec.tile, segmenter.card.halo, segmenter.card.stride)
    image = image.astype(segmenter.card.dtype)
    tiles = [np.ascontiguousarray(image[:, *tile.read.slices])[None] for tile in grid]
    lanes = 1 if how == ONE else segmenter.spec.lanes
    engine = segmenter.engine if lanes == 1 else segmenter.lane_engine
    with ThreadPoolExecutor(lanes) as pool:
        list(pool.map(engine.run, tiles[:lanes], repeat(False)))
        clock = Clock()
        for result in pool.map(engine.run, tiles, repeat(False)):
            del result
        return {**clock.read(), "pixels": width * height}


def read_once(folder: Path, scene: Path, bands: str) -> dict[str, Any]:
    """Every pixel of the scene, a row of its blocks at a time, and nothing else."""
    clock = Clock()
    with rasterio.open(scene) as dataset:
        step, width, height = dataset.block_shapes[0][0], dataset.width, dataset.height
        for row in range(0, height, step):
            window = Window(0, row, width, min(step, height - row))
            dataset.read(list(range(1, int(bands) + 1)), window=window)
    return {**clock.read(), "pixels": width * height}


def write_once(folder: Path, scene: Path) -> dict[str, Any]:
    """The labels of the map that the last run has left, compressed like it."""
    with rasterio.open(folder / "map.tif") as dataset:
        labels, profile = dataset.read(1), dataset.profile
    clock = Clock()
    with rasterio.open(folder / "labels.tif", "w", **profile) as copy:
        copy.write(labels, 1)
    return {**clock.read(), "pixels": labels.size}


def end_to_end(folder: Path, scene: Path, model: str, device: str = "cpu", **options: Any) -> dict[str, Any]:
    """The command's function, file to file, the model's loading included."""
    from iic_runtime import Segmenter, segment_raster

    clock, before = Clock(), set(thread_seconds())
    segmenter = Segmenter(folder / model, device=device)  # type: ignore[arg-type]
    engine, in_calls = segmenter.lane_engine, []
    engine_threads = set(thread_seconds()) - before
    run = engine.run

    def timed_run(batch: Any, confidence: bool) -> Any:
        begun = time.thread_time()
        result = run(batch, confidence)
        in_calls.append(time.thread_time() - begun)
        return result

    engine.run = timed_run  # type: ignore[method-assign]
    summary = segment_raster(scene, folder / "map.tif", segmenter, match_gsd=False, overwrite=True, **options)
    figures = {**clock.read(), "pixels": summary.pixels, "tiles_run": summary.tiles_run}
    if device == "cpu":  # OpenVINO starts its threads later
        threads = thread_seconds()
        by_engine = sum(in_calls) + sum(threads.get(thread, 0.0) for thread in engine_threads)
        figures["engine_share"] = by_engine / figures["cpu_seconds"]
    return figures


def free_engine(folder: Path, scene: Path, tile: str) -> dict[str, Any]:
    """File to file on a GPU that takes no time: what limits a fast one."""
    from support.simulated_gpu import SimulatedGpu, nothing, on_simulated_gpu

    from iic_runtime import segment_raster

    gpu = SimulatedGpu(nothing)
    segmenter = on_simulated_gpu(folder / "four.onnx", gpu, tile=int(tile), batch=4)
    segmenter.engine.run(np.zeros((4, 4, 8, 8), np.uint8), False)
    gpu.batches.clear()
    before, clock = bytes_read(), Clock()
    summary = segment_raster(scene, folder / "map.tif", segmenter, match_gsd=False, overwrite=True)
    filled = sum(shape[0] for shape in gpu.batches) / (4 * len(gpu.batches))
    shapes = len({shape[1:] for shape in gpu.batches})
    times = (bytes_read() - before) / scene.stat().st_size
    return {**clock.read(), "pixels": summary.pixels, "times_read": times, "filled": filled, "shapes": shapes}


def decoding(folder: Path, scene: Path) -> dict[str, Any]:
    """Read the scene once, a row of blocks at a time into the same memory, by as many threads as there are cores."""
    with rasterio.Env(GDAL_NUM_THREADS="ALL_CPUS"), rasterio.open(scene) as dataset:
        rows = dataset.block_shapes[0][0]
        out = np.empty((dataset.count, rows, dataset.width), np.uint8)
        clock = Clock()
        for row in range(0, dataset.height, rows):
            window = Window(0, row, dataset.width, min(rows, dataset.height - row))
            dataset.read(window=window, out=out[:, : window.height])
        return {**clock.read(), "pixels": dataset.width * dataset.height}


def bytes_read() -> int:
    """The bytes that this process has read so far."""
    return int(Path("/proc/self/io").read_text().split("rchar:")[1].split()[0])


def free(folder: Path, scene: Path, repeats: int) -> None:
    """The table of the engine that takes no time."""
    jobs: list[tuple[str, ...]] = [("free", tile) for tile in ("512", "1024", "2048")]
    best = fastest([("decoding",), *jobs], folder, scene, repeats)
    alone = best.pop(("decoding",))
    million = alone["pixels"] / 1e6
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores; four cores by processor time")
    print(f"decoding alone: four cores {4 * million / alone['cpu_seconds']:.0f} Mpx/s")
    print(
        f"{'tile':>5}{'Mpx/s':>8}{'four cores':>12}{'of decoding':>13}{'file read':>11}{'slots filled':>14}"
        f"{'shapes':>8}"
    )
    for (_, tile), figures in best.items():
        share = alone["cpu_seconds"] / figures["cpu_seconds"]
        print(
            f"{tile:>5}{million / figures['seconds']:8.1f}{4 * million / figures['cpu_seconds']:12.0f}{share:13.2f}"
            f"{figures['times_read']:9.2f} x{figures['filled']:14.2f}{figures['shapes']:8d}"
        )


def simulated(folder: Path) -> None:
    """Throughput of a simulated GPU against its slowest stage."""
    from support.simulated_gpu import SimulatedGpu, nothing, on_simulated_gpu

    from iic_geotools.scene.scene import Pixels
    from iic_geotools.tiling import Rect, Tile

    rect = Rect(0, 0, 512, 512)
    group = [(Tile(rect, rect), Pixels(np.zeros((4, 512, 512), np.uint8), None))] * 4
    print(
        f"{'in, compute, out (ms a batch)':<32}{'one lane':>10}{'three':>8}   of the slowest stage's throughput"
    )
    for seconds in ((0.01, 0.1, 0.005), (0.1, 0.1, 0.1), (0.1, 0.05, 0.02), (0.02, 0.05, 0.1)):
        shares = []
        for lanes in (1, 3):
            segmenter = on_simulated_gpu(
                folder / "four.onnx", SimulatedGpu(nothing, seconds), tile=512, batch=4, lanes=lanes
            )
            clock, count = Clock(), 60
            for _ in segmenter.label([group] * count, 4 * count, confidence=False):
                pass
            shares.append(count * max(seconds) / clock.read()["seconds"])
        print(
            f"{', '.join(f'{1000 * each:g}' for each in seconds):<32}{shares[0]:10.2f}{shares[1]:8.2f}",
            flush=True,
        )


def with_geodeep(folder: Path, scene: Path) -> dict[str, Any]:
    """GeoDeep, file to file, with the 5x5 median filter it always applies."""
    import geodeep
    from geodeep.segmentation import save_mask_to_raster

    clock = Clock()
    mask = geodeep.segment(str(scene), str(folder / "geodeep.onnx"))
    save_mask_to_raster(str(scene), mask, str(folder / "geodeep.tif"))
    return {**clock.read(), "pixels": int(mask.size)}


def measure(function: str, *arguments: object) -> dict[str, Any]:
    """Run a function of this file in a process of its own; add its peak memory."""
    command = [sys.executable, __file__, "--run", function, *map(str, arguments)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


def run_here(function: str, folder: str, scene: str, *more: str) -> None:
    """What `measure` starts."""
    from iic_runtime.engine.base import peak_memory

    functions = {"engine": engine_alone, "end": end_to_end, "geodeep": with_geodeep}
    functions |= {"read": read_once, "write": write_once}
    functions |= {"free": free_engine, "decoding": decoding}
    figures = functions[function](Path(folder), Path(scene), *more)  # type: ignore[operator]
    figures["peak_mb"] = peak_memory() / 1e6
    print(json.dumps(figures))


def head(text: str) -> None:
    """The head of the table."""
    print(f"{text}; load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    print(f"{'':<40}{'Mpx/s':>8}{'ratio':>8}{'CPU s/Mpx':>11}{'ratio':>8}{'engine share':>14}{'MB':>7}")


def row(name: str, figures: dict[str, Any], against: dict[str, Any]) -> None:
    """One line of the table."""
    million = figures["pixels"] / 1e6
    wall, cpu = (against[key] / figures[key] for key in ("seconds", "cpu_seconds"))
    share = f"{figures['engine_share']:14.3f}" if "engine_share" in figures else " " * 14
    print(
        f"{name:<40}{million / figures['seconds']:8.2f}{wall:8.2f}{figures['cpu_seconds'] / million:11.3f}{cpu:8.2f}"
        f"{share}{figures['peak_mb']:7.0f}",
        flush=True,
    )


def limit(
    engine: dict[str, Any], best: dict[tuple[str, ...], dict[str, Any]], read: tuple[str, ...]
) -> dict[str, Any]:
    """What a run takes at least: the engine's time, and reading and writing spread over all cores."""
    rest = best[read]["cpu_seconds"] + best["write",]["cpu_seconds"]
    seconds = engine["seconds"] + rest / (os.cpu_count() or 1)
    return {**engine, "seconds": seconds, "cpu_seconds": engine["cpu_seconds"] + rest}


def fastest(
    jobs: list[tuple[str, ...]], folder: Path, scene: Path, repeats: int
) -> dict[tuple[str, ...], dict[str, Any]]:
    """The best of a few runs of each job, taken in turns so that all see the same machine."""
    best: dict[tuple[str, ...], dict[str, Any]] = {}
    for _ in range(repeats):
        for job in jobs:
            figures = measure(job[0], folder, scene, *job[1:])
            known = best.setdefault(job, figures)
            for key in ("seconds", "cpu_seconds"):
                known[key] = min(known[key], figures[key])
            if "engine_share" in figures:
                known["engine_share"] = max(known["engine_share"], figures["engine_share"])
    return best


ENGINES = ("cpu", "openvino") if find_spec("openvino") else ("cpu",)
NAMES = {"cpu": "ONNX Runtime", "openvino": "OpenVINO"}


def bundled(folder: Path, scene: Path, repeats: int) -> None:
    """Speed and memory of the models that come with the package."""
    from iic_runtime.model.select import bundled_models

    head("relative to ONNX Runtime alone")
    for model in bundled_models():
        file = str(model.path)
        single = ("engine", file, "cpu", ONE)
        pairs = [[("engine", file, device), ("end", file, device)] for device in ENGINES]
        best = fastest([single, *chain(*pairs)], folder, scene, repeats)
        base = best["engine", file, "cpu"]
        row(f"{model.card.name}, engine alone, {ONE}", best[single], base)
        for device in ENGINES:
            row(f"{model.card.name}, {NAMES[device]} alone", best["engine", file, device], base)
            row(f"{model.card.name}, {NAMES[device]}, file to file", best["end", file, device], base)


def sentinel2(folder: Path, side: int, repeats: int) -> None:
    """A tile of Sentinel-2 with the model `satellite`, from a COG and from JPEG 2000."""
    from iic_runtime.model.select import find_model

    head(f"{side**2 / 1e6:.0f} Mpx, 4 bands of 16 bits, satellite; relative to the engine alone")
    model = str(find_model("satellite").path)
    alone, end, read, write = ("engine", model), ("end", model), ("read", "4"), ("write",)
    for name, suffix in (("COG", ".tif"), ("JPEG 2000", ".jp2")):
        scene = make_tile(folder / f"tile{suffix}", side)
        best = fastest([alone, end, read, write], folder, scene, repeats)
        row(f"{name}: engine alone, tiles in memory", best[alone], best[alone])
        row(f"{name}: iic-segment-raster, file to file", best[end], best[alone])
        row(f"{name}: limit", limit(best[alone], best, read), best[alone])


def throughput(folder: Path, scene: Path, repeats: int) -> None:
    """The table of the benchmark."""
    alone, single = ("engine", "four.onnx"), ("engine", "four.onnx", "cpu", ONE)
    four, geodeep = ("end", "four.onnx"), ("geodeep",)
    three = {device: ("end", "three.onnx", device) for device in ENGINES}
    read, write = ("read", "4"), ("write",)
    jobs: list[tuple[str, ...]] = [alone, single, four, read, write, *three.values()]
    jobs += [geodeep] if find_spec("geodeep") else []
    best = fastest(jobs, folder, scene, repeats)
    engine = best[alone]
    head(f"{engine['pixels'] / 1e6:.0f} Mpx, 4 bands, compressed; relative to the engine alone")
    row("engine alone, tiles in memory", engine, engine)
    row(f"the same, {ONE}", best[single], engine)
    row("iic-segment-raster, file to file", best[four], engine)
    row("limit", limit(engine, best, read), engine)
    for device in ENGINES:
        row(f"the same, 3 bands, {NAMES[device]}", best[three[device]], engine)
    if geodeep in best:
        row("GeoDeep, 3 bands", best[geodeep], engine)
        for device in ENGINES:
            faster = best[geodeep]["seconds"] / best[three[device]]["seconds"]
            print(f"{NAMES[device]}, 3 bands: {faster:.2f} times the speed of GeoDeep")


def memory(folder: Path, sides: tuple[int, ...]) -> None:
    """Peak memory as the scene grows."""
    for side in sides:
        scene = make_scene(folder / "scene.tif", side)
        figures = measure("end", folder, scene, "tiny.onnx")
        megapixels = side * side / 1e6
        speed = megapixels / figures["seconds"]
        print(f"{megapixels:8.0f} Mpx {figures['peak_mb']:8.0f} MB {speed:8.2f} Mpx/s")
        sys.stdout.flush()


def sparse(folder: Path) -> None:
    """A mosaic of 100 Gpx of which 0.1 % is data, next to the same data without the empty part."""
    side, piece = 316_228, 1024
    tile = make_scene(folder / "piece.tif", piece)
    with rasterio.open(tile, "r+") as dataset:
        dataset.nodata = 0
    rng = np.random.default_rng(0)
    places = [(int(c) * piece, int(r) * piece) for c, r in rng.choice(side // piece, (95, 2), replace=True)]
    empty = _mosaic(folder / "sparse.vrt", tile, side, places)
    dense = _mosaic(
        folder / "dense.vrt", tile, 10 * piece, [(i % 10 * piece, i // 10 * piece) for i in range(95)]
    )
    for name, scene in (("dense", dense), ("sparse", empty)):
        figures = measure("end", folder, scene, "four.onnx")
        print(
            f"{name:<8}{figures['tiles_run']:6d} tiles run {figures['seconds']:8.1f} s "
            f"({figures['cpu_seconds']:.1f} s of processor time) {figures['peak_mb']:8.0f} MB"
        )


def start(folder: Path, repeats: int) -> None:
    """Processor time of help, of mapping each small example scene, and of importing the libraries alone."""
    examples = Path(__file__).parent.parent / "examples"
    code = "from iic_runtime.cli.segment_raster import main; main()"
    libraries = "importing rasterio and ONNX Runtime"
    commands = {libraries: ["import rasterio, onnxruntime"], "--help": [code, "--help"]}
    for scene in ("scene.tif", "sentinel2.tif"):
        name = f"mapping examples/{scene}"
        commands[name] = [code, str(examples / scene), str(folder / "map.tif"), "-q", "--overwrite"]
    least = dict.fromkeys(commands, float("inf"))
    for _ in range(repeats):
        for name, arguments in commands.items():
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            subprocess.run([sys.executable, "-c", *arguments], check=True, capture_output=True)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            taken = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            least[name] = min(least[name], taken)
    print(f"the least of {repeats} runs; load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    for name, seconds in least.items():
        print(f"{name:<38}{seconds:6.2f} s of processor time{seconds / least[libraries]:7.1f} x")


def _mosaic(path: Path, tile: Path, side: int, places: list[tuple[int, int]]) -> Path:
    from iic_geotools.scene.info import open_raster

    with open_raster(str(tile)) as dataset:
        wkt, kind = dataset.crs.to_wkt(), 'dataType="Byte"'
    bands = []
    for band, name in enumerate(("red", "green", "blue", "nir"), 1):
        sources = "".join(
            f"<SimpleSource><SourceFilename>{tile}</SourceFilename><SourceBand>{band}</SourceBand>"
            f'<SrcRect xOff="0" yOff="0" xSize="1024" ySize="1024"/>'
            f'<DstRect xOff="{col}" yOff="{row}" xSize="1024" ySize="1024"/></SimpleSource>'
            for col, row in places
        )
        bands.append(
            f'<VRTRasterBand {kind} band="{band}"><Description>{name}</Description>'
            f"<NoDataValue>0</NoDataValue>{sources}</VRTRasterBand>"
        )
    head = f'<VRTDataset rasterXSize="{side}" rasterYSize="{side}"><SRS>{wkt}</SRS>'
    place = "<GeoTransform>500000, 0.2, 0, 5400000, 0, -0.2</GeoTransform>"
    path.write_text(f"{head}{place}{''.join(bands)}</VRTDataset>")
    return path


def main() -> None:
    """Parse the arguments and measure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--scene", type=Path, help="a 4-band uint8 scene; one is made by default")
    parser.add_argument("--side", type=int, help="side of the scene that is made")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--bundled", action="store_true")
    parser.add_argument("--sentinel2", action="store_true")
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--sides", type=int, nargs="+", default=[4000, 12_000, 40_000])
    parser.add_argument("--sparse", action="store_true")
    parser.add_argument("--start", action="store_true")
    parser.add_argument("--free-engine", action="store_true")
    parser.add_argument("--simulated-gpu", action="store_true")
    parser.add_argument("--run", nargs="+", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.run:
        run_here(*arguments.run)
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_models(folder)
        from support.tiny_onnx import make_model

        (folder / "tiny.onnx").write_bytes(make_model(full=(4,), half=((4, 1),)))
        if arguments.memory:
            memory(folder, tuple(arguments.sides))
        elif arguments.sparse:
            sparse(folder)
        elif arguments.sentinel2:
            sentinel2(folder, arguments.side or 10_980, arguments.repeats)
        elif arguments.start:
            start(folder, arguments.repeats)
        elif arguments.simulated_gpu:
            simulated(folder)
        else:
            scene = arguments.scene or make_scene(folder / "scene.tif", arguments.side or 6144)
            table = bundled if arguments.bundled else free if arguments.free_engine else throughput
            table(folder, scene, arguments.repeats)


if __name__ == "__main__":
    main()
