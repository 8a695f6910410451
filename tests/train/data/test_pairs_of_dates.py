"""Two dates of a place as the two views of training."""

from pathlib import Path

import numpy as np
import pytest
import rasterio
import torch
from support.dates import AUTUMN, SPRING, date, ground, write

from iic_geotools.errors import SceneError, UsageError
from iic_train.config import DataConfig
from iic_train.data.rasters import Windows
from iic_train.data.survey import describe_scenes
from iic_train.recipes.rasters import train_rasters
from iic_train.runs import Run
from iic_train.views.pairs import dense_views
from iic_train.views.random_numbers import Draw
from iic_train.views.settings import DensePairs

QUICK = {"epochs": 10, "batch": 4, "size": 32, "lr": 1e-2, "selection_steps": 2, "device": "cpu"}


def test_both_dates_show_the_same_place(tmp_path: Path) -> None:
    values = date(ground(), SPRING, 1)
    values[:, :20] = 0
    scenes = [
        str(write(tmp_path / "a.tif", values, nodata=0)),
        str(write(tmp_path / "b.tif", 255 - np.where(values == 0, 100, values), nodata=0)),
    ]
    data = DataConfig("rasters", scenes=(scenes[0],), pair=(scenes[1],))
    windows = Windows(describe_scenes(data), 24, (1.0,), describe_scenes(data, paths=data.pair))
    batch = windows.read(np.arange(40), np.random.default_rng(0))
    assert batch.other is not None
    assert batch.valid is not None
    both = batch.pixels.int() + batch.other.int()
    assert (both.permute(0, 2, 3, 1)[batch.valid] == 255).all()
    assert not batch.valid.all()  # what is hidden on one date counts on none
    wood = [int((part[:, 3] > 150).sum()) for part in (batch.pixels, batch.other)]
    assert min(wood) > 0.2 * sum(wood)  # either date comes first


def test_second_views_are_those_of_the_other_date() -> None:
    images, other = torch.rand(3, 4, 8, 8), torch.rand(3, 4, 8, 8)
    first, second, move = dense_views(DensePairs(), images, list("abcd"), Draw(0, torch.device("cpu")), other)
    assert torch.equal(first, images)
    assert torch.allclose(move.undo(second), other, atol=1e-6)


def clusters(run: Run, scene: Path) -> np.ndarray:
    with rasterio.open(scene) as raster:
        values = raster.read().astype(float)
    low, high = np.percentile(values.reshape(4, -1), (2, 98), axis=1)[:, :, None, None]
    pixels = np.clip(255 * (values - low) / (high - low), 0, 255).round().astype(np.uint8)
    with torch.inference_mode():
        return run.network("best").eval()(torch.from_numpy(pixels)[None])[0, 0].argmax(0).numpy()


def test_clusters_mean_the_same_on_both_dates(tmp_path: Path) -> None:
    truth = ground()
    scenes = [
        write(tmp_path / f"{name}.tif", date(truth, colours, number))
        for number, (name, colours) in enumerate((("spring", SPRING), ("summer", (SPRING + AUTUMN) // 2)))
    ]
    run = train_rasters([str(scenes[0])], 4, pair=[str(scenes[1])], runs=tmp_path, name="run", **QUICK)
    spring, summer = (clusters(run, scene) for scene in scenes)
    assert (spring == summer).mean() > 0.8
    assert len(np.unique(spring)) > 2


def test_dates_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    values = date(ground(), SPRING, 1)
    first = str(write(tmp_path / "a.tif", values))
    shifted = str(write(tmp_path / "b.tif", values, 3))
    with pytest.raises(SceneError, match="gdalwarp"):
        train_rasters([first], 4, pair=[shifted], runs=tmp_path)
    with pytest.raises(UsageError, match="one date for each of the 2 scenes"):
        train_rasters([first, first], 4, pair=[shifted], runs=tmp_path)
