"""What is exported: one sub-head of a trained run, and pictures to prove the result on."""

import logging
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast, get_args

import numpy as np
from numpy.typing import NDArray

from iic_geotools.errors import IICError, TrainingError
from iic_runtime.card import PixelType
from iic_train.config import TrainConfig
from iic_train.data import open_dataset
from iic_train.networks import Network
from iic_train.pairs import ImagePairs
from iic_train.runs import Run, Which, load_run, newest_run

_LOG = logging.getLogger(__name__)
CHIPS = 8
CHIP_SIDE = 256
IMAGES = 256
"""How many chips of scenes, and how many images of clustering data, a proof is made on."""


@dataclass(frozen=True)
class Subject:
    """One sub-head of a run.

    Attributes:
        run: Where it comes from.
        network: Scaling, trunk and that sub-head alone, in eval mode.
        subhead: Its number in the run.
        chosen_by: How it was chosen.
        loss: Its IIC loss when it was chosen; None if that was not kept.
        dtype: Type of the pixels it takes.
    """

    run: Run
    network: Network
    subhead: int
    chosen_by: str
    loss: float | None
    dtype: PixelType

    @property
    def config(self) -> TrainConfig:
        """The run's settings."""
        return self.run.config


def find_run(run: str | os.PathLike[str] | None, runs: str | os.PathLike[str] = "runs") -> Run:
    """The run folder that was named, by path or by name under `runs`; by default the newest one there."""
    if run is None:
        return newest_run(Path(runs))
    path, named = Path(run), Path(runs) / run
    return load_run(named if not path.exists() and named.is_dir() else path)


def take(run: Run, subhead: int | None = None, which: Which = "best") -> Subject:
    """Take a sub-head of a run; by default the one of the lowest IIC loss.

    Raises:
        TrainingError: The run has no weights yet, or they are damaged.
        UsageError: There is no such sub-head.
    """
    choice = run.choice(which)
    network = run.network(which)
    done, wanted = _epochs_done(run), run.config.epochs
    if done < wanted:
        _LOG.warning("The run %s has trained %d of its %d epochs.", run.path, done, wanted)
    number = choice.sub_head if subhead is None else subhead
    single = network.with_sub_head(number).eval()
    if not all(bool(value.isfinite().all()) for value in single.state_dict().values()):
        raise TrainingError(f"The weights of {run.path} are not all finite numbers; train it again.")
    how = f"lowest IIC loss of {network.config.sub_heads}, epoch {choice.epoch}"
    return Subject(
        run,
        single,
        number,
        how if number == choice.sub_head else f"asked for, epoch {choice.epoch}",
        choice.loss if number == choice.sub_head else _loss(run, choice.epoch, number),
        _pixel_type(run),
    )


def chips(subject: Subject) -> tuple[list[NDArray[Any]], bool]:
    """Pictures [bands, H, W] to prove a model on, and whether they are the run's own data rather than noise."""
    try:
        found = _own_chips(subject.config)
        if found:
            return found, True
        reason = "it holds no pixels with data"
    except IICError as error:
        reason = str(error)
    _LOG.warning("Proving the model on noise, not on the run's data: %s", reason)
    return _noise(subject), False


def _own_chips(config: TrainConfig) -> list[NDArray[Any]]:
    data = config.data
    if data.name == "rasters":
        from iic_train.data.rasters import Chips
        from iic_train.data.scenes import scenes_of

        cut = Chips(scenes_of(data, config.network.channels), side=CHIP_SIDE)
        valid = {index: cut.valid(index) for index in _evenly(len(cut), 2 * CHIPS)}
        holding = [index for index, where in valid.items() if where is None or where.any()]
        found = [cut.image(holding[index]) for index in _evenly(len(holding), CHIPS)]
        cut.reader.close()
        return found
    root = None if data.root is None else Path(data.root)
    images = open_dataset(data.name, root, overcluster=data.overcluster, unlabelled=data.unlabelled).train_b
    count = CHIPS if config.dense else IMAGES
    return [images.image(index)[:, :CHIP_SIDE, :CHIP_SIDE] for index in _evenly(len(images), count)]


def _noise(subject: Subject) -> list[NDArray[Any]]:
    """Noise, smooth and rough, over the values the network was trained on."""
    config, pairs = subject.network.config, subject.config.pairs
    side = pairs.crop if isinstance(pairs, ImagePairs) else CHIP_SIDE
    rng = np.random.default_rng(0)
    pictures = []
    for index in range(IMAGES if isinstance(pairs, ImagePairs) else CHIPS):
        grain = min(2 ** (index % 4), side)
        coarse = rng.random((len(config.channels), -(-side // grain), -(-side // grain)))
        unit = np.kron(coarse, np.ones((grain, grain)))[:, :side, :side]
        low = np.array(config.offset)[:, None, None]
        values = low + unit / np.array(config.scale)[:, None, None]
        if subject.dtype != "float32":
            limits = np.iinfo(subject.dtype)
            values = np.clip(np.rint(values), limits.min, limits.max)
        pictures.append(values.astype(subject.dtype))
    return pictures


def _evenly(length: int, count: int) -> list[int]:
    return sorted({int(index) for index in np.linspace(0, length - 1, min(count, length)).round()})


def _pixel_type(run: Run) -> PixelType:
    dtype = str(run.data.get("dtype", "uint8"))
    return cast(PixelType, dtype) if dtype in get_args(PixelType) else "float32"


def _epochs_done(run: Run) -> int:
    return max((int(row["epoch"]) for row in run.metrics()), default=0)


def _loss(run: Run, epoch: int, subhead: int) -> float | None:
    for row in run.metrics():
        if row["epoch"] == epoch:
            loss = float(row["selection"]["loss"][subhead])
            return loss if math.isfinite(loss) else None
    return None
