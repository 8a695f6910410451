"""Files that are either whole or not there."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; move it into place if the block succeeds, remove it if not.

    The temporary name keeps the suffix, so drivers chosen by suffix still fit, and starts with a dot.
    """
    temporary = path.with_name(f".{path.stem}.{os.getpid()}.tmp{path.suffix}")
    try:
        yield temporary
        sync(temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_atomically(path: Path, data: bytes) -> None:
    """Write `data` so that `path` holds all of it or what it held before."""
    with replacing(path) as temporary:
        temporary.write_bytes(data)


def sync(path: Path) -> None:
    """Flush `path` to the disk: a name must not appear before its bytes are safe."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
