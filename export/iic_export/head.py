"""One trained sub-head: chosen from a run, and as it is served, from raw pixels to labels."""

import copy
import logging
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.fusion import fuse_conv_bn_eval

from iic_geotools.errors import IICError, ModelError, TrainingError, UsageError
from iic_runtime.model.card import PixelType
from iic_runtime.model.head import CELLS, FEATURES, LOGITS, MERGE
from iic_train.config import TrainConfig
from iic_train.data import open_dataset
from iic_train.data.opening import open_dataset_of
from iic_train.finetune.image_runs import load_finetuned
from iic_train.models.layers import BasicBlock
from iic_train.models.networks import Network
from iic_train.runs import Checkpoint, Run, load_run, newest_run
from iic_train.views.settings import ImagePairs

_LOG = logging.getLogger(__name__)
SAMPLE_CHIPS = 8
"""Number of chips that a segmentation model is proven on."""
SAMPLE_SIDE = 256
"""Side of such a chip in pixels."""
SAMPLE_IMAGES = 256
"""Number of images that a clustering model is proven on."""
FULL_CONFIDENCE = 255.0
"""Value of `confidence` where a label is certain."""


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


def find_run(run: str | os.PathLike[str] | None, runs: str | os.PathLike[str] = "runs") -> Run:
    """Open a run folder given by its path or by its name under `runs`; by default the newest one there."""
    if run is None:
        return newest_run(Path(runs))
    path, path_under_runs = Path(run), Path(runs) / run
    return load_run(path_under_runs if not path.exists() and path_under_runs.is_dir() else path)


Weights = Checkpoint | Literal["finetuned"]
"""The weights of an epoch, or what a clustering run became by fine-tuning with labels."""


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


class ServedHead(nn.Module):
    """One sub-head of head B with everything from raw pixels to labels, in one module to trace.

    Attributes:
        outputs: Names of what it returns, in order.

    Args:
        network: A network with one sub-head, in eval mode; its batch norm is folded into the convolutions of a copy.
        merge: `[classes, clusters]` of 0 and 1: sum the probabilities of each class's clusters; None keeps clusters.
        half: Compute trunk and head in float16; scaling, softmax and upsampling stay in float32.
    """

    outputs: tuple[str, ...] = ("labels", "confidence", "probabilities")

    def __init__(self, network: Network, merge: Tensor | None = None, *, half: bool = False) -> None:
        super().__init__()
        folded = fold_batch_norm(network)
        self.front, self.trunk, self.head = folded.front, folded.trunk, folded.heads["b"]
        self.dtype = torch.float16 if half else torch.float32
        self.trunk.to(self.dtype)
        self.head.to(self.dtype)
        self.merge: Tensor | None
        # With the shape that it is used in, so that the graph keeps it as it is, under this name.
        dense = network.config.dense
        self.register_buffer(MERGE, merge[:, :, None, None] if merge is not None and dense else merge)
        self.eval()

    def features(self, scaled: Tensor) -> Tensor:
        """Run the trunk on scaled pixels."""
        features: Tensor = self.trunk(self.front.filter(scaled).to(self.dtype))
        return features

    def probabilities(self, logits: Tensor) -> Tensor:
        """Turn logits `[N, clusters, ...]` into probabilities `[N, classes, ...]`."""
        # Spelled out: ONNX Runtime's Softmax over any axis but the last takes five times as long.
        masses = (logits - logits.amax(1, keepdim=True)).exp()
        if self.merge is not None:
            dense = masses.ndim == 4
            masses = F.conv2d(masses, self.merge) if dense else F.linear(masses, self.merge)
        return masses / masses.sum(1, keepdim=True)

    def labels_and_confidence(self, probabilities: Tensor) -> tuple[Tensor, Tensor]:
        """Reduce probabilities `[N, k, ...]` to labels and confidence, as whole numbers in float32."""
        # uint8 stands only at the outputs, and is cast from float32: TensorRT offers no other way to it.
        return probabilities.argmax(1).float(), (probabilities.amax(1) * FULL_CONFIDENCE).round()


