"""Whether an engine gives the labels of ONNX Runtime, in any tiling: measured on first use, and recorded.

Engines sum in different orders, and some compute in a lower precision unless configured otherwise. What a map may
rely on is therefore measured, once per model, version and processor. The record says whether labels are equal, and
whether the engine is faster.
"""

import json
import logging
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from iic_geotools import __version__
from iic_geotools.errors import DeviceError
from iic_geotools.files import cache_folder, write_atomically
from iic_geotools.tiling import TileGrid
from iic_runtime.engine.base import Engine, LabelArray, describe_cpu
from iic_runtime.model.card import Card
from iic_runtime.model.file import ModelFile

MIN_AGREEMENT = 0.9999
"""Share of labels that must be equal for an engine that was asked for: the bound that float32 has at export."""
MIN_SPEED = 1.1
"""How many times as fast an engine must be to be preferred without being asked for."""
TRIAL_SIDE = 256
PATCH = 16
REPEATS = 3
RECORDS = "parity"
_LOG = logging.getLogger(__name__)
Run = Callable[[NDArray[Any]], tuple[LabelArray, LabelArray]]
"""An engine as a function: an image [bands, H, W] to its labels and confidence [H, W]."""


@dataclass(frozen=True)
class EngineParity:
    """How an engine compares with ONNX Runtime on the same pixels.

    Attributes:
        pixels: Number of pixels compared.
        labels_differing: Number of labels that differ.
        confidence_difference: Largest difference in the confidence, of 255.
        tiles_equal: Whether the engine's labels and confidence in tiles equal those of the whole image bit for bit.
        speed: How many times as fast as ONNX Runtime it was.
    """

    pixels: int
    labels_differing: int
    confidence_difference: int
    tiles_equal: bool
    speed: float

    @property
    def equal(self) -> bool:
        """Whether maps are the same; confidence may be rounded to the neighbouring number."""
        return self.tiles_equal and self.labels_differing == 0 and self.confidence_difference <= 1

    @property
    def preferred(self) -> bool:
        """Whether the engine is worth taking without being asked for: equal, and faster."""
        return self.equal and self.speed >= MIN_SPEED

    def check(self, engine: str, name: str) -> None:
        """Refuse an engine that does not give the map of a model."""
        if not self.tiles_equal:
            raise DeviceError(
                f"{engine} gives the model {name} other labels in tiles than on the whole image, so maps would "
                "depend on `tile`; use `device` cpu."
            )
        if self.labels_differing > (1 - MIN_AGREEMENT) * self.pixels:
            raise DeviceError(
                f"{engine} gives {self.labels_differing} of {self.pixels} labels of the model {name} that differ "
                "from ONNX Runtime's; use `device` cpu."
            )


def prove(engine: Engine, reference: Callable[[], Engine], model: ModelFile, package: str) -> EngineParity:
    """Return how an engine compares with ONNX Runtime: the record, or else a measurement that is then recorded.

    Args:
        reference: Opens the same model on ONNX Runtime; called only if nothing is recorded.
        package: The Python package of the engine, whose version the record is for.
    """
    parity = recorded_parity(model, package)
    if parity is None:
        _LOG.info("Comparing %s with ONNX Runtime on this machine, once for this model.", engine.provider)
        parity = measure_parity(engine, reference(), model.card)
        _record(parity, model, package)
    return parity


def recorded_parity(model: ModelFile, package: str) -> EngineParity | None:
    """Return what was measured before on this machine, with these versions; None if nothing was."""
    if not (cache_folder() / RECORDS).is_dir():
        return None
    file = _record_file(model, package)
    try:
        return None if file is None else EngineParity(**json.loads(file.read_bytes()))
    except (OSError, ValueError, TypeError):  # not there, or not whole: it is measured again
        return None


def _record(parity: EngineParity, model: ModelFile, package: str) -> None:
    file = _record_file(model, package)
    if file is None:
        return
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, json.dumps(asdict(parity), indent=1).encode())
    except OSError as error:
        _LOG.debug("The comparison cannot be recorded in %s (%s).", file, error)


