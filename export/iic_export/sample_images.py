"""The images that a model is calibrated and proven on: some of the run's own data, or noise if it is gone."""

import logging
from typing import Any

import numpy as np
from numpy.typing import NDArray

from iic_export.trained_head import TrainedHead
from iic_geotools.errors import IICError
from iic_train.config import TrainConfig
from iic_train.data.training_data import open_dataset_of
from iic_train.views.settings import ImagePairs

_LOG = logging.getLogger(__name__)
SAMPLE_CHIPS = 8
"""Number of chips that a segmentation model is proven on."""
SAMPLE_SIDE = 256
"""Side of such a chip in pixels."""
SAMPLE_IMAGES = 256
"""Number of images that a clustering model is proven on."""


def sample_images(head: TrainedHead) -> tuple[list[NDArray[Any]], bool]:
    """Take images `[bands, H, W]` to prove a model on, and say whether they are the run's data or noise."""
    try:
        images = _images_of_run(head.config)
        if images:
            return images, True
        reason = "no pixel of it holds data"
    except IICError as error:
        reason = str(error)
    _LOG.warning("The model is proven on noise instead of the run's data: %s", reason)
    return _noise(head), False


def _images_of_run(config: TrainConfig) -> list[NDArray[Any]]:
    data = config.data
    if config.finetune is not None:
        chips = open_dataset_of(config).train_b
        chosen = _evenly_spaced(len(chips), SAMPLE_CHIPS)
        return [chips.image(index)[:, :SAMPLE_SIDE, :SAMPLE_SIDE] for index in chosen]
    if data.name == "rasters":
        from iic_train.data.rasters import Chips
        from iic_train.data.survey import describe_scenes

        chips = Chips(describe_scenes(data, config.network.channels), side=SAMPLE_SIDE)
        masks = {index: chips.valid(index) for index in _evenly_spaced(len(chips), 2 * SAMPLE_CHIPS)}
        with_data = [index for index, mask in masks.items() if mask is None or mask.any()]
        images = [chips.image(with_data[index]) for index in _evenly_spaced(len(with_data), SAMPLE_CHIPS)]
        chips.reader.close()
        return images
    part = open_dataset_of(config).train_b
    count = SAMPLE_CHIPS if config.dense else SAMPLE_IMAGES
    return [part.image(index)[:, :SAMPLE_SIDE, :SAMPLE_SIDE] for index in _evenly_spaced(len(part), count)]


def _noise(head: TrainedHead) -> list[NDArray[Any]]:
    """Make smooth and rough noise over the range of values that the network was trained on."""
    config, pairs = head.network.config, head.config.pairs
    side = pairs.crop if isinstance(pairs, ImagePairs) else SAMPLE_SIDE
    rng = np.random.default_rng(0)
    images = []
    for index in range(SAMPLE_IMAGES if isinstance(pairs, ImagePairs) else SAMPLE_CHIPS):
        grain = min(2 ** (index % 4), side)
        coarse = rng.random((len(config.channels), -(-side // grain), -(-side // grain)))
        unit = np.kron(coarse, np.ones((grain, grain)))[:, :side, :side]
        low = np.array(config.offset)[:, None, None]
        values = low + unit / np.array(config.scale)[:, None, None]
        if head.dtype != "float32":
            limits = np.iinfo(head.dtype)
            values = np.clip(np.rint(values), limits.min, limits.max)
        images.append(values.astype(head.dtype))
    return images


def _evenly_spaced(length: int, count: int) -> list[int]:
    return sorted({int(index) for index in np.linspace(0, length - 1, min(count, length)).round()})
