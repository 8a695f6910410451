"""The static page as users open it: written by the command, served by the server of the standard library."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

from support.browser import Browser

COMMAND = "from iic_runtime.cli.model import main; main()"


class _Handler(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def serve(folder: Path) -> Iterator[str]:
    """Serve a folder to this machine, and yield its address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Handler, directory=str(folder)))
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def run_page(*arguments: str | Path, **options: Any) -> "subprocess.CompletedProcess[str]":
    """Run `iic-model page`."""
    command = [sys.executable, "-c", COMMAND, "page", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


def finish(browser: Browser) -> str:
    """Wait until a map is finished, and return the page's last words."""
    browser.wait("!document.getElementById('result').hidden", 2400)
    return status(browser)


def status(browser: Browser) -> str:
    """Return what the page says."""
    return str(browser.evaluate("document.getElementById('status').textContent"))


def drop(browser: Browser, file: Path) -> None:
    """Give the page a file, as its button does."""
    browser.evaluate("document.getElementById('result').hidden = true")
    browser.choose_file("document.getElementById('file')", file)


def download(browser: Browser, kind: str, folder: Path) -> Path:
    """Press a button of the downloads, and return the file."""
    browser.call("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(folder))
    browser.evaluate(f"document.querySelector('[data-kind={kind}]').click()")
    browser.wait("/: [0-9.e+-]+ MB$/.test(document.getElementById('status').textContent)")
    file = folder / status(browser).rpartition(": ")[0]
    browser.wait("true")
    for _ in range(200):
        if file.is_file():
            return file
        browser.evaluate("0")
    raise AssertionError(f"{file} was not downloaded")
