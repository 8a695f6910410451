import errno
import shutil
from pathlib import Path

import pytest

from iic_geotools.files import put_in_place, replacement, write_atomically


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
    """The rename fails as it does across disks; the copy that replaces it is made beside the target."""
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
