"""One trained run and its model, shared by the tests of the export room: training and tracing take seconds."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import rasterio
import torch
from rasterio.transform import from_origin

torch.set_num_threads(1)

BANDS = ("red", "green", "blue", "nir")


def fields(height, width, seed=0):
    """A scene of dark smooth and bright rough squares, uint8 [4, H, W], and which is which."""
    rng = np.random.default_rng(seed)
    bright = np.kron(rng.integers(0, 2, (-(-height // 24), -(-width // 24))), np.ones((24, 24)))
    bright = bright[:height, :width].astype(bool)
    texture = rng.normal(0, 1, (4, height, width))
    values = np.where(bright, 165 + 30 * texture, 70 + 8 * texture)
    return np.clip(values, 1, 254).astype(np.uint8), bright


def write_raster(path, values, **profile):
    settings = {
        "driver": "GTiff",
        "count": len(values),
        "height": values.shape[1],
        "width": values.shape[2],
        "dtype": values.dtype,
        "crs": "EPSG:32631",
        "transform": from_origin(500000, 5400000, 0.5, 0.5),
    } | profile
    with rasterio.open(path, "w", **settings) as out:
        out.write(values)
        if len(values) == 4:
            out.descriptions = BANDS
    return path


@dataclass(frozen=True)
class Trained:
    """A run on a made scene."""

    run: Path
    scene: Path
    bright: np.ndarray


def train_on(scene, runs, name="fields", **changes):
    from iic_train.config import DataConfig, TrainConfig
    from iic_train.loop import train
    from iic_train.networks import NetworkConfig
    from iic_train.pairs import DensePairs
    from iic_train.photometry import Photometry

    network = {"name": "edge-8", "channels": BANDS, "clusters_b": 3, "clusters_a": 5, "sub_heads": 2}
    network |= changes.pop("network", {})
    settings = {
        "preset": "fields",
        "data": DataConfig("rasters", scenes=(str(scene),)),
        "network": NetworkConfig(**network),
        "pairs": DensePairs(Photometry(all_brightness=0.1), flip_vertical=0.5, turn=0.5),
        "size": 24,
        "epochs": 2,
        "batch": 8,
        "steps": 6,
        "lr": 3e-3,
        "radius": 1,
        "selection_steps": 2,
    }
    return train(TrainConfig(**(settings | changes)), runs=runs, name=name, device="cpu", quiet=True)


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("export")
    values, bright = fields(151, 173)
    scene = write_raster(folder / "scene.tif", values)
    run = train_on(scene, folder / "runs")
    return Trained(run.path, scene, bright)


@pytest.fixture(scope="session")
def exported(trained, tmp_path_factory):
    """The run's model file, with probabilities."""
    from iic_export import export

    return export(
        trained.run,
        tmp_path_factory.mktemp("model") / "model.onnx",
        probabilities=True,
        attribution="made for tests",
        licence="CC0-1.0",
    )
