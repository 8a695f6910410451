"""Models by address: downloaded once, kept by their digest, refused in one sentence."""

import hashlib
import shutil
import subprocess
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
import rasterio
from support.scenes import landscape
from support.server import Server, announce, redirect, serve
from support.tiny_onnx import make_model
from typer.testing import CliRunner

from iic_geotools.errors import IICError, ModelError, OutputError, UsageError
from iic_runtime import get_model, segment_raster
from iic_runtime.cli.model import app as model_app
from iic_runtime.cli.segment_raster import app
from iic_runtime.model.remote import address as address_module
from iic_runtime.model.remote import cache as cache_module
from iic_runtime.model.select import find_model

MODEL = make_model(name="forest")
DIGEST = hashlib.sha256(MODEL).hexdigest()


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("IIC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.delenv("IIC_MODEL", raising=False)
    monkeypatch.delenv("IIC_MODEL_INDEX", raising=False)
    return tmp_path / "cache"


@pytest.fixture
def server() -> Iterator[Server]:
    with serve() as running:
        running.answers["/forest.onnx"] = MODEL
        yield running


def cached(cache: Path) -> list[str]:
    return sorted(entry.name for entry in cache.rglob("*") if entry.is_file())


def test_a_model_is_downloaded_once_and_kept_by_its_digest(server: Server, cache: Path) -> None:
    address = f"{server.address}/forest.onnx"
    model = get_model(address)
    assert model.path == cache / "models" / f"{DIGEST}.onnx"
    assert model.path.read_bytes() == MODEL
    assert model.card.name == "forest"
    assert get_model(address) == model
    assert find_model(address) == model
    assert server.requests == ["/forest.onnx"]


def test_what_a_server_holds_now_is_asked_for_on_request(server: Server, cache: Path) -> None:
    address = f"{server.address}/forest.onnx"
    get_model(address)
    newer = make_model(name="newer")
    server.answers["/forest.onnx"] = newer
    assert get_model(address).card.name == "forest"
    assert get_model(address, refresh=True).card.name == "newer"
    assert get_model(address).card.name == "newer"
    assert len(list((cache / "models").iterdir())) == 2


def test_a_digest_is_proven_and_needs_no_server_again(server: Server, cache: Path) -> None:
    address = f"{server.address}/forest.onnx"
    wrong = "0" * 64
    with pytest.raises(ModelError, match="another file than the digest says"):
        get_model(f"{address}#sha256={wrong}")
    assert cached(cache) == []
    get_model(f"{address}#sha256={DIGEST.upper()}")
    server.requests.clear()
    assert get_model(f"https://elsewhere.invalid/x.onnx#sha256={DIGEST}").digest == DIGEST
    assert server.requests == []


def test_a_damaged_copy_is_downloaded_again(server: Server, cache: Path) -> None:
    address = f"{server.address}/forest.onnx"
    path = get_model(address).path
    path.write_bytes(MODEL[:-100])
    assert get_model(address).content == MODEL
    assert path.read_bytes() == MODEL
    (cache / "addresses" / next((cache / "addresses").iterdir()).name).write_text("../../etc/passwd")
    assert get_model(address).content == MODEL


def test_the_command_prints_the_path(server: Server, cache: Path) -> None:
    result = CliRunner().invoke(model_app, ["get", f"{server.address}/forest.onnx"])
    assert result.exit_code == 0, result.output
    assert result.stdout == f"{cache / 'models' / DIGEST}.onnx\n"
    assert DIGEST in result.stderr


def test_a_scene_is_mapped_with_a_model_by_address(
    server: Server, make_scene: Callable[..., Path], tmp_path: Path
) -> None:
    scene, out = make_scene(landscape(30, 40)), tmp_path / "map.tif"
    arguments = [str(scene), str(out), "--model", f"{server.address}/forest.onnx", "--device", "cpu"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    with rasterio.open(out) as dataset:
        assert dataset.tags()["IIC_MODEL_SHA256"] == DIGEST
    summary = segment_raster(scene, tmp_path / "again.tif", f"{server.address}/forest.onnx", device="cpu")
    assert summary.card.name == "forest"
    assert server.requests == ["/forest.onnx"]


def test_a_downloaded_model_is_not_changed(server: Server, tmp_path: Path) -> None:
    address = f"{server.address}/forest.onnx"
    result = CliRunner().invoke(model_app, ["rename", address, "0=water"])
    assert result.exit_code == 2
    assert "write a copy, with --out" in result.stderr
    assert get_model(address).content == MODEL
    result = CliRunner().invoke(model_app, ["rename", address, "0=water", "-o", str(tmp_path / "own.onnx")])
    assert result.exit_code == 0, result.output


def test_redirects_are_followed_only_to_addresses_that_are_allowed(server: Server, cache: Path) -> None:
    server.answers["/moved"] = redirect("/forest.onnx")
    assert get_model(f"{server.address}/moved").digest == DIGEST
    for target in (
        "http://example.invalid/x.onnx",
        "ftp://example.invalid/x",
        "https://me:secret@example.invalid/",
    ):
        server.answers["/away"] = redirect(target)
        with pytest.raises(UsageError, match=r"example\.invalid"):
            get_model(f"{server.address}/away")
    server.answers["/file"] = redirect("file:///etc/passwd")
    with pytest.raises(IICError):
        get_model(f"{server.address}/file")
    server.answers["/loop"] = redirect("/loop")
    with pytest.raises(ModelError, match="302"):
        get_model(f"{server.address}/loop")
    assert cached(cache) == sorted([f"{DIGEST}.onnx", *cached(cache / "addresses")])


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (b"<html>please log in</html>", "cannot be used as a model"),
        (b"", "cannot be used as a model"),
        (MODEL[:-100], "cannot be used as a model"),
        (announce(len(MODEL) + 10, MODEL), f"ended after {len(MODEL)} of {len(MODEL) + 10} bytes"),
        (announce(1 << 40, b""), "more than the 512 MB"),
    ],
)
def test_what_is_not_a_model_is_not_kept(server: Server, cache: Path, answer: object, message: str) -> None:
    server.answers["/odd.onnx"] = answer  # type: ignore[assignment]
    with pytest.raises(ModelError, match=message):
        get_model(f"{server.address}/odd.onnx")
    assert cached(cache) == []


