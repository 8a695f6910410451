"""Chromium without a window, driven over a pipe by its DevTools protocol: pages as people see and touch them."""

import base64
import io
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import numpy as np
from PIL import Image

PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
_FLAGS = ("--headless", "--no-sandbox", "--disable-dev-shm-usage", "--remote-debugging-pipe")
EMULATED_CARD = (
    "--enable-unsafe-webgpu",
    "--use-webgpu-adapter=swiftshader",
    "--enable-features=Vulkan",
    "--use-vulkan=swiftshader",
    "--ignore-gpu-blocklist",
)
"""A graphics card that the processor stands in for."""
CONTROLS = ("button", "radio", "checkbox", "slider", "textbox", "combobox", "spinbutton", "application")
"""Roles of controls that must have a name."""


class NavigatedError(Exception):
    """The page that a command was for has gone."""


class Browser:
    """One page in a browser.

    Attributes:
        requests: Addresses of everything that the page has asked for.
        complaints: What the page has written to the console, and errors of its script.
    """

    def __init__(self, commands: IO[bytes], answers: IO[bytes]) -> None:
        self._commands, self._answers = commands, answers
        self._number, self._session = 0, ""
        self.requests: list[str] = []
        self.complaints: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command and return what it answers."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        self._commands.write(json.dumps(message).encode() + b"\0")
        self._commands.flush()
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                if "navigated" in answer.get("error", {}).get("message", ""):
                    raise NavigatedError(method)
                assert "error" not in answer, answer
                return dict(answer["result"])

    def _receive(self) -> dict[str, Any]:
        content = bytearray()
        while (byte := self._answers.read(1)) != b"\0":
            assert byte, "the browser has ended"
            content += byte
        answer: dict[str, Any] = json.loads(content)
        params = answer.get("params", {})
        match answer.get("method"):
            case "Network.requestWillBeSent":
                self.requests.append(params["request"]["url"])
            case "Runtime.exceptionThrown":
                self.complaints.append(json.dumps(params["exceptionDetails"]))
            case "Runtime.consoleAPICalled":
                self.complaints.append(json.dumps(params["args"]))
            case "Log.entryAdded":
                self.complaints.append(params["entry"]["text"])
        return answer

    def open(self, page: Path | str, width: int, height: int, *, phone: bool = False) -> None:
        """Show a page, a file or an address, and wait until its script is ready."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=2 if phone else 1,
            mobile=phone,
        )
        self.call("Emulation.setTouchEmulationEnabled", enabled=phone)
        self.call("Page.navigate", url=page if isinstance(page, str) else page.as_uri())
        self.wait("document.body?.classList.contains('ready')")

    def wait(self, expression: str, tries: int = 2400) -> None:
        """Wait until an expression holds, at least for 50 ms a try: minutes, for a busy machine."""
        for _ in range(tries):
            with suppress(NavigatedError):  # a page that loads itself once more
                if self.evaluate(expression):
                    return
            time.sleep(0.05)
        raise AssertionError(f"{expression} does not hold: {self.complaints}")

    def evaluate(self, expression: str) -> Any:
        """Return the value of an expression in the page, after it was drawn."""
        drawn = f"new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done({expression}))))"
        answer = self.call("Runtime.evaluate", expression=drawn, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def nameless_controls(self) -> list[str]:
        """Return the roles of the controls that have no name in the accessibility tree."""
        return [
            node["role"]["value"]
            for node in self.call("Accessibility.getFullAXTree")["nodes"]
            if node.get("role", {}).get("value") in CONTROLS
            and not node.get("ignored")
            and not node.get("name", {}).get("value")
        ]

    def pixel(self, x: float, y: float) -> tuple[int, int, int]:
        """Return red, green and blue of what is seen at a place in CSS pixels."""
        ratio = self.evaluate("devicePixelRatio")
        with Image.open(io.BytesIO(self._screenshot())) as image:
            red, green, blue = np.asarray(image.convert("RGB"))[round(y * ratio), round(x * ratio)]
        return int(red), int(green), int(blue)

    def wait_for_pixel(self, x: float, y: float, colour: tuple[int, int, int]) -> None:
        """Wait until a colour is seen at a place."""
        for _ in range(100):
            if (seen := self.pixel(x, y)) == colour:
                return
            time.sleep(0.05)
        raise AssertionError(f"{seen} is seen at {x}, {y}, not {colour}: {self.complaints}")

    def mouse(self, kind: str, x: float, y: float, **params: Any) -> None:
        """Send an event of the mouse: "mousePressed", "mouseMoved", "mouseReleased" or "mouseWheel"."""
        self.call(
            "Input.dispatchMouseEvent", type=kind, x=x, y=y, **{"button": "left", "buttons": 1, **params}
        )

    def touch(self, kind: str, *points: tuple[float, float]) -> None:
        """Send an event of fingers: "touchStart", "touchMove" or "touchEnd"."""
        fingers = [{"x": x, "y": y, "id": number} for number, (x, y) in enumerate(points)]
        self.call("Input.dispatchTouchEvent", type=kind, touchPoints=fingers)

    def choose_file(self, element: str, file: Path) -> None:
        """Choose a file in an input element of the page."""
        found = self.call("Runtime.evaluate", expression=element)["result"]["objectId"]
        self.call("DOM.setFileInputFiles", files=[str(file.absolute())], objectId=found)

    def renderers(self) -> list[int]:
        """Return the ids of the processes that run pages."""
        session, self._session = self._session, ""
        processes = self.call("SystemInfo.getProcessInfo")["processInfo"]
        self._session = session
        return [process["id"] for process in processes if process["type"] == "renderer"]

    def screenshot(self, path: Path) -> None:
        """Save what is seen as .png."""
        path.write_bytes(self._screenshot())

    def _screenshot(self) -> bytes:
        return base64.b64decode(self.call("Page.captureScreenshot")["data"])


@contextmanager
def open_browser(profile: Path, *flags: str) -> Iterator[Browser]:
    """Start a browser, and end it.

    Args:
        profile: A folder for its files.
        flags: Flags of Chromium; by default without a graphics card.
    """
    to_browser, from_us = os.pipe()
    to_us, from_browser = os.pipe()
    # Chromium reads commands from the third and answers on the fourth descriptor.
    command = f'exec "$0" "$@" 3<&{to_browser} 4>&{from_browser}'
    process = subprocess.Popen(
        [
            "bash",
            "-c",
            command,
            str(PROGRAM),
            *_FLAGS,
            *(flags or ("--disable-gpu",)),
            f"--user-data-dir={profile}",
        ],
        pass_fds=(to_browser, from_browser),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(to_browser)
    os.close(from_browser)
    with os.fdopen(from_us, "wb") as commands, os.fdopen(to_us, "rb") as answers:
        browser = Browser(commands, answers)
        try:
            yield browser
        finally:
            browser._session = ""
            browser.call("Browser.close")
            process.wait(30)
