"""ONNX Runtime as it is imported."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

OPEN = "from iic_runtime import Segmenter; Segmenter('satellite', device='cpu')"


@pytest.mark.parametrize("setting", [None, "1"])
def test_nothing_about_the_user_is_recorded(tmp_path: Path, setting: str | None) -> None:
    variables = {key: value for key, value in os.environ.items() if not key.startswith(("ORT_", "XDG_"))}
    variables |= {"HOME": str(tmp_path)} | ({} if setting is None else {"ORT_DISABLE_TELEMETRY": setting})
    done = subprocess.run(
        [sys.executable, "-c", OPEN], env=variables, capture_output=True, text=True, check=True
    )
    assert list(tmp_path.rglob("*")) == []
    assert done.stderr == ""


@pytest.mark.parametrize("installed", [True, False])
def test_the_cpu_is_chosen_without_what_only_openvino_needs(tmp_path: Path, installed: bool) -> None:
    # The metadata of packages are slow to import.
    code = (
        "import sys, importlib.util as u; from iic_runtime.engine import open_engine as base; find = u.find_spec\n"
        f"base.find_spec = lambda name: find(name) if {installed} else None\n"
        "from iic_runtime.model.select import find_model\n"
        "print(base.open_engine(find_model('satellite')).provider)\n"
        "print('importlib.metadata' in sys.modules)"
    )
    variables = os.environ | {"IIC_CACHE": str(tmp_path / "cache")}
    done = subprocess.run(
        [sys.executable, "-c", code], env=variables, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == ["CPUExecutionProvider", "False"]
