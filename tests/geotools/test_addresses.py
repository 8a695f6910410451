"""Small files of web servers that are slow, endless or cut."""

from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread

import pytest

from iic_geotools import addresses
from iic_geotools.addresses import fetch
from iic_geotools.errors import SceneError


@contextmanager
def serve(*, size: int, sent: int, pause: float = 0.0) -> Iterator[str]:
    """Serve a file of `size` bytes, of which `sent` come, one after each pause."""
    ended = Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(size))
            self.end_headers()
            for _ in range(sent):
                try:
                    self.wfile.write(b"x")
                except OSError:  # the client has given up
                    return
                if ended.wait(pause):
                    return

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/items.json"
        finally:
            ended.set()
            server.shutdown()


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")


def test_a_whole_file_is_read() -> None:
    with serve(size=9, sent=9) as address:
        assert fetch(address) == b"x" * 9


@pytest.mark.timeout(60)
@pytest.mark.parametrize(("setting", "value"), [("TIMEOUT", 0.3), ("LONGEST", 0.3)])
def test_a_server_that_drips_is_given_up(monkeypatch: pytest.MonkeyPatch, setting: str, value: float) -> None:
    """Each byte comes in time, and the file never would."""
    monkeypatch.setattr(addresses, setting, value)
    with (
        serve(size=10**6, sent=10**6, pause=0.02) as address,
        pytest.raises(SceneError, match=r"cannot be read \(the server sent \d+ bytes in"),
    ):
        fetch(address)


def test_a_file_that_ends_early_is_not_taken_for_whole() -> None:
    with serve(size=9, sent=5) as address, pytest.raises(SceneError, match="4 bytes too early"):
        fetch(address)
