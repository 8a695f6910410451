"""Supervised fine-tuning of a trained ResNet trunk, as the paper's STL10 comparison does.

The trunk up to its third stage gets a head of two layers; head and trunk are trained by cross-entropy, each
with an optimiser and a rate of its own; the test looks at ten crops of each image and averages the logits.
"""

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F

from iic_geotools.errors import DataError, TrainingError, UsageError
from iic_geotools.files import replacing, write_atomically
from iic_train.data import open_dataset
from iic_train.data.base import Images
from iic_train.networks import Network
from iic_train.pairs import ImagePairs
from iic_train.photometry import Draw
from iic_train.runs import Run, Which


@dataclass(frozen=True)
class FinetuneSettings:
    """How to fine-tune; the defaults are the published ones.

    Attributes:
        epochs: Passes over the training part.
        batch_size: Images a step.
        head_rate: Learning rate of the new head.
        trunk_rate: Learning rate of the trained trunk.
        hidden: Width of the head's first layer.
        affine: Probability of a random affine change.
        cutout: Probability that a random square is blanked.
        cutout_sides: Smallest and largest side of that square as a share of the image.
        seed: Of the head's weights, the order of the images and their changes.
    """

    epochs: int = 8000
    batch_size: int = 700
    head_rate: float = 1e-3
    trunk_rate: float = 1e-4
    hidden: int = 2048
    affine: float = 0.5
    cutout: float = 0.5
    cutout_sides: tuple[float, float] = (12 / 64, 44 / 64)
    seed: int = 0


@dataclass(frozen=True)
class FinetuneEpoch:
    """Mean loss of the training part and accuracy on the test part after one pass."""

    epoch: int
    loss: float
    accuracy: float


@dataclass
class Finetuned:
    """A fine-tuned network and how it got there."""

    classifier: "Classifier"
    history: list[FinetuneEpoch] = field(default_factory=list)

    @property
    def accuracy(self) -> float:
        """Test accuracy after the last pass: the figure to report."""
        return self.history[-1].accuracy

    @property
    def label_picked(self) -> FinetuneEpoch:
        """The pass with the highest test accuracy, which is how the paper's figure was picked."""
        return max(self.history, key=lambda epoch: epoch.accuracy)


class Classifier(nn.Module):
    """A trained trunk up to its third stage under a new head of two layers."""

    def __init__(self, network: Network, side: int, classes: int, hidden: int) -> None:
        super().__init__()
        self.network = network
        with torch.no_grad():
            like = next(network.parameters())
            probe = torch.zeros(1, len(network.config.channels), side, side, device=like.device)
            training = network.training
            features = network.eval().penultimate(probe).flatten(1).shape[1]
            network.train(training)
        self.head = nn.Sequential(
            nn.Linear(features, hidden),
            nn.BatchNorm1d(hidden),
            nn.ReLU(inplace=True),
            nn.Linear(hidden, classes),
        )

    def forward(self, scaled: Tensor) -> Tensor:
        """Return logits [N, classes] of scaled images [N, C, side, side]."""
        logits: Tensor = self.head(self.network.penultimate(scaled).flatten(1))
        return logits


def finetune(
    network: Network,
    pairs: ImagePairs,
    train: Images,
    test: Images,
    classes: int,
    settings: FinetuneSettings | None = None,
    *,
    device: torch.device | str = "cpu",
    progress: Callable[[FinetuneEpoch], None] = lambda _: None,
) -> Finetuned:
    """Fine-tune `network` on the labels of `train` and test it on `test`.

    Args:
        network: A trained network with a ResNet trunk; its weights are changed.
        pairs: How views were made in training; fine-tuning uses the second, changed ones.
        train: Labelled images to learn from.
        test: Labelled images to test on after every pass.
        classes: Number of classes.
        settings: How to fine-tune; the published settings by default.
        device: Where to compute.
        progress: Called after every pass.

    Raises:
        DataError: An image has no label.
        TrainingError: The loss is not finite.
    """
    settings = settings or FinetuneSettings()
    torch.manual_seed(settings.seed)
    draw = Draw(settings.seed, device)
    classifier = Classifier(network.to(device), pairs.size, classes, settings.hidden).to(device)
    optimisers = [
        torch.optim.Adam(classifier.head.parameters(), lr=settings.head_rate),
        torch.optim.Adam(network.parameters(), lr=settings.trunk_rate),
    ]
    found = Finetuned(classifier)
    for epoch in range(1, settings.epochs + 1):
        losses = []
        order = np.random.default_rng([settings.seed, epoch]).permutation(len(train))
        for raw, labels in _batches(train, order, settings.batch_size, device):
            if len(labels) == 1:
                continue  # batch norm needs company
            _, views = pairs(network.scale(raw), network.config.channels, draw)
            losses.append(_step(classifier.train(), distort(views, settings, draw), labels, optimisers))
        accuracy = ten_crop_accuracy(classifier, test, pairs, settings.batch_size, device)
        found.history.append(FinetuneEpoch(epoch, float(np.mean(losses)), accuracy))
        progress(found.history[-1])
    return found


