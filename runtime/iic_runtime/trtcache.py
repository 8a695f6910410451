"""ONNX Runtime's TensorRT provider: its shapes, and where it keeps the engines it builds."""

import os
from collections.abc import Sequence
from hashlib import sha256
from importlib.metadata import distributions
from pathlib import Path

from iic_runtime.card import Card
from iic_runtime.gpu import describe_gpus

CACHE_VARIABLE = "IIC_CACHE"


def cache_folder() -> Path:
    """Where things are kept that can be made again: `IIC_CACHE`, else the user's cache folder."""
    given = os.environ.get(CACHE_VARIABLE)
    if given:
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "iic-edge"


def provider_options(card: Card, digest: str, batch: int, side: int) -> dict[str, str]:
    """Options of the TensorRT provider: one profile from a single pixel to the largest batch, and a cache.

    An engine fits one model, one set of versions, one GPU and one range of shapes; all of them name its folder, so
    that no stale engine is ever loaded.

    Args:
        card: Of the model.
        digest: The model file's hash.
        batch: Most tiles run at once.
        side: Longest side of what is run at once, halo included.
    """
    bands = len(card.bands)
    shapes = {
        "min": (1, bands, 1, 1),
        "opt": (batch, bands, side, side),
        "max": (batch, bands, side, side),
    }
    key = "\n".join([digest, *_versions(), describe_gpus(), str(sorted(shapes.items()))])
    folder = cache_folder() / "tensorrt" / sha256(key.encode()).hexdigest()[:24]
    folder.mkdir(parents=True, exist_ok=True)
    profile = {f"trt_profile_{name}_shapes": f"image:{_written(shape)}" for name, shape in shapes.items()}
    return {
        **profile,
        "trt_engine_cache_enable": "True",
        "trt_engine_cache_path": str(folder),
        "trt_timing_cache_enable": "True",
        "trt_timing_cache_path": str(folder),
    }


def _written(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape))


def _versions() -> list[str]:
    """Versions of what builds and loads engines."""
    names = ("onnxruntime", "tensorrt")
    found = {
        f"{found.metadata['Name']} {found.version}"
        for found in distributions()
        if (found.metadata["Name"] or "").lower().startswith(names)
    }
    return sorted(found)