def _record_file(model: ModelFile, package: str) -> Path | None:
    # Imported here, because it takes longer than most modules, and few runs need it.
    from importlib.metadata import PackageNotFoundError, version

    try:
        versions = [__version__, f"{package} {version(package)}"]
    except PackageNotFoundError:
        return None
    key = "\n".join([model.digest, *versions, describe_cpu()])
    return cache_folder() / RECORDS / f"{sha256(key.encode()).hexdigest()[:24]}.json"


def measure_parity(engine: Engine, reference: Engine, card: Card) -> EngineParity:
    """Run two engines on the same made image, half noise and half patches, and the first one also in tiles."""
    side = max(TRIAL_SIDE, 2 * card.halo + 4 * card.stride + 33)
    image = trial_image(card, side + 1, side, np.random.default_rng(0))
    run, run_reference = as_function(engine), as_function(reference)
    expected, actual = run_reference(image), run(image)
    tiled = run_in_tiles(run, image, TileGrid(side, side + 1, side // 3, card.halo, card.stride))
    distance = np.abs(expected[1].astype(int) - actual[1].astype(int))
    return EngineParity(
        pixels=int(actual[0].size),
        labels_differing=int((expected[0] != actual[0]).sum()),
        confidence_difference=int(distance.max()),
        tiles_equal=all(np.array_equal(a, b) for a, b in zip(actual, tiled, strict=True)),
        speed=_compare_speed(engine, reference, image),
    )


def _compare_speed(engine: Engine, reference: Engine, image: NDArray[Any]) -> float:
    """Return how many times as fast an engine labels an image, by the best of a few runs in turns."""
    seconds: dict[str, list[float]] = {"engine": [], "reference": []}
    for _ in range(REPEATS):
        for name, candidate in (("engine", engine), ("reference", reference)):
            begun = time.perf_counter()
            candidate.run(image[None], False)
            seconds[name].append(time.perf_counter() - begun)
    return min(seconds["reference"]) / max(min(seconds["engine"]), 1e-9)


def as_function(engine: Engine) -> Run:
    """Return an engine as a function of one image."""

    def run(image: NDArray[Any]) -> tuple[LabelArray, LabelArray]:
        labels, confidence = engine.run(image[None], True)
        if confidence is None:
            raise DeviceError(f"{engine.provider} gives no confidence; use another `device`.")
        return labels[0], confidence[0]

    return run


def noise(card: Card, height: int, width: int, rng: "np.random.Generator") -> NDArray[Any]:
    """Return noise over the range of values that a model was trained on."""
    return _scale(card, rng.random((len(card.bands), height, width)))


def trial_image(card: Card, height: int, width: int, rng: "np.random.Generator") -> NDArray[Any]:
    """Return an image whose left half is noise, and whose right half consists of noisy patches."""
    bands = len(card.bands)
    fine = rng.random((bands, height, width))
    patches = rng.random((bands, -(-height // PATCH), -(-width // PATCH)))
    coarse = patches.repeat(PATCH, 1).repeat(PATCH, 2)[:, :height, :width]
    fine[:, :, width // 2 :] = 0.9 * coarse[:, :, width // 2 :] + 0.1 * fine[:, :, width // 2 :]
    return _scale(card, fine)


def _scale(card: Card, unit: NDArray[np.float64]) -> NDArray[Any]:
    bands = [low + (high - low) * band for band, (low, high) in zip(unit, card.value_range, strict=True)]
    values = np.stack(bands)
    if np.issubdtype(np.dtype(card.dtype), np.integer):
        limits = np.iinfo(card.dtype)
        values = values.clip(limits.min, limits.max)
    return values.astype(card.dtype)


def run_in_tiles(run: Run, image: NDArray[Any], tiles: TileGrid) -> tuple[LabelArray, LabelArray]:
    """Label an image in tiles, each read with its halo."""
    _, height, width = image.shape
    out = np.zeros((height, width), np.uint8), np.zeros((height, width), np.uint8)
    for tile in tiles:
        for target, values in zip(out, run(image[:, *tile.read.slices]), strict=True):
            target[tile.core.slices] = values[tile.crop]
    return out
