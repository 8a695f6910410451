"""Whole images to labels: arrays, image files, folders, and the table that `iic-classify` writes."""

import csv
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from PIL import Image
from support.tiny_onnx import make_classifier, make_model
from typer.testing import CliRunner

from iic_geotools.errors import DataError, DeviceError, ModelError, UsageError
from iic_runtime import Classifier, classify_images
from iic_runtime.classifier import ClassifierDevice, read_image
from iic_runtime.cli.classify import app
from iic_runtime.model.select import record_export

RGB = ("red", "green", "blue")


@pytest.fixture
def digits(tmp_path: Path) -> Path:
    path = tmp_path / "digits.onnx"
    path.write_bytes(make_classifier())
    return path


@pytest.fixture
def images() -> np.ndarray:
    return np.random.default_rng(1).integers(0, 256, (7, 1, 8, 8), np.uint8)


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("batch", [1, 3, 64])
def test_arrays_get_the_labels_of_the_graph(digits: Path, images: np.ndarray, batch: int) -> None:
    result = Classifier(digits, device="cpu", batch=batch)(images)
    labels, confidence, probabilities = onnxruntime.InferenceSession(digits).run(None, {"image": images})
    assert np.array_equal(result.labels, labels)
    assert np.array_equal(result.confidence, confidence)
    assert result.probabilities == pytest.approx(probabilities, abs=1e-6)
    assert np.array_equal(result.top(1)[:, 0], labels)
    assert np.array_equal(np.sort(result.top(3)), np.tile(np.arange(3), (7, 1)))


