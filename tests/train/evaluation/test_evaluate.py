import numpy as np
import pytest
import torch
from torch import Tensor

from iic_geotools.errors import DataError, UsageError
from iic_train.data.base import Arrays, Dataset, Images
from iic_train.data.loader import labelled_batches
from iic_train.evaluation.evaluate import LABEL_FRACTIONS, Protocol, evaluate_clusters
from iic_train.evaluation.kmeans import kmeans, kmeans_baseline


class Maps:
    """Pictures of different sizes with a label map; every third has none."""

    channels = ("grey", "nir")

    def __init__(self, count: int, *, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.shapes = [(6, 6) if i % 2 else (8, 6) for i in range(count)]
        self.labels = [rng.integers(0, 3, shape).astype(np.uint8) for shape in self.shapes]
        self.noise = [rng.normal(0, 5, (2, *shape)) for shape in self.shapes]
        for label in self.labels:
            label[0, 0] = 255

    def __len__(self) -> int:
        return len(self.labels)

    def image(self, index: int) -> np.ndarray:
        means = np.array([[50, 120, 200, 0], [9, 5, 1, 0]])  # the second band matters only once it is scaled
        values = (
            means[:, np.minimum(self.labels[index], 3)]
            + self.noise[index] * np.array([1, 0.05])[:, None, None]
        )
        return values.astype(np.float32)

    def label(self, index: int) -> np.ndarray | None:
        return None if index % 3 == 2 else self.labels[index]

    def valid(self, index: int) -> np.ndarray:
        return np.asarray(self.labels[index] != 255)


def digits(count: int) -> Arrays:
    """Images that are constant and equal to their class."""
    labels = np.arange(count) % 3
    return Arrays(
        np.broadcast_to(labels[:, None, None, None], (count, 1, 4, 4)).astype("u1"), labels, ("grey",)
    )


def dataset(images: Images, test: Images | None = None, *, dense: bool = False) -> Dataset:
    return Dataset("toy", dense, images, images, map=images, test=test or images, classes=("a", "b", "c"))


def test_sub_heads_are_scored_apart() -> None:
    def predict(images: Tensor) -> Tensor:
        right = images[:, 0, 0, 0].long()
        return torch.stack([(right + 1) % 3, torch.zeros_like(right)])

    evaluation = evaluate_clusters(predict, dataset(digits(12)), 3, chosen=1, protocol=Protocol(batch_size=5))
    assert evaluation.accuracies == (1.0, pytest.approx(1 / 3))
    assert evaluation.accuracy == pytest.approx(
        1 / 3
    )  # what was chosen without labels, not what labels would pick
    assert evaluation.label_picked == 0
    assert evaluation.sub_heads[0].mapping == (2, 0, 1)
    assert evaluation.sub_heads[0].nmi == pytest.approx(1)
    assert evaluation.sub_heads[1].occupancy == (1, 0, 0)
    summary = evaluation.to_json()
    assert summary["mean"] == pytest.approx(2 / 3)
    assert summary["deviation"] == pytest.approx(1 / 3)
    assert summary["label_picked"] == {"sub_head": 0, "accuracy": 1.0}
    assert "picked by labels: sub-head 0, 100.00%" in evaluation.describe()


def test_overclustering_names_on_the_mapping_part_and_tests_on_the_test_part() -> None:
    def predict(images: Tensor) -> Tensor:
        return images[:, 0, 0, 0].long()[None] * 2

    swapped = Arrays(np.zeros((4, 1, 4, 4), "u1"), np.array([0, 0, 0, 1]), ("grey",))
    evaluation = evaluate_clusters(
        predict, dataset(digits(9), swapped), 6, protocol=Protocol(overcluster=True)
    )
    assert evaluation.accuracy == 0.75
    assert evaluation.sub_heads[0].mapping[::2] == (0, 1, 2)


def test_fewer_labels_name_fewer_clusters() -> None:
    def predict(images: Tensor) -> Tensor:
        return images[:, 0, 0, 0].long()[None]

    evaluation = evaluate_clusters(predict, dataset(digits(60)), 3, protocol=Protocol(overcluster=True))
    curve = {point.fraction: point for point in evaluation.fewer_labels}
    assert tuple(curve) == LABEL_FRACTIONS
    assert curve[0.01].accuracy == pytest.approx(1 / 3)  # one image names one cluster of three
    assert curve[1.0].accuracy == 1.0
    assert curve[1.0].deviation == 0
    assert curve[0.5].accuracy >= curve[0.05].accuracy
    assert "clusters named by 1% of the labels: " in evaluation.describe()
    assert "sub-heads" not in evaluation.describe()  # there is one


def test_batches_hold_one_size_and_only_what_is_labelled() -> None:
    maps = Maps(9)
    seen = []
    for images, labels, indices in labelled_batches(maps, 4):
        assert images.shape[2:] == labels.shape[1:]
        seen += indices.tolist()
        assert np.array_equal(images[0], maps.image(indices[0]))
    assert seen == [0, 1, 3, 4, 6, 7]
    (whole,) = labelled_batches(maps, 100, crop=4)
    assert whole[0].shape == (6, 2, 4, 4)
    assert np.array_equal(whole[1][0], maps.labels[0][2:6, 1:5])


def test_without_labels_there_is_nothing_to_evaluate() -> None:
    bare = Arrays(np.zeros((3, 1, 4, 4), "u1"), None, ("grey",))
    with pytest.raises(DataError, match="no labels"):
        evaluate_clusters(lambda images: images, dataset(bare), 3)


def test_a_sub_head_that_is_not_there() -> None:
    with pytest.raises(UsageError, match="no sub-head 1"):
        evaluate_clusters(lambda images: images[None, :, 0, 0, 0].long(), dataset(digits(6)), 3, chosen=1)


def test_kmeans_finds_separate_groups() -> None:
    generator = torch.Generator().manual_seed(0)
    centres = torch.tensor([[0.0, 0], [10, 0], [0, 10], [10, 10]])
    points = centres.repeat_interleave(200, 0) + torch.randn(800, 2, generator=generator)
    computed = kmeans(points, 4, generator)
    assert torch.cdist(centres, computed).min(1).values.max() < 0.3
    with pytest.raises(DataError, match="3 points"):
        kmeans(points[:3], 4, generator)


def test_kmeans_baseline_scales_bands_and_ignores_what_is_not_valid() -> None:
    evaluation = kmeans_baseline(dataset(Maps(12), dense=True))
    assert evaluation.accuracy > 0.99
    assert kmeans_baseline(dataset(Maps(12), dense=True)) == evaluation


def test_kmeans_baseline_on_whole_images() -> None:
    assert kmeans_baseline(dataset(digits(30))).accuracy == 1.0
