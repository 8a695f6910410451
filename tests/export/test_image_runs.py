"""Clustering runs whose model has classes: clusters merged by majority, and networks fine-tuned with labels."""

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from support.datasets import accept_checksums, make_stl10, write_idx

from iic_export import export
from iic_export.name_clusters import Naming
from iic_geotools.errors import TrainingError, UsageError
from iic_train.config import DataConfig, TrainConfig
from iic_train.evaluation.evaluate import evaluate
from iic_train.finetune.image_runs import FinetuneSettings, finetune_run, load_finetuned
from iic_train.models.networks import Network
from iic_train.models.registry import NetworkConfig
from iic_train.runs import Choice, Run, create_run
from iic_train.views.pairs import central_views
from iic_train.views.settings import ImagePairs

RGB = ("red", "green", "blue")


def saved(config: TrainConfig, root: Path) -> Run:
    torch.manual_seed(0)
    run = create_run(config, {}, root / "runs")
    network = Network(config.network)
    with torch.no_grad():
        for parameter in network.heads.parameters():
            parameter.mul_(100)  # far from undecided
    run.save_weights(network, "best", Choice(1, 0, -0.5))
    return run


@pytest.fixture
def overclustered(tmp_path: Path) -> Run:
    """A run on images of three digits with more clusters than a map can hold."""
    rng = np.random.default_rng(0)
    for part, count in (("train", 60), ("t10k", 30)):
        labels = (np.arange(count) % 3).astype(np.uint8)
        images = rng.integers(0, 80, (count, 28, 28)) + 60 * labels[:, None, None]
        write_idx(tmp_path / f"MNIST/raw/{part}-images-idx3-ubyte", images.astype(np.uint8))
        write_idx(tmp_path / f"MNIST/raw/{part}-labels-idx1-ubyte", labels)
    network = NetworkConfig("6c", ("grey",), clusters_b=280, size=24, family="vgg", widths=(2, 2, 4, 4))
    return saved(
        TrainConfig(
            *("mnist", DataConfig("mnist", str(tmp_path), overcluster=True), network),
            *(ImagePairs(24, 20, (20,)), None),
            passes=("b",),
        ),
        tmp_path,
    )


def test_many_clusters_become_the_classes_of_the_data_set(overclustered: Run, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="at most 254"):
        export(overclustered.path, tmp_path / "clusters.onnx")
    exported = export(overclustered.path, tmp_path / "classes.onnx", naming=Naming(own_labels=True))
    names = [item.name for item in exported.card.classes]
    assert set(names) <= {"0", "1", "2"}
    assert len(names) >= 2
    session = onnxruntime.InferenceSession(str(exported.path))
    test = overclustered.dataset().test
    right = [
        names[int(session.run(["labels"], {"image": test.image(index)[None]})[0][0])]
        == str(test.label(index))
        for index in range(len(test))
    ]
    # Probabilities of a class are summed, so an image between clusters may differ from its majority.
    assert np.mean(right) == pytest.approx(evaluate(overclustered).accuracy, abs=0.15)
    with pytest.raises(UsageError, match="`own_labels`"):
        export(overclustered.path, tmp_path / "x.onnx", naming=Naming(labels=["points.gpkg"]))


def test_a_fine_tuned_network_is_exported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_stl10(tmp_path)
    accept_checksums(tmp_path, monkeypatch)
    network = NetworkConfig(
        "5g", RGB, clusters_b=4, sobel=True, colour=False, size=16, family="resnet", widths=(4, 8, 8, 8)
    )
    run = saved(
        TrainConfig(
            *("stl10", DataConfig("stl10", str(tmp_path)), network, ImagePairs(16, 64, (64,)), None),
            passes=("b",),
        ),
        tmp_path,
    )
    with pytest.raises(TrainingError, match="not fine-tuned"):
        export(run.path, tmp_path / "model.onnx", checkpoint="finetuned")
    finetune_run(run, FinetuneSettings(epochs=1, batch_size=4, hidden=4))
    exported = export(run.path, tmp_path / "model.onnx", checkpoint="finetuned")
    assert [item.name for item in exported.card.classes][:2] == ["airplane", "bird"]
    assert exported.card.origin.labels == "the training part of stl10"
    image = run.dataset().test.image(0)
    session = onnxruntime.InferenceSession(str(exported.path))
    probabilities = session.run(["probabilities"], {"image": image[None]})[0]
    trained, _ = load_finetuned(run)
    with torch.no_grad():
        views = central_views(run.config.pairs, trained.scale(torch.from_numpy(image.copy())[None]))  # type: ignore[arg-type]
        assert probabilities == pytest.approx(trained.classify(views)[:, 0].numpy(), abs=1e-4)
    with pytest.raises(UsageError, match="one head"):
        export(run.path, tmp_path / "other.onnx", checkpoint="finetuned", sub_head=0)
    with pytest.raises(UsageError, match="classes already"):
        export(run.path, tmp_path / "other.onnx", checkpoint="finetuned", naming=Naming(own_labels=True))
