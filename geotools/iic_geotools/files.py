"""Atomic writes, and checks of output files before any work."""

import errno
import os
import shutil
import stat
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from iic_geotools.errors import IICError, OutputError, SceneError, UsageError, last_line

try:
    import fcntl
except ImportError:  # Windows
    import msvcrt

LONGEST_NAME = 200
"""The most bytes in the name of an output: a file system takes 255, and temporary names and sidecars add to it."""

MAP_SUFFIXES = (".tif", ".tiff")
"""The suffixes of maps."""

POSIX = os.name == "posix"
"""Whether folders can be opened and locked, and open files removed; Windows locks a file in a folder instead."""

CACHE_VARIABLE = "IIC_CACHE"
"""The environment variable that names the cache folder."""

_SCRATCH = ".tmp"
_FOLDER_LOCK = ".lock"


def cache_folder() -> Path:
    """The cache folder: `IIC_CACHE`, or else `iic-edge` in the user's cache folder."""
    folder = os.environ.get(CACHE_VARIABLE)
    if folder:
        return Path(folder)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "iic-edge"


def absolute_path(name: str | os.PathLike[str]) -> str:
    """The absolute path of a file that exists; any other name, such as an address, as it is."""
    text = os.fspath(name)
    return str(Path(text).absolute()) if Path(text).exists() else text


def check_no_stream(path: Path) -> None:
    """Refuse a pipe, a socket or a device: opening one may block for ever."""
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):  # missing files, and names that no file can have
        return
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise SceneError(f"{path} is a pipe or a device: give a file.")


def is_utf8(name: str) -> bool:
    """Whether a name of a file is text: GDAL and XML take no other names."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Raise errors of writing as one sentence about the file; errors of reading rasters pass unchanged."""
    try:
        yield
    except (OSError, RuntimeError) as error:  # a full disk is a RuntimeError of pyogrio and of torch
        if isinstance(error, IICError) or type(error).__module__.startswith("rasterio"):
            raise
        final = next((_final(parent) for parent in path.parents if parent.suffix == _SCRATCH), path)
        reason = getattr(error, "strerror", None) or last_line(error)
        raise OutputError(
            f"{final} cannot be written ({reason.rstrip('.')}); make room on its disk, or choose another place."
        ) from error


def _final(scratch: Path) -> Path:
    """The file that a scratch folder is for."""
    return scratch.with_name(scratch.name[1:].rsplit(".", 2)[0])


@contextmanager
def scratch_folder(path: Path, *, sweep: bool = True) -> Iterator[Path]:
    """Yield a new folder next to `path`, which is removed at the end with all that is left in it.

    Its name is unique among threads, processes and machines that share the disk, and no other user can put anything
    into it. It is locked while it is in use, so that it differs from what a killed process left behind.

    Args:
        path: The file that is being made.
        sweep: Whether to remove folders that killed processes left for `path`; takes a listing of its folder.

    Raises:
        OutputError: The folder cannot be made, or the block cannot write to it.
    """
    prefix = f".{path.name}."
    if sweep:
        _remove_remains(path.parent, prefix)
    with writing(path):
        folder, lock = _locked_folder(path.parent, prefix)
        try:
            yield folder
        finally:
            _remove_folder(folder, lock)


