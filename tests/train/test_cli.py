import json
import pickle
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import rasterio
from PIL import Image
from rasterio.transform import from_origin
from typer.testing import CliRunner

from iic_train.cli import DATASETS, app
from iic_train.networks import NETWORKS
from iic_train.presets import OVERCLUSTERED, PRESETS, UNSUPERVISED, preset
from iic_train.runs import load_run, newest_run

pytestmark = pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")


def call(*words: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, list(words))
    assert result.exit_code == code, result.output
    return result.output


def write_idx(path: Path, array: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes())


def make_mnist(root: Path, rng: np.random.Generator) -> None:
    for part, count in (("train", 20), ("t10k", 10)):
        write_idx(
            root / f"MNIST/raw/{part}-images-idx3-ubyte", rng.integers(0, 256, (count, 28, 28), np.uint8)
        )
        write_idx(root / f"MNIST/raw/{part}-labels-idx1-ubyte", rng.integers(0, 10, count, np.uint8))


def make_cifar10(root: Path, rng: np.random.Generator) -> None:
    (root / "cifar-10-batches-py").mkdir(parents=True)
    for name in [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]:
        content = {
            b"data": rng.integers(0, 256, (4, 3072), np.uint8),
            b"labels": rng.integers(0, 10, 4).tolist(),
        }
        (root / "cifar-10-batches-py" / name).write_bytes(pickle.dumps(content, protocol=2))


def make_cifar100(root: Path, rng: np.random.Generator) -> None:
    (root / "cifar-100-python").mkdir(parents=True)
    for name in ("train", "test"):
        content = {
            b"data": rng.integers(0, 256, (8, 3072), np.uint8),
            b"coarse_labels": rng.integers(0, 20, 8).tolist(),
            b"fine_labels": [99] * 8,
        }
        (root / "cifar-100-python" / name).write_bytes(pickle.dumps(content, protocol=2))


def make_stl10(root: Path, rng: np.random.Generator) -> None:
    folder = root / "stl10_binary"
    folder.mkdir(parents=True)
    for part, count in (("train", 6), ("test", 6), ("unlabeled", 12)):
        (folder / f"{part}_X.bin").write_bytes(rng.integers(0, 256, (count, 3, 96, 96), np.uint8).tobytes())
        if part != "unlabeled":
            (folder / f"{part}_y.bin").write_bytes(rng.integers(1, 11, count, np.uint8).tobytes())


def make_coco(root: Path, rng: np.random.Generator) -> None:
    for split in ("train2017", "val2017"):
        for kind in ("images", "annotations"):
            (root / "coco-stuff-164k" / kind / split).mkdir(parents=True)
        for number in range(3):
            labels = np.full((400, 420), 105, np.uint8)  # sky
            labels[200:] = 168  # plants
            labels[:, 300:] = 148  # ground
            pixels = rng.integers(0, 256, (400, 420, 3), np.uint8)
            stem = f"{number:012d}"
            Image.fromarray(pixels).save(root / "coco-stuff-164k/images" / split / f"{stem}.jpg")
            Image.fromarray(labels).save(root / "coco-stuff-164k/annotations" / split / f"{stem}.png")


def write_tiff(path: Path, array: np.ndarray, **profile: object) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    count, height, width = array.shape
    with rasterio.open(
        path, "w", driver="GTiff", count=count, height=height, width=width, dtype=array.dtype, **profile
    ) as out:
        out.write(array)
        if count == 4:
            out.descriptions = ("red", "green", "blue", "nir")
    return str(path)


def make_potsdam(root: Path, rng: np.random.Generator) -> None:
    colours = np.array(
        [(255, 255, 255), (0, 0, 255), (0, 255, 255), (0, 255, 0), (255, 255, 0), (255, 0, 0)], np.uint8
    )
    for tile in ("2_10", "7_7"):
        image = rng.integers(0, 256, (4, 800, 800), np.uint8)
        write_tiff(root / f"potsdam/4_Ortho_RGBIR/top_potsdam_{tile}_RGBIR.tif", image)
        labels = colours[rng.integers(0, 6, (800, 800))].transpose(2, 0, 1)
        write_tiff(root / f"potsdam/5_Labels_all/top_potsdam_{tile}_label.tif", labels)


MAKERS = {
    "mnist": make_mnist,
    "cifar10": make_cifar10,
    "cifar100-20": make_cifar100,
    "stl10": make_stl10,
    "coco-stuff": make_coco,
    "coco-stuff-3": make_coco,
    "potsdam": make_potsdam,
    "potsdam-3": make_potsdam,
}