def test_batches_for_tensorrt_would_have_one_shape(
    digits: Path, images: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Computed on the CPU: TensorRT would build an engine for each number of images."""
    classify = Classifier(digits, device="cpu", batch=4)
    expected, fetch, shapes = classify(images), classify.engine.fetch, []

    def watch(batch: np.ndarray, names: tuple[str, ...]) -> list[np.ndarray]:
        shapes.append(batch.shape)
        return fetch(batch, names)

    monkeypatch.setattr(classify.engine, "fetch", watch)
    monkeypatch.setattr(classify.engine, "spec", replace(classify.engine.spec, device="tensorrt"))
    result = classify(images)
    assert shapes == [(4, 1, 8, 8), (4, 1, 8, 8)]
    assert np.array_equal(result.labels, expected.labels)
    assert np.array_equal(result.probabilities, expected.probabilities)


@pytest.mark.gpu
@pytest.mark.parametrize("device", ["cuda", "tensorrt"])
def test_a_gpu_gives_the_classes_of_the_cpu(
    digits: Path,
    images: np.ndarray,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    device: ClassifierDevice,
) -> None:
    monkeypatch.setenv("IIC_CACHE", str(tmp_path / "cache"))
    try:
        on_gpu = Classifier(digits, device=device, batch=4)(images)
    except DeviceError as error:
        pytest.skip(str(error))
    on_cpu = Classifier(digits, device="cpu")(images)
    assert on_gpu.probabilities == pytest.approx(on_cpu.probabilities, abs=1e-4)
    sure = np.diff(np.sort(on_cpu.probabilities), axis=1)[:, -1] > 1e-3
    assert np.array_equal(on_gpu.labels[sure], on_cpu.labels[sure])


def test_one_image_and_none(digits: Path, images: np.ndarray) -> None:
    classify = Classifier(digits, device="cpu")
    assert classify.size == (8, 8)
    assert classify(images[0]).labels[0] == classify(images).labels[0]
    assert classify(images[:0]).probabilities.shape == (0, 3)


@pytest.mark.parametrize("wrong", [np.zeros((2, 1, 9, 8), np.uint8), np.zeros((2, 1, 8, 8), np.float32)])
def test_arrays_that_do_not_fit_are_refused(digits: Path, wrong: np.ndarray) -> None:
    with pytest.raises(ModelError, match="takes"):
        Classifier(digits, device="cpu")(wrong)


def test_a_model_of_pixels_is_refused(tmp_path: Path) -> None:
    (tmp_path / "pixels.onnx").write_bytes(make_model())
    with pytest.raises(ModelError, match="labels pixels"):
        Classifier(tmp_path / "pixels.onnx")


def test_without_a_model_one_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("IIC_MODEL", raising=False)
    with pytest.raises(UsageError, match="No model is named"):
        Classifier()


def test_files_folders_and_arrays_in_one_table(digits: Path, images: np.ndarray, tmp_path: Path) -> None:
    folder = tmp_path / "images"
    (folder / "more").mkdir(parents=True)
    for index, name in enumerate(("b.png", "a.png", "more/c.tif")):
        Image.fromarray(images[index, 0]).save(folder / name)
    np.save(tmp_path / "rest.npy", images[3:])
    out = tmp_path / "labels.csv"
    summary = classify_images([folder, tmp_path / "rest.npy"], out, model=digits, device="cpu", batch=2)
    table = rows(out)
    order = [1, 0, 2, 3, 4, 5, 6]
    assert [row["image"] for row in table[:4]] == [
        *(str(folder / name) for name in ("a.png", "b.png", "more/c.tif")),
        f"{tmp_path / 'rest.npy'}[0]",
    ]
    result = Classifier(digits, device="cpu")(images[order])
    assert [int(row["label"]) for row in table] == result.labels.tolist()
    assert [row["class"] for row in table] == [f"cluster {label}" for label in result.labels]
    assert list(table[0]) == ["image", "class", "label", "probability"]
    assert sum(summary.counts.values()) == 7
    assert re.search(r": 7 images \(cluster \d: \d", summary.sentence())


def test_the_command_writes_top_k_and_probabilities(
    digits: Path, images: np.ndarray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("IIC_MODEL", raising=False)
    record_export(Path(digits.name), Path("runs/digits-1"))
    np.save("images.npy", images[:, 0])
    result = CliRunner().invoke(app, ["images.npy", "-o", "labels.csv", "--top", "2", "--probabilities"])
    assert result.exit_code == 0, result.output
    assert "Model: digits.onnx, exported here" in result.output
    row = rows(Path("labels.csv"))[0]
    expected = Classifier(digits, device="cpu")(images).probabilities[0]
    assert float(row["probability"]) == pytest.approx(expected.max(), abs=1e-4)
    assert int(row["label_2"]) == np.argsort(-expected)[1]
    assert [float(row[f"cluster {label}"]) for label in range(3)] == pytest.approx(expected, abs=1e-4)
    again = CliRunner().invoke(app, ["images.npy"])
    assert (again.exit_code, "labels.csv exists" in again.output) == (1, True)


def test_image_files_are_brought_to_the_bands_and_size_of_the_model(tmp_path: Path) -> None:
    (tmp_path / "colour.onnx").write_bytes(make_classifier(bands=RGB, size=4))
    card = Classifier(tmp_path / "colour.onnx", device="cpu").card
    wide = np.zeros((8, 16, 3), np.uint8)
    wide[:, 2:14] = (200, 100, 50)  # the black sides are cut off
    Image.fromarray(wide).save(tmp_path / "wide.png")
    assert read_image(tmp_path / "wide.png", card, (4, 4)).mean((1, 2)).tolist() == [200, 100, 50]
    Image.fromarray(np.full((4, 4), 9, np.uint8)).save(tmp_path / "grey.png")
    assert (read_image(tmp_path / "grey.png", card, (4, 4)) == 9).all()


def test_what_cannot_be_read_is_refused_and_leaves_no_table(digits: Path, tmp_path: Path) -> None:
    out = tmp_path / "labels.csv"
    (tmp_path / "text.png").write_text("no image")
    Image.fromarray(np.zeros((8, 8), np.uint16)).save(tmp_path / "deep.png")
    np.save(tmp_path / "wrong.npy", np.zeros((3, 5, 5), np.uint8))
    (tmp_path / "empty").mkdir()
    for name, words in (
        ("text.png", "cannot be read as an image"),
        ("deep.png", "8 bits"),
        ("wrong.npy", "holds uint8 of shape"),
        ("empty", "holds no images"),
        ("missing.png", "There is no image"),
    ):
        with pytest.raises(DataError, match=words):
            classify_images([tmp_path / name], out, model=digits, device="cpu")
        assert not out.exists()
    with pytest.raises(UsageError, match="`top` must be 1 to 3"):
        classify_images([tmp_path / "deep.png"], out, model=digits, top=4)
