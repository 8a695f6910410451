"""The studio as users start it, and requests to it."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

EXAMPLE = Path(__file__).parents[2] / "examples" / "scene.tif"
COMMAND = "from iic_runtime.cli.studio import main; main()"


class Studio:
    """A running studio.

    Attributes:
        address: The address of its page.
        process: Its process.
    """

    def __init__(self, address: str, process: "subprocess.Popen[str]") -> None:
        self.address, self.process = address, process
        self.parts = urlsplit(address)

    def request(
        self, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> tuple[int, bytes, dict[str, str]]:
        """Send a request to a path below that of the page; return status, body, headers.

        Args:
            body: What a POST sends: bytes as they are, anything else as JSON. Without it, the request is a GET.
        """
        connection = HTTPConnection(self.parts.netloc, timeout=60)
        content = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        method = "GET" if content is None else "POST"
        extra = {"Content-Type": "application/json"} if body is not None else {}
        connection.putrequest(method, self.parts.path + path, skip_host="Host" in (headers or {}))
        for name, value in (extra | (headers or {})).items():
            connection.putheader(name, value)
        if content is not None:
            connection.putheader("Content-Length", str(len(content)))
        connection.endheaders(content)
        answer = connection.getresponse()
        result = answer.status, answer.read(), dict(answer.getheaders())
        connection.close()
        return result

    def act(self, action: str, **arguments: Any) -> dict[str, Any]:
        """Do what a page does."""
        status, content, _ = self.request(f"api/0/{action}", arguments)
        assert status == 200, content
        return dict(json.loads(content))

    def state(self) -> dict[str, Any]:
        """Return what a page shows."""
        return dict(json.loads(self.request("api/0/state")[1]))

    def refuse(self, action: str, **arguments: Any) -> str:
        """Do what cannot be done; return the sentence."""
        status, content, _ = self.request(f"api/0/{action}", arguments)
        assert status == 409, content
        return str(json.loads(content)["error"])


@contextmanager
def run_studio(*arguments: str | Path) -> Iterator[Studio]:
    """Start a studio without a browser, and interrupt it at the end."""
    process = subprocess.Popen(
        [sys.executable, "-c", COMMAND, *map(str, arguments), "--no-browser"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line.startswith("http://127.0.0.1:"):
        raise AssertionError(line + process.communicate()[1])
    try:
        yield Studio(line.split()[0], process)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        output = process.communicate(timeout=60)
        assert process.returncode in (0, -signal.SIGKILL), output
