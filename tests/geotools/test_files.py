import errno
import os
import shutil
import signal
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from iic_geotools import files
from iic_geotools.files import open_lock, put_in_place, replacement, scratch_folder, write_atomically


def test_a_failed_write_keeps_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "map.tif"
    write_atomically(path, b"old")

    def fail() -> None:
        with replacement(path) as temporary:
            assert temporary.suffix == ".tif"
            temporary.write_bytes(b"half")
            raise OSError("the disk is full")

    with pytest.raises(OSError, match="full"):
        fail()
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_files_move_onto_another_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rename fails as it does across disks; the copy that replaces it is made next to the target."""
    source, target = tmp_path / "scratch.tif", tmp_path / "map.tif"
    source.write_bytes(b"new")
    target.write_bytes(b"old")
    rename = Path.replace

    def across_disks(self: Path, other: Path) -> Path:
        if self == source:
            raise OSError(errno.EXDEV, "Invalid cross-device link")
        return rename(self, other)

    monkeypatch.setattr(Path, "replace", across_disks)
    put_in_place(source, target)
    assert target.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [target]


def test_a_failed_move_keeps_both_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = tmp_path / "scratch.tif", tmp_path / "map.tif"
    source.write_bytes(b"new")
    target.write_bytes(b"old")

    def across_disks(self: Path, other: Path) -> Path:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "replace", across_disks)
    monkeypatch.setattr(shutil, "copyfile", full)
    with pytest.raises(OSError, match="No space"):
        put_in_place(source, target)
    assert (source.read_bytes(), target.read_bytes()) == (b"new", b"old")


def test_threads_that_write_one_file_never_tear_it(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    contents = [bytes([65 + writer]) * 30_000 for writer in range(4)]
    path.write_bytes(contents[0])

    def write(content: bytes) -> None:
        for _ in range(30):
            write_atomically(path, content)

    with ThreadPoolExecutor(len(contents)) as pool:
        writers = [pool.submit(write, content) for content in contents]
        while not all(writer.done() for writer in writers):
            assert path.read_bytes() in contents
        for writer in writers:
            writer.result()
    assert path.read_bytes() in contents
    assert list(tmp_path.iterdir()) == [path]


def test_processes_with_one_id_do_not_share_a_temporary_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every container calls its first process 1."""
    monkeypatch.setattr(os, "getpid", lambda: 1)
    path = tmp_path / "model.onnx"
    with replacement(path) as one, replacement(path) as other:
        one.write_bytes(b"one")
        other.write_bytes(b"other")
        assert one.read_bytes() == b"one"


def test_a_killed_writer_leaves_nothing_after_the_next_write(tmp_path: Path) -> None:
    path = tmp_path / "map.tif"
    code = (
        "import os, signal, sys; from pathlib import Path; from iic_geotools.files import replacement\n"
        "with replacement(Path(sys.argv[1])) as temporary:\n"
        "    temporary.write_bytes(b'half'); os.kill(os.getpid(), signal.SIGKILL)"
    )
    killed = subprocess.run([sys.executable, "-c", code, str(path)], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert len(list(tmp_path.iterdir())) == 1
    with scratch_folder(path) as in_use:
        write_atomically(path, b"whole")
        assert sorted(tmp_path.iterdir()) == sorted([path, in_use])
    assert list(tmp_path.iterdir()) == [path]


def test_remains_of_other_names_and_links_are_left_alone(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "thesis").write_bytes(b"years of work")
    (tmp_path / ".map.tif.abcd.tmp").symlink_to(precious)
    (tmp_path / ".map.tiff.abcd.tmp").mkdir()
    write_atomically(tmp_path / "map.tif", b"whole")
    assert (precious / "thesis").exists()
    assert (tmp_path / ".map.tiff.abcd.tmp").is_dir()


def test_outputs_have_the_usual_permissions(tmp_path: Path) -> None:
    (tmp_path / "usual").write_bytes(b"")
    write_atomically(tmp_path / "ours", b"")
    assert (tmp_path / "ours").stat().st_mode == (tmp_path / "usual").stat().st_mode


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such locks.")
def test_locks_neither_follow_links_nor_empty_files(tmp_path: Path) -> None:
    precious, lock = tmp_path / "precious", tmp_path / "lock"
    precious.write_bytes(b"years of work")
    lock.symlink_to(precious)
    with pytest.raises(OSError, match="symbolic links"):
        open_lock(lock)
    lock.unlink()
    lock.hardlink_to(precious)
    with open_lock(lock), pytest.raises(BlockingIOError):
        open_lock(lock)
    open_lock(lock).close()
    assert precious.read_bytes() == b"years of work"
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(OSError, match="regular file"):
        open_lock(pipe)


class WindowsLocks:
    """msvcrt, whose locks belong to a handle as those of flock do, with its own error for those that are held."""

    LK_NBLCK = 2

    @staticmethod
    def locking(handle: int, mode: int, count: int) -> None:
        import fcntl

        assert (mode, count) == (WindowsLocks.LK_NBLCK, 1)
        assert stat.S_ISREG(os.fstat(handle).st_mode)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise PermissionError(errno.EACCES, "Permission denied") from error


@pytest.fixture
def windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """No fcntl, and no way to open a folder, as on Windows."""
    monkeypatch.delattr(files, "fcntl", raising=False)
    monkeypatch.setattr(files, "msvcrt", WindowsLocks, raising=False)
    monkeypatch.setattr(files, "POSIX", False)
    opened = os.open

    def open_file(path: Path, flags: int, *mode: int) -> int:
        if Path(path).is_dir():
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return opened(path, flags, *mode)

    monkeypatch.setattr(os, "open", open_file)
    monkeypatch.setattr(shutil, "_use_fd_functions", False)  # `rmtree` where folders cannot be opened


@pytest.mark.usefixtures("windows")
def test_files_are_locked_and_written_on_windows_too(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    with open_lock(lock), pytest.raises(BlockingIOError):
        open_lock(lock)
    open_lock(lock).close()
    path = tmp_path / "map.tif"
    with scratch_folder(path) as in_use:
        remains = tmp_path / ".map.tif.killed.tmp"
        remains.mkdir()
        (remains / "half").write_bytes(b"half")
        write_atomically(path, b"whole")
        assert path.read_bytes() == b"whole"
        assert sorted(tmp_path.iterdir()) == sorted([path, lock, in_use])
    assert sorted(tmp_path.iterdir()) == sorted([path, lock])


def test_an_interrupt_while_a_folder_is_made_leaves_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(folder: Path) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(files, "_lock_folder", interrupted)
    with pytest.raises(KeyboardInterrupt), scratch_folder(tmp_path / "map.tif"):
        pass
    assert list(tmp_path.iterdir()) == []
