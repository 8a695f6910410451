"""A TensorRT engine's card, which stands beside it: `model.engine` and `model.engine.json`."""

import json
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path

from iic_geotools.errors import ModelError, UsageError
from iic_geotools.files import write_atomically
from iic_runtime.card import Card

SUFFIX = ".engine"


@dataclass(frozen=True)
class EngineFacts:
    """What an engine was built with and for.

    Attributes:
        tensorrt: Version of TensorRT that built it.
        gpu: Name of the GPU that built it.
        capability: Its compute capability, "8.6".
        portable: Whether later versions of TensorRT and other GPUs since Ampere can run it too.
        tile: Largest tile it takes, without halo.
        batch: Most tiles it takes at once.
        sha256: Of the engine.
    """

    tensorrt: str
    gpu: str
    capability: str
    portable: bool
    tile: int
    batch: int
    sha256: str

    def fit(self, tile: int | None, batch: int | None) -> tuple[int, int]:
        """Tile and batch to run, by default those the engine was built for.

        Raises:
            UsageError: More was asked for.
        """
        for option, wanted, most in (("--tile", tile, self.tile), ("--batch", batch, self.batch)):
            if wanted is not None and wanted > most:
                raise UsageError(
                    f"The engine was built for {option} {most} at most, not {wanted}; export it again for more."
                )
        return tile or self.tile, batch or self.batch


def is_engine(path: Path) -> bool:
    """Whether a model file is a TensorRT engine, by its suffix."""
    return path.suffix.lower() == SUFFIX


def side_path(path: Path) -> Path:
    """Where the card of an engine stands."""
    return path.with_name(f"{path.name}.json")


def read_side(path: Path, content: bytes) -> tuple[Card, EngineFacts]:
    """The card and the facts beside an engine.

    Raises:
        ModelError: They are missing or damaged, or belong to another engine.
    """
    side = side_path(path)
    try:
        record = json.loads(side.read_text())
        facts = EngineFacts(**record["engine"])
        card = Card.from_json(json.dumps(record["card"]))
    except OSError as error:
        raise ModelError(f"its card {side.name} is not beside it; copy both files") from error
    except (ValueError, KeyError, TypeError) as error:
        if isinstance(error, ModelError):
            raise
        raise ModelError(f"its card {side.name} is damaged ({error}); export it again") from error
    if facts.sha256 != sha256(content).hexdigest():
        raise ModelError(f"its card {side.name} is that of another engine; copy both files")
    return card, facts


def write_side(path: Path, card: Card, facts: EngineFacts) -> None:
    """Write the card and the facts beside an engine."""
    record = {"card": json.loads(card.to_json()), "engine": asdict(facts)}
    write_atomically(side_path(path), json.dumps(record, indent=1, ensure_ascii=False).encode())
