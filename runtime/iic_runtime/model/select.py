"""Which model labels which scene: one that is named, or the bundled one made for the scene's ground resolution.

A model is bundled by being in the folder `data`; all that is known about it is in its card.

**The model exported to the working directory** is used there if no other is named. `iic-export`
leaves the record `.iic-export.json` next to a model that it writes to the working directory. Commands and functions
that run in this directory without a named model then use that file, as long as it is the one that was written and
its task is theirs. Models that are written elsewhere leave no record, and other directories have none.
"""

import json
import logging
import math
import os
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import cache
from hashlib import sha256
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

import numpy as np
from affine import Affine

from iic_geotools.errors import ModelError, UsageError, assume
from iic_geotools.files import write_atomically
from iic_geotools.geobox import GeoBox
from iic_geotools.scene.info import SceneInfo
from iic_geotools.settings import checked
from iic_runtime.model.card import Card, Task
from iic_runtime.model.file import ModelFile

_LOG = logging.getLogger(__name__)
MODEL_VARIABLE = "IIC_MODEL"
INDEX_VARIABLE = "IIC_MODEL_INDEX"
"""The environment variable that names the collection in which models are looked for by name."""
FOLDER: Traversable = files("iic_runtime.model") / "data"
Model = str | os.PathLike[str] | ModelFile
# A model that was trained at one resolution tolerates this much more or less.
RESOLUTION_TOLERANCE = 0.25
# A range is meant as it is, but the size of a pixel depends a little on how and where in the scene it is measured.
RANGE_TOLERANCE = 0.05

LARGEST_DEGREES, METRES_PER_DEGREE = 0.01, 111_320.0
SMALLEST_METRES, LARGEST_METRES = 0.005, 2000.0
"""Sizes of pixels that a transform without a CRS may state."""

RECORD = ".iic-export.json"
"""Name of the record, in the working directory."""
MAX_RECORD = 1 << 16


@cache
def bundled_models() -> tuple[ModelFile, ...]:
    """Return the bundled models, those for the smallest pixels first."""
    if not FOLDER.is_dir():
        return ()
    models = [
        ModelFile.parse(Path(str(entry)), entry.read_bytes(), trusted=True)
        for entry in FOLDER.iterdir()
        if entry.name.endswith(".onnx")
    ]
    return tuple(sorted(models, key=lambda model: resolution_range(model.card) or (math.inf, math.inf)))


def is_bundled(path: Path) -> bool:
    """Return whether a file is one of the bundled models."""
    return path.resolve() in {model.path.resolve() for model in bundled_models()}


@checked
def find_model(model: Model | None, task: Task | None = None) -> ModelFile:
    """Return the model that is named, or else the one that the environment variable `IIC_MODEL` names.

    Args:
        model: A model file, by its path, its https:// address or already read, or the name of a bundled model or of
            one in the collection that the environment variable `IIC_MODEL_INDEX` names. A file of that name takes
            precedence, then a bundled model. What is elsewhere is downloaded once and kept (`get_model`).
        task: If no model is named, take the one for this task that was exported to the working directory.

    Raises:
        UsageError: No model is named.
        ModelError: There is no such model, or it cannot be read.
    """
    named = _named_model(model, task)
    if named is not None:
        return named
    if task == "clustering" or not bundled_models():
        raise _no_model()
    raise UsageError(
        "No model is named, and an array has no ground resolution to choose one by: name "
        f"{_bundled_names()}, or a file."
    )


def choose_bundled(pixel_size: float) -> ModelFile:
    """Return the bundled model made for pixels of this size in metres, or else the nearest."""

    def distance(model: ModelFile) -> tuple[float, float]:
        low, high = resolution_range(model.card) or (math.inf, math.inf)
        return resolution_misfit(model.card, pixel_size), abs(math.log(pixel_size / math.sqrt(low * high)))

    return min(bundled_models(), key=distance)


