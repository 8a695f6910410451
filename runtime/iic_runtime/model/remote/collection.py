"""Collections of models: a JSON index of their names, addresses and digests."""

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import quote, unquote, urljoin

from iic_geotools.classmap.classes import MAX_NAME
from iic_geotools.errors import ModelError, UsageError
from iic_geotools.files import check_suffix, write_atomically
from iic_geotools.settings import checked
from iic_runtime.model.card import MAX_TEXT
from iic_runtime.model.engine_card import ENGINE_SUFFIX
from iic_runtime.model.file import ModelFile
from iic_runtime.model.remote.address import DIGEST, Address, is_address
from iic_runtime.model.select import resolution_range

INDEX_VERSION = 1
MAX_INDEX = 8 << 20
MAX_ENTRIES = 10_000


@dataclass(frozen=True)
class Entry:
    """A model of a collection. All but the first three attributes are a description for people.

    Attributes:
        name: Name of the model in the collection.
        url: Where it is: an https:// address, or a path relative to the index.
        sha256: Digest of the file.
        bytes: Size of the file.
        gsd_range: Smallest and largest pixel in metres that it is made for.
        bands: The bands that it takes.
        classes: Names of its classes.
        data: The imagery that it was trained on.
        licence: Its licence.
    """

    name: str
    url: str
    sha256: str
    bytes: int | None = None
    gsd_range: tuple[float, float] | None = None
    bands: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    data: str = ""
    licence: str = ""

    def __post_init__(self) -> None:
        for value, longest in (
            (self.name, MAX_NAME),
            (self.url, MAX_TEXT),
            (self.data, MAX_TEXT),
            (self.licence, MAX_TEXT),
            *((text, MAX_NAME) for text in (*self.bands, *self.classes)),
        ):
            if not isinstance(value, str) or not value.isprintable() or len(value) > longest:
                raise ValueError("texts must be printable and short")
        if not self.name.strip() or not self.url.strip():
            raise ValueError("name and url must not be empty")
        if not DIGEST.fullmatch(self.sha256):
            raise ValueError(f"the sha256 of {self.name} must be 64 hexadecimal digits")
        if self.bytes is not None and (type(self.bytes) is not int or self.bytes < 0):
            raise ValueError(f"the bytes of {self.name} must be a whole number")

    @classmethod
    def of(cls, model: ModelFile, url: str) -> "Entry":
        """Describe a model that is at `url`."""
        card = model.card
        return cls(
            name=card.name,
            url=url,
            sha256=model.digest,
            bytes=len(model.content),
            gsd_range=resolution_range(card),
            bands=card.bands,
            classes=tuple(map_class.name for map_class in card.classes),
            data=card.origin.data,
            licence=card.origin.licence,
        )

    @classmethod
    def from_json(cls, content: Any) -> "Entry":
        """Read an entry; fields that this version does not know are left out.

        Raises:
            ValueError: It is not an entry.
            TypeError: It is not an entry.
            LookupError: A field is missing.
        """
        known = {key: value for key, value in content.items() if key in cls.__dataclass_fields__}
        for key in ("bands", "classes"):
            known[key] = tuple(known.get(key) or ())
        if known.get("gsd_range") is not None:
            low, high = map(float, known["gsd_range"])
            known["gsd_range"] = (low, high)
        return cls(**{**known, "sha256": str(content["sha256"]).lower()})


