import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rasterio.transform import from_origin
from support.datasets import MAKERS, accept_checksums, make_mnist, write_tiff
from support.scenes import landscape, write_raster
from typer.testing import CliRunner

from iic_geotools.errors import UsageError
from iic_geotools.scene.info import SceneInfo, describe
from iic_train import __version__
from iic_train.cli import app
from iic_train.config import BASELINES
from iic_train.data import survey
from iic_train.data.scene_reader import Scenes
from iic_train.data.survey import sample_constants
from iic_train.models.registry import NETWORKS
from iic_train.recipes import registry
from iic_train.recipes.presets import PRESETS, UNSUPERVISED
from iic_train.recipes.rasters import choose_settings, train_rasters
from iic_train.recipes.registry import RECIPES
from iic_train.runs import load_run, newest_run

pytestmark = pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")


SMALL = ["--size", "32", "--batch", "4", "--steps", "2", "--epochs", "1"]


def call(*words: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, list(words))
    assert result.exit_code == code, result.output
    return result.output


@pytest.mark.parametrize("overcluster", [False, True])
@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_trains_on_files_of_the_true_layout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, overcluster: bool
) -> None:
    monkeypatch.setitem(NETWORKS, "5g", ("resnet", (4, 8, 8, 8)))  # the published widths take their time
    monkeypatch.setitem(NETWORKS, "6c", ("vgg", (4, 8, 8, 8)))
    MAKERS[name](tmp_path / "data")
    accept_checksums(tmp_path / "data", monkeypatch)
    dense = UNSUPERVISED[name]["network"] == "10a"
    options = ["--data", str(tmp_path / "data"), "--runs", str(tmp_path / "runs"), "--name", "run"]
    options += ["--network", "edge-8"] if dense else ["--repeats", "2", "--clusters", "12"]
    options += ["--overcluster"] if overcluster else []
    said = call(name, "--epochs", "1", "--steps", "1", "--batch", "4", *options)
    assert "accuracy" in said
    run = load_run(tmp_path / "runs" / "run")
    assert run.choice().epoch == 1
    assert (run.path / "report.html").stat().st_size > 1000
    assert set(run.metrics()[0]["train"]) == ({"b"} if overcluster else {"a", "b"})


def test_options_of_a_preset_reach_the_run(tmp_path: Path) -> None:
    make_mnist(tmp_path / "data")
    options = ["--data", str(tmp_path / "data"), "--runs", str(tmp_path / "runs"), "--name", "run"]
    options += [
        "--network",
        "6c-4",
        "--passes",
        "ab",
        "--schedule",
        "cosine",
        "--entropy-weight",
        "1.5",
        "--lr",
        "1e-3",
    ]
    call("mnist", "--epochs", "2", "--steps", "2", "--batch", "6", "--repeats", "2", *options)
    run = load_run(tmp_path / "runs" / "run")
    assert run.config.network.widths == (16, 32, 64, 128)
    assert (run.config.passes, run.config.schedule, run.config.entropy_weight) == (("ab",), "cosine", 1.5)
    rows = run.metrics()
    assert set(rows[0]["train"]) == {"a", "b"}
    assert 0 < rows[1]["lr"] < rows[0]["lr"] < 1e-3


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


def test_rasters_are_trained_without_labels_and_can_be_resumed(tmp_path: Path) -> None:
    first, _ = scene(tmp_path / "a.tif")
    second, _ = scene(tmp_path / "b.tif", seed=1)
    runs = str(tmp_path / "runs")
    small = ["--size", "32", "--batch", "4", "--steps", "2", "--epochs", "1", "--runs", runs]
    call("rasters", first, second, "--classes", "3", "--margin", "4", *small)
    run = newest_run(tmp_path / "runs")
    assert run.config.margin == 4
    # Scenes of 0.2 m are read at 0.8 m unless `--reduce` says otherwise.
    assert run.data["gsd"] == pytest.approx(0.8)
    assert run.data["dtype"] == "uint8"
    assert run.config.network.channels == ("red", "green", "blue", "nir")
    assert run.config.network.offset[3] > 0
    assert "accuracy" not in run.metrics()[0]
    assert (run.path / "report.html").exists()
    call("resume", "--runs", runs, "--epochs", "2", "-q")
    assert [row["epoch"] for row in run.metrics()] == [1, 2]
    assert newest_run(tmp_path / "runs").config.epochs == 2  # of the run from now on
    assert "has no labels" in call("evaluate", str(run.path), code=1)


