"""Running iic-segment-raster in its own Python, from QGIS's. Knows nothing of QGIS."""

from __future__ import annotations

import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

NAME = "iic-segment-raster"
# What QGIS sets for its own Python and libraries, and what would lead another Python astray.
FOREIGN = (
    "PYTHONPATH",
    "PYTHONHOME",
    "LD_LIBRARY_PATH",
    "GDAL_DATA",
    "GDAL_DRIVER_PATH",
    "PROJ_LIB",
    "PROJ_DATA",
)
POLL_SECONDS = 0.2
SHARES = {"segment": (0.0, 90.0), "regrid": (90.0, 95.0), "write": (95.0, 100.0)}


class CommandError(Exception):
    """The command is missing or failed; the message is for the user."""


def find_command(setting: str) -> str:
    """The command that was set, or the one on the PATH."""
    found = shutil.which(setting.strip() or NAME)
    if found is None:
        wanted = setting.strip() or NAME
        raise CommandError(
            f"There is no command {wanted}: install it into a Python environment (pip install 'iic-edge[cpu]') and "
            "give its path in Settings > Options > Processing > Providers > IIC."
        )
    return found


def arguments(scene: str, out: str, **options: str) -> list[str]:
    """The command's arguments; options without a value are left out."""
    named = [f"--{key.replace('_', '-')}={value}" for key, value in options.items() if value]
    return [scene, out, *named, "--overwrite", "--progress-json"]


def run(
    command: list[str],
    on_progress: Callable[[float], None],
    on_message: Callable[[str], None],
    cancelled: Callable[[], bool],
) -> bool:
    """Run the command; tell of its progress in percent and of what it says, and stop it when cancelled.

    Returns:
        Whether it came to its end; False if it was cancelled.

    Raises:
        CommandError: it failed.
    """
    environment = {key: value for key, value in os.environ.items() if key not in FOREIGN}
    hidden: dict[str, Any] = {"creationflags": 0x08000000} if sys.platform == "win32" else {}
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            errors="replace",
            env=environment,
            cwd=Path.home(),
            **hidden,
        )
    except OSError as error:
        raise CommandError(f"Cannot run {command[0]} ({error.strerror}).") from error
    said: list[str] = []
    with process:
        for stream, line in _lines(process, cancelled):
            if stream == "out":
                on_progress(_percent(line))
            else:
                said.append(line)
                on_message(line)
    if cancelled():
        return False
    if process.returncode != 0:
        errors = [line for line in said if line.startswith("Error")]
        raise CommandError((errors or said or [f"{command[0]} failed"])[-1])
    return True


def _lines(process: subprocess.Popen[str], cancelled: Callable[[], bool]) -> Any:
    """Lines of both streams as they come; the process is interrupted, once, when cancelled."""
    lines: queue.Queue[tuple[str, str | None]] = queue.Queue()

    def pump(name: str, stream: Any) -> None:
        for line in stream:
            lines.put((name, line.rstrip()))
        lines.put((name, None))

    for name, stream in (("out", process.stdout), ("err", process.stderr)):
        threading.Thread(target=pump, args=(name, stream), daemon=True).start()
    ended, stopped = 0, False
    while ended < 2:
        if cancelled() and not stopped:
            stopped = True
            # On an interrupt it keeps the parts that are done, so that the next run goes on from there.
            process.send_signal(signal.SIGTERM if sys.platform == "win32" else signal.SIGINT)
        try:
            name, line = lines.get(timeout=POLL_SECONDS)
        except queue.Empty:
            continue
        if line is None:
            ended += 1
        elif line:
            yield name, line


def _percent(line: str) -> float:
    moment = json.loads(line)
    start, end = SHARES.get(moment["stage"], (0.0, 100.0))
    return start + (end - start) * moment["done"] / max(moment["total"], 1)
