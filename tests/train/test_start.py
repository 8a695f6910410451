"""Where training of a `bank` network starts: clusters without labels, none of them dead."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.scenes import write_raster

from iic_geotools.errors import UsageError
from iic_train.evaluation.report import write_report
from iic_train.losses.objective import iic_loss, iic_loss_at_masses
from iic_train.recipes.rasters import choose_reduction, choose_settings, train_rasters
from iic_train.runs import Run, load_run
from iic_train.trainer import resume

QUICK = {"epochs": 2, "steps": 2, "batch": 4, "size": 16}
SIDE = 160


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, np.ndarray]:
    """Three materials with noise: half of the scene, a third and, rarest, a twentieth."""
    rng = np.random.default_rng(0)
    truth = np.zeros((SIDE, SIDE), int)
    truth[:, SIDE // 2 :] = 1
    truth[20:56, 10:46] = 2
    colours = np.array([[60, 90, 50, 160], [120, 115, 110, 125], [25, 40, 60, 12]])
    values = colours[truth].transpose(2, 0, 1) + rng.normal(0, 12, (4, SIDE, SIDE))
    path = tmp_path_factory.mktemp("scene") / "scene.tif"
    return write_raster(path, np.clip(values, 1, 254).astype(np.uint8)), truth


@pytest.fixture(scope="module")
def run(scene: tuple[Path, np.ndarray], tmp_path_factory: pytest.TempPathFactory) -> Run:
    return train_rasters(
        [str(scene[0])], 3, **QUICK, runs=tmp_path_factory.mktemp("runs"), name="a", device="cpu"
    )


def clusters(run: Run, scene: Path) -> np.ndarray:
    import rasterio

    with rasterio.open(scene) as raster:
        pixels = torch.from_numpy(raster.read())[None]
    with torch.inference_mode():
        return run.network("best").eval()(pixels)[0, 0].argmax(0).numpy()


def test_a_rare_material_has_a_cluster_of_its_own(run: Run, scene: tuple[Path, np.ndarray]) -> None:
    labels, truth = clusters(run, scene[0]), scene[1]
    owners = [np.bincount(labels[truth == material], minlength=3) for material in range(3)]
    assert sorted(int(counts.argmax()) for counts in owners) == [0, 1, 2]
    right = sum(int(counts.max()) for counts in owners)
    assert right / truth.size > 0.95


def test_a_resumed_run_equals_one_that_was_not_interrupted(
    run: Run, scene: tuple[Path, np.ndarray], tmp_path: Path
) -> None:
    settings = {**QUICK, "epochs": 1}
    train_rasters([str(scene[0])], 3, **settings, runs=tmp_path, name="b", device="cpu")
    resumed = resume(tmp_path / "b", epochs=2, device="cpu")
    weights, same = load_run(run.path).network("last").state_dict(), resumed.network("last").state_dict()
    # The learning rate falls over another number of epochs; what the start found is the same.
    for name in ("trunk.mean", "trunk.deviation", "heads.b.weight", "heads.b.bias"):
        assert torch.equal(weights[name], same[name])


@pytest.mark.parametrize(("network", "changes_the_map"), [("bank", False), ("local", True)])
def test_a_run_says_whether_training_changes_the_map(
    scene: tuple[Path, np.ndarray], tmp_path: Path, caplog: Any, network: str, changes_the_map: bool
) -> None:
    with caplog.at_level("INFO", "iic_train"):
        maps = [
            clusters(
                train_rasters(
                    *([str(scene[0])], 3),
                    **{
                        **QUICK,
                        "network": network,
                        "lr": lr,
                        "runs": tmp_path,
                        "name": f"{lr}",
                        "device": "cpu",
                    },
                ),
                scene[0],
            )
            for lr in (1e-2, 1e-12)
        ]
    assert np.array_equal(*maps) != changes_the_map
    rules = choose_settings(network, 3, 10.0)
    assert (
        rules["epochs"] * rules["steps"] > 1
    ) == changes_the_map  # no time for what does not change the map
    assert ("clusters of the map are those of the start" in caplog.text) != changes_the_map
    assert ("features learning" in caplog.text) != changes_the_map


def test_the_default_says_that_it_does_not_train(
    scene: tuple[Path, np.ndarray], tmp_path: Path, caplog: Any
) -> None:
    with caplog.at_level("INFO", "iic_train"):
        run = train_rasters([str(scene[0])], 3, runs=tmp_path, name="a", device="cpu")
    assert "Training is left out; `epochs` 4 and `steps` 75 learn features for clicks" in caplog.text
    assert "clusters found" in caplog.messages
    assert not any(" steps of" in message or "learning" in message for message in caplog.messages)
    page = write_report(run).read_text()
    assert "The clusters of the map are those of the start" in page
    assert "Loss of head" not in page
    assert "auxiliary" not in page
    assert page.count("<tr><td><span") == 3  # what each cluster looks like


def test_masses_are_held() -> None:
    torch.manual_seed(0)
    z = torch.randn(500, 4).mul(3).softmax(1)
    masses = z.mean(0)
    held = iic_loss_at_masses(z, z, masses, 10.0)
    moved = iic_loss_at_masses(z, z, masses.flip(0), 10.0)
    assert moved > held
    assert torch.isclose(iic_loss(z, z) + 2 * _entropy(masses), held + _entropy(masses), atol=1e-4)


def _entropy(masses: torch.Tensor) -> torch.Tensor:
    return -(masses * masses.log()).sum()


def test_rules_follow_from_the_resolution() -> None:
    coarse, fine = (choose_settings("bank", 5, gsd) for gsd in (10.0, 0.8))
    assert (coarse["colour_jitter"], coarse["vegetation_jitter"]) == (0.3, 0.0)
    assert fine["colour_jitter"] == 1.0
    assert fine["vegetation_jitter"]
    other = choose_settings("edge-8", 5, 10.0)
    assert (other["clusters_a"], other["epochs"]) == (20, 20)


@pytest.mark.parametrize(("pixel_size", "reduce"), [(0.2, 4), (0.5, 2), (0.8, 1), (10.0, 1), (None, 1)])
def test_fine_scenes_are_read_at_a_working_resolution(pixel_size: float | None, reduce: int) -> None:
    assert choose_reduction(pixel_size) == reduce


def test_features_need_head_a(scene: tuple[Path, np.ndarray], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="clusters_a"):
        train_rasters([str(scene[0])], 3, clusters_a=0, runs=tmp_path)


def test_settings_that_do_not_exist_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no setting epoch: did you mean `epochs`"):
        train_rasters(["missing.tif"], 3, epoch=3, runs=tmp_path)


def test_what_was_chosen_is_said(scene: tuple[Path, np.ndarray], tmp_path: Path, caplog: Any) -> None:
    with caplog.at_level("INFO", "iic_train"):
        train_rasters([str(scene[0])], 3, **QUICK, runs=tmp_path, name="a", device="cpu")
    (sentence,) = [message for message in caplog.messages if message.startswith("Settings for")]
    assert "network bank, 3 clusters and 64 of head A; 2 x 2 steps of 4 windows of 16 px" in sentence
    assert any(message.startswith("epoch 2/2, ") for message in caplog.messages)
