"""Model files: ONNX with the card in the metadata, TensorRT engines with the card in a JSON file beside them."""

import os
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256
from pathlib import Path

from iic_geotools.errors import ModelError
from iic_geotools.files import write_atomically
from iic_runtime.model.card import CARD_KEY, Card
from iic_runtime.model.engine_card import ENGINE_SUFFIX, EngineFacts, read_engine_card, write_engine_card
from iic_runtime.model.onnx_metadata import read_metadata, with_metadata
from iic_runtime.model.onnx_unsafe import refuse_unsafe_graph


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
                return cls(path, content, *read_engine_card(path, content))
            metadata = read_metadata(content)
            if CARD_KEY not in metadata:
                raise ModelError("it has no card; export it with iic-export")
            refuse_unsafe_graph(content)
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