@dataclass(frozen=True)
class Collection:
    """The models that an index names.

    Attributes:
        source: Path or address of the index.
        entries: Its entries, in order.
    """

    source: str
    entries: tuple[Entry, ...]

    @classmethod
    def read(cls, source: str | os.PathLike[str]) -> "Collection":
        """Read an index.

        Args:
            source: Path or address of the index.

        Raises:
            ModelError: It cannot be read, or is not an index.
            UsageError: It is at an address that must not be downloaded from.
        """
        name = os.fspath(source)
        if is_address(name):
            address = Address.parse(name)
            return cls(address.url, _parse(address.shown, address.download(MAX_INDEX)))
        try:
            with Path(name).open("rb") as file:
                content = file.read(MAX_INDEX + 1)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise ModelError(f"Cannot read the index {name} ({reason}); check the path.") from error
        return cls(name, _parse(name, content))

    def find(self, name: str) -> Entry:
        """Return the entry of a name, with its address or path as it is seen from here.

        Raises:
            ModelError: There is no such entry, or it refers to what an index must not refer to.
        """
        for entry in self.entries:
            if entry.name == name:
                return replace(entry, url=self._locate(entry))
        names = ", ".join(entry.name for entry in self.entries[:20])
        more = ", ..." if len(self.entries) > 20 else ""
        raise ModelError(f"There is no model {name[:MAX_NAME]} in {self.source}; there are {names}{more}.")

    def _locate(self, entry: Entry) -> str:
        if is_address(entry.url):
            if not entry.url.lower().startswith("https://"):
                raise ModelError(
                    f"The index {self.source} refers to {entry.url[:200]}, and only https:// is allowed there."
                )
            return entry.url
        if is_address(self.source):
            return urljoin(self.source, entry.url)
        path = PurePosixPath(unquote(entry.url))
        if path.is_absolute() or ".." in path.parts:
            raise ModelError(
                f"The index {self.source} refers to {entry.url[:200]}; models must lie in its own folder."
            )
        return str(Path(self.source).parent / path)


@checked
def write_index(models: Sequence[str | os.PathLike[str]], out: str | os.PathLike[str]) -> Collection:
    """Write the index of a collection: model files in one folder, which can then be put on any server as it is.

    Args:
        models: The model files, .onnx, in the folder of the index or in folders below it.
        out: The index, .json. A file of that name is replaced.

    Raises:
        UsageError: Two models have one name, or a file lies elsewhere or is not an ONNX model.
        ModelError: A model file cannot be read.
        OutputError: The index cannot be written.
    """
    index = Path(out)
    check_suffix(index, (".json",), "out")
    entries: dict[str, Entry] = {}
    for name in models:
        file = Path(name).resolve()
        if not file.is_relative_to(index.parent.resolve()):
            raise UsageError(f"{name} must lie in the folder of the index, {index.parent}, or below it.")
        if file.suffix.lower() == ENGINE_SUFFIX:
            raise UsageError(
                f"{name} is an engine for one kind of GPU; put the .onnx file into the collection."
            )
        model = ModelFile.read(file)
        if model.card.name in entries:
            raise UsageError(f"Two models are named {model.card.name}; a collection needs distinct names.")
        url = quote(file.relative_to(index.parent.resolve()).as_posix())
        entries[model.card.name] = Entry.of(model, url)
    content = {"version": INDEX_VERSION, "models": [asdict(entry) for entry in entries.values()]}
    write_atomically(index, (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode())
    return Collection(str(index), tuple(entries.values()))


def _parse(name: str, content: bytes) -> tuple[Entry, ...]:
    try:
        if len(content) > MAX_INDEX:
            raise ValueError(f"it has more than {MAX_INDEX >> 20} MB")
        index = json.loads(content)
        if index["version"] != INDEX_VERSION:
            raise ValueError(
                f"its version is {str(index['version'])[:20]}, and this package reads {INDEX_VERSION}"
            )
        if len(index["models"]) > MAX_ENTRIES:
            raise ValueError(f"it has more than {MAX_ENTRIES} models")
        entries = tuple(map(Entry.from_json, index["models"]))
        if len({entry.name for entry in entries}) < len(entries):
            raise ValueError("two of its models have one name")
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        reason = f"{error} is missing" if isinstance(error, LookupError) else str(error)
        raise ModelError(f"{name} is not an index of models: {reason[:200]}.") from error
    return entries
