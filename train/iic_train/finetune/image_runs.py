"""Fine-tuning of clustering runs with the labels of their data set, at once or fold by fold.

As in the comparison on STL10 in the paper, the trunk of a trained ResNet up to
its third stage gets a head of two layers. Head and trunk are trained by cross-entropy, each with an optimiser and a
learning rate of its own. The test averages the logits of ten crops of each image.
"""

import json
import logging
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional as F

from iic_geotools.errors import DataError, TrainingError, UsageError
from iic_geotools.files import replacement, write_atomically
from iic_geotools.work import OnProgress, Progress, silent
from iic_train.config import Amp, reading
from iic_train.data.base import Dataset, Images, Subset
from iic_train.data.images import read_folds
from iic_train.data.training_data import data_root, open_dataset
from iic_train.distributed import choose_device
from iic_train.loop import Loop, Loss
from iic_train.models.networks import Network, init_resnet
from iic_train.runs import Checkpoint, Run
from iic_train.views.pairs import image_views
from iic_train.views.random_numbers import Draw, to_device
from iic_train.views.settings import ImagePairs

KEEP_EVERY = 100
"""Number of passes after which the weights are written on the way."""

_LOG = logging.getLogger(__name__)
FINETUNED, RECORD, FOLDS = "finetuned.safetensors", "finetuned.json", "folds.json"


@dataclass(frozen=True)
class FinetuneSettings:
    """How to fine-tune; the defaults are the published ones.

    Attributes:
        epochs: Number of passes over the training part.
        batch_size: Number of images per step.
        head_rate: Learning rate of the new head.
        trunk_rate: Learning rate of the trained trunk.
        hidden: Width of the head's first layer.
        affine: Probability of a random affine change.
        cutout: Probability that a random square is blanked.
        cutout_sides: Smallest and largest side of that square as a share of the image.
        seed: Seed of the weights of the head, the order of the images and their changes.
        amp: Precision of the network, as in training.
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
    amp: Amp = "auto"


@dataclass(frozen=True)
class FinetuneEpoch:
    """Mean loss of the training part and accuracy on the test part after one pass."""

    epoch: int
    loss: float
    accuracy: float


@dataclass
class Finetuned:
    """A fine-tuned network and its history."""

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
        self.head.apply(init_resnet)

    def forward(self, scaled: Tensor) -> Tensor:
        """Return logits [N, classes] of scaled images [N, C, side, side]."""
        logits: Tensor = self.head(self.network.penultimate(scaled).flatten(1))
        return logits


def finetune(
    network: Network,
    pairs: ImagePairs,
    dataset: Dataset,
    settings: FinetuneSettings | None = None,
    *,
    device: torch.device | str = "cpu",
    progress: OnProgress = silent,
    keep: Callable[[Finetuned], None] | None = None,
) -> Finetuned:
    """Fine-tune a network on the labels of the `map` part of a data set, and test it on the `test` part.

    Args:
        network: A trained network with a ResNet trunk; its weights are changed.
        pairs: How views were made in training. Fine-tuning uses the second, changed views.
        dataset: The labelled images to learn from, and those to test on after every pass.
        settings: How to fine-tune; by default the published settings.
        device: Device to compute on.
        progress: Function that takes reports of progress.
        keep: Function that is given the network after every hundredth pass and after the last one.

    Raises:
        DataError: An image has no label.
        TrainingError: The loss is not finite.
    """
    settings = settings or FinetuneSettings()
    torch.manual_seed(settings.seed)
    draw = Draw(settings.seed, device)
    classifier = Classifier(network.to(device), pairs.size, len(dataset.classes), settings.hidden).to(device)
    loop = Loop(
        [
            {"params": list(classifier.head.parameters()), "lr": settings.head_rate},
            {"params": list(network.parameters())},
        ],
        settings.trunk_rate,
        torch.device(device),
        amp=settings.amp,
    )

    def objective(batch: tuple[Tensor, Tensor], step: int) -> Loss:
        raw, labels = batch
        _, views = image_views(pairs, network.scale(raw), network.config.channels, draw)
        views = distort(views, settings, draw)
        with loop.autocast():
            logits = classifier(views)
        return Loss(F.cross_entropy(logits.float(), labels))

    finetuned, count = Finetuned(classifier), len(dataset.map)
    count -= count % settings.batch_size == 1  # batch norm needs at least two images
    for epoch in range(1, settings.epochs + 1):
        order = np.random.default_rng([settings.seed, epoch]).permutation(len(dataset.map))[:count]
        classifier.train()
        batches = _batches(dataset.map, order, settings.batch_size, device)
        loss = loop.train(batches, objective, -(-count // settings.batch_size), f"epoch {epoch}")
        accuracy = ten_crop_accuracy(classifier, dataset.test, pairs, settings.batch_size, device)
        finetuned.history.append(FinetuneEpoch(epoch, loss, accuracy))
        note = f"loss {loss:.4f}, accuracy {accuracy:.2%}"
        _LOG.info("epoch %d/%d  %s", epoch, settings.epochs, note)
        progress(Progress("finetune", epoch, settings.epochs, note=note))
        if keep is not None and (epoch % KEEP_EVERY == 0 or epoch == settings.epochs):
            keep(finetuned)
    return finetuned


@torch.inference_mode()
def ten_crop_accuracy(
    classifier: Classifier,
    test: Images,
    pairs: ImagePairs,
    batch_size: int,
    device: torch.device | str = "cpu",
) -> float:
    """Return the accuracy on `test` when the logits of ten crops are averaged.

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
    """Turn, shear, zoom and shift some views, and set a square of some of them to zero."""
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
    """Rotate by up to 18 degrees, shear by up to 10, zoom and shift by up to a tenth."""
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
        place = torch.device(device)
        yield to_device(torch.from_numpy(pixels), place), to_device(torch.tensor(labels), place)


