import json
import shutil

import numpy as np
import onnx
import onnxruntime
import pytest
import rasterio
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from iic_export import export
from iic_geotools.errors import ModelError, TrainingError, UsageError
from iic_runtime.modelfile import ModelFile
from iic_runtime.segment import segment_raster
from iic_runtime.validate import validate_model
from iic_train.runs import load_run


def torch_probabilities(run, image, subhead=None):
    loaded = load_run(run)
    network = loaded.network()
    subhead = loaded.choice().sub_head if subhead is None else subhead
    with torch.inference_mode():
        return network(torch.from_numpy(image)[None])[0, subhead].numpy()


def session(path):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def test_the_map_of_a_scene_is_the_trained_network_s(trained, exported, tmp_path):
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
        probabilities = torch_probabilities(trained.run, scene.read())
    with rasterio.open(tmp_path / "map.tif") as out, rasterio.open(tmp_path / "confidence.tif") as sure:
        labels, confidence = out.read(1), sure.read(1)
        assert (out.crs, out.shape) == (rasterio.CRS.from_epsg(32631), (151, 173))
    assert (labels == probabilities.argmax(0)).mean() > 0.9999
    expected = np.minimum(np.round(255 * probabilities.max(0)), 254)
    assert np.abs(confidence - expected).max() <= 1
    assert len(np.unique(labels)) > 1


def test_the_model_file_keeps_what_its_card_says(exported):
    assert all(check.kept for check in validate_model(exported.path))
    onnx.checker.check_model(str(exported.path), full_check=True)


def test_the_card_is_complete(trained, exported):
    card = ModelFile.read(exported.path).card
    run = load_run(trained.run)
    choice = run.choice()
    assert card == exported.card
    assert (card.bands, card.dtype) == (("red", "green", "blue", "nir"), "uint8")
    assert (card.offset, card.scale) == (run.config.network.offset, run.config.network.scale)
    assert card.gsd == pytest.approx(0.5)
    assert [each.name for each in card.classes] == ["cluster 0", "cluster 1", "cluster 2"]
    assert len({each.colour for each in card.classes}) == 3
    network = run.network()
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
    assert {"torch", "onnx", "onnxruntime"} <= set(card.packages)


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 3), st.integers(1, 21), st.integers(1, 21), st.integers(0, 99))
def test_any_size_goes(trained, exported, count, height, width, seed):
    image = np.random.default_rng(seed).integers(0, 256, (count, 4, height, width)).astype(np.uint8)
    labels, confidence, probabilities = session(exported.path).run(None, {"image": image})
    assert labels.shape == confidence.shape == (count, height, width)
    assert probabilities.shape == (count, 3, height, width)
    assert (labels.dtype, confidence.dtype) == (np.uint8, np.uint8)
    expected = np.stack([torch_probabilities(trained.run, each) for each in image])
    assert np.abs(probabilities - expected).max() < 1e-4
    assert (labels == probabilities.argmax(1)).all()
    assert (confidence == np.round(255 * probabilities.max(1))).all()


def test_the_graph_holds_no_batch_norm_and_no_leftovers(exported):
    graph = onnx.load(exported.path).graph
    kinds = [node.op_type for node in graph.node]
    assert "BatchNormalization" not in kinds
    assert kinds.count("Conv") == 7
    assert not {"Transpose", "Reshape", "Gather"} & set(kinds)
    used = {name for node in graph.node for name in node.input}
    assert {weight.name for weight in graph.initializer} <= used


@pytest.fixture(scope="module")
def other_subhead(trained, tmp_path_factory):
    other = 1 - load_run(trained.run).choice().sub_head
    return other, export(trained.run, tmp_path_factory.mktemp("other") / "m.onnx", subhead=other)


def test_another_subhead_can_be_asked_for(trained, other_subhead):
    number, made = other_subhead
    run = load_run(trained.run)
    origin = made.card.origin
    assert origin.subhead == number
    assert origin.chosen_by.startswith("asked for")
    row = next(row for row in run.metrics() if row["epoch"] == run.choice().epoch)
    assert origin.loss == row["selection"]["loss"][number]
    image = np.random.default_rng(0).integers(0, 256, (4, 30, 30)).astype(np.uint8)
    labels = session(made.path).run(["labels"], {"image": image[None]})[0][0]
    assert (labels == torch_probabilities(trained.run, image, number).argmax(0)).all()


