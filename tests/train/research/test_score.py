"""Each baseline on made data that it can learn, next to what chance would give."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from iic_geotools.errors import DataError, TrainingError, UsageError
from iic_research.baselines import score_baseline
from iic_research.features import Features, dense_sift, nearest_centres, whiten
from iic_research.neighbours import Doersch, Isola, spectral_clusters
from iic_research.training import Triplets, train_trunk
from iic_train.config import BASELINES, Baseline, DataConfig, TrainConfig
from iic_train.data.base import Arrays, Dataset, Images
from iic_train.evaluation.kmeans import kmeans_baseline
from iic_train.models.networks import Network
from iic_train.models.registry import NetworkConfig
from iic_train.views.settings import DensePairs, ImagePairs, Photometry

FAINT = Photometry(all_brightness=0.2)
IMAGES = TrainConfig(
    "strokes",
    DataConfig("mnist"),
    NetworkConfig("6c", ("grey",), clusters_b=3, size=16, family="vgg", widths=(4, 8, 8, 16)),
    ImagePairs(16, 16, (16,), flip=0.0, photometry=FAINT),
    size=None,
    passes=("b",),
    epochs=3,
    batch=24,
    lr=3e-3,
)
PIXELS = TrainConfig(
    "ground",
    DataConfig("potsdam"),
    NetworkConfig("edge-8", ("grey",), clusters_b=2),
    DensePairs(FAINT),
    size=64,
    passes=("b",),
    epochs=2,
    batch=4,
    lr=3e-3,
    radius=2,
)


def strokes(count: int = 144) -> Dataset:
    """Noise with a horizontal, a vertical or a diagonal stroke somewhere: raw values contain little about the class."""
    rng = np.random.default_rng(0)
    labels = np.arange(count) % 3
    images = rng.integers(0, 60, (count, 1, 20, 20)).astype(np.uint8)
    for image, label, place in zip(images, labels, rng.integers(4, 15, count), strict=True):
        if label == 0:
            image[0, place : place + 2] += 150
        elif label == 1:
            image[0, :, place : place + 2] += 150
        else:
            diagonal = np.eye(20, k=int(place) - 9, dtype=bool) | np.eye(20, k=int(place) - 8, dtype=bool)
            image[0, diagonal] += 150
    part = Arrays(images, labels, ("grey",))
    return Dataset("strokes", False, part, part, map=part, test=part, classes=("row", "column", "diagonal"))


class Ground:
    """Images of which one half is striped and the other smooth noise of the same mean."""

    channels = ("grey",)

    def __init__(self, count: int) -> None:
        rng = np.random.default_rng(1)
        rows, columns = np.mgrid[:64, :64]
        self.labels, self.images = [], []
        for index in range(count):
            label = (rows if index % 2 else columns) >= 32
            stripes = np.where((rows + columns) % 4 < 2, 90, 170)
            values = np.where(label, stripes, 130) + rng.normal(0, 6, (64, 64))
            self.labels.append(label.astype(np.uint8))
            self.images.append(values.clip(0, 255).astype(np.uint8)[None])

    def __len__(self) -> int:
        return len(self.images)

    def image(self, index: int) -> np.ndarray:
        return self.images[index]

    def label(self, index: int) -> np.ndarray:
        return self.labels[index]

    def valid(self, index: int) -> np.ndarray:
        valid = np.ones((64, 64), bool)
        valid[:4] = False
        return valid


def ground(count: int = 12) -> Dataset:
    part: Images = Ground(count)
    return Dataset("ground", True, part, part, map=part, test=part, classes=("smooth", "striped"))


@pytest.mark.parametrize(("kind", "least"), [("triplets", 0.55), ("deepcluster", 0.45)])
def test_what_learns_from_images_beats_chance(kind: Baseline, least: float) -> None:
    notes: list[str] = []
    config = replace(IMAGES, epochs=6)
    score = score_baseline(kind, config, strokes(), progress=lambda progress: notes.append(progress.note))
    assert len(notes) == 6
    assert score.protocol == "one_to_one"
    assert score.accuracy > least  # a third by chance
    assert score_baseline(kind, config, strokes()) == score


def test_a_random_network_has_normalised_features() -> None:
    # Without statistics of the images, the biases of its head alone would decide, and some clusters stay empty.
    score = score_baseline("random", IMAGES, strokes())
    assert min(score.sub_heads[score.chosen].occupancy) > 0


@pytest.mark.parametrize(
    ("kind", "least"), [("deepcluster", 0.6), ("isola", 0.75), ("doersch", 0.75), ("sift", 0.75)]
)
def test_what_learns_from_pixels_beats_chance(kind: Baseline, least: float) -> None:
    assert score_baseline(kind, PIXELS, ground(), sample=4000).accuracy > least  # a half by chance


def test_deepcluster_learns_the_labels_that_it_gives() -> None:
    unaltered = ImagePairs(16, 20, (20,), flip=0.0, photometry=Photometry())
    config = replace(IMAGES, pairs=unaltered, batch=16, lr=1e-2, epochs=2)
    losses: list[float] = []
    score_baseline(
        "deepcluster",
        config,
        strokes(480),
        progress=lambda progress: losses.append(float(progress.note.split()[1])),
    )
    assert losses[-1] < 0.6 * math.log(30)  # thirty labels, ten for each cluster


def test_every_baseline_is_for_images_or_for_pixels() -> None:
    with pytest.raises(UsageError, match="sift clusters pixels"):
        score_baseline("sift", IMAGES, strokes())
    with pytest.raises(UsageError, match="triplets clusters whole images"):
        score_baseline("triplets", PIXELS, ground())
    with pytest.raises(UsageError, match="`standardise` is for kmeans"):
        score_baseline("sift", PIXELS, ground(), standardise=True)
    with pytest.raises(UsageError, match=", ".join(BASELINES)):
        score_baseline("no such", PIXELS, ground())  # type: ignore[arg-type]


def test_spectral_clustering_follows_rings() -> None:
    generator = torch.Generator().manual_seed(0)
    angles = torch.rand(400, generator=generator) * 2 * math.pi
    radii = torch.where(torch.arange(400) < 200, 1.0, 4.0)
    points = radii[:, None] * torch.stack([angles.cos(), angles.sin()], 1)
    points += 0.05 * torch.randn(points.shape, generator=generator)
    spectrum = spectral_clusters(points[::2], 2, generator)
    clusters = spectrum.assign(points)  # half of them are not in the graph
    same = (clusters == clusters[0]).float()
    assert same[:200].mean() > 0.98
    assert same[200:].mean() < 0.02
    with pytest.raises(DataError, match="5 images are too few"):
        spectral_clusters(points[:5], 2, generator)


def test_spectral_clustering_of_images() -> None:
    labels = np.arange(90) % 3
    noise = np.random.default_rng(0).integers(0, 40, (90, 1, 6, 6))
    part = Arrays((noise + 70 * labels[:, None, None, None]).astype(np.uint8), labels, ("grey",))
    blocks = Dataset("blocks", False, part, part, map=part, test=part, classes=("a", "b", "c"))
    assert score_baseline("spectral", IMAGES, blocks, sample=60).accuracy > 0.95


def test_descriptors_tell_the_direction_and_not_the_strength_of_gradients() -> None:
    ramp = torch.linspace(0, 1, 40).expand(1, 1, 40, 40)
    across = dense_sift(ramp)[0, :, 20, 20]
    assert across.norm() == pytest.approx(1)
    assert across.view(16, 8).argmax(1).tolist() == [0] * 16
    assert torch.allclose(dense_sift(ramp * 0.3)[0, :, 20, 20], across, atol=1e-5)
    down = dense_sift(ramp.transpose(2, 3))[0, :, 20, 20]
    assert down.view(16, 8).argmax(1).tolist() == [2] * 16
    assert dense_sift(torch.ones(1, 1, 20, 20)).abs().max() == 0


def test_cells_are_clustered_as_interpolated_features() -> None:
    generator = torch.Generator().manual_seed(0)
    cells, centres = torch.randn(1, 5, 6, 7, generator=generator), torch.randn(4, 5, generator=generator)
    clusters = nearest_centres(Features(lambda images: cells, cell=2), centres)(torch.zeros(1, 1, 11, 14))
    fine = torch.nn.functional.interpolate(cells, scale_factor=2, mode="bilinear")[..., :11, :]
    expected = torch.cdist(fine[0].flatten(1).T, centres).argmin(1).view(11, 14)
    assert torch.equal(clusters[0, 0], expected)


def test_whitening_makes_directions_equal() -> None:
    points = torch.randn(500, 6, generator=torch.Generator().manual_seed(0)) * torch.tensor(
        [9.0, 5, 3, 1, 0.1, 0]
    )
    features, whitened = whiten(Features(lambda images: points), points, seed=0)
    assert whitened.shape == (500, 3)
    assert torch.allclose(whitened.norm(dim=1), torch.ones(500), atol=1e-5)
    assert torch.allclose(features.of(points), whitened)
    assert whitened.var(0).max() < 1.5 * whitened.var(0).min()


def test_places_of_doersch_do_not_see_the_same_pixels() -> None:
    network = Network(PIXELS.network)
    task = Doersch(network, PIXELS)
    assert task.nearest * network.cell >= network.receptive_field
    with pytest.raises(UsageError, match="windows of 24 pixels are too small"):
        Doersch(network, replace(PIXELS, size=24))
    assert Isola(network, PIXELS).radius == 1


def test_kmeans_on_standardised_images_and_on_fewer_of_them() -> None:
    labels = np.arange(60) % 2
    images = np.random.default_rng(0).integers(0, 200, (60, 1, 2, 2)).astype(np.float32)
    images[:, 0, 0, 0] = labels * 0.5 + np.random.default_rng(1).normal(0, 0.01, 60)
    images[:, 0, 0, 1] = labels * 0.5
    images[:, 0, 1, 0] = labels * 0.5
    part = Arrays(images, labels, ("grey",))
    faint = Dataset("faint", False, part, part, map=part, test=part, classes=("a", "b"))
    assert kmeans_baseline(faint).accuracy < 0.8  # the one strong value is noise
    assert kmeans_baseline(faint, standardise=True).accuracy == 1.0
    assert kmeans_baseline(faint, standardise=True, sample=20).accuracy == 1.0


@pytest.mark.parametrize("clusters", [3, 5])
def test_every_baseline_has_the_protocol_of_the_run(clusters: int) -> None:
    config = replace(IMAGES, network=replace(IMAGES.network, clusters_b=clusters))
    kinds: tuple[Baseline, ...] = ("kmeans", "random", "spectral")
    protocols = {score_baseline(kind, config, strokes()).protocol for kind in kinds}
    assert protocols == {"one_to_one" if clusters == 3 else "many_to_one"}


def test_a_loss_that_is_not_finite_is_said() -> None:
    network = Network(IMAGES.network)
    next(network.trunk.parameters()).data.fill_(float("nan"))
    with pytest.raises(TrainingError, match=r"learning rate below 0\.003"):
        train_trunk(network, IMAGES, strokes(), Triplets(network, IMAGES))
