"""A run becomes a model file whose labels are those of the run."""

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import rasterio
import torch
from numpy.typing import NDArray
from support.runs import TrainedScene

from iic_export import Exported, export
from iic_geotools.errors import IICError, OutputError, TrainingError, UsageError
from iic_runtime.model.file import ModelFile
from iic_runtime.raster.segment import segment_raster
from iic_train.runs import load_run


def trained_probabilities(
    run: Path, image: NDArray[np.uint8], sub_head: int | None = None
) -> NDArray[np.float32]:
    loaded = load_run(run)
    sub_head = loaded.choice().sub_head if sub_head is None else sub_head
    with torch.inference_mode():
        probabilities = loaded.network()(torch.from_numpy(image)[None])[0, sub_head]
    return np.asarray(probabilities)


def test_the_map_of_a_scene_is_the_trained_network_s(
    trained: TrainedScene, exported: Exported, tmp_path: Path
) -> None:
    segment_raster(
        trained.scene,
        tmp_path / "map.tif",
        exported.path,
        device="cpu",
        tile=48,
        threads=1,
        confidence=tmp_path / "confidence.tif",
    )
    with rasterio.open(trained.scene) as scene:
        probabilities = trained_probabilities(trained.run, scene.read())
    with rasterio.open(tmp_path / "map.tif") as dataset:
        labels = dataset.read(1)
        assert (dataset.crs, dataset.shape) == (rasterio.CRS.from_epsg(32631), (151, 173))
    with rasterio.open(tmp_path / "confidence.tif") as dataset:
        confidence = dataset.read(1)
    assert (labels == probabilities.argmax(0)).mean() > 0.9999
    expected = np.minimum(np.round(255 * probabilities.max(0)), 254)
    assert np.abs(confidence - expected).max() <= 1
    assert len(np.unique(labels)) > 1


def test_the_card_tells_what_the_run_knows(trained: TrainedScene, exported: Exported) -> None:
    card = ModelFile.read(exported.path).card
    run = load_run(trained.run)
    choice = run.choice()
    network = run.network()
    assert card == exported.card
    assert (card.bands, card.dtype) == (("red", "green", "blue", "nir"), "uint8")
    assert (card.offset, card.scale) == (run.config.network.offset, run.config.network.scale)
    assert card.gsd == pytest.approx(0.5)
    assert [map_class.name for map_class in card.classes] == ["cluster 0", "cluster 1", "cluster 2"]
    assert len({map_class.colour for map_class in card.classes}) == 3
    assert (card.halo, card.stride) == (network.halo, network.stride)
    assert 100 < card.memory_per_pixel < 2000
    origin = card.origin
    assert (origin.run, origin.subhead, origin.loss) == (run.id, choice.sub_head, choice.loss)
    assert "lowest IIC loss" in origin.chosen_by
    assert (origin.data, origin.licence) == ("made for tests", "CC0-1.0")
    assert card.parity["own_data"] == 1
    assert card.parity["labels_compared"] == 151 * 173
    assert card.parity["label_agreement"] >= 0.9999
    assert card.parity["largest_probability_difference"] <= 1e-4
    assert torch.__version__.startswith(card.packages["torch"])
    assert card.packages["onnxruntime"] == onnxruntime.__version__


@pytest.fixture(scope="module")
def other_sub_head(trained: TrainedScene, tmp_path_factory: pytest.TempPathFactory) -> tuple[int, Exported]:
    other = 1 - load_run(trained.run).choice().sub_head
    return other, export(trained.run, tmp_path_factory.mktemp("other") / "m.onnx", sub_head=other)


def test_another_sub_head_can_be_asked_for(
    trained: TrainedScene, other_sub_head: tuple[int, Exported]
) -> None:
    number, exported = other_sub_head
    run = load_run(trained.run)
    origin = exported.card.origin
    assert origin.subhead == number
    assert origin.chosen_by.startswith("asked for")
    row = next(row for row in run.metrics() if row["epoch"] == run.choice().epoch)
    assert origin.loss == row["selection"]["loss"][number]
    image = np.random.default_rng(0).integers(0, 256, (4, 30, 30)).astype(np.uint8)
    session = onnxruntime.InferenceSession(str(exported.path), providers=["CPUExecutionProvider"])
    labels = session.run(["labels"], {"image": image[None]})[0][0]
    assert (labels == trained_probabilities(trained.run, image, number).argmax(0)).all()


def test_probabilities_are_left_out_unless_asked_for(other_sub_head: tuple[int, Exported]) -> None:
    path = str(other_sub_head[1].path)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    assert [output.name for output in session.get_outputs()] == ["labels", "confidence", "features"]


def test_by_default_the_newest_run_is_exported(trained: TrainedScene, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no sub-head 7"):
        export(out=tmp_path / "m.onnx", runs=trained.run.parent, sub_head=7)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_without_runs(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="no run in"):
        export(out=tmp_path / "m.onnx", runs=tmp_path)


def test_an_existing_file_is_kept(trained: TrainedScene, tmp_path: Path) -> None:
    out = tmp_path / "m.onnx"
    out.write_bytes(b"precious")
    with pytest.raises(OutputError, match="`overwrite`"):
        export(trained.run, out)
    assert out.read_bytes() == b"precious"


@pytest.mark.parametrize(
    ("out", "options", "error", "message"),
    [
        ("m.pt", {}, UsageError, r"must end in \.onnx"),
        ("missing/m.onnx", {}, OutputError, "no folder"),
        ("m.onnx", {"precision": "int4"}, UsageError, "`precision` must be one of"),
        ("m.onnx", {"min_agreement": 99}, UsageError, "`min_agreement` must be between 0 and 1"),
        ("m.onnx", {"stac": "item.xml"}, UsageError, r"must end in \.json"),
    ],
)
def test_arguments_that_cannot_be_are_refused_before_any_work(
    trained: TrainedScene,
    tmp_path: Path,
    out: str,
    options: dict[str, Any],
    error: type[IICError],
    message: str,
) -> None:
    with pytest.raises(error, match=message):
        export(trained.run, tmp_path / out, **options)
    assert list(tmp_path.iterdir()) == []