class SegmentationHead(ServedHead):
    """Segmentation: `image` `[N, bands, H, W]` of any size to one label per pixel.

    The head can be replaced in the exported file by one that people's labels are fitted to: `features` are what it sees
    at every pixel, `cells` the same on the grid of the trunk if that is another one, and `logits` what it says of
    them.
    """

    def __init__(self, network: Network, merge: Tensor | None = None, *, half: bool = False) -> None:
        super().__init__(network, merge, half=half)
        self.cell = network.cell
        # The grid of the cells then ends at a multiple of the stride, which may lie beyond the image.
        self.apart = network.stride > 1
        self.outputs = (*ServedHead.outputs, FEATURES, *((CELLS,) if self.apart else ()), LOGITS)

    def forward(self, image: Tensor) -> tuple[Tensor, ...]:
        """Label raw pixels."""
        cells = self.features(self.front.scale(image))
        logits = self.head(cells).float()
        # On the coarse grid, where it costs a quarter: upsampling is linear, so the sums come out the same.
        probabilities = self.probabilities(logits)
        fine, features = self._upsample(probabilities), self._upsample(cells.float())
        # Cropped after the argmax: that moves one value per pixel, not one per class.
        labels, confidence = (
            self._crop(output, image).to(torch.uint8) for output in self.labels_and_confidence(fine)
        )
        apart = (cells,) if self.apart else ()
        return labels, confidence, self._crop(fine, image), self._crop(features, image), *apart, logits

    def _upsample(self, cells: Tensor) -> Tensor:
        if self.cell == 1:
            return cells
        return F.interpolate(cells, scale_factor=float(self.cell), mode="bilinear", align_corners=False)

    def _crop(self, fine: Tensor, image: Tensor) -> Tensor:
        return fine if not self.apart else fine[..., : image.shape[-2], : image.shape[-1]]


class ClusteringHead(ServedHead):
    """Clustering: `image` `[N, bands, H, W]` of one size to one label per image, cropped as in evaluation."""

    def __init__(
        self, network: Network, pairs: ImagePairs, merge: Tensor | None = None, *, half: bool = False
    ) -> None:
        super().__init__(network, merge, half=half)
        self.crop, self.size = pairs.crop, pairs.size

    def forward(self, image: Tensor) -> tuple[Tensor, ...]:
        """Label raw images."""
        top, left = (round((side - self.crop) / 2) for side in image.shape[-2:])
        view = self.front.scale(image)[..., top : top + self.crop, left : left + self.crop]
        if self.crop != self.size:
            view = F.interpolate(view, (self.size, self.size), mode="bilinear", align_corners=False)
        probabilities = self.probabilities(self.head(self.features(view).flatten(1)).float())
        labels, confidence = (output.to(torch.uint8) for output in self.labels_and_confidence(probabilities))
        return labels, confidence, probabilities


def served_head(
    network: Network, pairs: object, merge: Tensor | None = None, *, half: bool = False
) -> ServedHead:
    """Make the module to trace of a network with one sub-head."""
    if isinstance(pairs, ImagePairs):
        return ClusteringHead(network, pairs, merge, half=half)
    return SegmentationHead(network, merge, half=half)


def fold_batch_norm(network: Network) -> Network:
    """Copy a network in eval mode, its batch norms folded into the convolutions before them."""
    folded = copy.deepcopy(network).eval()
    for module in folded.modules():
        if isinstance(module, BasicBlock):
            module.conv1 = fuse_conv_bn_eval(module.conv1, module.norm1)
            module.conv2 = fuse_conv_bn_eval(module.conv2, module.norm2)
            module.norm1 = module.norm2 = nn.Identity()  # type: ignore[assignment]
        elif isinstance(module, nn.Sequential):
            for index in range(len(module) - 1):
                conv, norm = module[index], module[index + 1]
                if isinstance(conv, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d):
                    module[index], module[index + 1] = fuse_conv_bn_eval(conv, norm), nn.Identity()
    unfolded = [name for name, module in folded.named_modules() if isinstance(module, nn.BatchNorm2d)]
    if unfolded:
        raise ModelError(
            f"The batch norm of {', '.join(unfolded)} does not follow a convolution, so it cannot be served."
        )
    return folded


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
    root = None if data.root is None else Path(data.root)
    part = open_dataset(data.name, root, overcluster=data.overcluster, unlabelled=data.unlabelled).train_b
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
