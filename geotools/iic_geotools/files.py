"""Files that are either whole or not there."""

import errno
import os
import shutil
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


def put_in_place(made: Path, final: Path) -> None:
    """Move a finished file to its name, also onto another disk; the name holds the old file or the whole new one."""
    try:
        made.replace(final)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        with replacing(final) as temporary:
            shutil.copyfile(made, temporary)
        made.unlink()
