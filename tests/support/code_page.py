"""A Python whose files are not UTF-8 by default, as on Windows."""

import os
import subprocess
import sys

VARIABLES = {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": "POSIX", "PYTHONIOENCODING": "utf-8"}


def run(code: str, *arguments: object) -> str:
    """Run code in a process of its own and return what it prints."""
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        env={**os.environ, **VARIABLES},
        check=True,
        capture_output=True,
        encoding="utf-8",
    ).stdout
