"""The folder that `iic-model page` writes, and where its libraries come from. No browser, no network."""

import io
import json
import os
import tarfile
from hashlib import sha256
from pathlib import Path

import pytest
from support.page import run_page
from support.studio import EXAMPLE

from iic_geotools.errors import MissingPackageError, OutputError
from iic_runtime.model.select import find_model
from iic_runtime.page import site
from iic_runtime.page.site import Package, vendored_files, write_page

CONTENT = b"export {};"


@pytest.fixture
def libraries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder as `npm pack` leaves it, of a small package that stands for the real ones."""
    package = Package("small", "1.0.0", {"dist/small.mjs": sha256(CONTENT).hexdigest()})
    monkeypatch.setattr(site, "PACKAGES", (package,))
    folder = tmp_path / "libraries"
    folder.mkdir()
    with tarfile.open(folder / package.archive, "w:gz") as tar:
        member = tarfile.TarInfo("package/dist/small.mjs")
        member.size = len(CONTENT)
        tar.addfile(member, io.BytesIO(CONTENT))
    return folder


def test_page_has_model_card_libraries_and_example(tmp_path: Path, libraries: Path) -> None:
    folder = write_page("aerial", tmp_path / "site", example=EXAMPLE, runtime=libraries)
    config = json.loads((folder / "page.json").read_text())
    model = find_model("aerial")
    assert config["card"] == json.loads(model.card.to_json())
    assert config["example"]["bands"] == [1, 2, 3, 4]
    assert config["example"]["rescale"] is None
    assert "rouge" in config["words"]["red"]
    assert (folder / "example.tif").read_bytes() == EXAMPLE.read_bytes()
    assert (folder / "vendor" / "small.mjs").read_bytes() == CONTENT
    html = (folder / "index.html").read_text()
    assert all((folder / name).is_file() for name in site._OWN)
    assert "http" not in html.replace("http-equiv", "")
    assert not list(tmp_path.glob(".site*"))


def test_installed_packages_serve_too(tmp_path: Path, libraries: Path) -> None:
    file = tmp_path / "node_modules" / "small" / "dist" / "small.mjs"
    file.parent.mkdir(parents=True)
    file.write_bytes(CONTENT)
    assert vendored_files(tmp_path) == {"small/dist/small.mjs": CONTENT}
    file.write_bytes(b"something else")
    with pytest.raises(OutputError, match=r"is not that of version 1\.0\.0"):
        vendored_files(tmp_path)


def test_only_pages_are_replaced(tmp_path: Path, libraries: Path) -> None:
    folder = write_page("satellite", tmp_path / "site", runtime=libraries)
    with pytest.raises(OutputError, match="`overwrite`"):
        write_page("aerial", folder, runtime=libraries)
    write_page("aerial", folder, runtime=libraries, overwrite=True)
    assert json.loads((folder / "page.json").read_text())["card"]["name"] == "aerial"
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.txt").touch()
    with pytest.raises(OutputError, match="something else than a page"):
        write_page("aerial", tmp_path / "other", runtime=libraries, overwrite=True)


def test_missing_libraries_are_one_sentence(tmp_path: Path) -> None:
    done = run_page("satellite", "-o", tmp_path / "site", "--runtime", tmp_path)
    assert done.returncode == 1
    assert "does not hold onnxruntime-web" in done.stderr
    assert "`npm pack onnxruntime-web@" in done.stderr
    assert "--runtime" in done.stderr
    assert not (tmp_path / "site").exists()


def test_without_npm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("IIC_CACHE", str(tmp_path))
    with pytest.raises(MissingPackageError, match="npm is not installed"):
        vendored_files()


@pytest.mark.skipif(os.name == "nt", reason="the stand-in for npm is a shell script")
def test_offline_then_once_then_from_the_cache(
    tmp_path: Path, libraries: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    npm = tmp_path / "bin" / "npm"
    npm.parent.mkdir()
    npm.write_text("#!/bin/sh\necho 'npm error code ENOTFOUND\nnpm error no such host' >&2\nexit 1\n")
    npm.chmod(0o755)
    monkeypatch.setenv("PATH", f"{npm.parent}:/usr/bin:/bin")
    monkeypatch.setenv("IIC_CACHE", str(tmp_path / "cache"))
    with pytest.raises(
        MissingPackageError, match=r"cannot get small 1\.0\.0 \(no such host\): check the network"
    ):
        vendored_files()
    npm.write_text(f"#!/bin/sh\ncp {libraries}/*.tgz .\n")
    assert vendored_files() == {"small/dist/small.mjs": CONTENT}
    npm.write_text("#!/bin/sh\nexit 1\n")
    assert vendored_files() == {"small/dist/small.mjs": CONTENT}
    cached = next((tmp_path / "cache").rglob("small.mjs"))
    cached.write_bytes(b"damaged")
    with pytest.raises(MissingPackageError, match="cannot get small"):
        vendored_files()