def _locked_folder(parent: Path, prefix: str) -> tuple[Path, int | None]:
    """Make a folder and lock it, if folders can be locked there."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=prefix, suffix=_SCRATCH, dir=parent))
        try:
            lock = _lock_folder(folder)
        except (BlockingIOError, FileNotFoundError):
            continue  # before it was locked, another process took it for remains and removes it
        except OSError:
            return folder, None
        except KeyboardInterrupt:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        if folder.is_dir():
            return folder, lock
        os.close(lock)


def _remove_remains(parent: Path, prefix: str) -> None:
    """Remove the scratch folders that no process holds."""
    with suppress(OSError), os.scandir(parent) as entries:
        for entry in entries:
            is_scratch = entry.name.startswith(prefix) and entry.name.endswith(_SCRATCH)
            if is_scratch and entry.is_dir(follow_symlinks=False):
                with suppress(OSError):
                    path = Path(entry.path)
                    _remove_folder(path, _lock_folder(path))


def _remove_folder(folder: Path, lock: int | None) -> None:
    """Remove a folder and release its lock: afterwards where folders can be opened, else before."""
    if lock is not None and not POSIX:
        os.close(lock)
    shutil.rmtree(folder, ignore_errors=True)
    if lock is not None and POSIX:
        os.close(lock)


def _lock_folder(folder: Path) -> int:
    """Lock a folder, or a file in it on Windows, until the handle that is returned is closed or the process ends."""
    if POSIX:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    else:
        handle = os.open(folder / _FOLDER_LOCK, os.O_RDWR | os.O_CREAT)
    _lock(handle)
    return handle


def _lock(handle: int) -> None:
    """Lock a file or folder that is open; close it if that fails."""
    try:
        if POSIX:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        try:
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined, unused-ignore]
        except PermissionError as error:  # EACCES: Windows's word for a lock that somebody holds
            raise BlockingIOError(errno.EAGAIN, "is locked") from error
    except OSError:
        os.close(handle)
        raise


@contextmanager
def replacement(path: Path, *, sweep: bool = True) -> Iterator[Path]:
    """Yield a temporary path on the disk of `path`; move it into place if the block succeeds, remove it if not.

    The temporary file has the name of `path`, so that drivers chosen by suffix still fit, in a folder of its own.

    Args:
        sweep: Whether to remove what killed processes left of their replacements of `path`.
    """
    with scratch_folder(path, sweep=sweep) as folder:
        temporary = folder / path.name
        yield temporary
        sync(temporary)
        temporary.replace(path)


def write_atomically(path: Path, data: bytes, *, sweep: bool = True) -> None:
    """Write `data` so that `path` holds either all of it or what it held before."""
    with replacement(path, sweep=sweep) as temporary:
        temporary.write_bytes(data)


def open_lock(path: Path) -> IO[bytes]:
    """Open a lock file, which is made if it is missing, and lock it until it is closed or the process ends.

    The content of an existing file is not touched, and links are not followed, except on Windows.

    Raises:
        BlockingIOError: Another process holds the lock.
        OSError: The file cannot be opened, or is not a regular file.
    """
    flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    handle = os.open(path, flags, 0o666)
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
    except OSError:
        os.close(handle)
        raise
    _lock(handle)
    return os.fdopen(handle, "r+b")


def sync(path: Path) -> None:
    """Flush `path` to the disk: a name must not appear before its bytes are safe."""
    handle = os.open(path, os.O_RDWR)  # Windows flushes only what can be written
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def put_in_place(source: Path, target: Path) -> None:
    """Move a finished file to its final name, also onto another disk.

    At any time `target` holds either the old file or the whole new one.
    """
    with writing(target):
        try:
            source.replace(target)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            with replacement(target) as temporary:
                shutil.copyfile(source, temporary)
            source.unlink()


def check_name(file: Path) -> None:
    """Refuse a file name that is too long or not valid UTF-8."""
    if not is_utf8(str(file.absolute())) or "\0" in str(file):
        raise UsageError(f"The name {str(file)!r} is not valid UTF-8; give another one.")
    if len(file.name.encode()) > LONGEST_NAME:
        raise UsageError(
            f"The name {file.name[:40]}... has {len(file.name.encode())} bytes; give one of at most {LONGEST_NAME}."
        )


def check_suffix(file: Path, suffixes: Sequence[str], argument: str) -> None:
    """Refuse an output with an unsupported suffix.

    Args:
        suffixes: The suffixes that it may have, in lower case.
        argument: What the caller's argument is called.
    """
    if file.suffix.lower() not in suffixes:
        raise UsageError(f"`{argument}` must end in {' or '.join(suffixes)}, not {file.name}.")


def check_apart(outputs: Sequence[Path], inputs: Iterable[Path]) -> None:
    """Refuse outputs that would be written over each other or over an input."""
    resolved = [file.resolve() for file in outputs]
    if len(set(resolved)) < len(resolved):
        raise UsageError("Two outputs have the same name; give each a name of its own.")
    sources = {file.resolve() for file in inputs}
    for file, target in zip(outputs, resolved, strict=True):
        if target in sources:
            raise UsageError(f"{file} is an input; give the output another name.")


def check_writable(
    outputs: Sequence[tuple[Path, Sequence[str], str]],
    inputs: Iterable[Path] = (),
    *,
    overwrite: bool,
    sidecars: Sequence[Path] = (),
) -> None:
    """Refuse outputs that cannot be written, before any work.

    Args:
        outputs: Each file, the suffixes that it may have, and the argument that names it.
        sidecars: Files that are written next to the outputs.

    Raises:
        UsageError: A name says no format, two outputs have one name, or an output is an input.
        OutputError: A folder cannot be written to, or a file exists.
    """
    files = [file for file, _, _ in outputs]
    for file, suffixes, argument in outputs:
        check_name(file)
        check_suffix(file, suffixes, argument)
    check_apart(files, inputs)
    for file in files:
        check_folder(file)
    if not overwrite:
        check_absent(*files, *sidecars)


def check_absent(*outputs: Path) -> None:
    """Refuse to replace files."""
    for file in outputs:
        if file.exists():
            raise OutputError(f"{file} exists; give another name, or `overwrite` to replace it.")


def check_folder(file: Path) -> None:
    """Refuse a file whose folder is not there or cannot be written to."""
    folder = file.parent
    try:
        if not folder.is_dir():
            raise OutputError(f"There is no folder {folder}; make it first.")
        if file.is_dir():
            raise OutputError(f"{file} is a folder; give the name of a file.")
        is_open = os.access(folder, os.W_OK | os.X_OK, effective_ids=os.access in os.supports_effective_ids)
    except PermissionError:  # a folder that may not be entered
        is_open = False
    if not is_open:
        raise OutputError(
            f"The folder {folder} cannot be written to; choose another or change its permissions."
        )