def _choose_without_crs(info: SceneInfo) -> ModelFile:
    """Return the bundled model that the transform or else the data type of a scene suggests, and warn of it."""
    size = _likely_size(info.grid)
    if size is not None:
        model = choose_bundled(size)
        assume(
            f"{info.title} has no CRS: by its transform its pixels are taken to measure {size:.3g} m, and the model "
            f"{model.card.name} is taken. Override with `model`."
        )
        return model
    bits, models = np.dtype(info.dtypes[0]).itemsize * 8, bundled_models()
    finest, coarsest = models[0], models[-1]
    model = finest if bits == 8 else coarsest
    reason = f"because its values have {bits} bits"
    known = resolution_range(model.card)
    purpose = "" if known is None else f", which is for {format_resolution(known)},"
    assume(
        f"{info.title} has no ground resolution (no CRS or no transform): the model {model.card.name}"
        f"{purpose} is taken, {reason}. Override with `model`."
    )
    return model


class ModelSelector:
    """Selects the model that labels a scene.

    Args:
        model: As in `find_model`. If no model is named, the one that was exported to the working directory labels
            all scenes; without such an export each scene gets the bundled one that fits it.

    Raises:
        ModelError: There is no such model, or it cannot be read.
        UsageError: No model is named, and none is bundled.
    """

    def __init__(self, model: Model | None = None) -> None:
        self.named = _named_model(model, "segmentation")
        if self.named is None and not bundled_models():
            raise _no_model()

    def for_scene(self, info: SceneInfo) -> ModelFile:
        """Return the model for a scene.

        Raises:
            ModelError: The model that is named cannot be read.
        """
        if self.named is not None:
            return self.named
        size = ground_resolution(info.grid)
        if size is None:
            return _choose_without_crs(info)
        model = choose_bundled(size)
        known = resolution_range(model.card)
        purpose = "" if known is None else f"for {format_resolution(known)}; "
        _LOG.info("Model: %s (%sthe scene has %.3g m)", model.card.name, purpose, size)
        return model


def ground_resolution(grid: GeoBox) -> float | None:
    """Return the side in metres of a square as large as a pixel at the scene's centre; None if it is unknown."""
    if grid.transform == Affine.identity():  # a sign of no georeference
        return None
    return grid.pixel_side


def _likely_size(grid: GeoBox) -> float | None:
    """Return the side of a pixel in metres if a transform without a CRS looks like one of metres or degrees."""
    left, top = abs(grid.transform.c), abs(grid.transform.f)
    side = math.sqrt(abs(grid.transform.determinant))
    if grid.crs is not None or max(left, top) <= max(grid.width, grid.height) * side:
        return None  # counted from a corner of the picture
    if left <= 180 and top <= 90 and side < LARGEST_DEGREES:
        return side * METRES_PER_DEGREE * math.sqrt(math.cos(math.radians(top)))
    return side if left > 180 and SMALLEST_METRES < side < LARGEST_METRES else None


def resolution_range(card: Card) -> tuple[float, float] | None:
    """Return the sizes of the smallest and the largest pixel, in metres, that a model is made for; None if unknown."""
    if card.gsd_range is not None:
        return card.gsd_range
    return None if card.gsd is None else (card.gsd, card.gsd)


def format_resolution(sizes: tuple[float, float]) -> str:
    """Format a range of pixel sizes: "0.2 to 1 m"."""
    low, high = sizes
    return f"{low:g} m" if low == high else f"{low:g} to {high:g} m"


def resolution_misfit(card: Card, size: float) -> float:
    """Return how far pixels of `size` metres are from those that a model is made for.

    The misfit is the logarithm of the ratio to the nearest end of the model's range; 0 if the model is made for them.
    """
    known = resolution_range(card)
    if known is None:
        return math.inf
    tolerance = RESOLUTION_TOLERANCE if card.gsd_range is None else RANGE_TOLERANCE
    beyond = max(math.log(known[0] / size), math.log(size / known[1]))
    return beyond if beyond > math.log1p(tolerance) else 0.0


def matching_size(card: Card, size: float | None) -> float | None:
    """Return the pixel size in metres at which a scene suits the model; None if the card does not say."""
    if card.gsd_range is None or size is None:
        return card.gsd
    return min(max(size, card.gsd_range[0]), card.gsd_range[1])


def describe_misfit(card: Card, size: float | None) -> str | None:
    """Return a warning, without a full stop, about pixels that a model is not made for; None if it is."""
    known = resolution_range(card)
    if size is None or known is None or not resolution_misfit(card, size):
        return None
    return (
        f"The scene's pixels measure {size:.3g} m, but the model {card.name} is made for {format_resolution(known)}, "
        "so the map may be poor"
    )


