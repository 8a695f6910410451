"""Every module of training can be the first one that is imported: none waits for another in a circle."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest


def modules() -> list[str]:
    spec = find_spec("iic_train")
    assert spec is not None
    assert spec.origin is not None
    top = Path(spec.origin).parent
    files = (path.relative_to(top.parent).with_suffix("") for path in top.rglob("*.py"))
    return sorted(".".join(path.parts) for path in files if not path.name.startswith("__"))


@pytest.mark.slow
def test_modules_import_each_other_in_no_circle() -> None:
    # One process that forks before each import: PyTorch is loaded once.
    script = """
import os, sys, torch
for name in sys.argv[1:]:
    child = os.fork()
    if child == 0:
        try:
            __import__(name)
        except ImportError as error:
            print(name, error)
        finally:
            sys.stdout.flush()
            os._exit(0)
    os.waitpid(child, 0)
"""
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script, *modules()], capture_output=True, text=True, check=True
    )
    assert not run.stdout, run.stdout
