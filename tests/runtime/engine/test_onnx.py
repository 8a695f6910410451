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
