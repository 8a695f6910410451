"""One trained sub-head, chosen from a run."""

import logging
import math
from dataclasses import dataclass
from typing import cast, get_args

from iic_export.settings import Weights
from iic_geotools.errors import TrainingError, UsageError
from iic_runtime.model.card import PixelType
from iic_train.config import TrainConfig
from iic_train.finetune.image_runs import load_finetuned
from iic_train.models.networks import Network
from iic_train.runs import Run

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrainedHead:
    """One sub-head of a run, with the trunk it belongs to.

    Attributes:
        run: The run it comes from.
        network: Scaling, trunk and this sub-head alone, in eval mode.
        sub_head: Its number in the run.
        chosen_by: How it was chosen, in words.
        loss: Its IIC loss when it was chosen; None if that was not recorded.
        dtype: Data type of the pixels it takes.
        classes: Names of its classes, if it is a clustering network that was fine-tuned with labels.
    """

    run: Run
    network: Network
    sub_head: int
    chosen_by: str
    loss: float | None
    dtype: PixelType
    classes: tuple[str, ...] = ()

    @property
    def config(self) -> TrainConfig:
        """The run's settings."""
        return self.run.config


def load_head(run: Run, sub_head: int | None = None, checkpoint: Weights = "best") -> TrainedHead:
    """Load a sub-head of a run; by default the one with the lowest IIC loss.

    Raises:
        TrainingError: The run has no weights yet, or they are damaged.
        UsageError: There is no such sub-head.
    """
    if checkpoint == "finetuned":
        return _load_finetuned_head(run, sub_head)
    choice = run.choice(checkpoint)
    network = run.network(checkpoint)
    rows = run.metrics()
    epochs_done = max((int(row["epoch"]) for row in rows), default=0)
    if epochs_done < run.config.epochs and not (rows and rows[-1].get("settled")):
        _LOG.warning(
            "The run %s has trained for %d of its %d epochs.", run.path, epochs_done, run.config.epochs
        )
    loss: float | None
    number = choice.sub_head if sub_head is None else sub_head
    single = network.with_sub_head(number).eval()
    if not all(bool(value.isfinite().all()) for value in single.state_dict().values()):
        raise TrainingError(f"The weights of {run.path} are not all finite numbers; train it again.")
    if run.config.finetune is not None:
        chosen_by, loss = f"learnt from labels, epoch {choice.epoch}", choice.loss
    elif number == choice.sub_head:
        chosen_by = f"lowest IIC loss of {network.config.sub_heads}, epoch {choice.epoch}"
        loss = choice.loss
    else:
        chosen_by = f"asked for, epoch {choice.epoch}"
        loss = _recorded_loss(run, choice.epoch, number)
    return TrainedHead(run, single, number, chosen_by, loss, _pixel_type(run))


def _load_finetuned_head(run: Run, sub_head: int | None) -> TrainedHead:
    if sub_head is not None:
        raise UsageError("A fine-tuned network has one head: `sub_head` does not go with it.")
    network, record = load_finetuned(run)
    chosen_by = f"fine-tuned with the labels of {run.config.data.name}, pass {len(record['history'])}"
    return TrainedHead(run, network, 0, chosen_by, None, _pixel_type(run), tuple(record["classes"]))


def _recorded_loss(run: Run, epoch: int, sub_head: int) -> float | None:
    for row in run.metrics():
        if row["epoch"] == epoch:
            loss = float(row["selection"]["loss"][sub_head])
            return loss if math.isfinite(loss) else None
    return None


def _pixel_type(run: Run) -> PixelType:
    dtype = str(run.data.get("dtype", "uint8"))
    return cast(PixelType, dtype) if dtype in get_args(PixelType) else "float32"
