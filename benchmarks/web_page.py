"""Size of the page that `--web` writes, and peak memory of making it, for the worst input: noise, with 254 classes.

    python benchmarks/web_page.py [--side 2048 8192]

Every measurement runs in a process of its own, with a block cache of 64 MB as in a run on tiled files.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import rasterio
from rasterio.transform import from_origin
from rasterio.windows import Window

STRIP = 512
CACHE = 64 << 20


def write_noise(path: Path, side: int, bands: int, dtype: str, nodata: int | None) -> None:
    """Write a raster of noise, strip by strip."""
    rng = np.random.default_rng(0)
    profile = {
        "driver": "GTiff",
        "width": side,
        "height": side,
        "count": bands,
        "dtype": dtype,
        "tiled": True,
    }
    where = {"crs": "EPSG:32631", "transform": from_origin(500000, 5400000, 1, 1)}
    with rasterio.open(path, "w", **profile, **where, nodata=nodata) as dataset:
        for row in range(0, side, STRIP):
            noise = rng.integers(0, 254, (bands, min(STRIP, side - row), side)).astype(dtype)
            dataset.write(noise, window=Window(0, row, side, noise.shape[1]))


def peak_memory() -> int:
    """Return the most bytes that this process has taken; `getrusage` would count those of its parent too."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


def measure(folder: Path) -> None:
    """Make the page and print its size, and by how much it raised the peak of memory."""
    from iic_geotools.classmap.classes import MapClass, distinct_colours
    from iic_geotools.products.web.page import WebPage

    classes = [MapClass(f"class {index}", colour) for index, colour in enumerate(distinct_colours(254))]
    before = peak_memory()
    with rasterio.Env(GDAL_CACHEMAX=CACHE):
        page = WebPage(folder / "scene.tif", folder / "map.tif", classes, bidx=(1, 2, 3)).html()
    print(json.dumps({"page": len(page), "memory": peak_memory() - before}))


def main() -> None:
    """Measure scenes of several sizes and types."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--side", type=int, nargs="+", default=[2048, 8192])
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        measure(options.measure)
        return
    for side in options.side:
        for dtype in ("uint8", "float32"):
            with tempfile.TemporaryDirectory() as name:
                write_noise(Path(name) / "scene.tif", side, 3, dtype, None)
                write_noise(Path(name) / "map.tif", side, 1, "uint8", 255)
                command = [sys.executable, __file__, "--measure", name]
                result = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
            print(
                f"{side} x {side} px, {dtype}: page {result['page'] / 1e6:.1f} MB, "
                f"memory {result['memory'] / 1e6:.0f} MB, up to {CACHE / 1e6:.0f} MB of it GDAL's cache"
            )


if __name__ == "__main__":
    main()
