"""End to end against the engine alone, and against GeoDeep, on one scene; and memory as scenes grow.

    python benchmarks/segment.py [--scene SCENE.tif] [--side 6144]   # throughput and memory
    python benchmarks/segment.py --bundled [--scene SCENE.tif]       # the bundled models: speed and memory
    python benchmarks/segment.py --memory                            # peak memory from 16 Mpx to 1.6 Gpx
    python benchmarks/segment.py --sparse                            # 100 Gpx, 0.1 % of it data
    python benchmarks/segment.py --start                             # processor time of commands that do little

Every measurement runs in a process of its own, so that peak memory is its own; ratios are what counts.
GeoDeep (`pip install geodeep`) is left out where it is not installed.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import rasterio
from rasterio.transform import from_origin
from rasterio.windows import Window

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

NETWORK: dict[str, Any] = {"full": (8, 16), "half": ((32, 1), (32, 1), (64, 2), (64, 2)), "classes": 3}
GEODEEP_TILE = 512


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


def engine_alone(folder: Path, scene: Path, model: str) -> dict[str, Any]:
    """The tiles of the scene, in memory, through the engine and nothing else."""
    from iic_geotools.tiling import TileGrid
    from iic_runtime import Segmenter

    segmenter = Segmenter(folder / model, device="cpu")
    with rasterio.open(scene) as dataset:
        image = dataset.read(list(range(1, len(segmenter.card.bands) + 1)))
    _, height, width = image.shape
    grid = TileGrid(width, height, segmenter.spec.tile, segmenter.card.halo, segmenter.card.stride)
    image = image.astype(segmenter.card.dtype)
    tiles = [np.ascontiguousarray(image[:, *tile.read.slices])[None] for tile in grid]
    segmenter.engine.run(tiles[0], False)
    begun = time.perf_counter()
    for tile in tiles:
        segmenter.engine.run(tile, False)
    return {"seconds": time.perf_counter() - begun, "pixels": width * height}


def end_to_end(folder: Path, scene: Path, model: str, **options: Any) -> dict[str, Any]:
    """The command's function, file to file, the model's loading included."""
    from iic_runtime import segment_raster

    begun = time.perf_counter()
    summary = segment_raster(
        scene, folder / "map.tif", folder / model, device="cpu", match_gsd=False, overwrite=True, **options
    )
    return {"seconds": time.perf_counter() - begun, "pixels": summary.pixels, "tiles_run": summary.tiles_run}


def with_geodeep(folder: Path, scene: Path) -> dict[str, Any]:
    """GeoDeep, file to file, with the 5x5 median filter it always applies."""
    import geodeep
    from geodeep.segmentation import save_mask_to_raster

    begun = time.perf_counter()
    mask = geodeep.segment(str(scene), str(folder / "geodeep.onnx"))
    save_mask_to_raster(str(scene), mask, str(folder / "geodeep.tif"))
    return {"seconds": time.perf_counter() - begun, "pixels": int(mask.size)}


def measure(function: str, *arguments: object) -> dict[str, Any]:
    """Run a function of this file in a process of its own; add its peak memory."""
    command = [sys.executable, __file__, "--run", function, *map(str, arguments)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


def run_here(function: str, folder: str, scene: str, *more: str) -> None:
    """What `measure` starts."""
    figures = {"engine": engine_alone, "end": end_to_end, "geodeep": with_geodeep}[function](
        Path(folder), Path(scene), *more
    )  # type: ignore[operator]
    figures["cpu_seconds"] = time.process_time()
    figures["peak_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps(figures))


def row(name: str, figures: dict[str, Any], against: dict[str, Any]) -> None:
    """One line of the table."""
    speed = figures["pixels"] / 1e6 / figures["seconds"]
    ratio = against["seconds"] / figures["seconds"]
    print(f"{name:<34}{speed:8.2f} Mpx/s {ratio:8.2f} x {figures['peak_mb']:9.0f} MB")


def fastest(
    jobs: list[tuple[str, ...]], folder: Path, scene: Path, repeats: int
) -> dict[tuple[str, ...], dict[str, Any]]:
    """The best of a few runs of each job, taken in turns so that all see the same machine."""
    best: dict[tuple[str, ...], dict[str, Any]] = {}
    for _ in range(repeats):
        for job in jobs:
            figures = measure(job[0], folder, scene, *job[1:])
            if job not in best or figures["seconds"] < best[job]["seconds"]:
                best[job] = figures
    return best


def bundled(folder: Path, scene: Path, repeats: int) -> None:
    """Speed and memory of the models that come with the package."""
    from iic_runtime.model.select import bundled_models

    for model in bundled_models():
        file = str(model.path)
        best = fastest([("engine", file), ("end", file)], folder, scene, repeats)
        row(f"{model.card.name}, engine alone", best["engine", file], best["engine", file])
        row(f"{model.card.name}, file to file", best["end", file], best["engine", file])


def throughput(folder: Path, scene: Path, repeats: int) -> None:
    """The table of the benchmark."""
    jobs: list[tuple[str, ...]] = [("engine", "four.onnx"), ("end", "four.onnx"), ("end", "three.onnx")]
    if find_spec("geodeep"):
        jobs.append(("geodeep",))
    best = fastest(jobs, folder, scene, repeats)
    engine = best["engine", "four.onnx"]
    print(f"{engine['pixels'] / 1e6:.0f} Mpx, 4 bands, compressed; speed relative to the engine alone")
    row("engine alone, tiles in memory", engine, engine)
    row("iic-segment-raster, file to file", best["end", "four.onnx"], engine)
    row("the same, 3 bands", best["end", "three.onnx"], engine)
    if ("geodeep",) in best:
        row("GeoDeep, 3 bands", best[("geodeep",)], engine)


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
    """A mosaic of 100 Gpx of which 0.1 % is data, beside the same data without the emptiness."""
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
    """Processor time of a command's help, and of mapping each small example scene with its bundled model."""
    examples = Path(__file__).parent.parent / "examples"
    commands = {"--help": ["--help"]}
    for scene in ("scene.tif", "sentinel2.tif"):
        commands[f"examples/{scene}"] = [str(examples / scene), str(folder / "map.tif"), "-q", "--overwrite"]
    code = "from iic_runtime.cli.segment_raster import main; main()"
    for name, arguments in commands.items():
        seconds = []
        for _ in range(repeats):
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            subprocess.run([sys.executable, "-c", code, *arguments], check=True, capture_output=True)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            seconds.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        print(
            f"iic-segment-raster {name:<24}{min(seconds):6.2f} s of processor time, the least of {repeats} runs"
        )


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
    parser.add_argument("--side", type=int, default=6144, help="side of the scene that is made")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--bundled", action="store_true")
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--sides", type=int, nargs="+", default=[4000, 12_000, 40_000])
    parser.add_argument("--sparse", action="store_true")
    parser.add_argument("--start", action="store_true")
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
        elif arguments.start:
            start(folder, arguments.repeats)
        else:
            scene = arguments.scene or make_scene(folder / "scene.tif", arguments.side)
            (bundled if arguments.bundled else throughput)(folder, scene, arguments.repeats)


if __name__ == "__main__":
    main()
