"""The commands of the documentation in a row, exactly as they are written there, in one folder."""

import csv
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import rasterio
from PIL import Image
from support.datasets import MAKERS, make_mnist
from typer.testing import CliRunner

from iic_export.cli import app as export_app
from iic_runtime import Classifier, Segmenter
from iic_runtime.cli.classify import app as classify_app
from iic_runtime.cli.segment_raster import app as segment_app
from iic_train.cli import app as train_app
from iic_train.models.registry import NETWORKS
from iic_train.recipes import presets

COMMANDS = {
    "iic-train": train_app,
    "iic-export": export_app,
    "iic-segment-raster": segment_app,
    "iic-classify": classify_app,
}
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning"),
]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Run a command as it is written, with narrow networks, small batches and two epochs."""
    monkeypatch.chdir(tmp_path)
    for name in ("IIC_MODEL", "IIC_DATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setitem(NETWORKS, "10a", ("segmentation", (4, 4, 8, 8, 8, 8)))
    monkeypatch.setitem(NETWORKS, "6c", ("vgg", (4, 8, 8, 8)))
    for name, published in presets.UNSUPERVISED.items():
        quick = {**published, "batch": 10, "epochs": 2, "lr": 1e-3}
        monkeypatch.setitem(presets.UNSUPERVISED, name, quick)

    def command(line: str) -> str:
        program, *words = line.split()
        result = CliRunner().invoke(COMMANDS[program], words)
        assert result.exit_code == 0, result.output
        return result.output

    return command


def write_scene(values: np.ndarray) -> None:
    """Write scene.tif as a program that knows nothing about its bands does."""
    count, height, width = values.shape
    profile = {"count": count, "height": height, "width": width, "dtype": values.dtype}
    with rasterio.open("scene.tif", "w", driver="GTiff", **profile) as out:
        out.write(values)


@pytest.mark.parametrize(("preset", "bands"), [("potsdam", 4), ("coco-stuff-3", 3)])
def test_train_export_segment(run: Callable[[str], str], preset: str, bands: int) -> None:
    MAKERS[preset](Path("data"))
    write_scene(np.random.default_rng(3).integers(0, 256, (bands, 90, 130), np.uint8))
    trained = run(f"iic-train {preset}")
    assert "Training for up to 2 epochs" in trained
    assert trained.splitlines()[-1] == "Next: iic-export --best-subhead"
    exported = run("iic-export --best-subhead")
    assert exported.splitlines()[-1] == "Next: iic-segment-raster scene.tif out.tif"
    mapped = run("iic-segment-raster scene.tif out.tif")
    assert f"Model: model.onnx, exported here less than a minute ago from runs/{preset}-" in mapped
    with rasterio.open("scene.tif") as scene, rasterio.open("out.tif") as out:
        result = Segmenter("model.onnx", device="cpu")(scene.read())
        assert out.read(1).tobytes() == result.labels.tobytes()
        assert out.tags()["IIC_MODEL"].startswith(preset)


def test_train_export_classify(run: Callable[[str], str]) -> None:
    images = make_mnist(Path("data"))["t10k-images-idx3-ubyte"]
    Path("images").mkdir()
    for index, image in enumerate(images):
        Image.fromarray(image).save(f"images/{index}.png")
    assert run("iic-train mnist").splitlines()[-1] == "Next: iic-export --best-subhead"
    exported = run("iic-export --best-subhead")
    assert exported.splitlines()[-1] == "Next: iic-classify IMAGES -o labels.csv"
    assert "Model: model.onnx, exported here" in run("iic-classify images -o labels.csv")
    with Path("labels.csv").open(newline="") as file:
        labels = [int(row["label"]) for row in csv.DictReader(file)]
    assert labels == Classifier("model.onnx", device="cpu")(images[:, None]).labels.tolist()