def finetune_run(
    run: Run,
    settings: FinetuneSettings | None = None,
    *,
    checkpoint: Checkpoint = "best",
    device: str = "cpu",
    progress: OnProgress = silent,
) -> Finetuned:
    """Fine-tune the trunk of a run with the labels of its data set's training part.

    The weights go to `finetuned.safetensors` and the history to `finetuned.json` in the folder of the run, after every
    hundredth pass and after the last one.

    Args:
        run: A run on images that finished an epoch.
        settings: How to fine-tune; by default the published settings.
        device: `auto`, `cpu` or `cuda`.
        progress: Function that takes reports of progress.

    Raises:
        UsageError: The run is not a clustering run.
    """
    settings = settings or FinetuneSettings()
    pairs, dataset = _labelled_parts(run)

    def keep(finetuned: Finetuned) -> None:
        state = {
            name: value.detach().cpu().contiguous()
            for name, value in finetuned.classifier.state_dict().items()
        }
        with replacement(run.path / FINETUNED) as temporary:
            save_file(state, temporary, {"run": run.id, "settings": json.dumps(asdict(settings))})
        record = {
            "settings": asdict(settings),
            "classes": dataset.classes,
            "accuracy": finetuned.accuracy,
            "label_picked": asdict(finetuned.label_picked),
            "history": [asdict(epoch) for epoch in finetuned.history],
        }
        write_atomically(run.path / RECORD, json.dumps(record, indent=1).encode())

    return finetune(
        *(run.network(checkpoint), pairs, dataset, settings),
        device=choose_device(device),
        progress=progress,
        keep=keep,
    )


