"""Check by running a model that it matches its card, and measure the memory it takes.

    python -m iic_runtime.model.validate MODEL

prints by how many bytes per pixel the peak memory grows when a model runs on a larger image. `memory_per_pixel` starts
that process, which holds nothing but the model.
"""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from iic_geotools.errors import ModelError
from iic_geotools.settings import checked
from iic_geotools.tiling import TileGrid
from iic_runtime.engine.base import peak_memory
from iic_runtime.engine.open_engine import open_engine
from iic_runtime.engine.parity import as_function, noise, run_in_tiles
from iic_runtime.model.file import ModelFile
from iic_runtime.model.select import Model, find_model
from iic_runtime.options import Device, EngineSettings

SMALL_SIDE, LARGE_SIDE = 32, 512
"""Sides of the two images whose peak memory is compared."""
MEMORY_STEP = 16
"""Bytes per pixel are rounded up to a multiple of this."""
MOST_PIXELS = 10**9
"""The most pixels that are run to check a model; one with a halo of 142 px takes 10 million."""
FP16_GAP = 1
"""Of 255, what the confidence of a tile may differ from that of the whole image in half precision: ONNX Runtime 1.31.1
rounds a few sums by where they lie in a row. Labels must be equal in every precision."""


@dataclass(frozen=True)
class Check:
    """A statement of the card, and whether the model meets it.

    Attributes:
        promise: The statement.
        kept: Whether the model meets it.
        detail: What was measured.
    """

    promise: str
    kept: bool
    detail: str = ""


@checked
def validate_model(model: Model, device: Device = "cpu", seed: int = 0) -> list[Check]:
    """Check graph and card of a model.

    Args:
        model: A model file, by its path or already read, or the name of a bundled model.
        device: The device to run it on; TensorRT engines always run on their own.

    Returns:
        One check per statement.

    Raises:
        ModelError: The file cannot be opened as a model at all.
    """
    file = find_model(model)
    card = file.card
    engine = open_engine(file, EngineSettings(device=device if file.engine is None else "tensorrt"))
    if card.task != "segmentation":
        return [Check("inputs and outputs match the card", True)]

    run = as_function(engine)
    side = 2 * card.halo + 2 * card.stride + 33
    # As small as the stride allows, but not many.
    tiles = TileGrid(side, side + 1, max(2 * card.stride + 7, side // 8), card.halo, card.stride)
    work = sum(tile.read.area for tile in tiles)
    if work > MOST_PIXELS:
        raise ModelError(
            f"{file.path} says that a halo of {card.halo} px around a tile matters; to check it, {work / 1e9:.1f} Gpx "
            f"would have to be run, and {MOST_PIXELS / 1e9:g} are the most."
        )
    image = noise(card, side + 1, side, np.random.default_rng(seed))
    # The engine itself refuses outputs of another shape or type, and labels that are not classes of the card.
    promise = "labels have the image's size, odd sides and single pixels too, and are classes of the card"
    try:
        whole, tiled = run(image), run_in_tiles(run, image, tiles)
        run(image[:, :1, :1])
    except ModelError as error:
        return [Check("inputs match the card", True), Check(promise, False, str(error))]
    gap = int(np.abs(whole[1].astype(np.int16) - tiled[1]).max())
    return [
        Check("inputs match the card", True),
        Check(promise, True, f"{whole[0].shape}, largest label {int(whole[0].max())}"),
        Check(
            "confidence is never 0", bool((whole[1] > 0).all()), f"lowest confidence {int(whole[1].min())}"
        ),
        Check(
            f"tiles with a halo of {card.halo} px at multiples of {card.stride} px equal the whole image",
            bool((whole[0] == tiled[0]).all()) and gap <= (FP16_GAP if card.precision == "fp16" else 0),
            f"{np.mean(whole[0] == tiled[0]):.4%} of labels equal, confidence differs by {gap} of 255 at most",
        ),
    ]


def check_matches_card(model: Model) -> None:
    """Refuse a model that was just made and does not match its card."""
    broken = [check for check in validate_model(model) if not check.kept]
    if broken:
        failures = "; ".join(f"not so: {check.promise} ({check.detail})" for check in broken)
        raise ModelError(f"The model does not keep what its card says, so nothing was written: {failures}.")


def memory_per_pixel(model: Path) -> int:
    """Bytes per pixel by which the peak memory grows with the size of the image, measured in a new process."""
    command = [sys.executable, "-m", "iic_runtime.model.validate", str(model)]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    if process.returncode:
        reason = (process.stderr.strip().splitlines() or ["killed"])[-1]
        raise ModelError(f"The model cannot be run to measure its memory ({reason}).")
    return max(MEMORY_STEP, -(-int(process.stdout) // MEMORY_STEP) * MEMORY_STEP)


def _print_memory_per_pixel(path: str) -> None:
    model = ModelFile.read(path)
    engine = open_engine(model, EngineSettings(device="cpu"))
    peaks = []
    for side in (SMALL_SIDE, LARGE_SIDE):
        engine.run(np.zeros((1, len(model.card.bands), side, side), model.card.dtype), True)
        peaks.append(peak_memory())
    sys.stdout.write(str((peaks[1] - peaks[0]) // (LARGE_SIDE**2 - SMALL_SIDE**2)))


if __name__ == "__main__":
    _print_memory_per_pixel(*sys.argv[1:])
