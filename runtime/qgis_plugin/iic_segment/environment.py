"""The Python environment of the plugin, in the user's profile: made on first use, updated with the plugin, removed.

It holds iic-edge from the wheel in the plugin's folder, so that plugin and package cannot differ, and what that needs
from the package index that pip is configured for. QGIS's own Python stays as it is. This module does not import QGIS.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from .command import FOREIGN, CommandError, execute

EXTRAS = "[cpu,vector]"
OLDEST_PYTHON = (3, 11)
RECORD = "environment.json"
PACKAGES = 25  # about as many are installed: for the progress only
LEFTOVER_SECONDS = 86_400
PROBE = (
    "import sys, importlib.util as u; "
    "print(*sys.version_info[:2], *(name for name in ('venv', 'ensurepip', 'pip') if u.find_spec(name)))"
)
IMPORTS = "import iic_runtime, onnxruntime, pyogrio, rasterio, shapely"
NO_NETWORK = (
    "connection",
    "proxy",
    "name resolution",
    "timed out",
    "certificate",
    "error sending request",
)

OnMessage = Callable[[str], None]
OnProgress = Callable[[float], None]
Cancelled = Callable[[], bool]


class Way(NamedTuple):
    """A way to make an environment.

    Attributes:
        python: The Python that it is made with.
        create: The command that makes it.
        install: The command that installs into it, without the packages.
    """

    python: str
    create: list[str]
    install: list[str]


class Environment:
    """An environment in a folder of its own; what is not finished is never used.

    Args:
        home: The folder that holds the environment and its record.
        wheel: The wheel of iic-edge.
        variables: Environment variables for the installation, such as a proxy.
    """

    def __init__(self, home: Path, wheel: Path, variables: dict[str, str] | None = None) -> None:
        self.home, self.wheel, self._variables = home, wheel, variables or {}

    def command(self, name: str) -> str | None:
        """Return the path of a command; None if there is no environment, or one of another version."""
        record = self._record()
        folder = self.home / record.get("folder", "")
        if record.get("wheel") != self._digest() or not Path(record["python"]).exists():
            return None
        return shutil.which(name, path=str(_python_of(folder).parent))

    def make(self, on_progress: OnProgress, on_message: OnMessage, cancelled: Cancelled) -> bool:
        """Make the environment, and remove the one it replaces.

        Args:
            on_progress: Called with the progress in percent.
            on_message: Called with what is being done.
            cancelled: Returns whether the user has cancelled it.

        Returns:
            False if it was cancelled; then nothing is left of it.

        Raises:
            CommandError: It cannot be made; nothing is left of it.
        """
        folder, previous = self.home / f"env-{uuid.uuid4().hex[:8]}", self._record()
        way = find_way(folder)
        on_message(f"Making an environment of {way.python} in {folder}; this downloads about 120 MB, once.")
        try:
            self.home.mkdir(parents=True, exist_ok=True)
            finished = self._fill(way, folder, on_progress, on_message, cancelled)
            if finished:
                record = {"folder": folder.name, "wheel": self._digest(), "python": way.python}
                draft = folder / RECORD
                draft.write_text(json.dumps(record), encoding="utf-8")
                draft.replace(self.home / RECORD)
        except OSError as error:
            raise CommandError(
                f"The environment cannot be written to {folder} ({error.strerror})."
            ) from error
        finally:
            self._clean(folder.name, previous.get("folder", ""))
        return finished

    def remove(self) -> None:
        """Remove the environment.

        Raises:
            CommandError: Some of it cannot be removed.
        """
        (self.home / RECORD).unlink(missing_ok=True)
        shutil.rmtree(self.home, ignore_errors=True)
        if self.home.exists():
            raise CommandError(f"{self.home} cannot be removed: close other windows of QGIS and try again.")

    def _fill(
        self, way: Way, folder: Path, on_progress: OnProgress, on_message: OnMessage, cancelled: Cancelled
    ) -> bool:
        """Run the commands that make an environment; False if the user has cancelled them."""
        lines: list[str] = []
        collected = 0

        def on_line(stream: str, line: str) -> None:
            nonlocal collected
            lines.append(line)
            if line.startswith(("Collecting", "Installing", "Successfully")):
                on_message(line)
                collected += line.startswith("Collecting")
                on_progress(10 + 70 * min(collected / PACKAGES, 1))

        requirement = f"{self.wheel}{EXTRAS}"
        install = [*way.install, "--only-binary", ":all:", requirement]
        check = [str(_python_of(folder)), "-c", IMPORTS]
        for percent, command in ((10, way.create), (90, install), (100, check)):
            lines.clear()
            code = execute(command, on_line, cancelled, self._variables)
            if code is None:
                return False
            if code:
                raise CommandError(_reason(lines))
            on_progress(percent)
        return True

    def _record(self) -> dict[str, str]:
        try:
            record: dict[str, str] = json.loads((self.home / RECORD).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return record

    def _digest(self) -> str:
        return hashlib.sha256(self.wheel.read_bytes()).hexdigest()

    def _clean(self, made: str, previous: str) -> None:
        """Remove what is not used: an unfinished environment, the one before, and what an earlier crash has left."""
        used = self._record().get("folder")
        for folder in self.home.glob("env-*"):
            forgotten = time.time() - folder.stat().st_mtime > LEFTOVER_SECONDS
            if folder.name != used and (folder.name in (made, previous) or forgotten):
                shutil.rmtree(folder, ignore_errors=True)


def find_way(folder: Path) -> Way:
    """Return how to make an environment in a folder: by QGIS's Python if it can, or else by another one or by uv.

    Raises:
        CommandError: There is no way.
    """
    python = str(_python_of(folder))
    options = [
        "install",
        "--disable-pip-version-check",
        "--no-input",
        "--progress-bar",
        "off",
        "--retries",
        "2",
    ]
    suitable = ""
    for candidate in _candidates():
        version, *modules = _probe(candidate)
        if version < OLDEST_PYTHON or "venv" not in modules:
            continue
        suitable = candidate
        if "ensurepip" in modules:
            return Way(candidate, [candidate, "-m", "venv", str(folder)], [python, "-m", "pip", *options])
        if "pip" in modules:
            create = [candidate, "-m", "venv", "--without-pip", str(folder)]
            return Way(candidate, create, [candidate, "-m", "pip", "--python", python, *options])
    if uv := shutil.which("uv"):
        chosen = suitable or "3.12"
        create = [uv, "venv", "--quiet", "--python", chosen, str(folder)]
        return Way(suitable or uv, create, [uv, "pip", "install", "--python", python])
    if suitable:
        raise CommandError(
            f"{suitable} has neither ensurepip nor pip: install the package python3-venv of your system, and run this "
            "again."
        )
    needed = ".".join(map(str, OLDEST_PYTHON))
    raise CommandError(
        f"There is no Python {needed} or later here (QGIS has {sys.version_info[0]}.{sys.version_info[1]}): install "
        "Python or uv, or a newer QGIS, and run this again."
    )


def _candidates() -> Iterator[str]:
    """Yield the paths at which QGIS's Python may be, then those of others; sys.executable is often QGIS itself."""
    base, own = Path(sys.base_prefix), Path(sys.executable or "python")
    names = ("python.exe", "python3.exe") if sys.platform == "win32" else ("bin/python3",)
    places = [base / name for name in names] + [own.parent / "bin" / "python3"]
    if own.stem.lower().startswith("python"):
        places.append(own)
    found = [str(place) for place in places if place.is_file()]
    found += filter(None, (shutil.which(f"python3.{minor}") for minor in (13, 12, 11)))
    yield from dict.fromkeys([*found, *filter(None, map(shutil.which, ("python3", "python")))])


def _probe(python: str) -> tuple[Any, ...]:
    """Return the version of a Python and which of the modules that make an environment it has."""
    variables = {key: value for key, value in os.environ.items() if key not in FOREIGN}
    hidden: dict[str, Any] = {"creationflags": 0x08000000} if sys.platform == "win32" else {}
    try:
        answer = subprocess.run(
            [python, "-c", PROBE],
            capture_output=True,
            text=True,
            env=variables,
            timeout=60,
            check=True,
            **hidden,
        ).stdout.split()
        return (int(answer[0]), int(answer[1])), *answer[2:]
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return ((0, 0),)


def _python_of(folder: Path) -> Path:
    """Return the Python of an environment."""
    return folder / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")


def _reason(lines: list[str]) -> str:
    """Return the sentence for the user when an installation has failed."""
    errors = [line for line in lines if line.upper().startswith("ERROR")] or lines or ["no message"]
    text = "\n".join(lines).lower()
    if any(sign in text for sign in NO_NETWORK):
        return (
            "The packages that the plugin needs cannot be downloaded: connect this machine to the internet, or enter "
            f"its proxy in Settings > Options > Network, and run this again ({errors[0]})."
        )
    return f"The plugin's environment cannot be made: {errors[-1]}"