@dataclass(frozen=True)
class Folds:
    """Accuracy on the test part after learning from each fold of the training part on its own."""

    accuracies: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Mean over the folds: the figure to report."""
        return float(np.mean(self.accuracies))

    @property
    def deviation(self) -> float:
        """Standard deviation over the folds."""
        return float(np.std(self.accuracies))


def finetune_folds(
    run: Run,
    settings: FinetuneSettings | None = None,
    *,
    folds: int | None = None,
    checkpoint: Checkpoint = "best",
    device: str = "cpu",
    progress: OnProgress = silent,
) -> Folds:
    """Fine-tune a run on each of its data set's folds and test each time on the whole test part.

    STL10 defines ten folds of 1000 training images. The trunk starts from the run every time. Figures go to
    `folds.json` in the folder of the run, after each fold.

    Args:
        run: A run on STL10 that finished an epoch.
        settings: How to fine-tune; by default the published settings.
        folds: Number of folds to take, the first ones; all by default.
        device: `auto`, `cpu` or `cuda`.
        progress: Function that takes reports of progress.

    Raises:
        UsageError: The run is not a clustering run, or its data set has no folds.
    """
    settings = settings or FinetuneSettings()
    pairs, dataset = _labelled_parts(run)
    root = None if run.config.data.root is None else Path(run.config.data.root)
    parts = read_folds(run.config.data.name, data_root(root))[:folds]
    accuracies: list[float] = []
    for number, indices in enumerate(parts, 1):
        _LOG.info("fold %d of %d: %d images", number, len(parts), len(indices))
        finetuned = finetune(
            *(run.network(checkpoint), pairs, replace(dataset, map=Subset(dataset.map, indices)), settings),
            device=choose_device(device),
            progress=progress,
        )
        accuracies.append(finetuned.accuracy)
        done = Folds(tuple(accuracies))
        record = {
            **asdict(done),
            "mean": done.mean,
            "deviation": done.deviation,
            "settings": asdict(settings),
        }
        write_atomically(run.path / FOLDS, json.dumps(record, indent=1).encode())
    return Folds(tuple(accuracies))


def _labelled_parts(run: Run) -> tuple[ImagePairs, Dataset]:
    """Return how a run makes views, and its data set with train and test apart and without unlabelled images."""
    pairs, data = run.config.pairs, run.config.data
    if not isinstance(pairs, ImagePairs):
        raise UsageError(
            f"The run {run.id} labels pixels: give the `labels` that it is to be fine-tuned with."
        )
    root = Path(data.root) if data.root is not None else None
    return pairs, open_dataset(data.name, root, overcluster=True, unlabelled=False)


class FinetunedNetwork(Network):
    """A fine-tuned classifier with the interface of any network: its clusters are classes."""

    def __init__(self, network: Network, classes: int, hidden: int) -> None:
        config = replace(network.config, clusters_a=None, clusters_b=classes, sub_heads=1)
        super().__init__(config)
        classifier = Classifier(network, config.size or 0, classes, hidden)
        self.front = network.front
        self.trunk = cast(nn.Sequential, network.trunk)[:-2]
        self.heads = nn.ModuleDict({"b": classifier.head})

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Load the weights of a `Classifier`, of which the last stage and the heads of the network are not used."""
        names = {
            name: name.removeprefix("network.") if name.startswith("network.") else f"heads.b.{name[5:]}"
            for name in state
        }
        own = self.state_dict()
        self.load_state_dict({names[name]: value for name, value in state.items() if names[name] in own})


def load_finetuned(run: Run) -> tuple[FinetunedNetwork, dict[str, Any]]:
    """Load what `finetune_run` wrote: the network in eval mode on the CPU, and the record of its training."""
    weights, record = run.path / FINETUNED, run.path / RECORD
    if not (weights.is_file() and record.is_file()):
        raise TrainingError(f"The run {run.path} is not fine-tuned: iic-train finetune {run.path}")
    with reading(run.path / FINETUNED):
        facts: dict[str, Any] = json.loads(record.read_bytes())
        network = FinetunedNetwork(
            Network(run.config.network), len(facts["classes"]), facts["settings"]["hidden"]
        )
        network.load(load_file(weights))
    return network.eval(), facts
