"""Learning from labelled pixels: what labels may be, what is chosen, and that the result is a run like any other."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rasterio.transform import from_origin
from support.runs import bright_and_dark_fields, train_on
from support.scenes import write_points, write_raster

from iic_geotools.errors import DataError, IICError, UsageError
from iic_train.config import TrainConfig
from iic_train.finetune.chips import read_chips
from iic_train.finetune.pixel_runs import finetune_config, finetune_scenes, learn
from iic_train.finetune.settings import Meaning, class_names, parse_meanings
from iic_train.runs import HELD_OUT, Run, load_run
from iic_train.trainer import resume

torch.set_num_threads(1)
QUICK: dict[str, Any] = {"epochs": 2, "steps": 4, "batch": 4, "size": 32, "folds": 2, "iic_weight": 0.1}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Path, np.ndarray]:
    """A run on a made scene, and where that scene is bright."""
    folder = tmp_path_factory.mktemp("fields")
    values, bright = bright_and_dark_fields(120, 144)
    scene = write_raster(folder / "scene.tif", values)
    return train_on(scene, folder / "runs"), folder, bright


def accuracy(run: Run, scene: Path, bright: np.ndarray) -> float:
    import rasterio

    with rasterio.open(scene) as opened:
        pixels = torch.from_numpy(opened.read())[None]
    assert run.config.finetune is not None
    column = run.config.finetune.classes.index("bright")
    with torch.no_grad():
        labels = run.network()(pixels)[0, 0].argmax(0).numpy()
    return float(((labels == column) == bright).mean())


def clicks(path: Path, bright: np.ndarray, count: int = 20) -> Path:
    rng = np.random.default_rng(0)
    rows, columns = rng.integers(0, bright.shape[0], count), rng.integers(0, bright.shape[1], count)
    return write_points(
        path, rows, columns, ["bright" if bright[p] else "dark" for p in zip(rows, columns, strict=True)]
    )


def test_a_few_clicks_make_a_run_with_named_classes(
    made: tuple[Run, Path, np.ndarray], tmp_path: Path
) -> None:
    run, folder, bright = made
    points = clicks(tmp_path / "clicks.gpkg", bright)
    tuned = finetune_scenes(run, [points], **{**QUICK, "mode": "head"}, runs=tmp_path, device="cpu")
    assert tuned.config.finetune is not None
    assert tuned.config.finetune.classes == ("bright", "dark")
    assert accuracy(tuned, folder / "scene.tif", bright) > 0.9
    figures = tuned.held_out()
    assert figures is not None
    assert figures["mode"] == "head"
    assert figures["pixels"] == 20
    assert figures["accuracy"] > 0.7
    assert load_run(tuned.path).config == tuned.config


def test_cross_validation_over_places_chooses_and_says_so(
    made: tuple[Run, Path, np.ndarray], tmp_path: Path
) -> None:
    run, _, bright = made
    labels = write_raster(tmp_path / "labels.tif", np.where(bright, 7, 3).astype(np.uint8)[None], nodata=0)
    tuned = finetune_scenes(
        run, [labels], **QUICK, label_class=["bright=7", "dark=3"], runs=tmp_path, name="both", device="cpu"
    )
    figures = json.loads((tuned.path / HELD_OUT).read_text())
    assert set(figures["modes"]) == {"head", "network"}
    best = max(figures["modes"], key=lambda mode: figures["modes"][mode]["mean_iou"])
    assert figures["mode"] == best
    assert "left out" in figures["sentence"]
    assert "chosen" in figures["sentence"]
    assert figures["pixels"] == bright.size  # every pixel is left out exactly once
    assert [row["epoch"] for row in tuned.metrics()][-1] == QUICK["epochs"]


def test_an_interrupted_run_resumes_as_if_it_had_not_stopped(
    made: tuple[Run, Path, np.ndarray], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, _, bright = made
    labels = write_raster(tmp_path / "labels.tif", bright.astype(np.uint8)[None])
    config = finetune_config(run, [labels], **{**QUICK, "mode": "network", "folds": 0})
    whole = learn(config, runs=tmp_path, name="whole", device="cpu")

    from iic_train.finetune.learner import Learner

    train_epoch = Learner.train_epoch

    def stop(self: Learner, epoch: int) -> float:
        if epoch == 2:
            raise KeyboardInterrupt
        return train_epoch(self, epoch)

    monkeypatch.setattr(Learner, "train_epoch", stop)
    with pytest.raises(KeyboardInterrupt):
        learn(config, runs=tmp_path, name="stopped", device="cpu")
    monkeypatch.undo()
    resumed = resume(tmp_path / "stopped", device="cpu")
    first, second = whole.network().state_dict(), resumed.network().state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_a_value_under_two_classes_may_be_either() -> None:
    meanings = parse_meanings(["ground=1,2", "building=2,5", "water=9"])
    assert {(m.classes, m.values) for m in meanings} == {
        (("ground",), ("1",)),
        (("ground", "building"), ("2",)),
        (("building",), ("5",)),
        (("water",), ("9",)),
    }
    assert class_names(["water=9", "ground=1"]) == ("water", "ground")
    with pytest.raises(UsageError, match="NAME=VALUE"):
        parse_meanings(["ground"])


def test_meanings_know_ranges_names_and_conditions(
    made: tuple[Run, Path, np.ndarray], tmp_path: Path
) -> None:
    run, _, bright = made
    labels = write_raster(tmp_path / "cover.tif", np.where(bright, 80, 10).astype(np.uint8)[None])
    config = finetune_config(run, [labels], **QUICK, label_class=["tree=60-100", "low=0-20"])
    assert config.finetune is not None
    source = config.finetune.sources[0]
    tight = Meaning(("low",), (), (("red", 0.9, 2.0),))
    data = read_chips(
        replace(config.finetune, sources=(replace(source, meanings=(*source.meanings, tight)),)),
        config.network,
    )
    (chip,) = data.chips
    allowed = data.legend.members()[chip.codes]
    scaled = (chip.pixels[0].astype(float) - config.network.offset[0]) * config.network.scale[0]
    assert (allowed[..., 1] == ((scaled >= 0.9) | ~bright)).all()
    assert (allowed[..., 0] == (bright & (scaled < 0.9))).all()


def test_a_table_gives_whole_scenes_a_class(made: tuple[Run, Path, np.ndarray], tmp_path: Path) -> None:
    run, _, _ = made
    table = tmp_path / "labels.csv"
    table.write_text("file,class\nscene.tif,Forest\n")
    config = finetune_config(run, [table], **QUICK, label_class=["tree=Forest", "low=Pasture"])
    assert config.finetune is not None
    with pytest.raises(DataError, match="All labels are tree"):
        read_chips(config.finetune, config.network)


def test_the_classes_of_a_table_need_no_other_names(
    made: tuple[Run, Path, np.ndarray], tmp_path: Path
) -> None:
    run, folder, _ = made
    other = write_raster(tmp_path / "other.tif", bright_and_dark_fields(40, 48)[0])
    table = tmp_path / "labels.csv"
    table.write_text("file,class\nscene.tif,Forest\nother.tif,Pasture\n")
    config = finetune_config(run, [table], **QUICK, scenes=[folder / "scene.tif", other])
    assert config.finetune is not None
    assert config.finetune.classes == ("Forest", "Pasture")
    read = read_chips(config.finetune, config.network)
    assert [len(np.unique(chip.codes)) for chip in read.chips] == [1, 1]


def test_each_scene_is_read_at_its_own_resolutions(
    made: tuple[Run, Path, np.ndarray], tmp_path: Path
) -> None:
    run, _, _ = made
    run = replace(run, config=replace(run.config, data=replace(run.config.data, gsd=(0.2, 1.0))))
    scenes, labels = [], []
    for name, side in (("fine", 0.2), ("coarse", 0.6)):
        values, bright = bright_and_dark_fields(120, 120)
        grid = {"crs": "EPSG:32631", "transform": from_origin(500000, 5000000, side, side)}
        scenes.append(write_raster(tmp_path / f"{name}.tif", values, **grid))
        labels.append(write_raster(tmp_path / f"{name}_label.tif", bright[None].astype(np.uint8) + 1, **grid))
    config = finetune_config(run, labels, **QUICK, scenes=scenes)
    assert config.finetune is not None
    assert TrainConfig.from_json(json.loads(json.dumps(config.to_json()))) == config
    read = read_chips(config.finetune, config.network)
    assert [chip.pixels.shape[1] for chip in read.chips] == [120, 60, 40, 30, 24, 120]


def test_a_setting_that_does_not_exist_is_named(made: tuple[Run, Path, np.ndarray], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no setting modes: did you mean `mode`"):
        finetune_scenes(made[0], [tmp_path / "labels.tif"], modes="head")


@pytest.mark.parametrize("wrong", ["image run", "no labels", "one class", "field", "missing"])
def test_bad_input_is_one_sentence_and_leaves_nothing(
    made: tuple[Run, Path, np.ndarray], tmp_path: Path, wrong: str
) -> None:
    run, _, bright = made
    labels: dict[str, Any] = {
        "no labels": write_raster(tmp_path / "none.tif", np.zeros((1, *bright.shape), np.uint8), nodata=0),
        "one class": write_points(tmp_path / "one.gpkg", [1, 2], [1, 2], ["bright", "bright"]),
        "field": clicks(tmp_path / "clicks.gpkg", bright),
        "missing": tmp_path / "gone.gpkg",
    }
    if wrong == "image run":
        pairs = load_run(run.path)
        with pytest.raises(UsageError):
            finetune_config(replace(pairs, config=_images(run.config)), [labels["field"]], **QUICK)
        return
    with pytest.raises(IICError) as error:
        finetune_scenes(
            run,
            [labels[wrong]],
            **QUICK,
            label_field="kind" if wrong == "field" else None,
            runs=tmp_path / "runs",
        )
    assert str(error.value).count("\n") == 0
    assert not (tmp_path / "runs").exists()


def _images(config: TrainConfig) -> TrainConfig:
    from iic_train.models.registry import NetworkConfig
    from iic_train.views.settings import ImagePairs

    network = NetworkConfig("6c", ("grey",), 4, size=8, widths=(4, 4, 4, 4), family="vgg")
    return replace(config, network=network, pairs=ImagePairs(8, 10, (8,)), size=None, passes=("b",))


def test_the_command_says_how_good_the_result_is(made: tuple[Run, Path, np.ndarray], tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from iic_train.cli import app

    run, _, bright = made
    points = clicks(tmp_path / "clicks.gpkg", bright)
    arguments = [
        "finetune",
        str(run.path),
        "--labels",
        str(points),
        "--mode",
        "head",
        "--runs",
        str(tmp_path),
    ]
    result = CliRunner().invoke(app, [*arguments, "--name", "tuned", "--folds", "2"])
    assert result.exit_code == 0, result.output
    assert "left out in turn (2 parts)" in result.output
    page = (tmp_path / "tuned" / "report.html").read_text()
    assert "on places that were left out" in page
    assert "bright" in page
    evaluated = CliRunner().invoke(app, ["evaluate", str(tmp_path / "tuned")])
    assert "left out in turn" in evaluated.output
    pixels_without_labels = CliRunner().invoke(app, ["finetune", str(run.path)])
    assert pixels_without_labels.exit_code != 0
