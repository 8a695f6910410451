"""Model files: ONNX with the card in the metadata, TensorRT engines with the card in a JSON file beside them."""

import json
import os
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from hashlib import sha256
from pathlib import Path

from iic_geotools.errors import ModelError, UsageError
from iic_geotools.files import write_atomically
from iic_runtime.model.card import CARD_KEY, Card
from iic_runtime.model.onnx_external_data import refuse_external_data
from iic_runtime.model.onnx_metadata import read_metadata, with_metadata

ENGINE_SUFFIX = ".engine"


@dataclass(frozen=True)
class EngineFacts:
    """What a TensorRT engine was built with and for.

    Attributes:
        tensorrt: Version of TensorRT that built it.
        gpu: Name of the GPU that built it.
        capability: Compute capability of that GPU, e.g. "8.6".
        portable: Whether later versions of TensorRT and other GPUs since Ampere can run it too.
        tile: Side of the largest tile that it takes, without halo.
        batch: Largest number of tiles that it takes at once.
        sha256: Hash of the engine file.
    """

    tensorrt: str
    gpu: str
    capability: str
    portable: bool
    tile: int
    batch: int
    sha256: str

    def fit(self, tile: int | None, batch: int | None) -> tuple[int, int]:
        """Return the tile and batch to run, by default those that the engine was built for.

        Raises:
            UsageError: The engine was built for less.
        """
        for name, value, largest in (("tile", tile, self.tile), ("batch", batch, self.batch)):
            if value is not None and value > largest:
                raise UsageError(
                    f"The engine was built for a `{name}` of {largest} at most, not {value}; export it again for more."
                )
        return tile or self.tile, batch or self.batch


@dataclass(frozen=True)
class ModelFile:
    """A model file that was read and whose card is valid.

    Attributes:
        path: Where it was read from.
        content: The bytes of the file.
        card: The model card.
        engine: What a TensorRT engine was built with and for; None for an ONNX file.
    """

    path: Path
    content: bytes
    card: Card
    engine: EngineFacts | None = None

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the file, which ties a map to the model that made it."""
        return sha256(self.content).hexdigest()

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> "ModelFile":
        """Read a model file.

        Raises:
            ModelError: The file is missing, is not a model, or has no valid card.
        """
        path = Path(path)
        try:
            content = path.read_bytes()
        except OSError as error:
            raise ModelError(f"Cannot read the model {path} ({error.strerror}); check the path.") from error
        return cls.parse(path, content)

    @classmethod
    def parse(cls, path: Path, content: bytes) -> "ModelFile":
        """Make sense of the content of a model file; the card of an engine is read from the file beside it.

        Raises:
            ModelError: The content is not a model, or there is no valid card.
        """
        try:
            if path.suffix.lower() == ENGINE_SUFFIX:
                return cls(path, content, *_read_engine_card(path, content))
            metadata = read_metadata(content)
            if CARD_KEY not in metadata:
                raise ModelError("it has no card; export it with iic-export")
            refuse_external_data(content)
            return cls(path, content, Card.from_json(metadata[CARD_KEY]))
        except ModelError as error:
            reason = str(error)[:1].lower() + str(error)[1:].rstrip(".")
            raise ModelError(f"{path} cannot be used as a model: {reason}.") from error


def put_card(model: bytes, card: Card) -> bytes:
    """Return an ONNX model with `card` in its metadata; other metadata is kept."""
    return with_metadata(model, {**read_metadata(model), CARD_KEY: card.to_json()})


def write_card(path: str | os.PathLike[str], card: Card) -> None:
    """Replace the card of a model file; graph and weights stay as they are."""
    write_model(Path(path), replace(ModelFile.read(path), card=card))


def write_model(path: Path, model: ModelFile) -> None:
    """Write a model with its present card; for an engine that stays where it is, only the card is written."""
    if model.engine is None:
        write_atomically(path, put_card(model.content, model.card))
        return
    if path != model.path:
        write_atomically(path, model.content)
    write_engine_card(path, model.card, model.engine)


def engine_card_path(path: Path) -> Path:
    """Return where the card of an engine is: `model.engine.json` beside `model.engine`."""
    return path.with_name(f"{path.name}.json")


def write_engine_card(path: Path, card: Card, facts: EngineFacts) -> None:
    """Write the card and the facts of an engine beside it."""
    record = {"card": json.loads(card.to_json()), "engine": asdict(facts)}
    write_atomically(engine_card_path(path), json.dumps(record, indent=1, ensure_ascii=False).encode())


def _read_engine_card(path: Path, content: bytes) -> tuple[Card, EngineFacts]:
    card_path = engine_card_path(path)
    try:
        record = json.loads(card_path.read_text())
        facts = EngineFacts(**record["engine"])
        card = Card.from_json(json.dumps(record["card"]))
    except OSError as error:
        raise ModelError(f"its card {card_path.name} is not beside it; copy both files") from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        if isinstance(error, ModelError):
            raise
        raise ModelError(f"its card {card_path.name} is damaged ({error}); export it again") from error
    if facts.sha256 != sha256(content).hexdigest():
        raise ModelError(f"its card {card_path.name} is that of another engine; copy both files")
    return card, facts
