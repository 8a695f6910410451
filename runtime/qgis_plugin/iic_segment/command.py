"""Runs the commands of iic-edge in their own Python. This module does not import QGIS."""

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

SEGMENT, MODEL, MAP = "iic-segment-raster", "iic-model", "iic-map"
# QGIS sets these variables for its own Python and libraries; they would mislead another Python.
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
SHARES = {"segment": (0.0, 90.0), "regrid": (90.0, 95.0), "polygons": (95.0, 100.0), "write": (95.0, 100.0)}
NAMING_SHARES = {"look": (0.0, 60.0), "suggest": (60.0, 100.0)}
CHANGE_SHARES = {"compare": (0.0, 50.0), "write": (50.0, 100.0)}


class CommandError(Exception):
    """The command is missing or failed; the message is for the user."""


def find_command(setting: str, name: str = SEGMENT) -> str:
    """Return the path of a command next to the one in the settings.

    Args:
        setting: The path of iic-segment-raster in the settings.
        name: The command.

    Raises:
        CommandError: There is no such command.
    """
    given = Path(setting.strip())
    file = str(given if name == SEGMENT else given.with_name(name + given.suffix))
    path = shutil.which(file)
    if path is None:
        raise CommandError(
            f"There is no command {file}: correct the path in Settings > Options > Processing > Providers > IIC, or "
            "empty it to use the plugin's own environment."
        )
    return path


def arguments(*positional: str, **options: str | bool | list[str]) -> list[str]:
    """Return the arguments of a command.

    Args:
        positional: What stands before the options.
        options: The value of each option, several for one that may be repeated, True for one that takes none. Options
            without a value are left out.
    """
    given = []
    for key, value in options.items():
        option = f"--{key.replace('_', '-')}"
        for one in value if isinstance(value, list) else [value]:
            if one:
                given.append(option if one is True else f"{option}={one}")
    return [*positional, *given, "--overwrite", "--progress-json"]


def run(
    command: list[str],
    on_progress: Callable[[float], None],
    on_message: Callable[[str], None],
    cancelled: Callable[[], bool],
    shares: dict[str, tuple[float, float]] = SHARES,
) -> bool:
    """Run a command until it ends or the user cancels it.

    Args:
        command: The command and its arguments.
        on_progress: Called with the progress in percent.
        on_message: Called with the lines that the command prints on standard error.
        cancelled: Returns whether the user has cancelled the run.
        shares: From which to which percent each stage of the command goes.

    Returns:
        Whether the command has finished; False if the run was cancelled.

    Raises:
        CommandError: The command failed.
    """
    messages: list[str] = []

    def on_line(stream: str, line: str) -> None:
        if stream == "out":
            on_progress(_percent(line, shares))
        else:
            messages.append(line)
            on_message(line)

    code = execute(command, on_line, cancelled)
    if code:
        errors = [line for line in messages if line.startswith("Error")]
        raise CommandError((errors or messages or [f"{command[0]} failed"])[-1])
    return code is not None


def execute(
    command: list[str],
    on_line: Callable[[str, str], None],
    cancelled: Callable[[], bool],
    variables: dict[str, str] | None = None,
) -> int | None:
    """Run a program outside of QGIS's environment until it ends.

    Args:
        command: The program and its arguments.
        on_line: Called with "out" or "err" and each line that the program prints there.
        cancelled: Returns whether the user has cancelled the run.
        variables: Environment variables to set.

    Returns:
        The exit status; None if the run was cancelled.

    Raises:
        CommandError: The program cannot be started.
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
            env=environment | (variables or {}),
            cwd=Path.home(),
            **hidden,
        )
    except OSError as error:
        raise CommandError(f"Cannot run {command[0]} ({error.strerror}).") from error
    with process:
        for stream, line in _lines(process, cancelled):
            on_line(stream, line)
    return None if cancelled() else process.returncode


def _lines(process: subprocess.Popen[str], cancelled: Callable[[], bool]) -> Any:
    """Yield the lines of both streams as they come; interrupt the process once if the run is cancelled."""
    lines: queue.Queue[tuple[str, str | None]] = queue.Queue()

    def pump(name: str, stream: Any) -> None:
        for line in stream:
            lines.put((name, line.rstrip()))
        lines.put((name, None))

    for name, stream in (("out", process.stdout), ("err", process.stderr)):
        threading.Thread(target=pump, args=(name, stream), daemon=True).start()
    ended, interrupted = 0, False
    while ended < 2:
        if cancelled() and not interrupted:
            interrupted = True
            # An interrupted command cleans up, and iic-segment-raster keeps its finished parts for the next run.
            process.send_signal(signal.SIGTERM if sys.platform == "win32" else signal.SIGINT)
        try:
            name, line = lines.get(timeout=POLL_SECONDS)
        except queue.Empty:
            continue
        if line is None:
            ended += 1
        elif line:
            yield name, line


def _percent(line: str, shares: dict[str, tuple[float, float]]) -> float:
    progress = json.loads(line)
    start, end = shares.get(progress["stage"], (0.0, 100.0))
    return start + (end - start) * progress["done"] / max(progress["total"], 1)
