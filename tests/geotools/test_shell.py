import subprocess
import sys
from pathlib import Path

import pytest
import typer

from iic_geotools.shell import shell


def test_a_missing_optional_package_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as ended, shell():
        raise ModuleNotFoundError("No module named 'torch'", name="torch")
    assert ended.value.exit_code == 1
    assert "pip install 'iic-edge[train]'" in capsys.readouterr().err


def test_other_missing_modules_are_bugs() -> None:
    with pytest.raises(ModuleNotFoundError), shell():
        raise ModuleNotFoundError("No module named 'nonsense'", name="nonsense")


def test_warnings_of_rasterio_about_missing_transforms_stay_inside(tmp_path: Path) -> None:
    path = str(tmp_path / "plain.tif")
    script = (
        "import numpy, rasterio\nfrom iic_geotools.shell import shell\nwith shell():\n"
        f"    with rasterio.open({path!r}, 'w', driver='GTiff', width=2, height=2, count=1, dtype='uint8') as out:\n"
        "        out.write(numpy.ones((1, 2, 2), 'uint8'))\n"
        f"    rasterio.open({path!r}).close()\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "NotGeoreferencedWarning" not in done.stderr
