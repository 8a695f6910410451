"""Files that are either whole or not there, and what is checked about outputs before any work."""

import errno
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from iic_geotools.errors import OutputError, UsageError

LONGEST_NAME = 200
"""The most bytes in the name of an output: a file system takes 255, and temporary names and sidecars add to it."""

MAP_SUFFIXES = (".tif", ".tiff")
"""The suffixes of maps."""

CACHE_VARIABLE = "IIC_CACHE"
"""The environment variable that names the folder for files that can be made or got again."""


def cache_folder() -> Path:
    """The folder for files that can be made or got again: `IIC_CACHE`, or else one in the user's cache folder."""
    folder = os.environ.get(CACHE_VARIABLE)
    if folder:
        return Path(folder)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "iic-edge"


def absolute_path(name: str | os.PathLike[str]) -> str:
    """The absolute path of a file that exists; any other name, such as an address, as it is."""
    text = os.fspath(name)
    return str(Path(text).absolute()) if Path(text).exists() else text


def is_utf8(name: str) -> bool:
    """Whether a name of a file is text: GDAL and XML take no other names."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


@contextmanager
def replacement(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; move it into place if the block succeeds, remove it if not.

    The temporary name starts with a dot and keeps the suffix, so that drivers chosen by suffix still fit.
    """
    temporary = path.with_name(f".{path.stem}.{os.getpid()}.tmp{path.suffix}")
    try:
        yield temporary
        sync(temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_atomically(path: Path, data: bytes) -> None:
    """Write `data` so that `path` holds either all of it or what it held before."""
    with replacement(path) as temporary:
        temporary.write_bytes(data)


def sync(path: Path) -> None:
    """Flush `path` to the disk: a name must not appear before its bytes are safe."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def put_in_place(source: Path, target: Path) -> None:
    """Move a finished file to its final name, also onto another disk.

    At any time `target` holds either the old file or the whole new one.
    """
    try:
        source.replace(target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        with replacement(target) as temporary:
            shutil.copyfile(source, temporary)
        source.unlink()


def check_name(file: Path) -> None:
    """Refuse a name that an output cannot have.

    Raises:
        UsageError: The name is not text, or too long.
    """
    if not is_utf8(str(file.absolute())) or "\0" in str(file):
        raise UsageError(f"The name {str(file)!r} is not valid UTF-8; give another one.")
    if len(file.name.encode()) > LONGEST_NAME:
        raise UsageError(
            f"The name {file.name[:40]}... has {len(file.name.encode())} bytes; give one of at most {LONGEST_NAME}."
        )


def check_suffix(file: Path, suffixes: Sequence[str], argument: str) -> None:
    """Refuse an output whose name does not say a format that it can have.

    Args:
        file: The output.
        suffixes: The suffixes that it may have, in lower case.
        argument: What the caller's argument is called.

    Raises:
        UsageError: It has another suffix.
    """
    if file.suffix.lower() not in suffixes:
        raise UsageError(f"`{argument}` must end in {' or '.join(suffixes)}, not {file.name}.")


def check_apart(outputs: Sequence[Path], inputs: Iterable[Path]) -> None:
    """Refuse outputs that would be written over each other or over an input.

    Raises:
        UsageError: Two of them are one file.
    """
    resolved = [file.resolve() for file in outputs]
    if len(set(resolved)) < len(resolved):
        raise UsageError("Two outputs have the same name; give each a name of its own.")
    sources = {file.resolve() for file in inputs}
    for file, target in zip(outputs, resolved, strict=True):
        if target in sources:
            raise UsageError(f"{file} is an input; give the output another name.")


def check_absent(*outputs: Path) -> None:
    """Refuse to replace files.

    Raises:
        OutputError: An output exists.
    """
    for file in outputs:
        if file.exists():
            raise OutputError(f"{file} exists; give another name, or `overwrite` to replace it.")


def check_folder(file: Path) -> None:
    """Refuse a file whose folder is not there or cannot be written to.

    Raises:
        OutputError: It cannot be written there.
    """
    folder = file.parent
    if not folder.is_dir():
        raise OutputError(f"There is no folder {folder}; make it first.")
    if file.is_dir():
        raise OutputError(f"{file} is a folder; give the name of a file.")
    if not os.access(folder, os.W_OK | os.X_OK, effective_ids=os.access in os.supports_effective_ids):
        raise OutputError(
            f"The folder {folder} cannot be written to; choose another or change its permissions."
        )
