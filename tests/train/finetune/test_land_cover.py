"""Training of land-cover networks: balanced crops, missing bands, and that what is plain is learnt."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from support.scenes import write_raster

from iic_geotools.errors import DataError
from iic_geotools.tiling import Rect
from iic_train.config import TrainConfig
from iic_train.finetune import land_cover
from iic_train.finetune.chips import DenseChip, LabelledChips, read_chips, write_dense_labels
from iic_train.finetune.heldout import pixel_logs
from iic_train.finetune.land_cover import (
    BalancedCrops,
    augment,
    paint_shade,
    paint_soil,
    paint_water,
    train_land_cover,
)
from iic_train.finetune.settings import FinetuneConfig, LabelSource, Meaning
from iic_train.models.registry import MISSING_REFLECTANCE, STRETCH, NetworkConfig
from iic_train.recipes.learnt import LearntRecipe, learnt_config

torch.set_num_threads(1)
RGBI = ("red", "green", "blue", "nir")
LEAVES, WATER = (0.04, 0.08, 0.04, 0.4), (0.05, 0.06, 0.07, 0.02)
MEANINGS = (Meaning(("leaves",), ("1",)), Meaning(("water",), ("2",)))


def write_scene(folder: Path, name: str, seed: int, bands: int = 4) -> None:
    """A scene of reflectance x 10000 whose left half is leaves and whose right half is water, with labels."""
    rng = np.random.default_rng(seed)
    labels = np.ones((64, 80), np.uint8)
    labels[:, 40:] = 2
    spectra = np.where(labels[None] == 1, np.array(LEAVES)[:, None, None], np.array(WATER)[:, None, None])
    values = 1e4 * spectra * rng.normal(1, 0.05, spectra.shape)
    write_raster(folder / f"{name}_rgbn.tif", values.astype(np.int16)[:bands])
    write_raster(folder / f"{name}_label.tif", labels[None])


def recipe(**source: object) -> LearntRecipe:
    made = LabelSource(
        "made", ("*_rgbn.tif",), ("*_label.tif",), MEANINGS, bands=RGBI, rescale="reflectance",
        reflectance=(1e-4, 0.0), folds=(("", 0),),
    )  # fmt: skip
    return LearntRecipe(
        "tiny", "For tests.",
        FinetuneConfig(("leaves", "water"), (replace(made, **source),), dtype="int16", mode="network", folds=0),
        NetworkConfig(
            "land-cover", RGBI, 2, scale=(1e-4,) * 4, family="land-cover", widths=(8, 6), beside="reflectance",
            bias=True,
        ),
        {"size": 32, "batch": 2, "epochs": 1, "steps": 3, "lr": 1e-3},
        gsd=(3.0, 30.0), attribution="made", licence="CC0-1.0",
    )  # fmt: skip


def read(folder: Path, tiny: LearntRecipe) -> tuple[TrainConfig, LabelledChips]:
    config = learnt_config(tiny, folder)
    assert config.finetune is not None
    return config, read_chips(config.finetune, config.network)


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(land_cover, "LOCAL_CROPS", 200)
    monkeypatch.setattr(land_cover, "LOCAL_STEPS", 200)
    monkeypatch.setattr(land_cover, "WARM_UP", 5)
    monkeypatch.setattr(land_cover, "AVERAGE", 0.9)


@pytest.mark.parametrize(
    "widths", [(8, 6), (8, 6, 4, 4, 4), (0, 0, 4, 4, 4)], ids=["local", "both", "context"]
)
def test_leaves_and_water_are_learnt_with_and_without_infrared(
    tmp_path: Path, widths: tuple[int, ...]
) -> None:
    write_scene(tmp_path, "a", 0)
    tiny = recipe()
    tiny = replace(
        tiny,
        network=replace(tiny.network, widths=widths),
        changes={**tiny.changes, "steps": 40, "lr": 1e-2, "batch": 8, "size": 64},
    )
    config, data = read(tmp_path, tiny)
    network = train_land_cover(config, data, None)
    pixels = data.chips[0].pixels
    without = pixels.copy()
    without[3] = MISSING_REFLECTANCE
    truth = np.repeat([[0] * 40 + [1] * 40], 64, 0)
    for image in (pixels, without):
        assert (pixel_logs(network, image).argmax(0) == truth).mean() > 0.95
    again = train_land_cover(config, data, None)
    assert all(torch.equal(a, b) for a, b in zip(network.parameters(), again.parameters(), strict=True))


def test_crops_leave_infrared_out_stretch_some_and_come_back_as_raw_values(tmp_path: Path) -> None:
    write_scene(tmp_path, "a", 0)
    config, data = read(tmp_path, recipe())
    crops = BalancedCrops(data, config, None, 24)
    crop = crops.draw(np.random.default_rng(0), 60)
    assert 0.4 < crop.infrared.mean() < 0.8
    assert 0.1 < crop.stretched.mean() < 0.45
    encoded = crops.encode(augment(crop, True, torch.Generator().manual_seed(0)))
    missing = (encoded[:, 3] - MISSING_REFLECTANCE * 1e-4).abs().flatten(1) < 1e-6
    assert torch.equal(missing.all(1), crop.infrared.flatten() == 0)
    assert torch.equal(missing.any(1), missing.all(1))
    stretched = encoded[:, :3].mean((1, 2, 3)) > 1.5
    assert torch.equal(stretched, crop.stretched.flatten() > 0)
    assert set(crop.codes.unique().tolist()) <= {0, 1, 2}


def test_scenes_of_three_bands_and_stretched_ones_are_read(tmp_path: Path) -> None:
    write_scene(tmp_path, "a", 0, bands=3)
    config, data = read(tmp_path, recipe(bands=("1", "2", "3"), rescale="stretch", reflectance=None))
    (chip,) = data.chips
    assert (chip.pixels[3] == MISSING_REFLECTANCE).all()
    low, high = np.percentile(chip.pixels[0], (2, 98))
    assert low == pytest.approx(STRETCH[0], abs=300)
    assert high == pytest.approx(STRETCH[1], abs=300)
    crop = BalancedCrops(data, config, None, 24).draw(np.random.default_rng(0), 4)
    assert not crop.infrared.any()
    assert crop.stretched.all()


def test_dense_labels_win_over_others(tmp_path: Path) -> None:
    folder = tmp_path / "pool"
    folder.mkdir()
    write_scene(folder, "a", 0)
    labels = np.full((10, 12), 2, np.uint8)
    labels[:2] = 0
    chip = DenseChip(
        "chip", "pool/a_rgbn.tif", Rect(4, 6, 12, 10), "made", ("leaves", "water"), labels, "the scene"
    )
    write_dense_labels(tmp_path / "dense.json.gz", [chip])
    tiny = recipe(
        scenes=("pool/*_rgbn.tif",), labels=("pool/*_label.tif",), dense=str(tmp_path / "dense.json.gz")
    )
    _, data = read(tmp_path, tiny)
    water = data.legend.code(("water",))
    codes = data.chips[0].codes[:, :40]
    assert (codes[8:16, 4:16] == water).all()
    assert (codes == water).sum() == 8 * 12


def test_sources_without_a_weight_are_never_learnt_from(tmp_path: Path) -> None:
    write_scene(tmp_path, "a", 0)
    config, data = read(tmp_path, recipe(weight=0.0))
    with pytest.raises(DataError, match="No labelled source"):
        BalancedCrops(data, config, None, 24)


def test_painted_water_is_smooth_blue_green_and_labelled(tmp_path: Path) -> None:
    write_scene(tmp_path, "a", 0)
    config, data = read(tmp_path, recipe())
    crop = BalancedCrops(data, config, None, 48).draw(np.random.default_rng(0), 8)
    generator = torch.Generator().manual_seed(0)
    assert torch.equal(paint_water(crop, 0.0, 2, generator).values, crop.values)
    painted = paint_water(crop, 1.0, 2, generator)
    wet = (painted.values != crop.values).any(1)
    assert 0.1 < wet.float().mean() < 0.9
    assert (painted.codes[wet] == 2).all()
    assert torch.equal(painted.codes[~wet], crop.codes[~wet])
    red, green, blue, infrared = (painted.values[:, band][wet].mean() for band in range(4))
    assert infrared < red < green
    assert blue > red


def test_painted_soil_is_redder_than_green_where_reflectance_and_infrared_are_known(tmp_path: Path) -> None:
    write_scene(tmp_path, "a", 0)
    config, data = read(tmp_path, recipe())
    crop = BalancedCrops(data, config, None, 48).draw(np.random.default_rng(0), 16)
    generator = torch.Generator().manual_seed(0)
    assert torch.equal(paint_soil(crop, 0.0, 2, generator).values, crop.values)
    painted = paint_soil(crop, 1.0, 2, generator)
    soil = (painted.values != crop.values).any(1)
    known = (crop.infrared * (1 - crop.stretched)).flatten() > 0
    assert known.any()
    assert not soil[~known].any()
    assert soil[known].float().mean() > 0.3
    assert (painted.codes[soil] == 2).all()
    assert torch.equal(painted.codes[~soil], crop.codes[~soil])
    red, green, blue, infrared = (painted.values[:, band][soil].mean() for band in range(4))
    assert blue < green < red < infrared


def test_painted_shade_is_dark_and_keeps_labels(tmp_path: Path) -> None:
    write_scene(tmp_path, "a", 0)
    config, data = read(tmp_path, recipe())
    crop = BalancedCrops(data, config, None, 48).draw(np.random.default_rng(0), 8)
    generator = torch.Generator().manual_seed(0)
    assert torch.equal(paint_shade(crop, 0.0, generator).values, crop.values)
    shaded = paint_shade(crop, 1.0, generator)
    changed = (shaded.values != crop.values).any(1)
    assert 0.05 < changed.float().mean() < 0.8
    green = 1
    assert (shaded.values[:, green][changed] < 0.6 * crop.values[:, green][changed] + 1e-6).all()
    assert torch.equal(shaded.codes, crop.codes)
