"""The parts of a map that is being made: each of them is complete or does not exist.

A part is written to a temporary name next to its own, flushed and renamed. A manifest ties the parts in a folder
to everything that decides their pixels, so that a run never takes parts of another plan. A part is a GeoTIFF, or
nothing if it holds no data, followed by a seal: the size and a checksum of what is before it. GDAL does not look at
what follows a GeoTIFF. So a part that was cut or damaged is not taken for another one, or for one without data.
"""

import json
import logging
import shutil
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any
from warnings import catch_warnings, simplefilter

from rasterio.errors import NotGeoreferencedWarning
from rasterio.io import MemoryFile

from iic_geotools import files
from iic_geotools.classmap.cog import part_profile
from iic_geotools.errors import IICError, OutputError
from iic_geotools.files import open_lock, write_atomically
from iic_geotools.tiling import Part, Rect
from iic_runtime.engine.base import LabelArray

_LOG = logging.getLogger(__name__)
MANIFEST = "manifest.json"
LOCK = "lock"
PLACEMENT = "placing"
# The seal of a part: a mark, the size of its content and the SHA-256 of that.
_SEAL = struct.Struct("<8sQ32s")
_MARK = b"iic part"
MapParts = Mapping[str, Sequence[tuple[Path, Rect]]]
"""The files of the parts of each layer, and where they lie."""