@pytest.mark.parametrize("overcluster", [False, True])
@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_trains_on_files_of_the_true_layout(tmp_path, monkeypatch, name, overcluster):
    monkeypatch.setitem(NETWORKS, "5g", ("resnet", (4, 8, 8, 8)))  # the published widths take their time
    monkeypatch.setitem(NETWORKS, "6c", ("vgg", (4, 8, 8, 8)))
    MAKERS[name](tmp_path / "data", np.random.default_rng(0))
    dense = UNSUPERVISED[name].network == "10a"
    options = ["--data", str(tmp_path / "data"), "--runs", str(tmp_path / "runs"), "--name", "run"]
    options += ["--network", "edge-8"] if dense else ["--repeats", "2", "--clusters", "12"]
    options += ["--overcluster"] if overcluster else []
    said = call(name, "--epochs", "1", "--steps", "1", "--batch", "4", *options)
    assert "accuracy" in said
    run = load_run(tmp_path / "runs" / "run")
    assert run.choice().epoch == 1
    assert (run.path / "report.html").stat().st_size > 1000
    assert set(run.metrics()[0]["train"]) == ({"b"} if overcluster else {"a", "b"})


def test_settings_that_make_mnist_quick_are_plain_options(tmp_path):
    make_mnist(tmp_path / "data", np.random.default_rng(0))
    options = ["--data", str(tmp_path / "data"), "--runs", str(tmp_path / "runs"), "--name", "run"]
    options += [
        "--network",
        "6c-4",
        "--passes",
        "ab",
        "--schedule",
        "cosine",
        "--lamb",
        "1.5",
        "--lr",
        "1e-3",
    ]
    call("mnist", "--epochs", "2", "--steps", "2", "--batch", "6", "--repeats", "2", *options)
    run = load_run(tmp_path / "runs" / "run")
    assert run.config.network.widths == (16, 32, 64, 128)
    assert (run.config.passes, run.config.schedule, run.config.lamb_b) == (("ab",), "cosine", 1.5)
    rows = run.metrics()
    assert set(rows[0]["train"]) == {"a", "b"}
    assert 0 < rows[1]["lr"] < rows[0]["lr"] < 1e-3


def test_commands_and_presets_are_the_same_names():
    assert tuple(DATASETS) == PRESETS
    assert set(OVERCLUSTERED) == set(UNSUPERVISED)


@pytest.mark.parametrize("overcluster", [False, True])
@pytest.mark.parametrize("name", PRESETS)
def test_published_settings(name, overcluster):
    config = preset(name, overcluster=overcluster)
    assert config.amp == "off"
    assert config.schedule == "constant"
    assert not config.collapsed
    assert not config.cells
    assert config.network.sub_heads == (1 if config.dense else 5)
    assert config.network.sobel == (name not in ("mnist", "potsdam", "potsdam-3"))
    if config.dense:
        assert config.radius == (5 if name == "potsdam" and not overcluster else 10)
        assert config.pairs.flip_vertical == config.pairs.turn == config.pairs.rotation == 0


def test_potsdam_3_is_the_published_run():
    config = preset("potsdam-3")
    assert (config.network.clusters_a, config.network.clusters_b) == (24, 3)
    assert (config.lr, config.batch, config.lamb_a, config.lamb_b, config.size) == (1e-5, 75, 1.0, 1.5, 200)
    assert config.passes == ("a", "b")


def scene(path: Path, seed: int = 0) -> tuple[str, str]:
    """A GeoTIFF of three materials in stripes, and its labels."""
    rng = np.random.default_rng(seed)
    truth = np.repeat(rng.integers(1, 4, 12), 16)[None, :, None] * np.ones((1, 192, 160), int)
    means = np.array([[40, 60, 50, 200], [130, 125, 120, 100], [220, 200, 190, 220]])[truth[0] - 1].transpose(
        2, 0, 1
    )
    values = np.clip(means + rng.normal(0, 8, (4, 192, 160)), 1, 255).astype(np.uint8)
    values[:, :20, :30] = 0
    profile = {"crs": "EPSG:2154", "transform": from_origin(700000, 6600000, 0.2, 0.2)}
    labels = write_tiff(path.with_name(f"{path.stem}_label.tif"), truth.astype(np.uint8), **profile)
    return write_tiff(path, values, nodata=0, **profile), labels


