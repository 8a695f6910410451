"""A run that learnt from labels is exported with its classes, and its card says what labels it has seen."""

from pathlib import Path

import numpy as np
from support.runs import TrainedScene
from support.scenes import write_raster

from iic_export import export
from iic_runtime.model.file import ModelFile
from iic_runtime.segmenter import Segmenter
from iic_train.finetune.pixel_runs import finetune_scenes
from iic_train.runs import load_run


def test_classes_labels_and_held_out_figures_are_on_the_card(trained: TrainedScene, tmp_path: Path) -> None:
    labels = write_raster(tmp_path / "truth.tif", np.where(trained.bright, 4, 9).astype(np.uint8)[None])
    tuned = finetune_scenes(
        load_run(trained.run),
        [labels],
        mode="head",
        folds=2,
        label_class=["roof=4", "meadow=9"],
        runs=tmp_path,
        device="cpu",
    )
    exported = export(tuned.path, tmp_path / "m.onnx")
    card = ModelFile.read(exported.path).card
    assert [entry.name for entry in card.classes] == ["roof", "meadow"]
    assert "truth.tif" in card.origin.labels
    assert card.origin.chosen_by.startswith("learnt from labels")
    assert card.accuracy["places left out in turn"]["accuracy"] > 0.85
    assert float(card.reliability["ece"]) < 0.2
    assert exported.parity.own_data
    import rasterio

    with rasterio.open(trained.scene) as scene:
        mapped = Segmenter(exported.path)(scene.read())
    assert ((mapped.labels == 0) == trained.bright).mean() > 0.85


def test_a_run_without_labels_says_so(trained: TrainedScene, tmp_path: Path) -> None:
    card = export(trained.run, tmp_path / "m.onnx").card
    assert card.origin.labels == ""
    assert card.accuracy == {}
