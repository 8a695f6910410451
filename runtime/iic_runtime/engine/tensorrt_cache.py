"""Options of ONNX Runtime's TensorRT provider: the shapes that it builds engines for, and where it keeps them."""

from collections.abc import Sequence
from hashlib import sha256
from importlib.metadata import distributions

from iic_geotools.files import cache_folder
from iic_runtime.engine.gpu import describe_gpus
from iic_runtime.model.card import Card


def provider_options(card: Card, digest: str, batch: int, side: int) -> dict[str, str]:
    """Return the options of the TensorRT provider: one profile from a single pixel to the largest batch, and a cache.

    An engine fits one model, one set of versions, one GPU and one range of shapes. The name of its folder depends on
    all of them, so that no stale engine is ever loaded.

    Args:
        card: The card of the model.
        digest: The digest of the model file.
        batch: Largest number of tiles that are run at once.
        side: Largest side of a tile, halo included.
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
    profile = {
        f"trt_profile_{name}_shapes": f"image:{_format_shape(shape)}" for name, shape in shapes.items()
    }
    return {
        **profile,
        "trt_engine_cache_enable": "True",
        "trt_engine_cache_path": str(folder),
        "trt_timing_cache_enable": "True",
        "trt_timing_cache_path": str(folder),
    }


def _format_shape(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape))


def _versions() -> list[str]:
    """Return the versions of the packages that build and load engines."""
    names = ("onnxruntime", "tensorrt")
    versions = {
        f"{package.metadata['Name']} {package.version}"
        for package in distributions()
        if (package.metadata["Name"] or "").lower().startswith(names)
    }
    return sorted(versions)