class PartFolder:
    """A folder of parts, which have one layer per file that is made of them ("labels", "confidence").

    Args:
        ticket: Write only while the folder has this ticket. For processes that do not hold the folder themselves.
    """

    def __init__(self, path: Path, layers: Sequence[str], ticket: str | None = None) -> None:
        self.path = path
        self.layers = tuple(layers)
        self._ticket = ticket

    def ticket(self) -> str:
        """Return a hash of what the parts in the folder are for."""
        return sha256((self.path / MANIFEST).read_bytes()).hexdigest()

    def check_ticket(self) -> None:
        """Make sure that the folder exists and is still for the work it was handed out for."""
        try:
            changed = self._ticket not in (None, self.ticket())
        except OSError as error:
            raise OutputError(
                f"The folder {self.path} cannot be read ({error.strerror}); scene and map must be on a disk that all "
                "workers share, or the run has ended."
            ) from error
        if changed:
            raise OutputError(f"The folder {self.path} is now used for other work; this part is not written.")

    def file(self, layer: str, index: int) -> Path:
        """Return the file of a part, whether it exists or not."""
        return self.path / f"{layer}-{index:06d}.tif"

    def has(self, index: int) -> bool:
        """Return whether a part is complete and unharmed in every layer; a damaged one is logged."""
        return all(self._is_whole(self.file(layer, index)) for layer in self.layers)

    def holds_data(self, index: int) -> bool:
        """Return whether a part that is complete holds any data."""
        return self.file(self.layers[0], index).stat().st_size > _SEAL.size

    def check(self, parts: Iterable[Part]) -> None:
        """Make sure that all parts are complete and unharmed."""
        if not all(self.has(part.index) for part in parts):
            raise OutputError(
                f"Parts in {self.path} were changed during the run; run the same command again."
            )

    def placed(self, parts: Iterable[Part], region: Rect) -> dict[str, list[tuple[Path, Rect]]]:
        """Return the files of the parts that hold data, by layer, and where they lie within a region.

        Raises:
            OutputError: A part is missing or damaged.
        """
        parts = list(parts)
        self.check(parts)
        with_data = [part for part in parts if self.holds_data(part.index)]
        return {
            layer: [(self.file(layer, part.index), part.rect.relative_to(region)) for part in with_data]
            for layer in self.layers
        }

    def _is_whole(self, file: Path) -> bool:
        try:
            content = file.read_bytes()
        except FileNotFoundError:
            return False
        whole = content[-_SEAL.size :] == _seal(content[: -_SEAL.size])
        if not whole:
            _LOG.warning("The part %s is damaged and is made again.", file)
        return whole

    def write(self, index: int, content: Mapping[str, LabelArray] | None) -> None:
        """Write all layers of a part; None if it holds no data."""
        if self._ticket is not None:
            self.check_ticket()
        for layer in self.layers:
            data = b"" if content is None else encode(content[layer])
            write_atomically(self.file(layer, index), data + _seal(data), sweep=False)

    @contextmanager
    def claim(
        self,
        manifest: Mapping[str, Any],
        resume: bool,
        check_outputs: Callable[[], None] | None = None,
        resumable: bool = True,
    ) -> Iterator[int]:
        """Hold the folder for this run, and yield the number of part files from an earlier run of the same plan.

        Parts of another plan, and all parts without `resume`, are removed first. If the block fails, finished parts
        stay, and the log says so; if there are none, the folder is removed.

        Args:
            manifest: What parts must have been made from.
            check_outputs: Refuses to replace outputs; None if they may be. Called before anything is removed, unless
                an earlier run of the same plan has begun to put its own outputs in place.
            resumable: Whether the manifest identifies this work; if not, no parts are used or kept.
        """
        self._refuse_foreign()
        text = json.dumps(manifest, indent=1, sort_keys=True)
        with self._lock():
            file = self.path / MANIFEST
            resumes = resume and resumable and file.exists() and file.read_text() == text
            if check_outputs is not None and not (resumes and self.has_begun_placement):
                try:
                    check_outputs()
                except OutputError:
                    if not self._count() or not file.exists():
                        self.remove()  # nothing is done, or a run was killed while it removed the folder
                    raise
            try:
                if not resumes:
                    self._clear(text)
                for leftover in self.path.glob(".*"):
                    _remove(leftover)
                yield self._count()
            except OSError as error:
                if isinstance(error, IICError):
                    raise
                raise OutputError(
                    f"Cannot write {error.filename or self.path} ({error.strerror or error}); "
                    "make room or give write access, then run the same command again."
                ) from error
            finally:
                if resumable and self.path.exists() and self._count():
                    # Without `resume` the same command would begin by removing what is done.
                    advice = "to resume" if resume else "with `resume` to use it"
                    _LOG.warning(
                        "Finished parts are kept in %s; run the same command again %s.", self.path, advice
                    )
                else:
                    self.remove()

    def _refuse_foreign(self) -> None:
        """Refuse to clear a folder that no run has made: the folder of a run has a lock until it is empty."""
        is_foreign = self.path.is_dir() and any(self.path.iterdir()) and not (self.path / LOCK).is_file()
        if is_foreign or self.path.is_symlink():
            raise OutputError(
                f"{self.path} is not the folder of an earlier run; move it away or choose another output."
            )

    @contextmanager
    def _lock(self) -> Iterator[None]:
        """Lock the folder until this process ends, however it ends."""
        try:
            self.path.mkdir(exist_ok=True)
            lock = open_lock(self.path / LOCK)
        except BlockingIOError as error:
            raise OutputError(
                f"Another run holds {self.path} for the same map; wait for it or stop it."
            ) from error
        except OSError as error:
            raise OutputError(
                f"Cannot make the folder {self.path} ({error.strerror}); choose another output."
            ) from error
        with lock:
            yield
        if not files.POSIX and [entry.name for entry in self.path.iterdir()] == [LOCK]:
            self.remove()  # Windows keeps a lock that is open, and refuses if another run has taken it since

    def _clear(self, manifest: str) -> None:
        """Remove all parts and start again for a manifest."""
        file = self.path / MANIFEST
        # The manifest goes first: without one, no part counts, whatever happens in between.
        file.unlink(missing_ok=True)
        for entry in self.path.iterdir():
            if entry.name != LOCK:
                _remove(entry)
        write_atomically(file, manifest.encode(), sweep=False)  # `claim` removes what is left

    def _count(self) -> int:
        return sum(1 for _ in self.path.glob("*-*.tif"))

    @property
    def has_begun_placement(self) -> bool:
        """Whether a run ended while moving its outputs to their final names, so that existing outputs are its own."""
        return (self.path / PLACEMENT).exists()

    def begin_placement(self) -> None:
        """Record that outputs are about to appear under their final names."""
        write_atomically(self.path / PLACEMENT, b"")

    def remove(self) -> None:
        """Remove the folder and its content, the lock last, because it marks the folder as one of a run.

        The manifest goes first: without one, no part counts, and a later run removes what is left.
        """
        if self.path.is_dir():
            with suppress(OSError):
                (self.path / MANIFEST).unlink(missing_ok=True)
            for entry in self.path.iterdir():
                if entry.name != LOCK:
                    with suppress(OSError):
                        _remove(entry)
        shutil.rmtree(self.path, ignore_errors=True)


def _seal(content: bytes) -> bytes:
    return _SEAL.pack(_MARK, len(content), sha256(content).digest())


def encode(values: LabelArray) -> bytes:
    """Encode a part as a small tiled GeoTIFF in memory, so that writing it is one write that can fail."""
    height, width = values.shape
    with catch_warnings(), MemoryFile() as memory:
        simplefilter("ignore", NotGeoreferencedWarning)
        with memory.open(**part_profile(width, height)) as dataset:
            dataset.write(values, 1)
        return bytes(memory.getbuffer())


def _remove(entry: Path) -> None:
    # A worker that was stopped too late may still be writing here: what it renames disappears by itself.
    if entry.is_dir():
        shutil.rmtree(entry)
    else:
        entry.unlink(missing_ok=True)