def test_options_of_rasters_reach_the_run(tmp_path: Path) -> None:
    raster, _ = scene(tmp_path / "a.tif")
    small = [*SMALL, "--runs", str(tmp_path / "runs"), "-q"]
    chosen = [
        "--network",
        "local",
        "--clusters-a",
        "0",
        "--entropy-weight",
        "0.8",
        "--entropy-warmup",
        "0.5",
        "--vegetation-jitter",
        "0.3",
        "--colour-jitter",
        "0.1",
    ]
    call("rasters", raster, "--classes", "3", *small, *chosen)
    config = newest_run(tmp_path / "runs").config
    assert (config.network.name, config.network.clusters_a, config.passes) == ("local", None, ("b",))
    light = config.pairs.photometry
    assert (config.entropy_weight, config.entropy_warmup, light.vegetation_jitter) == (0.8, 0.5, 0.3)
    assert (light.all_brightness, light.all_contrast, light.saturation) == pytest.approx((0.05, 0.04, 0.05))


def test_label_rasters_are_for_evaluation_only(tmp_path: Path) -> None:
    raster, labels = scene(tmp_path / "a.tif")
    runs = str(tmp_path / "runs")
    classes = ["--label-class", "green=1", "--label-class", "grey=2", "--label-class", "bright=3"]
    small = ["--size", "32", "--batch", "4", "--steps", "2", "--epochs", "1", "--runs", runs]
    said = call("rasters", raster, "--classes", "3", "--labels", labels, *classes, *small)
    assert "one-to-one" in said
    run = newest_run(tmp_path / "runs")
    assert run.metrics()[0]["accuracy"]["chosen"] > 0
    evaluation = json.loads(call("evaluate", "--runs", runs, "--json"))
    assert evaluation["classes"] == ["green", "grey", "bright"]
    assert 0.3 < evaluation["accuracy"] <= 1
    kmeans = json.loads(call("evaluate", "--runs", runs, "--json", "--baseline", "kmeans"))
    assert kmeans["accuracy"] > 0.95
    assert "accuracy" in call("evaluate", "--runs", runs, "--baseline", "random")


def test_baselines_need_no_run(tmp_path: Path) -> None:
    assert {line.split()[0] for line in call("baseline").splitlines()} == set(BASELINES)
    make_mnist(tmp_path)
    data = ["--data", str(tmp_path), "--json", "-q"]
    small = ["--network", "6c-4", "--epochs", "1", "--steps", "1", "--batch", "10"]
    triplets = json.loads(call("baseline", "triplets", "mnist", *data, *small))
    assert (triplets["protocol"], len(triplets["sub_heads"])) == ("one_to_one", 1)
    said = json.loads(call("baseline", "kmeans", "mnist-small", *data, "--standardise", "--sample", "20"))
    assert 0 < said["accuracy"] < 1
    many = json.loads(call("baseline", "kmeans", "mnist", *data, "--overcluster", "--clusters", "12"))
    assert many["protocol"] == "many_to_one"
    assert "sift clusters pixels" in call("baseline", "sift", "mnist", "--data", str(tmp_path), code=2)
    assert "--standardise is for kmeans" in call(
        "baseline", "spectral", "mnist", "--data", str(tmp_path), "--raw", code=2
    )


def test_labels_change_nothing_about_training(tmp_path: Path) -> None:
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
        (["mnist", "--data", "nowhere"], 1, "get it with --download, or name another folder with --data"),
        (["mnist", "--network", "7x"], 2, "no network named 7x"),
        (["potsdam", "--overcluster", "--clusters-a", "5"], 2, "--clusters-a does not go with --overcluster"),
        (["rasters", "missing.tif", "--classes", "3"], 1, "no file missing.tif"),
        (["resume", "--runs", "nowhere"], 1, "no run in nowhere"),
        (
            ["finetune", "--lr", "0.1", "--mode", "head"],
            2,
            "--lr, --mode apply only to --labels: give that too.",
        ),
        (["evaluate", "nowhere"], 1, "not a run folder"),
        (["rasters", "a.tif"], 2, "classes"),
        (["rasters", "x.tif", "--classes", "3", "--gsd", "abc"], 2, "takes two numbers MIN,MAX"),
        (["rasters", "x.tif", "--classes", "3", "--gsd", "2,1"], 2, "MIN not above MAX"),
        (["recipe", "soup"], 2, "There is no recipe soup"),
        (["recipe", "flair3", "--data", "nowhere"], 1, "name another folder with --data"),
        (["potsdam", "--download"], 2, "No such option: --download"),
        (["evaluate", "nowhere", "--runs", "elsewhere"], 1, "not a run folder"),
    ],
)
def test_bad_input_is_one_sentence_and_the_right_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], code: int, part: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert part in " ".join(call(*words, code=code).replace("│", " ").split())
    assert not list(tmp_path.iterdir())


