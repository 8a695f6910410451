"""Opening a model file: bytes, card and hash, before any engine is asked."""

import os
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256
from pathlib import Path

from iic_geotools.errors import ModelError
from iic_geotools.files import write_atomically
from iic_runtime.card import CARD_KEY, Card
from iic_runtime.enginefile import EngineFacts, is_engine, read_side, write_side
from iic_runtime.onnxfile import read_metadata, with_metadata


@dataclass(frozen=True)
class ModelFile:
    """A model file that was read and whose card was understood; `engine` is there if it is a TensorRT engine."""

    path: Path
    content: bytes
    card: Card
    engine: EngineFacts | None = None

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the file: what ties a map to the model that made it."""
        return sha256(self.content).hexdigest()

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> "ModelFile":
        """Read a model file.

        Raises:
            ModelError: it is missing, is not ONNX, or has no card that can be read.
        """
        path = Path(path)
        try:
            content = path.read_bytes()
        except OSError as error:
            raise ModelError(f"Cannot read the model {path} ({error.strerror}); check the path.") from error
        return cls.parse(path, content)

    @classmethod
    def parse(cls, path: Path, content: bytes) -> "ModelFile":
        """Understand a model file that was read already; of an engine the card is read from beside it.

        Raises:
            ModelError: it is not ONNX, or has no card that can be read.
        """
        try:
            if is_engine(path):
                return cls(path, content, *read_side(path, content))
            metadata = read_metadata(content)
            if CARD_KEY not in metadata:
                raise ModelError("it has no card; export it with iic-export")
            return cls(path, content, Card.from_json(metadata[CARD_KEY]))
        except ModelError as error:
            reason = str(error)[:1].lower() + str(error)[1:].rstrip(".")
            raise ModelError(f"{path} cannot be used as a model: {reason}.") from error


def put_card(model: bytes, card: Card) -> bytes:
    """The model with `card` in its metadata, other metadata kept."""
    return with_metadata(model, {**read_metadata(model), CARD_KEY: card.to_json()})


def write_card(path: str | os.PathLike[str], card: Card) -> None:
    """Replace the card of a model file, graph and weights untouched."""
    write_model(Path(path), replace(ModelFile.read(path), card=card))


def write_model(path: Path, model: ModelFile) -> None:
    """Write a model with its card as it is now; of an engine that is where it was, only the card beside it."""
    if model.engine is None:
        write_atomically(path, put_card(model.content, model.card))
        return
    if path != model.path:
        write_atomically(path, model.content)
    write_side(path, model.card, model.engine)
