"""Width of a network against how good it is on places left out and how fast it runs, for `bundled.py widths`."""

import io
import time
from dataclasses import replace

import numpy as np
import onnxruntime
import torch

from iic_train.config import TrainConfig
from iic_train.models.networks import Network

TILE = 512
"""Side of a tile's core in pixels, as on CPUs."""
REPEATS = 5
WIDTHS: dict[str, dict[str, tuple[int, ...]]] = {
    "aerial": {
        "half as wide": (16, 8, 0, 12, 24, 32, 48),
        "as bundled": (32, 16, 0, 24, 48, 64, 96),
        "twice as wide on coarse grids": (32, 16, 0, 24, 64, 128, 128),
        "one grid more": (32, 16, 0, 24, 48, 64, 96, 96),
        "one grid less": (32, 16, 0, 24, 48, 64),
        "a grid of all pixels instead": (32, 16, 16, 32, 48, 64),
    },
    "satellite": {
        "half as wide": (16, 8, 8, 16, 24),
        "as bundled": (32, 16, 16, 32, 48),
        "a wider path of one pixel": (64, 32, 16, 32, 48),
        "one grid more": (32, 16, 16, 32, 48, 64),
        "twice as wide": (64, 32, 32, 64, 96),
    },
}
"""What is compared: widths of the two layers that see one pixel, and then of each grid of the context."""


def with_widths(config: TrainConfig, widths: tuple[int, ...]) -> TrainConfig:
    """Return a config with other widths of the network."""
    return replace(config, network=replace(config.network, widths=widths))


def describe_speed(config: TrainConfig) -> str:
    """Return the reach, the size and the speed of a network: pixels of tiles' cores per second of one core."""
    network = Network(config.network).eval()
    side = TILE + 2 * network.halo
    reflectance = config.data.rescale == "reflectance"
    dtype = torch.int16 if reflectance else torch.uint8
    pixels = torch.zeros(1, len(config.network.channels), side, side, dtype=dtype)
    buffer = io.BytesIO()
    torch.onnx.export(network, (pixels,), buffer, input_names=["image"], dynamo=False)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(buffer.getvalue(), options)
    image = (
        np.random.default_rng(0)
        .integers(0, 4000 if reflectance else 255, pixels.shape)
        .astype(pixels.numpy().dtype)
    )
    seconds = []
    for _ in range(REPEATS):
        started = time.process_time()
        session.run(None, {"image": image})
        seconds.append(time.process_time() - started)
    speed = TILE**2 / 1e6 / min(seconds)
    return f"sees {network.receptive_field} px | {len(buffer.getvalue()) / 1e6:.2f} MB | {speed:.2f} Mpx/s"
