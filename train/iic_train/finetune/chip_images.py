"""The labelled chips of a run as images, for its report and for the proofs of its export."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from iic_geotools.errors import UsageError
from iic_train.config import TrainConfig
from iic_train.data.base import Dataset
from iic_train.finetune.chips import Chip, read_chips


class ChipImages:
    """Chips as images; their labels were learnt from, so they are not shown as something to be measured on."""

    def __init__(self, chips: list[Chip], channels: tuple[str, ...]) -> None:
        self.chips = chips
        self.channels = channels

    def __len__(self) -> int:
        return len(self.chips)

    def image(self, index: int) -> NDArray[Any]:
        """Return chip `index` as [C, H, W]."""
        return self.chips[index].pixels

    def label(self, index: int) -> None:
        """Return None: labels that were learnt from measure nothing."""
        return

    def valid(self, index: int) -> NDArray[np.bool_] | None:
        """Every pixel of a chip may be shown."""
        return None


def chip_dataset(config: TrainConfig) -> Dataset:
    """Read the chips that a run learnt from."""
    if config.finetune is None:
        raise UsageError("The run did not learn from labels.")
    images = ChipImages(read_chips(config.finetune, config.network).chips, config.network.channels)
    return Dataset("labels", True, images, images, map=images, test=images, classes=())
