"""A map that is nearly empty: our writer against GDAL's COG driver with SPARSE_OK, seconds of CPU.

    python benchmarks/sparse_map.py [SIDE PARTS]

The map has SIDE x SIDE pixels, of which PARTS squares of 2048 px hold data.
"""

import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import rasterio
from affine import Affine
from rasterio.crs import CRS

from iic_geotools.classmap import cog
from iic_geotools.classmap.classes import MapClass
from iic_geotools.geobox import GeoBox
from iic_geotools.tiling import Rect

PART = 2048


def write_parts(folder: Path, side: int, count: int) -> list[tuple[Path, Rect]]:
    """Write parts with patches of five classes, and place them at random."""
    numbers = np.random.default_rng(0)
    parts = []
    for index in range(count):
        path = folder / f"part{index}.tif"
        patches = np.kron(numbers.integers(0, 5, (64, 64), dtype=np.uint8), np.ones((32, 32), np.uint8))
        with rasterio.open(path, "w", **cog.part_profile(PART, PART)) as dataset:
            dataset.write(patches, 1)
        col, row = (int(place) * PART for place in numbers.integers(0, side // PART, 2))
        parts.append((path, Rect(col, row, PART, PART)))
    return parts


def main() -> None:
    """Print the seconds of both writers."""
    side, count = (int(text) for text in sys.argv[1:3]) if len(sys.argv) > 2 else (102_400, 8)
    grid = GeoBox(side, side, Affine(0.5, 0, 500_000, 0, -0.5, 5_000_000), CRS.from_epsg(32631))
    classes = [MapClass(name, "#112233") for name in "abcde"]
    with tempfile.TemporaryDirectory() as folder:
        parts = write_parts(Path(folder), side, count)
        seconds = {}
        for name, many_blocks in (("ours", cog.MANY_BLOCKS), ("GDAL", 1 << 60)):
            cog.MANY_BLOCKS = many_blocks
            begun = time.process_time()
            cog.assemble(parts, Path(folder, f"{name}.tif"), grid, classes=classes)
            seconds[name] = time.process_time() - begun
    ratio = seconds["GDAL"] / seconds["ours"]
    print(
        f"{side**2 / 1e9:.0f} Gpx: {seconds['ours']:.2f} s, GDAL {seconds['GDAL']:.2f} s, {ratio:.1f} times"
    )


if __name__ == "__main__":
    main()
