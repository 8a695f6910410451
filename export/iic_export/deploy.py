"""A trained network as it is served: raw pixels in, labels and confidence out, in one module to trace."""

import copy
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.fusion import fuse_conv_bn_eval

from iic_geotools.errors import ModelError
from iic_train.layers import BasicBlock
from iic_train.networks import Network
from iic_train.pairs import ImagePairs

FULL = 255.0
"""What `confidence` is where a label is certain."""


class Answer(NamedTuple):
    """What a deployable module gives; [N, H, W] for segmentation and [N] for clustering."""

    labels: Tensor
    confidence: Tensor
    probabilities: Tensor


class Deployable(nn.Module):
    """One sub-head of head B with everything from raw pixels to labels.

    Args:
        network: A network with one sub-head, in eval mode; its batch norm is folded into the convolutions of a copy.
        merge: `[classes, clusters]` of 0 and 1: sum the probabilities of each class's clusters; None keeps clusters.
        half: Compute trunk and head in float16; scaling, softmax and upsampling stay in float32.
    """

    def __init__(self, network: Network, merge: Tensor | None = None, *, half: bool = False) -> None:
        super().__init__()
        folded = fold_batch_norm(network)
        self.front, self.trunk, self.head = folded.front, folded.trunk, folded.heads["b"]
        self.kind = torch.float16 if half else torch.float32
        self.trunk.to(self.kind)
        self.head.to(self.kind)
        self.merge: Tensor | None
        self.register_buffer("merge", merge)
        self.eval()

    def answer(self, probabilities: Tensor) -> tuple[Tensor, Tensor]:
        """Labels and confidence, as whole numbers in float32, of probabilities `[N, k, ...]`."""
        # uint8 only ever stands at the outputs, and is made of float32: TensorRT has no other way to it.
        return probabilities.argmax(1).float(), (probabilities.amax(1) * FULL).round()

    def probabilities(self, logits: Tensor) -> Tensor:
        """Probabilities `[N, classes, ...]` of logits `[N, clusters, ...]`."""
        # Spelled out: ONNX Runtime's Softmax over any axis but the last takes five times as long.
        masses = (logits - logits.amax(1, keepdim=True)).exp()
        if self.merge is not None:
            pixels = masses.ndim == 4
            masses = (
                F.conv2d(masses, self.merge[:, :, None, None]) if pixels else F.linear(masses, self.merge)
            )
        return masses / masses.sum(1, keepdim=True)

    def features(self, scaled: Tensor) -> Tensor:
        """The trunk's output for scaled pixels."""
        found: Tensor = self.trunk(self.front.filter(scaled).to(self.kind))
        return found


class DensePixels(Deployable):
    """Segmentation: `image` [N, bands, H, W] of any size to a label a pixel."""

    def __init__(self, network: Network, merge: Tensor | None = None, *, half: bool = False) -> None:
        super().__init__(network, merge, half=half)
        self.stride = network.stride

    def forward(self, image: Tensor) -> Answer:
        """Labels, confidence and probabilities of raw pixels."""
        height, width = image.shape[-2:]
        # on the coarse grid, where it costs a quarter: upsampling is linear, so the sums come out the same
        cells = self.probabilities(self.head(self.features(self.front.scale(image))).float())
        fine = cells
        if self.stride > 1:
            fine = F.interpolate(cells, scale_factor=float(self.stride), mode="bilinear", align_corners=False)
        # cropped after the classes are gone: that moves one value a pixel, not one a class
        labels, confidence = (each[..., :height, :width].to(torch.uint8) for each in self.answer(fine))
        return Answer(labels, confidence, fine[..., :height, :width])


class WholeImages(Deployable):
    """Clustering: `image` [N, bands, H, W] of one size to a label an image, seen as in evaluation."""

    def __init__(
        self, network: Network, pairs: ImagePairs, merge: Tensor | None = None, *, half: bool = False
    ) -> None:
        super().__init__(network, merge, half=half)
        self.crop, self.size = pairs.crop, pairs.size

    def forward(self, image: Tensor) -> Answer:
        """Label, confidence and probabilities of raw images."""
        top, left = (round((side - self.crop) / 2) for side in image.shape[-2:])
        view = self.front.scale(image)[..., top : top + self.crop, left : left + self.crop]
        if self.crop != self.size:
            view = F.interpolate(view, (self.size, self.size), mode="bilinear", align_corners=False)
        found = self.probabilities(self.head(self.features(view).flatten(1)).float())
        labels, confidence = (each.to(torch.uint8) for each in self.answer(found))
        return Answer(labels, confidence, found)


def fold_batch_norm(network: Network) -> Network:
    """A copy of a network in eval mode whose convolutions do the work of the batch norms behind them."""
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
    left = [name for name, module in folded.named_modules() if isinstance(module, nn.BatchNorm2d)]
    if left:
        raise ModelError(
            f"The batch norm of {', '.join(left)} does not follow a convolution: it cannot be served."
        )
    return folded


def deployable(
    network: Network, pairs: object, merge: Tensor | None = None, *, half: bool = False
) -> Deployable:
    """The module to trace for a network with one sub-head."""
    if isinstance(pairs, ImagePairs):
        return WholeImages(network, pairs, merge, half=half)
    return DensePixels(network, merge, half=half)
