"""The model that was exported to the working directory, which is used there if no other is named.

`iic-export` leaves the record `.iic-export.json` next to a model that it writes to the working directory. Commands
and functions that run in this directory without a named model then use that file, as long as it is the one that was
written and its task is theirs. Models that are written elsewhere leave no record, and other directories have none.
"""

import json
import logging
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path

from iic_geotools.files import write_atomically
from iic_runtime.model.card import Task
from iic_runtime.model.file import ModelFile

_LOG = logging.getLogger(__name__)
RECORD = ".iic-export.json"
"""Name of the record, in the working directory."""
MAX_RECORD = 1 << 16


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


def exported_model(task: Task, others: str) -> ModelFile | None:
    """Return the model that was exported to the working directory, and log that it is used.

    Args:
        task: What the model is to be used for; a model for another task is left alone.
        others: What may be named instead, for the log.

    Raises:
        ModelError: The file is the one that was written, but cannot be used as a model.
    """
    record = _read_record()
    if record is None or not Path(record.model).is_file():
        return None
    if sha256(Path(record.model).read_bytes()).hexdigest() != record.sha256:
        _LOG.warning(
            "%s has changed since iic-export wrote it, so it is not used unless it is named: `model` %s.",
            *(record.model, record.model),
        )
        return None
    file = ModelFile.read(record.model)
    if file.card.task != task:
        return None
    instead = f"; `model` {others} for a bundled one" if others else ""
    _LOG.info("Model: %s, exported here %s from %s%s", record.model, record.age, record.run, instead)
    return file


def _read_record() -> Record | None:
    """Return the record of the working directory; None if there is none that makes sense."""
    path = Path(RECORD)
    try:
        if path.stat().st_size > MAX_RECORD:
            return None
        content = json.loads(path.read_text())
        record = Record(**{name: str(content[name]) for name in ("model", "sha256", "run", "exported")})
        in_folder = record.model == Path(record.model).name and record.run.isprintable()
        has_time = datetime.fromisoformat(record.exported).tzinfo is not None
        return record if in_folder and has_time else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
