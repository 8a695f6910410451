"""A web server in a process of its own that serves a folder and lies: `python lying_server.py FOLDER`.

It prints its port and ends with its standard input. The address of a file is `/LIE/N/ANYTHING/NAME`: whoever uses
`ANYTHING` hears the truth in its first N answers, and the lie then. It imports nothing but the standard library, and
runs in a process of its own because GDAL holds Python's lock while it waits for servers.
"""

import random
import sys
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar
from urllib.parse import unquote

LIES = (
    "nothing", "nothing", "longer", "shorter", "no length", "negative length", "two lengths", "huge length",
    "status 200 for a range", "wrong range", "garbage", "a page", "empty", "cut", "break off",
    "redirect to itself", "redirect to a file", "redirect to nowhere", "404", "403", "429", "500", "503", "999",
    "not HTTP", "endless headers", "gzip", "silent", "drip", "endless", "zeros", "deep", "infinite numbers",
    "latin-1", "changes",
)  # fmt: skip


class Handler(BaseHTTPRequestHandler):
    """Answers with the files of `folder`, or with lies about them."""

    protocol_version = "HTTP/1.1"
    folder: Path
    asked: ClassVar["Counter[str]"] = Counter()
    release = threading.Event()

    def do_HEAD(self) -> None:
        """Answer without a body."""
        self._answer(body=False)

    def do_GET(self) -> None:
        """Answer."""
        self._answer(body=True)

    do_POST = do_GET  # noqa: N815

    def _answer(self, body: bool) -> None:
        lie, _, rest = self.path[1:].partition("/")
        after, _, rest = rest.partition("/")
        user, _, name = rest.partition("/")
        file = self.folder / (name or "missing")
        try:
            if not file.is_file():
                self.send_error(404)
                return
            self.asked[user] += 1
            told = unquote(lie) if self.asked[user] > int(after) else "nothing"
            self._send(told, file.read_bytes(), body)
        except OSError:  # whoever read has had enough
            self.close_connection = True

    def _send(self, lie: str, content: bytes, body: bool) -> None:
        if lie.isdecimal():
            self.send_response(int(lie), "x\x1b[2J")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        if lie.startswith("redirect"):
            self.send_response(302)
            targets = {"redirect to itself": self.path, "redirect to a file": "file:///etc/passwd"}
            self.send_header("Location", targets.get(lie, "http://nowhere.invalid/x"))
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        if lie in ("not HTTP", "endless headers"):
            self.wfile.write(b"\x00\xff\n\n" if lie == "not HTTP" else b"HTTP/1.1 200 OK\r\n")
            for number in range(5000 if lie == "endless headers" else 0):
                self.wfile.write(f"X-{number}: {'a' * 200}\r\n".encode())
            self.close_connection = True
            return
        if lie == "silent":
            self.release.wait(30)
            return
        content = self._content(lie, content)
        start, end = self._range(len(content))
        ranged = "Range" in self.headers and lie != "status 200 for a range"
        part = content[start : end + 1] if ranged else content
        self.send_response(206 if ranged else 200)
        if ranged:
            first = start + 7 if lie == "wrong range" else start
            self.send_header("Content-Range", f"bytes {first}-{end}/{len(content)}")
        lengths = {"longer": [len(part) + 100], "shorter": [max(0, len(part) - 100)], "no length": [], "endless": [],
                   "negative length": [-5], "two lengths": [len(part), 3], "huge length": [10**18]}  # fmt: skip
        for length in lengths.get(lie, [len(part)]):
            self.send_header("Content-Length", str(length))
        self.send_header("Accept-Ranges", "bytes")
        if lie == "gzip":
            self.send_header("Content-Encoding", "gzip")
        if lie == "changes":
            self.send_header("ETag", f'"{random.getrandbits(32)}"')
        self.end_headers()
        if body:
            self._body(lie, part)
        if lie in ("longer", "shorter", "no length", "endless", "huge length", "two lengths", "break off"):
            self.close_connection = True

    def _content(self, lie: str, content: bytes) -> bytes:
        infinite = '{"type":"Feature","stac_version":"1.0.0","id":1e999,"bbox":[1e999],"assets":{"image":{"href":"x"}}}'
        odd = {
            "a page": b"<!doctype html><html><body>Please log in</body></html>",
            "empty": b"",
            "zeros": bytes(len(content)),
            "garbage": random.Random(0).randbytes(len(content)),
            "deep": b"[" * 100_000,
            "latin-1": b'{"type": "\xe9\xff"}',
            "infinite numbers": infinite.encode(),
            "cut": content[: len(content) // 2],
        }
        return odd.get(lie, content)

    def _range(self, size: int) -> tuple[int, int]:
        first, _, last = self.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")
        start = int(first) if first.isdecimal() else 0
        return start, min(int(last) if last.isdecimal() else size, size - 1)

    def _body(self, lie: str, part: bytes) -> None:
        if lie == "drip":
            for place in range(0, len(part), 3):
                self.wfile.write(part[place : place + 3])
                if self.release.wait(0.2):
                    return
        elif lie == "endless":
            while not self.release.is_set():
                self.wfile.write(bytes(1 << 20))
        else:
            self.wfile.write(part[: len(part) // 3] if lie == "break off" else part)

    def log_message(self, format: str, *args: object) -> None:
        pass


def main() -> None:
    """Serve until standard input ends."""
    Handler.folder = Path(sys.argv[1])
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        sys.stdout.write(f"{server.server_port}\n")
        sys.stdout.flush()
        sys.stdin.read()
        Handler.release.set()
        server.shutdown()


if __name__ == "__main__":
    main()
