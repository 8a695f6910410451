"""One trained run and its model, shared by the tests of this room: training and tracing take seconds."""

from typing import TYPE_CHECKING

import pytest
import torch
from support.runs import TrainedScene, bright_and_dark_fields, train_on
from support.scenes import write_raster

if TYPE_CHECKING:
    from iic_export import Exported
    from iic_export.trained_head import TrainedHead

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> TrainedScene:
    """A run on a made scene."""
    folder = tmp_path_factory.mktemp("export")
    values, bright = bright_and_dark_fields(151, 173)
    scene = write_raster(folder / "scene.tif", values)
    return TrainedScene(train_on(scene, folder / "runs").path, scene, bright)


@pytest.fixture(scope="session")
def exported(trained: TrainedScene, tmp_path_factory: pytest.TempPathFactory) -> "Exported":
    """The run's model file, with probabilities."""
    from iic_export import export

    return export(
        trained.run,
        tmp_path_factory.mktemp("model") / "model.onnx",
        probabilities=True,
        attribution="made for tests",
        licence="CC0-1.0",
    )


@pytest.fixture(scope="session")
def head(trained: TrainedScene) -> "TrainedHead":
    """The run's best sub-head."""
    from iic_export.trained_head import load_head
    from iic_train.runs import find_run

    return load_head(find_run(trained.run))
