"""How tests read a scene."""

from pathlib import Path

import numpy as np

from iic_geotools.scene.scene import SceneSource


def make_source(path: Path, bidx: tuple[int, ...] = (1, 2, 3, 4), **changes: object) -> SceneSource:
    """Read bands as bytes, all of them data unless `changes` say otherwise."""
    settings = {"dtype": "uint8", "nodata": None, "masked": False, "fill": (0.0,) * len(bidx)} | changes
    return SceneSource(str(path), bidx, **settings)  # type: ignore[arg-type]


def noise(bands: int = 4, height: int = 40, width: int = 60) -> np.ndarray:
    """Random bytes without 0 and 255."""
    return np.random.default_rng(0).integers(1, 255, (bands, height, width)).astype(np.uint8)
