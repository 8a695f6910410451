"""How often each check of a finished map fires, on maps that are right and on maps that are wrong.

    python benchmarks/plausibility.py DATA [--chips N]

DATA holds the folder `pool` (docs/research/bundled-models.md). Chips of labelled sources that the bundled models
learn from are mapped as they are, and misread on purpose: ten times too bright, ten times too dark, and with the
bands in reverse order. A map is right if at least 70 % of its labelled pixels have their class, and wrong if less
than half of them have. The sources that judge the models are left out, so that thresholds are not chosen on them.
"""

import argparse
import tempfile
import warnings
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import rasterio
from numpy.typing import NDArray
from rasterio.transform import from_origin

from iic_runtime import segment_raster

SATELLITE = {
    "tree": (10, 95),
    "low vegetation": (20, 30, 40, 90, 100),
    "built-up": (50,),
    "bare": (60,),
    "water": (80,),
}
CHESAPEAKE = {"tree": (2,), "low vegetation": (3,), "built-up": (5, 6), "bare": (4,), "water": (1,)}
AERIAL = {"high vegetation": (2,), "low vegetation": (3,), "ground": (4, 6), "building": (5,), "water": (1,)}
SOURCES: tuple[tuple[str, float, str, dict[str, tuple[int, ...]]], ...] = (
    ("hls_worldcover", 30.0, "satellite", SATELLITE),
    ("landsat8_chesapeake", 30.0, "satellite", CHESAPEAKE),
    ("naip_chesapeake", 1.0, "aerial", AERIAL),
)
WAYS: dict[str, dict[str, dict[str, Any]]] = {
    "satellite": {
        "as it is": {"reflectance": (1e-4, 0.0)},
        "ten times too bright": {"reflectance": (1e-3, 0.0)},
        "ten times too dark": {"reflectance": (1e-5, 0.0)},
        "bands reversed": {"reflectance": (1e-4, 0.0), "bands": ["4", "3", "2", "1"]},
    },
    "aerial": {
        "as it is": {},
        "three times too dark": {"rescale": "0,765"},
        "bands reversed": {"bands": ["4", "3", "2", "1"]},
    },
}
CHECKS = {
    "one class": "of the map is",
    "green water": "NDVI",
    "foreign": "unlike",
    "gain": "times too",
    "unsure": "unsure",
}
RIGHT, WRONG = 0.7, 0.5
SIDE = 400


def chips(
    data: Path, source: str, metres: float, most: int, folder: Path
) -> Iterator[tuple[Path, NDArray[Any]]]:
    """Yield chips of a source as scenes with a place, and their labels."""
    paths = sorted((data / "pool" / source).glob("*_rgbn.tif"))
    step = max(1, len(paths) // most)
    for path in paths[::step][:most]:
        label = path.with_name(path.name.replace("_rgbn", "_label"))
        if not label.exists():
            continue
        with rasterio.open(path) as dataset, rasterio.open(label) as labels:
            window = ((0, min(SIDE, dataset.height)), (0, min(SIDE, dataset.width)))
            values, truth = dataset.read(window=window), labels.read(1, window=window)
            profile = {"driver": "GTiff", "count": 4, "dtype": values.dtype, "nodata": dataset.nodata}
        scene = folder / "scene.tif"
        shape = {"height": values.shape[1], "width": values.shape[2]}
        place = {"crs": "EPSG:32632", "transform": from_origin(500000, 5400000, metres, metres)}
        with rasterio.open(scene, "w", photometric="MINISBLACK", **profile, **shape, **place) as dataset:
            dataset.write(values)
            dataset.descriptions = ("red", "green", "blue", "nir")
        yield scene, truth


def accuracy(
    labels: NDArray[Any], truth: NDArray[Any], names: list[str], legend: dict[str, tuple[int, ...]]
) -> float:
    """Return the share of labelled pixels that have their class."""
    right = known = 0
    for name, codes in legend.items():
        here = np.isin(truth, codes) & (labels != 255)
        known += int(here.sum())
        right += int((labels[here] == names.index(name)).sum())
    return right / known if known else float("nan")


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path)
    parser.add_argument("--chips", type=int, default=40, help="chips of each source, at most")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    fired: dict[tuple[str, str, str], list[set[str]]] = defaultdict(list)
    for source, metres, model, legend in SOURCES:
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            for scene, truth in chips(arguments.data, source, metres, arguments.chips, folder):
                for way, options in WAYS[model].items():
                    summary = segment_raster(scene, folder / "map.tif", model, overwrite=True, **options)
                    with rasterio.open(folder / "map.tif") as dataset:
                        share = accuracy(
                            dataset.read(1), truth, [entry.name for entry in summary.classes], legend
                        )
                    state = "right" if share >= RIGHT else "wrong" if share < WRONG else "between"
                    doubts = " ".join(summary.notes)
                    fired[model, way, state].append(
                        {check for check, text in CHECKS.items() if text in doubts}
                    )
    print(f"{'model':10} {'read':22} {'map':8} {'maps':>4}  any  " + "  ".join(CHECKS))
    for (model, way, state), found in sorted(fired.items()):
        shares = [np.mean([bool(checks) for checks in found])]
        shares += [np.mean([check in checks for checks in found]) for check in CHECKS]
        cells = "  ".join(f"{100 * entry:3.0f} %" for entry in shares)
        print(f"{model:10} {way:22} {state:8} {len(found):4}  {cells}")


if __name__ == "__main__":
    main()