def finetune_run(
    run: Run,
    settings: FinetuneSettings | None = None,
    *,
    which: Which = "best",
    device: torch.device | str = "cpu",
    progress: Callable[[FinetuneEpoch], None] = lambda _: None,
) -> Finetuned:
    """Fine-tune the trunk of a run with the labels of its data set's training part.

    The weights go to `finetuned.safetensors` and the passes to `finetuned.json` in the run's folder.

    Raises:
        UsageError: The run is not a clustering run.
    """
    pairs, data = run.config.pairs, run.config.data
    if not isinstance(pairs, ImagePairs):
        raise UsageError(f"The run {run.id} labels pixels; only clustering runs (stl10) can be fine-tuned.")
    settings = settings or FinetuneSettings()
    root = Path(data.root) if data.root is not None else None
    # these partitions keep train and test apart and leave out what has no labels
    dataset = open_dataset(data.name, root, overcluster=True, unlabelled=False)
    found = finetune(
        *(run.network(which), pairs, dataset.map, dataset.test, len(dataset.classes), settings),
        device=device,
        progress=progress,
    )
    state = {name: value.detach().cpu().contiguous() for name, value in found.classifier.state_dict().items()}
    with replacing(run.path / "finetuned.safetensors") as temporary:
        save_file(state, temporary, {"run": run.id, "settings": json.dumps(asdict(settings))})
    record = {
        "settings": asdict(settings),
        "accuracy": found.accuracy,
        "label_picked": asdict(found.label_picked),
        "history": [asdict(epoch) for epoch in found.history],
    }
    write_atomically(run.path / "finetuned.json", json.dumps(record, indent=1).encode())
    return found


def _step(classifier: Classifier, views: Tensor, labels: Tensor, optimisers: list[torch.optim.Adam]) -> float:
    for optimiser in optimisers:
        optimiser.zero_grad(set_to_none=True)
    loss = F.cross_entropy(classifier(views), labels)
    if not torch.isfinite(loss):
        raise TrainingError("The loss is not finite any more: fine-tune with lower learning rates.")
    loss.backward()  # type: ignore[no-untyped-call]
    for optimiser in optimisers:
        optimiser.step()
    return float(loss.detach())


@torch.inference_mode()
def ten_crop_accuracy(
    classifier: Classifier,
    test: Images,
    pairs: ImagePairs,
    batch_size: int,
    device: torch.device | str = "cpu",
) -> float:
    """Return the share of `test` that is right when the logits of ten crops are averaged.

    The crops are the four corners and the centre, and the mirror image of each.
    """
    classifier.eval()
    right = 0
    for raw, labels in _batches(test, np.arange(len(test)), batch_size, device):
        scaled = classifier.network.scale(raw)
        logits = torch.stack([classifier(view) for view in ten_crops(scaled, pairs.crop, pairs.size)]).mean(0)
        right += int((logits.argmax(1) == labels).sum())
    return right / len(test)


def ten_crops(images: Tensor, crop: int, size: int) -> Iterator[Tensor]:
    """Yield corners and centre of images [N, C, H, W], each also mirrored, resized to `size`."""
    bottom, right = images.shape[-2] - crop, images.shape[-1] - crop
    for top, left in (
        (0, 0),
        (0, right),
        (bottom, 0),
        (bottom, right),
        (round(bottom / 2), round(right / 2)),
    ):
        view = images[..., top : top + crop, left : left + crop]
        if size != crop:
            view = F.interpolate(view, (size, size), mode="bilinear", align_corners=False)
        yield view
        yield view.flip(-1)


def distort(views: Tensor, settings: FinetuneSettings, draw: Draw) -> Tensor:
    """Turn, shear, zoom and shift some views, and blank a square of some; zeros where nothing is left."""
    count, _, height, width = views.shape
    moved = _affine(views, draw)
    views = torch.where(draw.chance(count, settings.affine).view(-1, 1, 1, 1), moved, views)
    low, high = (round(share * width) for share in settings.cutout_sides)
    sides = draw.integers(count, low, high + 1)
    corner = draw.uniform((2, count), 0.0, 1.0)
    top, left = ((corner[axis] * (length - sides + 1)).floor() for axis, length in enumerate((height, width)))
    rows, columns = (torch.arange(length, device=views.device)[None] for length in (height, width))
    in_rows = (rows >= top[:, None]) & (rows < (top + sides)[:, None])
    in_columns = (columns >= left[:, None]) & (columns < (left + sides)[:, None])
    blank = in_rows[:, :, None] & in_columns[:, None, :] & draw.chance(count, settings.cutout).view(-1, 1, 1)
    return views.masked_fill(blank[:, None], 0.0)


def _affine(views: Tensor, draw: Draw) -> Tensor:
    """Up to 18 degrees, 10 degrees of shear, a tenth larger or smaller, shifted by up to a tenth."""
    count = (len(views),)
    angle, shear = (draw.uniform(count, -limit, limit) * math.pi / 180 for limit in (18.0, 10.0))
    zoom = draw.uniform(count, 0.9, 1.1)
    shift_x, shift_y = (draw.uniform(count, -0.2, 0.2) for _ in range(2))  # the grid is two wide
    rows = [
        *(zoom * angle.cos(), -zoom * (angle + shear).sin(), shift_x),
        *(zoom * angle.sin(), zoom * (angle + shear).cos(), shift_y),
    ]
    theta = torch.stack(rows, 1).view(-1, 2, 3).to(views.dtype)
    grid = F.affine_grid(theta, list(views.shape), align_corners=False)
    return F.grid_sample(views, grid, mode="bilinear", padding_mode="zeros", align_corners=False)


def _batches(
    images: Images, order: NDArray[np.int64], size: int, device: torch.device | str
) -> Iterator[tuple[Tensor, Tensor]]:
    for start in range(0, len(order), size):
        chosen = [int(index) for index in order[start : start + size]]
        labels = [images.label(index) for index in chosen]
        if any(not isinstance(label, int) for label in labels):
            raise DataError("Fine-tuning needs a class for every image of the training and the test part.")
        pixels = np.stack([images.image(index) for index in chosen])
        yield torch.from_numpy(pixels).to(device), torch.tensor(labels, device=device)
