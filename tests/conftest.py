"""Scenes and models that tests make for themselves."""

import ast
import logging
import os
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio
from hypothesis import settings
from rasterio.transform import from_origin
from support.browser import PROGRAM

# Under load, two-thread kernels on tiny tensors are many times slower than one thread.
os.environ.setdefault("OMP_NUM_THREADS", "1")

UTM = "EPSG:32631"
# How long an example takes says more about the machine than about the code.
# A change must not fail for a case that chance has found elsewhere: benchmarks/soak.py looks for those.
settings.register_profile("steady", deadline=None, derandomize=True)
settings.load_profile("steady")


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gdal") and shutil.which("gdalinfo") is None:
        pytest.skip("GDAL's command-line tools are not installed")
    if item.get_closest_marker("qgis") and shutil.which("qgis_process.bin") is None:
        pytest.skip("QGIS is not installed")
    if item.get_closest_marker("browser") and PROGRAM is None:
        pytest.skip("Chromium is not installed")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """With `--durations`: what most of the time was spent on, and what for."""
    if not config.getoption("durations"):
        return
    seconds: Counter[str] = Counter()
    for report in chain.from_iterable(terminalreporter.stats.values()):
        if isinstance(report, pytest.TestReport):
            seconds[report.nodeid.partition("::")[0]] += report.duration  # type: ignore[assignment]
    terminalreporter.section("costliest files, and what they prove")
    for file, cost in seconds.most_common(12):
        purpose = ast.get_docstring(ast.parse((config.rootpath / file).read_bytes())) or "as named"
        share = cost / sum(seconds.values())
        terminalreporter.write_line(f"{cost:6.1f} s {share:4.0%} {file}: {purpose.splitlines()[0]}")


@pytest.fixture(autouse=True)
def quiet_commands_stay_quiet_alone() -> Iterator[None]:
    """Commands run inside the test process set the level of our loggers: undo it."""
    yield
    for name in ("iic_geotools", "iic_runtime", "iic_train", "iic_export"):
        logging.getLogger(name).setLevel(logging.NOTSET)


@pytest.fixture
def make_scene(tmp_path: Path) -> Callable[..., Path]:
    """Write an array [bands, H, W] as a GeoTIFF with named bands."""

    def make(
        values: np.ndarray,
        name: str = "scene.tif",
        *,
        descriptions: tuple[str, ...] | None = ("red", "green", "blue", "nir"),
        **profile: Any,
    ) -> Path:
        path = tmp_path / name
        bands, height, width = values.shape
        settings: dict[str, Any] = {
            "driver": "GTiff",
            "crs": UTM,
            "transform": from_origin(500000, 5400000, 0.5, 0.5),
            "photometric": "MINISBLACK",
        } | profile
        with rasterio.open(
            path, "w", width=width, height=height, count=bands, dtype=values.dtype, **settings
        ) as dataset:
            dataset.write(values)
            if descriptions:
                dataset.descriptions = descriptions[:bands]
        return path

    return make


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A small model of the real geometry for red, green, blue and nir."""
    from support.tiny_onnx import make_model

    path = tmp_path / "model.onnx"
    path.write_bytes(make_model())
    return path


@pytest.fixture
def bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of two small models, aerial (0.2 to 1 m) and satellite (3 to 10 m), in place of the bundled ones."""
    from support.tiny_onnx import make_model

    from iic_runtime.model import select
    from iic_runtime.model.card import Origin

    folder = tmp_path / "bundled"
    folder.mkdir()
    for name, low, high, classes in (("aerial", 0.2, 1.0, 3), ("satellite", 3.0, 10.0, 4)):
        card = {"name": name, "gsd": (low * high) ** 0.5, "gsd_range": (low, high)}
        origin = Origin(data=f"imagery of {name}", licence="CC0")
        content = make_model(len(name), classes=classes, origin=origin, **card)
        (folder / f"{name}.onnx").write_bytes(content)
    monkeypatch.setattr(select, "FOLDER", folder)
    monkeypatch.delenv(select.MODEL_VARIABLE, raising=False)
    select.bundled_models.cache_clear()
    yield folder
    select.bundled_models.cache_clear()


@pytest.fixture
def gdalinfo() -> Callable[[Path], str]:
    def run(path: Path) -> str:
        return subprocess.run(["gdalinfo", str(path)], check=True, capture_output=True, text=True).stdout

    return run
