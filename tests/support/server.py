"""A web server on this machine, whose answers a test decides."""

import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

Answer = Callable[[BaseHTTPRequestHandler], None]


class Server:
    """A server.

    Attributes:
        address: Its address, without a slash at the end.
        answers: What it sends for each path: the content of a file, or a function that answers.
        requests: The paths that it was asked for.
        release: Set when the test ends, so that functions that wait return.
    """

    def __init__(self, certificate: Path | None = None, key: Path | None = None) -> None:
        self.answers: dict[str, bytes | Answer] = {}
        self.requests: list[str] = []
        self.release = threading.Event()
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                server.requests.append(self.path)
                answer = server.answers.get(self.path)
                if answer is None:
                    self.send_error(404)
                elif isinstance(answer, bytes):
                    self.send_response(200)
                    self.send_header("Content-Length", str(len(answer)))
                    self.end_headers()
                    self.wfile.write(answer)
                else:
                    answer(self)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self.address = f"{'http' if certificate is None else 'https'}://127.0.0.1:{self._http.server_port}"
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate, key)
            self._http.socket = context.wrap_socket(self._http.socket, server_side=True)
        threading.Thread(target=self._http.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        """End it."""
        self.release.set()
        self._http.shutdown()
        self._http.server_close()


@contextmanager
def serve(certificate: Path | None = None, key: Path | None = None) -> Iterator[Server]:
    """Start a server, and end it; with a certificate it speaks https."""
    server = Server(certificate, key)
    try:
        yield server
    finally:
        server.close()


def redirect(target: str) -> Answer:
    """Answer with a reference to another address."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(302)
        handler.send_header("Location", target)
        handler.send_header("Content-Length", "0")
        handler.end_headers()

    return answer


def announce(size: int | None, content: bytes) -> Answer:
    """Announce another size than is sent, or none, and close the connection."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        if size is not None:
            handler.send_header("Content-Length", str(size))
        handler.end_headers()
        handler.wfile.write(content)

    return answer