def test_a_size_that_is_not_announced_is_limited_too(
    server: Server, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.answers["/plain"] = announce(None, MODEL)
    assert get_model(f"{server.address}/plain").digest == DIGEST
    monkeypatch.setattr(cache_module, "MAX_MODEL", 1000)
    with pytest.raises(ModelError, match="more than"):
        get_model(f"{server.address}/plain", refresh=True)


def test_servers_that_stall_or_trickle_are_given_up(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(address_module, "TIMEOUT", 0.2)

    def stall(handler: BaseHTTPRequestHandler) -> None:
        server.release.wait(30)

    def stall_later(handler: BaseHTTPRequestHandler) -> None:
        announce(1000, b"begun")(handler)
        handler.wfile.flush()
        server.release.wait(30)

    def trickle(handler: BaseHTTPRequestHandler) -> None:
        announce(1000, b"")(handler)
        while not server.release.wait(0.05):
            try:
                handler.wfile.write(b".")
            except OSError:
                return

    server.answers |= {"/stall": stall, "/later": stall_later, "/trickle": trickle}
    for path, message in (("stall", "did not answer"), ("later", "did not answer"), ("trickle", "too slow")):
        with pytest.raises(ModelError, match=message):
            get_model(f"{server.address}/{path}")


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("http://example.invalid/model.onnx", "not encrypted"),
        ("ftp://example.invalid/model.onnx", "must begin with https"),
        ("file:///etc/passwd", "must begin with https"),
        ("s3://bucket/model.onnx", "must begin with https"),
        ("https://", "must begin with https"),
        ("https://user:secret@example.invalid/model.onnx", "must not hold a name or a password"),
        ("https://example.invalid/model.engine", "machine code"),
        ("https://example.invalid/model.onnx#sha256=12", "64 hexadecimal digits"),
        ("https://example.invalid/model.onnx#md5=12", "64 hexadecimal digits"),
        ("https://[::1/model.onnx", "is not an address"),
        ("https://example.invalid:port/model.onnx", "is not an address"),
        ("https://example.invalid/a b", "is not an address"),
        ("https://example.invalid/a\nb: c", "is not an address"),
    ],
)
def test_addresses_that_are_refused(address: str, message: str, cache: Path) -> None:
    with pytest.raises(UsageError, match=message) as error:
        get_model(address)
    assert "secret" not in str(error.value)
    assert cached(cache) == []


def test_errors_are_sentences_without_tokens(server: Server) -> None:
    result = CliRunner().invoke(model_app, ["get", f"{server.address}/none.onnx?token=secret"])
    assert result.exit_code == 1
    (line,) = result.stderr.splitlines()
    assert line == (
        f"Error: {server.address}/none.onnx cannot be downloaded: the server answers 404 Not Found; check the address."
    )
    address = server.address
    server.close()
    with pytest.raises(ModelError, match="Connection refused"):
        get_model(f"{address}/forest.onnx")


def test_a_cache_that_cannot_be_written_to(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("IIC_CACHE", str(tmp_path / "file"))
    with pytest.raises(OutputError, match="set IIC_CACHE"):
        get_model(f"{server.address}/forest.onnx")


def test_letters_beyond_ascii(server: Server) -> None:
    server.answers["/mod%C3%A8le%20x.onnx?a=%C3%A9"] = MODEL
    assert get_model(f"{server.address}/modèle%20x.onnx?a=é").digest == DIGEST
    with pytest.raises(ModelError, match="cannot be downloaded"):
        get_model("https://" + "é" * 300 + ".invalid/x.onnx")


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate")
def test_an_untrusted_certificate_is_refused(tmp_path: Path, cache: Path) -> None:
    names = {"-keyout": tmp_path / "key.pem", "-out": tmp_path / "certificate.pem"}
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=127.0.0.1"]
        + [str(word) for pair in names.items() for word in pair],
        check=True,
        capture_output=True,
    )
    with serve(names["-out"], names["-keyout"]) as server:
        server.answers["/forest.onnx"] = MODEL
        with pytest.raises(ModelError, match="CERTIFICATE_VERIFY_FAILED"):
            get_model(f"{server.address}/forest.onnx")
        assert server.requests == []
    assert cached(cache) == []


def test_a_long_address_is_an_address(server: Server) -> None:
    path = "/forest.onnx?signature=" + "x" * 5000
    server.answers[path] = MODEL
    assert find_model(server.address + path).digest == DIGEST
    assert find_model(server.address + path).digest == DIGEST
    assert len(server.requests) == 1
