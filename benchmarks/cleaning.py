"""Memory and speed of cleaning maps, and of polygons, as maps grow.

    python benchmarks/cleaning.py                                # cleaning of speckled fields and of noise
    python benchmarks/cleaning.py --kinds fields --sides 32768   # at 1 Gpx
    python benchmarks/cleaning.py --polygons                     # polygons, of the map as it is and merged

Every measurement runs in a process of its own, so that peak memory is its own. `above` is what the work itself takes:
the peak less what the process has after importing everything and opening the map. Speed is per second of processor
time, so that it means the same on a busy machine. Pixels are 1 m. "parcels" are
fields without speckle, as after cleaning; "noise" has six classes; in "holes" one class covers
two thirds of the pixels at random, all of them one region with as many holes as there can be.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import rasterio
from rasterio.transform import from_origin
from rasterio.windows import Window

from iic_geotools.classmap.classes import MapClass, distinct_colours
from iic_geotools.classmap.sidecars import sidecar, sidecar_path
from iic_geotools.errors import IICError

CLASSES = [MapClass(f"class {index}", colour) for index, colour in enumerate(distinct_colours(6))]
PATCH = 1024


CELLS = ((64, 4.0), (16, 1.5), (2, 1.0), (1, 0.6))
"""Side in pixels and weight of the squares that fields are made of."""


def make_fields(rng: np.random.Generator, cells: Sequence[tuple[int, float]] = CELLS) -> np.ndarray:
    """Fields of some 50 px with ragged borders, and speckle: what a segmentation of imagery looks like."""
    scores = np.zeros((len(CLASSES), PATCH, PATCH), np.float32)
    for cell, weight in cells:
        coarse = rng.normal(size=(len(CLASSES), PATCH // cell, PATCH // cell)).astype(np.float32)
        scores += weight * coarse.repeat(cell, 1).repeat(cell, 2)
    return scores.argmax(0).astype(np.uint8)


def make_map(path: Path, kind: str, side: int) -> Path:
    """A map of one kind, written block by block."""
    rng = np.random.default_rng(0)
    fields = make_fields(rng, CELLS[:2] if kind == "parcels" else CELLS)
    layout = {"tiled": True, "blockxsize": 512, "blockysize": 512, "compress": "lzw", "bigtiff": "if_safer"}
    profile = {"driver": "GTiff", "count": 1, "dtype": "uint8", "nodata": 255, "crs": "EPSG:32631"}
    place = from_origin(500000, 5400000, 1, 1)
    with rasterio.open(path, "w", width=side, height=side, transform=place, **profile, **layout) as dataset:
        for row in range(0, side, PATCH):
            for col in range(0, side, PATCH):
                shift = tuple(rng.integers(0, PATCH, 2).tolist())
                noise = rng.integers(0, len(CLASSES), (PATCH, PATCH), dtype=np.uint8)
                shifted = np.roll(fields, shift, (0, 1))
                block = {"fields": shifted, "parcels": shifted, "noise": noise, "holes": noise // 4}[kind]
                width, height = min(PATCH, side - col), min(PATCH, side - row)
                dataset.write(block[:height, :width], 1, window=Window(col, row, width, height))
    sidecar_path(path).write_bytes(sidecar(CLASSES))
    return path


def peak_mb() -> float:
    """Peak memory of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(work: str, path: Path, options: dict[str, Any]) -> dict[str, Any]:
    """Do one piece of work on a map, in this process."""
    from iic_geotools.products.cleaning import clean_map
    from iic_geotools.products.polygons import polygonise

    with rasterio.open(path) as dataset:
        pixels = dataset.width * dataset.height
    before, begun, refusal = peak_mb(), time.process_time(), ""
    try:
        if work == "clean":
            clean_map(path, path.with_name("clean.tif"), overwrite=True, **options)
        else:
            polygonise(path, path.with_name("polygons.gpkg"), CLASSES, **options)
    except IICError as error:
        refusal = str(error)
    seconds = time.process_time() - begun
    return {
        "speed": pixels / 1e6 / seconds,
        "peak": peak_mb(),
        "above": peak_mb() - before,
        "refusal": refusal,
    }


def run(work: str, path: Path, options: dict[str, Any]) -> dict[str, Any]:
    """Do one piece of work in a process of its own."""
    command = [sys.executable, __file__, "--measure", json.dumps([work, str(path), options])]
    result = subprocess.run(command, check=True, capture_output=True, text=True)
    return dict(json.loads(result.stdout.splitlines()[-1]))


def report(work: str, kinds: Sequence[str], sides: Sequence[int], ways: Sequence[dict[str, Any]]) -> None:
    """Print a table of measurements."""
    print(f"{'map':8} {'Mpx':>7} {'options':28} {'Mpx/s':>7} {'peak MB':>8} {'above MB':>9}")
    with tempfile.TemporaryDirectory() as folder:
        for kind in kinds:
            for side in sides:
                path = make_map(Path(folder) / "map.tif", kind, side)
                for options in ways:
                    row = run(work, path, options)
                    text = " ".join(f"{key}={value}" for key, value in options.items()) or "as it is"
                    print(
                        f"{kind:8} {side * side / 1e6:7.1f} {text:28} {row['speed']:7.2f} {row['peak']:8.0f} "
                        f"{row['above']:9.0f} {row['refusal']}",
                        flush=True,
                    )


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sides", type=int, nargs="+", help="sides of the maps in pixels")
    parser.add_argument(
        "--kinds", nargs="+", choices=["fields", "parcels", "noise", "holes"], help="kinds of maps"
    )
    parser.add_argument("--polygons", action="store_true", help="polygons instead of cleaning")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        work, path, options = json.loads(arguments.measure)
        print(json.dumps(measure(work, Path(path), options)))
    elif arguments.polygons:
        ways = [{}, {"min_area": 100.0, "simplify": 1.5}]
        kinds = arguments.kinds or ("fields", "parcels", "noise", "holes")
        report("polygons", kinds, arguments.sides or (1024, 4096), ways)
    else:
        ways = [{"majority": 1}, {"sieve": 20.0}, {"majority": 1, "sieve": 1000.0}]
        report("clean", arguments.kinds or ("fields", "noise"), arguments.sides or (2048, 8192), ways)


if __name__ == "__main__":
    main()
