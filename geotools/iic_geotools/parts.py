"""The pieces of a map that is being made: each is there and complete, or not there.

A part is written to a temporary name beside its own, flushed and renamed. A manifest ties the parts in a folder
to everything that decides their pixels; parts made for something else are never taken. A part without any data
is an empty file.
"""

import json
import logging
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any
from warnings import catch_warnings, simplefilter

import numpy as np
from numpy.typing import NDArray
from rasterio.errors import NotGeoreferencedWarning
from rasterio.io import MemoryFile

from iic_geotools.errors import IICError, OutputError
from iic_geotools.files import write_atomically
from iic_geotools.levels import NODATA

_LOG = logging.getLogger(__name__)
MANIFEST = "manifest.json"
LOCK = "lock"
PLACING = "placing"
BLOCK = 512


class PartFolder:
    """A folder of parts; one layer for each file that is made of them ("labels", "confidence").

    Args:
        path: the folder.
        layers: their names.
        ticket: write only while the folder has this ticket; for processes that do not hold the folder themselves.
    """

    def __init__(self, path: Path, layers: Sequence[str], ticket: str | None = None) -> None:
        self.path = path
        self.layers = tuple(layers)
        self._ticket = ticket

    def ticket(self) -> str:
        """A hash of what the parts in the folder are for."""
        return sha256((self.path / MANIFEST).read_bytes()).hexdigest()

    def check_ticket(self) -> None:
        """Be sure that the folder is there and for the work it was given out for.

        Raises:
            OutputError: it is not.
        """
        try:
            changed = self._ticket not in (None, self.ticket())
        except OSError as error:
            raise OutputError(
                f"The folder {self.path} cannot be read ({error.strerror}); scene and map must be on a disk that all "
                "workers share, or the run has ended."
            ) from error
        if changed:
            raise OutputError(f"The folder {self.path} is for other work by now; this part is not written.")

    def file(self, layer: str, index: int) -> Path:
        """Where a part is, or will be."""
        return self.path / f"{layer}-{index:06d}.tif"

    def done(self, index: int) -> bool:
        """Whether a part is complete in every layer."""
        return all(self.file(layer, index).exists() for layer in self.layers)

    def write(self, index: int, content: Mapping[str, NDArray[np.uint8]] | None) -> None:
        """Write a part, all its layers; None where it holds no data."""
        if self._ticket is not None:
            self.check_ticket()
        for layer in self.layers:
            data = b"" if content is None else encode(content[layer])
            try:
                write_atomically(self.file(layer, index), data)
            except OSError as error:
                raise OutputError(
                    f"Cannot write to {self.path} ({error.strerror}); make room first."
                ) from error

    @contextmanager
    def claimed(self, manifest: Mapping[str, Any], resume: bool) -> Iterator[int]:
        """Hold the folder for this run and yield how many files of an earlier run of the same work it holds.

        Parts of other work, and all of them if `resume` is off, are removed first. If the block fails, parts that
        are done stay, and the log says so; without any, the folder goes.
        """
        self._refuse_foreign()
        try:
            self.path.mkdir(exist_ok=True)
            lock = (self.path / LOCK).open("w")
        except OSError as error:
            raise OutputError(
                f"Cannot make the folder {self.path} ({error.strerror}); choose another output."
            ) from error
        with lock:
            _lock(lock, self.path)
            try:
                self._adopt(json.dumps(manifest, indent=1, sort_keys=True), resume)
                yield self._count()
            except OSError as error:
                if isinstance(error, IICError):
                    raise
                raise OutputError(
                    f"Cannot write {error.filename or self.path} ({error.strerror or error}); "
                    "make room or give write access, then run the same command again."
                ) from error
            finally:
                if self.path.exists() and self._count():
                    _LOG.warning(
                        "What is done is kept in %s; the same command goes on from there.", self.path
                    )
                else:
                    self.remove()

    def _refuse_foreign(self) -> None:
        """Refuse to clear out a folder that no run has made: every run's has a lock, until it is empty."""
        if self.path.is_dir() and any(self.path.iterdir()) and not (self.path / LOCK).exists():
            raise OutputError(f"{self.path} is not of an earlier run; move it away or choose another output.")

    def _adopt(self, manifest: str, resume: bool) -> None:
        file = self.path / MANIFEST
        if not (resume and file.exists() and file.read_text() == manifest):
            # The manifest goes first: without one, no part counts, whatever happens in between.
            file.unlink(missing_ok=True)
            for entry in self.path.iterdir():
                if entry.name != LOCK:
                    _remove(entry)
            try:
                write_atomically(file, manifest.encode())
            except OSError as error:
                raise OutputError(
                    f"Cannot write to {self.path} ({error.strerror}); make room first."
                ) from error
        for leftover in self.path.glob(".*"):
            _remove(leftover)

    def _count(self) -> int:
        return sum(1 for _ in self.path.glob("*-*.tif"))

    @property
    def placing(self) -> bool:
        """Whether a run of this work was putting its results in place when it ended: those there are its own."""
        return (self.path / PLACING).exists()

    def begin_placing(self) -> None:
        """Note that from now on results appear under their final names."""
        write_atomically(self.path / PLACING, b"")

    def remove(self) -> None:
        """Remove the folder and all that is in it, the lock last: it says whose the rest is."""
        if self.path.is_dir():
            for entry in self.path.iterdir():
                if entry.name != LOCK:
                    with suppress(OSError):
                        _remove(entry)
        shutil.rmtree(self.path, ignore_errors=True)


def _remove(entry: Path) -> None:
    # A worker that was told to stop too late may be writing here still: what it renames is gone by itself.
    if entry.is_dir():
        shutil.rmtree(entry)
    else:
        entry.unlink(missing_ok=True)


def encode(values: NDArray[np.uint8]) -> bytes:
    """A part as a small tiled GeoTIFF, made in memory so that writing it is one write that can fail."""
    height, width = values.shape
    with catch_warnings(), MemoryFile() as memory:
        simplefilter("ignore", NotGeoreferencedWarning)
        profile = {"driver": "GTiff", "width": width, "height": height, "count": 1, "dtype": "uint8"}
        if min(width, height) >= BLOCK:
            profile |= {"tiled": True, "blockxsize": BLOCK, "blockysize": BLOCK}
        with memory.open(**profile, nodata=NODATA, compress="zstd", zstd_level=1) as dataset:
            dataset.write(values, 1)
        return bytes(memory.getbuffer())


def _lock(lock: Any, path: Path) -> None:
    """Hold the folder until this process ends, however it ends; where the system cannot, go without."""
    if sys.platform == "win32":
        return
    import fcntl

    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise OutputError(f"Another run holds {path} for the same map; wait for it or stop it.") from error