def _named_model(model: Model | None, task: Task | None) -> ModelFile | None:
    if isinstance(model, ModelFile):
        return model
    name = os.fspath(model or os.environ.get(MODEL_VARIABLE) or "")
    if not name:
        return None if task is None else exported_model(task)
    return _get_model(name) if "://" in name else _local_model(name)


def _local_model(name: str) -> ModelFile:
    """Return the file or the bundled model of a name, or else what a collection has under it."""
    try:
        is_file = Path(name).is_file()
    except (OSError, ValueError) as error:  # a name that is too long, or no name at all
        raise ModelError(f"Cannot read the model {name[:80]!r}...: check the path.") from error
    if is_file:
        return ModelFile.read(name)
    bundled = {file.card.name: file for file in bundled_models()}
    if name in bundled:
        return bundled[name]
    if os.environ.get(INDEX_VARIABLE):
        return _get_model(name)
    if bundled and not Path(name).exists():
        raise ModelError(
            f"Cannot read the model {name}: there is no such file, and the bundled models are {', '.join(bundled)}."
        )
    return ModelFile.read(name)


def _get_model(name: str) -> ModelFile:
    from iic_runtime.model.remote.cache import get_model  # imports what downloads, which few runs need

    return get_model(name)


def _bundled_names() -> str:
    return " or ".join(model.card.name for model in bundled_models())


def _no_model() -> UsageError:
    return UsageError(f"No model is named: give a file as `model`, or set {MODEL_VARIABLE}.")


@dataclass(frozen=True)
class Record:
    """What was exported to a folder.

    Attributes:
        model: Name of the model file in this folder.
        sha256: Digest of that file.
        run: The run folder that it was exported from.
        exported: Time of the export, UTC, in ISO 8601.
    """

    model: str
    sha256: str
    run: str
    exported: str

    @property
    def age(self) -> str:
        """Time since the export, in words."""
        seconds = (datetime.now(UTC) - datetime.fromisoformat(self.exported)).total_seconds()
        for unit, length in (("day", 86_400), ("hour", 3_600), ("minute", 60)):
            if seconds >= length:
                count = int(seconds // length)
                return f"{count} {unit}{'s' if count > 1 else ''} ago"
        return "less than a minute ago"


def record_export(model: Path, run: Path) -> bool:
    """Record a model that was exported to the working directory; return False for one that is elsewhere."""
    if model.absolute().parent != Path.cwd():
        return False
    record = Record(
        model.name,
        sha256(model.read_bytes()).hexdigest(),
        str(run),
        datetime.now(UTC).isoformat(timespec="seconds"),
    )
    write_atomically(Path(RECORD), json.dumps(asdict(record), indent=1).encode())
    return True


def exported_model(task: Task) -> ModelFile | None:
    """Return the model that was exported to the working directory, and log that it is used.

    Raises:
        ModelError: The file is the one that was written, but cannot be used as a model.
    """
    record = _read_record()
    if record is None or not Path(record.model).is_file():
        return None
    content = Path(record.model).read_bytes()
    if sha256(content).hexdigest() != record.sha256:
        _LOG.warning(
            "%s has changed since iic-export wrote it, so it is not used unless it is named: `model` %s.",
            *(record.model, record.model),
        )
        return None
    file = ModelFile.parse(Path(record.model), content)
    if file.card.task != task:
        labels = "whole images" if task == "segmentation" else "pixels"
        _LOG.info("%s, exported here %s, labels %s: it is not used", record.model, record.age, labels)
        return None
    # None of the bundled models labels whole images.
    bundled = task == "segmentation" and bundled_models()
    instead = f"; `model` {_bundled_names()} for a bundled one" if bundled else ""
    _LOG.info("Model: %s, exported here %s from %s%s", record.model, record.age, record.run, instead)
    return file


def _read_record() -> Record | None:
    """Return the record of the working directory; None if there is none that makes sense."""
    path = Path(RECORD)
    try:
        if path.stat().st_size > MAX_RECORD:
            return None
        content = json.loads(path.read_bytes())
        record = Record(**{name: str(content[name]) for name in ("model", "sha256", "run", "exported")})
        in_folder = record.model == Path(record.model).name and record.run.isprintable()
        has_time = datetime.fromisoformat(record.exported).tzinfo is not None
        return record if in_folder and has_time else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
