"""Fine-tuning of clustering runs with the labels of their data set: in one go, fold by fold, and what comes of it."""

import json
import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from iic_geotools.errors import TrainingError, UsageError
from iic_geotools.files import replacement, write_atomically
from iic_geotools.progress import OnProgress, silent
from iic_train.data import data_root, open_dataset
from iic_train.data.base import Dataset, Subset
from iic_train.data.images import read_folds
from iic_train.finetune.images import Classifier, Finetuned, FinetuneSettings, finetune
from iic_train.models.networks import Network
from iic_train.runs import Checkpoint, Run
from iic_train.views.settings import ImagePairs

_LOG = logging.getLogger(__name__)
FINETUNED, RECORD, FOLDS = "finetuned.safetensors", "finetuned.json", "folds.json"


def finetune_run(
    run: Run,
    settings: FinetuneSettings | None = None,
    *,
    checkpoint: Checkpoint = "best",
    device: torch.device | str = "cpu",
    progress: OnProgress = silent,
) -> Finetuned:
    """Fine-tune the trunk of a run with the labels of its data set's training part.

    The weights go to `finetuned.safetensors` and the history to `finetuned.json` in the folder of the run, after every
    hundredth pass and after the last one.

    Args:
        run: A run on images that finished an epoch.
        settings: How to fine-tune; by default the published settings.
        checkpoint: The epoch with the lowest loss, or the last one.
        device: Device to compute on.
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
        *(run.network(checkpoint), pairs, dataset.map, dataset.test, len(dataset.classes), settings),
        device=device,
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
    device: torch.device | str = "cpu",
    progress: OnProgress = silent,
) -> Folds:
    """Fine-tune a run on each of its data set's folds and test each time on the whole test part.

    STL10 defines ten folds of 1000 training images. The trunk starts from the run every time. Figures go to
    `folds.json` in the folder of the run, after each fold.

    Args:
        run: A run on STL10 that finished an epoch.
        settings: How to fine-tune; by default the published settings.
        folds: Number of folds to take, the first ones; all by default.
        checkpoint: The epoch with the lowest loss, or the last one.
        device: Device to compute on.
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
            *(run.network(checkpoint), pairs, Subset(dataset.map, indices), dataset.test),
            *(len(dataset.classes), settings),
            device=device,
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
    """Load what `finetune_run` wrote: the network in eval mode on the CPU, and the record of its training.

    Raises:
        TrainingError: The run was not fine-tuned, or the weights are damaged.
    """
    weights, record = run.path / FINETUNED, run.path / RECORD
    if not (weights.is_file() and record.is_file()):
        raise TrainingError(f"The run {run.path} is not fine-tuned: iic-train finetune {run.path}")
    try:
        facts: dict[str, Any] = json.loads(record.read_bytes())
        network = FinetunedNetwork(
            Network(run.config.network), len(facts["classes"]), facts["settings"]["hidden"]
        )
        network.load(load_file(weights))
    except (SafetensorError, OSError, KeyError, RuntimeError, json.JSONDecodeError) as error:
        raise TrainingError(f"{weights} does not hold a fine-tuned network ({error}).") from error
    return network.eval(), facts
