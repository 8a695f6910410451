"""How long a click takes in the studio: from the click to the updated view, on scenes of several sizes.

    python benchmarks/studio.py                 # 0.2 to 64 Mpx
    python benchmarks/studio.py --sides 512 16384

The example scene is repeated, mirrored, up to each size, and written as a tiled GeoTIFF with overviews. A view of
1024 x 768 pixels is opened in its middle and taught five classes with 40 clicks. What is timed is what the page waits
for: the click is saved, the head is fitted again, and all tiles of the view are labelled, four requests at a time as a
browser sends them. CPU time counts all threads: on a busy machine it says more than the clock. The full fit, which
begins after a pause in the clicks, is left out.
"""

import argparse
import logging
import shutil
import statistics
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import rasterio
from rasterio.enums import Resampling

from iic_runtime.studio import Session, live
from iic_runtime.studio.live import LiveSession
from iic_runtime.studio.tiles import TILE, TileAddress

EXAMPLE = Path(__file__).resolve().parent.parent / "examples" / "scene.tif"
VIEW = 1024, 768
CLICKS = 40
NAMES = ("water", "trees", "fields", "town", "gravel")


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sides", type=int, nargs="+", default=[515, 2048, 8192])
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)
    live.IDLE = 1e9
    print("| scene | open | first view | click to view, median | slowest | CPU time of a click, median |")
    print("|---|---|---|---|---|---|")
    for side in arguments.sides:
        folder = Path(tempfile.mkdtemp())
        try:
            print(row(make_scene(folder / "scene.tif", side)), flush=True)
        finally:
            shutil.rmtree(folder)


def make_scene(path: Path, side: int) -> Path:
    """Write the example, repeated up to a size; 515 is the example itself."""
    with rasterio.open(EXAMPLE) as source:
        image, profile = source.read(), source.profile
        descriptions = source.descriptions
    if side != image.shape[2]:
        image = np.concatenate([image, image[:, ::-1]], 1)
        image = np.concatenate([image, image[:, :, ::-1]], 2)
        repeats = -(-side // image.shape[1]), -(-side // image.shape[2])
        image = np.tile(image, (1, *repeats))[:, :side, :side]
    profile |= {"height": image.shape[1], "width": image.shape[2], "tiled": True, "compress": "deflate"}
    profile |= {"blockxsize": 512, "blockysize": 512}
    with rasterio.open(path, "w", **profile) as target:
        target.write(image)
        target.descriptions = descriptions
        target.build_overviews([2, 4, 8, 16, 32], Resampling.average)
    return path


def row(scene: Path) -> str:
    """Teach a scene and return a row of the table."""
    begun = time.perf_counter()
    page = LiveSession(Session(scene))
    opened = time.perf_counter() - begun
    info = page.scene()
    width, height = info["width"], info["height"]
    left, top = max(0, (width - VIEW[0]) // 2), max(0, (height - VIEW[1]) // 2)
    right, bottom = min(width, left + VIEW[0]), min(height, top + VIEW[1])
    tiles = [
        TileAddress(0, column, line)
        for line in range(top // TILE, -(-bottom // TILE))
        for column in range(left // TILE, -(-right // TILE))
    ]
    rng = np.random.default_rng(0)
    walls, processors, first = [], [], 0.0
    with ThreadPoolExecutor(4) as pool:
        for number in range(CLICKS):
            place = float(rng.uniform(left + 1, right - 1)), float(rng.uniform(top + 1, bottom - 1))
            wall, processor = time.perf_counter(), time.process_time()
            page.act("add", {"name": NAMES[number % len(NAMES)], "places": [place]})
            list(pool.map(lambda tile: page.tile("taught", tile), tiles))
            if number == 1:  # the first fit, and the features of the view
                first = time.perf_counter() - wall
            elif number > 1:
                walls.append(time.perf_counter() - wall)
                processors.append(time.process_time() - processor)
    page.close()
    cells = (
        f"{width} x {height}, {len(tiles)} tiles",
        f"{opened:.1f} s",
        f"{first:.1f} s",
        f"{statistics.median(walls):.2f} s",
        f"{max(walls):.2f} s",
        f"{statistics.median(processors):.2f} s",
    )
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
