"""One trained sub-head as it is served: a module from raw pixels to labels, to be traced."""

import copy

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.fusion import fuse_conv_bn_eval

from iic_geotools.errors import ModelError
from iic_runtime.model.onnx_head import CELLS, FEATURES, LOGITS, MERGE
from iic_train.models.layers import BasicBlock
from iic_train.models.networks import Network
from iic_train.views.settings import ImagePairs

FULL_CONFIDENCE = 255.0
"""Value of `confidence` where a label is certain."""


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