def test_probabilities_are_left_out_unless_asked_for(other_subhead):
    assert [output.name for output in session(other_subhead[1].path).get_outputs()] == [
        "labels",
        "confidence",
    ]


def test_the_newest_run_is_taken(trained, tmp_path):
    with pytest.raises(UsageError, match="no sub-head 7"):
        export(out=tmp_path / "m.onnx", runs=trained.run.parent, subhead=7)
    assert list(tmp_path.iterdir()) == []


def test_no_runs(tmp_path):
    with pytest.raises(TrainingError, match="no run in"):
        export(out=tmp_path / "m.onnx", runs=tmp_path)


def test_a_run_without_weights(trained, tmp_path):
    shutil.copytree(trained.run, tmp_path / "run", ignore=shutil.ignore_patterns("*.safetensors"))
    with pytest.raises(TrainingError, match="no weights yet"):
        export(tmp_path / "run", tmp_path / "m.onnx")
    assert not (tmp_path / "m.onnx").exists()


@pytest.mark.parametrize("damage", ["cut", "noise", "not finite"])
def test_damaged_weights(trained, tmp_path, damage):
    from safetensors import safe_open
    from safetensors.torch import load_file, save_file

    folder = shutil.copytree(trained.run, tmp_path / "run")
    file = folder / "best.safetensors"
    if damage == "not finite":
        with safe_open(file, framework="pt") as opened:
            metadata = opened.metadata()
        weights = load_file(file)
        weights["heads.b.weight"] = weights["heads.b.weight"] * float("nan")
        save_file(weights, file, metadata)
    else:
        content = file.read_bytes()
        file.write_bytes(content[: len(content) // 2] if damage == "cut" else b"\x80" + content[1:])
    with pytest.raises(TrainingError, match="weights"):
        export(folder, tmp_path / "m.onnx")
    assert not (tmp_path / "m.onnx").exists()


def test_an_existing_file_is_kept(trained, tmp_path):
    out = tmp_path / "m.onnx"
    out.write_bytes(b"precious")
    with pytest.raises(UsageError, match="--overwrite"):
        export(trained.run, out)
    assert out.read_bytes() == b"precious"


@pytest.mark.parametrize("out", ["m.pt", "missing/m.onnx"])
def test_an_output_that_cannot_be(trained, tmp_path, out):
    with pytest.raises(UsageError):
        export(trained.run, tmp_path / out)


def test_a_model_that_differs_is_not_written(trained, tmp_path, monkeypatch):
    """A fold that forgets the batch norm's shift stands for any mistake between network and graph."""
    from iic_export import deploy

    right = deploy.fuse_conv_bn_eval

    def wrong(conv, norm):
        fused = right(conv, norm)
        with torch.no_grad():
            fused.bias += 0.05
        return fused

    monkeypatch.setattr(deploy, "fuse_conv_bn_eval", wrong)
    with pytest.raises(ModelError, match="nothing was written"):
        export(trained.run, tmp_path / "m.onnx")
    assert list(tmp_path.iterdir()) == []


def test_a_network_that_cannot_be_tiled_is_refused(trained, tmp_path, monkeypatch):
    from iic_train.networks import Network

    monkeypatch.setattr(Network, "halo", property(lambda self: 6))
    with pytest.raises(ModelError, match="halo of 6 px"):
        export(trained.run, tmp_path / "m.onnx")
    assert list(tmp_path.iterdir()) == []


def test_without_the_run_s_data_noise_will_do(trained, tmp_path, caplog):
    folder = shutil.copytree(trained.run, tmp_path / "run")
    record = json.loads((folder / "config.json").read_text())
    record["config"]["data"]["scenes"] = [str(tmp_path / "gone.tif")]
    (folder / "config.json").write_text(json.dumps(record))
    made = export(folder, tmp_path / "m.onnx")
    assert made.card.parity["own_data"] == 0
    assert "noise" in caplog.text