def test_rasters_are_trained_without_labels_and_can_be_resumed(tmp_path):
    first, _ = scene(tmp_path / "a.tif")
    second, _ = scene(tmp_path / "b.tif", seed=1)
    runs = str(tmp_path / "runs")
    small = ["--size", "32", "--batch", "4", "--steps", "2", "--epochs", "1", "--runs", runs]
    call("rasters", first, second, "--classes", "3", "--margin", "4", *small)
    run = newest_run(tmp_path / "runs")
    assert run.config.margin == 4
    assert run.data["gsd"] == pytest.approx(0.2)
    assert run.data["dtype"] == "uint8"
    assert run.config.network.channels == ("red", "green", "blue", "nir")
    assert run.config.network.offset[3] > 0
    assert "accuracy" not in run.metrics()[0]
    assert (run.path / "report.html").exists()
    call("resume", "--runs", runs, "--epochs", "2", "-q")
    assert [row["epoch"] for row in run.metrics()] == [1, 2]
    assert "has no labels" in call("evaluate", str(run.path), code=1)


def test_options_of_rasters_reach_the_run(tmp_path):
    raster, _ = scene(tmp_path / "a.tif")
    small = [
        "--size",
        "32",
        "--batch",
        "4",
        "--steps",
        "2",
        "--epochs",
        "1",
        "--runs",
        str(tmp_path / "runs"),
        "-q",
    ]
    chosen = [
        "--network",
        "local",
        "--clusters-a",
        "0",
        "--lamb",
        "0.8",
        "--settling",
        "0.5",
        "--vigour",
        "0.3",
        "--jitter",
        "0.1",
    ]
    call("rasters", raster, "--classes", "3", *small, *chosen)
    config = newest_run(tmp_path / "runs").config
    assert (config.network.name, config.network.clusters_a, config.passes) == ("local", None, ("b",))
    light = config.pairs.photometry
    assert (config.lamb_b, config.settling, light.vigour) == (0.8, 0.5, 0.3)
    assert (light.all_brightness, light.all_contrast, light.saturation) == pytest.approx((0.05, 0.04, 0.05))


def test_label_rasters_are_for_evaluation_only(tmp_path):
    raster, labels = scene(tmp_path / "a.tif")
    runs = str(tmp_path / "runs")
    classes = ["--label-class", "green=1", "--label-class", "grey=2", "--label-class", "bright=3"]
    small = ["--size", "32", "--batch", "4", "--steps", "2", "--epochs", "1", "--runs", runs]
    said = call("rasters", raster, "--classes", "3", "--labels", labels, *classes, *small)
    assert "one-to-one" in said
    run = newest_run(tmp_path / "runs")
    assert run.metrics()[0]["accuracy"]["chosen"] > 0
    found = json.loads(call("evaluate", "--runs", runs, "--json"))
    assert found["classes"] == ["green", "grey", "bright"]
    assert 0.3 < found["accuracy"] <= 1
    kmeans = json.loads(call("evaluate", "--runs", runs, "--json", "--baseline", "kmeans"))
    assert kmeans["accuracy"] > 0.95
    assert "accuracy" in call("evaluate", "--runs", runs, "--baseline", "random")


def test_labels_change_nothing_about_training(tmp_path):
    raster, labels = scene(tmp_path / "a.tif")
    small = ["--size", "32", "--batch", "4", "--steps", "2", "--epochs", "1", "--runs", str(tmp_path), "-q"]
    call("rasters", raster, "--classes", "3", *small, "--name", "without")
    call("rasters", raster, "--classes", "3", *small, "--name", "with", "--labels", labels)
    without, with_labels = load_run(tmp_path / "without"), load_run(tmp_path / "with")
    assert without.choice() == with_labels.choice()
    for a, b in zip(without.network().parameters(), with_labels.network().parameters(), strict=True):
        assert (a == b).all()


@pytest.mark.parametrize(
    ("words", "code", "part"),
    [
        (["mnist", "--data", "nowhere"], 1, "MNIST is not there"),
        (["mnist", "--network", "7x"], 2, "no network named 7x"),
        (["potsdam", "--overcluster", "--clusters-a", "5"], 2, "one head"),
        (["rasters", "missing.tif", "--classes", "3"], 1, "no file missing.tif"),
        (["resume", "--runs", "nowhere"], 1, "no run in nowhere"),
        (["evaluate", "nowhere"], 1, "not a run folder"),
        (["rasters", "a.tif"], 2, "classes"),
    ],
)
def test_bad_input_is_one_sentence_and_the_right_code(tmp_path, monkeypatch, words, code, part):
    monkeypatch.chdir(tmp_path)
    assert part in call(*words, code=code)
    assert not list(tmp_path.iterdir())


def test_help_does_not_load_torch():
    script = "import sys; from iic_train.cli import app; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