def test_help_does_not_load_torch() -> None:
    script = "import sys; from iic_train.cli import app; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


@pytest.mark.parametrize("name", ["potsdam-3", "cifar10"])
def test_help_of_a_preset_shows_its_settings(name: str) -> None:
    published = UNSUPERVISED[name]
    shown = " ".join(call(name, "--help").replace("│", " ").split())
    size = published.get("size") or published["image_size"]
    assert f"images of {size} pixels" in shown
    for setting in ("network", "epochs", "batch", "patience", "clusters"):
        assert f"[default: ({published[setting]}" in shown


def test_help_of_rasters_shows_its_settings() -> None:
    shown = " ".join(call("rasters", "--help").replace("│", " ").split())
    rules = choose_settings("bank", 2, 10.0)
    assert "[default: (bank)]" in shown
    for setting in ("size", "epochs", "batch", "lr", "colour_jitter"):
        assert f"[default: ({rules[setting]};" in shown


def test_version() -> None:
    assert __version__ in call("--version")


def test_recipes_are_listed() -> None:
    assert [line.split()[0] for line in call("recipe").splitlines()] == list(RECIPES)


def test_the_small_recipe_of_mnist_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_mnist(tmp_path / "data")
    changes = {**registry.MNIST_SMALL.changes, "steps": 1, "batch": 4}
    monkeypatch.setitem(RECIPES, "mnist-small", replace(registry.MNIST_SMALL, changes=changes))
    options = [
        "--data",
        str(tmp_path / "data"),
        "--runs",
        str(tmp_path / "runs"),
        "--epochs",
        "1",
        "--seed",
        "3",
    ]
    assert "accuracy" in call("recipe", "mnist-small", *options)
    config = newest_run(tmp_path / "runs").config
    assert (config.network.name, config.epochs, config.seed) == ("6c-4", 1, 3)


def test_the_recipe_of_flair3_finds_scenes_and_labels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for zone in ("zone1", "zone3"):
        raster, labels = scene(tmp_path / f"{zone}.tif")
        Path(raster).rename(tmp_path / f"{zone}_rgbir.tif")
        assert labels == str(tmp_path / f"{zone}_label.tif")
    small = replace(registry.FLAIR3, changes={**registry.FLAIR3.changes, "steps": 1, "size": 16})
    monkeypatch.setitem(RECIPES, "flair3", small)
    call("recipe", "flair3", "--data", str(tmp_path), "--runs", str(tmp_path / "runs"), "--epochs", "1")
    run = newest_run(tmp_path / "runs")
    assert run.id.startswith("flair3-")
    assert [Path(path).name for path in run.config.data.labels] == ["zone1_label.tif", "zone3_label.tif"]


def test_scenes_are_described_and_sampled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    raster, labels = scene(tmp_path / "a.tif")
    described: list[str] = []
    sampled: list[Scenes] = []

    def count_descriptions(path: str) -> SceneInfo:
        described.append(path)
        return describe(path)

    def count_samples(scenes: Scenes) -> tuple[tuple[float, ...], tuple[float, ...], tuple[float, ...]]:
        sampled.append(scenes)
        return sample_constants(scenes)

    monkeypatch.setattr(survey, "describe", count_descriptions)
    monkeypatch.setattr(survey, "sample_constants", count_samples)
    small = [*SMALL, "--runs", str(tmp_path / "runs")]
    call("rasters", raster, "--classes", "3", "--labels", labels, *small)
    assert (len(described), len(sampled)) == (1, 1)


def test_windows_much_larger_than_the_scene_are_refused(tmp_path: Path) -> None:
    scene = write_raster(tmp_path / "scene.tif", landscape(90, 96))
    with pytest.raises(UsageError, match="`size` must be at most 256"):
        train_rasters(
            [str(scene)], 3, network="edge-8", size=4096, batch=4, runs=tmp_path / "runs", device="cpu"
        )
    assert not (tmp_path / "runs").exists()
