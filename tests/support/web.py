"""A web server on this machine that gives ranges of files, as those that hold scenes do, and a small STAC API.

It runs in a process of its own: GDAL may wait for it without letting other threads of this one run.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

CATALOGUE = "catalogue.json"
"""The file of a served folder that holds the items of the STAC API."""
PAGE = 2
"""The most items that the STAC API returns at once."""


@dataclass(frozen=True)
class WebServer:
    """A running server of a folder.

    Attributes:
        address: Its address; that of its STAC API is `address/stac`.
    """

    address: str

    def url(self, name: str) -> str:
        return f"{self.address}/{name}"

    def be_busy(self, times: int) -> None:
        """Answer the next requests by 503."""
        urlopen(Request(self.url(f"busy/{times}"), method="PUT")).close()

    def requests(self) -> list[str]:
        """Return the requests so far."""
        with urlopen(Request(self.url(""), method="OPTIONS")) as answer:
            return list(json.load(answer))


@contextmanager
def serve(folder: Path) -> Iterator[WebServer]:
    """Run a server of a folder."""
    command = [sys.executable, __file__, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield WebServer(f"http://127.0.0.1:{int(process.stdout.readline())}")
        finally:
            process.terminate()


class _Handler(BaseHTTPRequestHandler):
    folder: Path
    busy = 0
    log: list[str] = []  # noqa: RUF012

    def do_PUT(self) -> None:
        type(self).busy = int(self.path.rpartition("/")[2])
        self._give(b"", {})

    def do_OPTIONS(self) -> None:
        self._give(json.dumps(self.log).encode(), {})

    def do_HEAD(self) -> None:
        self._serve()

    def do_GET(self) -> None:
        self._serve()

    def do_POST(self) -> None:
        content = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self._is_busy():
            return
        self._give_json(_search(self.folder, self._root(), json.loads(content)))

    def _root(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}/stac"  # type: ignore[attr-defined]

    def _is_busy(self) -> bool:
        self.log.append(f"{self.command} {self.path}")
        if not self.busy:
            return False
        type(self).busy -= 1
        self.send_error(503)
        return True

    def _serve(self) -> None:
        if self._is_busy():
            return
        path = urlsplit(self.path).path
        file = self.folder / path.lstrip("/")
        if path == "/stac":
            self._give_json(_landing_page(self._root()))
        elif file.is_file():
            self._give_file(file)
        else:  # GDAL looks for sidecars and lists the folder
            self.send_error(404)

    def _give_file(self, file: Path) -> None:
        content, status = file.read_bytes(), file.stat()
        headers = {"ETag": f'"{status.st_mtime_ns}"', "Accept-Ranges": "bytes"}
        span = self.headers.get("Range")
        if span is None:
            self._give(content, headers)
            return
        first, _, last = span.removeprefix("bytes=").partition("-")
        start, end = int(first), min(int(last or len(content)), len(content) - 1)
        if start >= len(content):
            self.send_error(416)
            return
        headers["Content-Range"] = f"bytes {start}-{end}/{len(content)}"
        self._give(content[start : end + 1], headers, 206)

    def _give_json(self, content: object) -> None:
        self._give(json.dumps(content).encode(), {"Content-Type": "application/geo+json"})

    def _give(self, content: bytes, headers: dict[str, str], code: int = 200) -> None:
        self.send_response(code)
        self.send_header("Content-Length", str(len(content)))
        for key, value in headers.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        pass


def _landing_page(root: str) -> dict[str, Any]:
    search = {"rel": "search", "href": f"{root}/search", "type": "application/geo+json"}
    return {
        "type": "Catalog",
        "id": "made",
        "stac_version": "1.0.0",
        "description": "A catalogue that a test has made.",
        "conformsTo": [
            f"https://api.stacspec.org/v1.0.0/{name}" for name in ("core", "item-search", "item-search#query")
        ],
        "links": [
            {"rel": "self", "href": root},
            {"rel": "root", "href": root},
            search | {"method": "GET"},
            search | {"method": "POST"},
        ],
    }


def _search(folder: Path, root: str, query: dict[str, Any]) -> dict[str, Any]:
    """Find items by box, time, collection and properties, a page at a time."""
    matches = [item for item in json.loads((folder / CATALOGUE).read_text()) if _matches(item, query)]
    start = int(query.get("token", 0))
    end = start + min(PAGE, int(query.get("limit", PAGE)))
    links = []
    if end < len(matches):
        body = {**query, "token": end}
        links = [{"rel": "next", "method": "POST", "href": f"{root}/search", "body": body}]
    return {"type": "FeatureCollection", "features": matches[start:end], "links": links}


def _matches(item: dict[str, Any], query: dict[str, Any]) -> bool:
    left, bottom, right, top = query.get("bbox", (-180, -90, 180, 90))
    west, south, east, north = item["bbox"]
    first, _, last = query.get("datetime", "0/9").partition("/")
    time, limits = item["properties"]["datetime"], query.get("query", {})
    return (
        (west <= right and east >= left and south <= top and north >= bottom)
        and (first == ".." or first <= time)
        and (last == ".." or time <= (last or first))
        and item["collection"] in query.get("collections", [item["collection"]])
        and all(item["properties"].get(key, 101) <= limit["lte"] for key, limit in limits.items())
    )


if __name__ == "__main__":
    _Handler.folder = Path(sys.argv[1])
    with ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as http:
        sys.stdout.write(f"{http.server_port}\n")
        sys.stdout.flush()
        http.serve_forever()
