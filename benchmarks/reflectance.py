"""How well reflectance is estimated for scenes of unknown stretch.

    python benchmarks/reflectance.py DATA [--model MODEL]

Scenes of known reflectance under DATA/pool are stretched to 8 bits, each band by its own percentiles or all by the
same, and estimated again. Printed are the error of the ends of the bands in reflectance, and the share of the pixels
that MODEL (by default the bundled `satellite`) labels as in the scene of known reflectance. Next to it: the estimate by
typical percentiles, one gain for all bands, which was used before. The mixture behind the estimate is fitted again for
every scene, without the folder that the scene is in.
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import rasterio
from numpy.typing import NDArray

from iic_geotools.scene.radiometry import robust_ranges
from iic_geotools.scene.spectra import BANDS, TYPICAL_REFLECTANCE, World, fit_world
from iic_research.spectra import fit_spectra, read_places
from iic_runtime import Segmenter

SCENES = (
    "s2_ftw/*window0", "s2_rondonia/*20LLQ*", "s2_rondonia/*20LMR*", "s2_california_rcv/*2020*", "s2_dsen2/*iran*",
    "s2_dsen2/S2B*", "s2_opengeos_cog/*", "s2_worldcereal_belgium/*", "landsat_ontario/*", "landsat8_chesapeake/*",
    "landsat7_gewata/*", "hls_terratorch/*",
)  # fmt: skip
SIDE = 700
Estimate = Callable[[NDArray[Any]], tuple[NDArray[Any], NDArray[Any]]]


def by_world(world: World) -> Estimate:
    """Estimate gains and offsets as the product does, by spectra that hold none of the scene."""

    def estimate(values: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        gains, offsets = fit_world(values, robust_ranges(values), BANDS, world)
        return np.array(gains), np.array(offsets)

    return estimate


def by_percentiles(values: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Put the dark ends where they typically are, with one gain for all bands."""
    low, high = np.array(robust_ranges(values)).T
    dark, bright = np.array([TYPICAL_REFLECTANCE[name] for name in BANDS]).T
    gain = float(np.exp(np.log((bright - dark) / (high - low)).mean()))
    return np.full(4, gain), dark - gain * low


def stretch(true: NDArray[Any], common: bool) -> NDArray[np.uint8]:
    """Stretch reflectance to 1..255 by percentiles, of all bands together or of each."""
    low, high = np.percentile(true, (2, 98), axis=(1, 2))[..., None, None]
    if common:
        low, high = low.min(), high.max()
    return np.asarray(np.clip((true - low) / (high - low) * 254 + 1, 1, 255).round(), np.uint8)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path)
    parser.add_argument("--model", default="satellite")
    options = parser.parse_args()
    segmenter = Segmenter(options.model)
    names = ("world", "percentiles")
    shares: dict[str, list[float]] = {name: [] for name in names}
    places = read_places(options.data)
    worlds: dict[str, World] = {}
    print(f"{'scene':44}{'stretch':>9}" + "".join(f"{name + ': error, same':>26}" for name in names))
    for pattern in SCENES:
        folder = pattern.split("/")[0]
        if folder not in worlds:
            worlds[folder] = fit_spectra(places, [folder])
        estimates = (by_world(worlds[folder]), by_percentiles)
        path = sorted((options.data / "pool").glob(f"{pattern}_rgbn.tif"))[0]
        with rasterio.open(path) as dataset:
            true = dataset.read(window=((0, SIDE), (0, SIDE))).clip(0).astype(np.float32) / 1e4
        reference = segmenter(true, reflectance=(1.0, 0.0)).labels
        for common in (False, True):
            values = stretch(true, common)
            cells = []
            for name, estimate in zip(names, estimates, strict=True):
                gains, offsets = estimate(values.reshape(4, -1)[:, ::7])
                again = (values * gains[:, None, None] + offsets[:, None, None]).astype(np.float32)
                labels = segmenter(again, reflectance=(1.0, 0.0)).labels
                shares[name].append(float((labels == reference).mean()))
                cells.append(f"{np.abs(again - true).mean():>18.3f}{shares[name][-1]:>8.1%}")
            print(f"{path.stem[:43]:44}{'one' if common else 'per band':>9}" + "".join(cells), flush=True)
    print("mean share of equal labels: " + ", ".join(f"{k} {np.mean(v):.1%}" for k, v in shares.items()))


if __name__ == "__main__":
    main()
