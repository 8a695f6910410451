"""The models that come with the package: by name, or by the ground resolution of what is to be mapped.

A model is bundled by being in the folder `models`; all that is known of it stands in its card.
"""

import math
import os
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

from iic_geotools.errors import ModelError, UsageError
from iic_runtime.modelfile import ModelFile
from iic_runtime.resolution import made_for, misfit

MODEL_VARIABLE = "IIC_MODEL"
FOLDER: Traversable = files("iic_runtime") / "models"
Model = str | os.PathLike[str] | ModelFile


@cache
def bundled_models() -> tuple[ModelFile, ...]:
    """The bundled models, those for the smallest pixels first; read when they are first asked for."""
    if not FOLDER.is_dir():
        return ()
    found = [
        ModelFile.parse(Path(str(entry)), entry.read_bytes())
        for entry in FOLDER.iterdir()
        if entry.name.endswith(".onnx")
    ]
    return tuple(sorted(found, key=lambda model: made_for(model.card) or (math.inf, math.inf)))


def choose(size: float) -> ModelFile:
    """The bundled model for pixels of `size` metres: the one made for them, else the nearest."""

    def farness(model: ModelFile) -> tuple[float, float]:
        low, high = made_for(model.card) or (math.inf, math.inf)
        return misfit(model.card, size), abs(math.log(size / math.sqrt(low * high)))

    return min(bundled_models(), key=farness)


def named_model(model: Model | None) -> ModelFile | None:
    """The model that was named or read before, else the one in the environment's `IIC_MODEL`, if any.

    A name is that of a file, or, where there is no such file, that of a bundled model.

    Raises:
        ModelError: there is no such model, or it cannot be read.
    """
    if isinstance(model, ModelFile):
        return model
    name = model or os.environ.get(MODEL_VARIABLE)
    if not name:
        return None
    if Path(name).is_file():
        return ModelFile.read(name)
    known = {each.card.name: each for each in bundled_models()}
    if os.fspath(name) in known:
        return known[os.fspath(name)]
    if known and not Path(name).exists():
        raise ModelError(
            f"Cannot read the model {name}: there is no such file, and the bundled models are {', '.join(known)}."
        )
    return ModelFile.read(name)


def find_model(model: Model | None) -> ModelFile:
    """As `named_model`, where one must be named.

    Raises:
        UsageError: None is.
    """
    found = named_model(model)
    if found is not None:
        return found
    if not bundled_models():
        raise nothing_named()
    raise UsageError(
        f"No model was named, and arrays have no ground resolution to choose one by: name {alternatives()}, or a file."
    )


def nothing_named() -> UsageError:
    """What is wrong where no model was named and none is bundled."""
    return UsageError(f"No model was named: give --model FILE or set {MODEL_VARIABLE}.")


def alternatives(prefix: str = "") -> str:
    """The names of the bundled models: "aerial or satellite"."""
    return " or ".join(prefix + each.card.name for each in bundled_models())


def is_bundled(path: Path) -> bool:
    """Whether a file is one of the bundled models."""
    return path.resolve() in {each.path.resolve() for each in bundled_models()}
