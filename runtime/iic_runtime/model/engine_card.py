"""The card of a TensorRT engine, and what the engine was built with and for: a JSON file next to it."""

import json
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path

from iic_geotools.errors import ModelError, UsageError
from iic_geotools.files import write_atomically
from iic_runtime.model.card import Card

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
        """Return the tile and batch to run, by default those that the engine was built for."""
        for name, value, largest in (("tile", tile, self.tile), ("batch", batch, self.batch)):
            if value is not None and value > largest:
                raise UsageError(
                    f"The engine was built for a `{name}` of {largest} at most, not {value}; export it again for more."
                )
        return tile or self.tile, batch or self.batch


def engine_card_path(path: Path) -> Path:
    """Return where the card of an engine is: `model.engine.json` next to `model.engine`."""
    return path.with_name(f"{path.name}.json")


def write_engine_card(path: Path, card: Card, facts: EngineFacts) -> None:
    """Write the card and the facts of an engine next to it."""
    record = {"card": json.loads(card.to_json()), "engine": asdict(facts)}
    write_atomically(engine_card_path(path), json.dumps(record, indent=1, ensure_ascii=False).encode())


def read_engine_card(path: Path, content: bytes) -> tuple[Card, EngineFacts]:
    """Read the card and the facts of an engine."""
    card_path = engine_card_path(path)
    try:
        record = json.loads(card_path.read_bytes())
        facts = EngineFacts(**record["engine"])
        card = Card.from_json(json.dumps(record["card"]))
    except OSError as error:
        raise ModelError(f"its card {card_path.name} is not next to it; copy both files") from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        if isinstance(error, ModelError):
            raise
        raise ModelError(f"its card {card_path.name} is damaged ({error}); export it again") from error
    if facts.sha256 != sha256(content).hexdigest():
        raise ModelError(f"its card {card_path.name} is that of another engine; copy both files")
    return card, facts
