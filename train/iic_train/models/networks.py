"""The networks as PyTorch modules.

A network takes raw pixel values, scales them, and returns cluster probabilities of head A (auxiliary
overclustering) or head B (the one that is used), each with several sub-heads. Clustering networks return one
row of probabilities per image, segmentation networks one per pixel.

Segmentation networks keep the size of any input exactly: every convolution pads by its dilation, pooling
keeps a last odd row, and what is on a coarser grid is upsampled by a whole factor and cropped. A tile whose
origin is a multiple of `stride` and that brings `halo` pixels of context therefore has in its core the result
of the whole image.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Literal, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from iic_geotools.errors import UsageError
from iic_train.models.bank import Bank
from iic_train.models.context import Context
from iic_train.models.geometry import Geometry, chain_geometry
from iic_train.models.land_cover import LandCover
from iic_train.models.layers import BasicBlock, Front, conv_norm_relu
from iic_train.models.registry import Family, HeadName, NetworkConfig


class Network(nn.Module):
    """Scaling, optional Sobel filter, trunk and heads."""

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        self.config = config
        self.front = Front(
            config.channels,
            config.offset,
            config.scale,
            sobel=config.sobel,
            colour=config.colour,
            beside=config.beside,
        )
        self.trunk: nn.Module
        if config.family == "bank":
            self.trunk = Bank(config.channels, config.widths)
            features = self.trunk.out_channels
        elif config.family == "land-cover":
            self.trunk = LandCover(self.front.out_channels, config.widths)
            features = self.trunk.out_channels
        else:
            self.trunk, features = _TRUNKS[config.family](self.front.out_channels, config.widths)
        if config.size is not None and config.family == "vgg":
            features *= _pooled_side(config.size) ** 2
        self.heads = nn.ModuleDict({"b": self._head(features, config.clusters_b)})
        if config.clusters_a is not None:
            self.heads["a"] = self._head(self.learnt_features or features, config.clusters_a)
        self.apply(init_resnet if config.family == "resnet" else _init_vgg)

    def forward(self, pixels: Tensor, head: HeadName = "b") -> Tensor:
        """Return cluster probabilities of raw pixel values `[N, bands, H, W]`.

        Returns:
            `[N, sub_heads, k]` for clustering, `[N, sub_heads, k, H, W]` for segmentation.
        """
        return self.classify(self.scale(pixels), head)

    def scale(self, pixels: Tensor) -> Tensor:
        """Return raw pixel values as floats of about 0 to 1, the domain in which views are made."""
        return self.front.scale(pixels)

    def classify(self, scaled: Tensor, head: HeadName = "b") -> Tensor:
        """Return what `forward` does, for pixels that are already scaled."""
        cells = self.probabilities(self.features(scaled), head)
        if not self.config.dense:
            return cells
        return self.upsample(cells, scaled.shape[-2], scaled.shape[-1])

    def probabilities(self, features: Tensor, head: HeadName = "b") -> Tensor:
        """Return cluster probabilities `[N, sub_heads, k]` of features, for segmentation `[..., h, w]` per cell."""
        if head == "a" and self.learnt_features:
            features = features[:, : self.learnt_features]
        logits: Tensor = self.heads[head](features)
        return _split(logits, self.config.sub_heads).softmax(2)

    def upsample(self, cells: Tensor, height: int, width: int) -> Tensor:
        """Return probabilities per pixel `[N, sub_heads, k, height, width]` from those on the grid of the trunk."""
        if self.cell == 1:
            return cells
        fine = F.interpolate(
            cells.flatten(1, 2), scale_factor=self.cell, mode="bilinear", align_corners=False
        )
        return _split(fine[..., :height, :width], self.config.sub_heads)

    def features(self, scaled: Tensor) -> Tensor:
        """Return the input of the heads: `[N, features]` for clustering, `[N, features, h, w]` for segmentation."""
        features: Tensor = self.trunk(self.front.filter(scaled))
        return features if self.config.dense else features.flatten(1)

    def learnt(self, scaled: Tensor) -> Tensor:
        """Return the features that head A sees, which in a `bank` network are the first of `features`."""
        trunk = self.trunk
        return trunk.learnt(scaled) if isinstance(trunk, Bank) else self.features(scaled)

    @property
    def learnt_features(self) -> int:
        """Number of the first features that head A learns, where the others are fixed; 0 if it learns all of them."""
        return int(getattr(self.trunk, "learnt_features", 0))

    def penultimate(self, scaled: Tensor) -> Tensor:
        """Return the features before the last stage of a ResNet trunk, `[N, channels, h, w]`, for fine-tuning."""
        if self.config.family != "resnet":
            raise UsageError(
                f"Fine-tuning needs a network with a ResNet trunk such as 5g, not {self.config.name}."
            )
        features: Tensor = cast(nn.Sequential, self.trunk)[:-2](self.front.filter(scaled))
        return features

    def with_sub_head(self, sub_head: int) -> "Network":
        """Return a copy with one sub-head of head B and no other head, for deployment."""
        config = self.config
        if not 0 <= sub_head < config.sub_heads:
            raise UsageError(
                f"There is no sub-head {sub_head}; the run has sub-heads 0 to {config.sub_heads - 1}."
            )
        chosen = slice(sub_head * config.clusters_b, (sub_head + 1) * config.clusters_b)
        state = {
            name: value[chosen] if name.startswith("heads.b.") else value
            for name, value in self.state_dict().items()
            if not name.startswith("heads.a.")
        }
        single = Network(replace(config, clusters_a=None, sub_heads=1))
        single.load_state_dict(state)
        return single.to(next(self.parameters()).device).train(self.training)

    @property
    def cell(self) -> int:
        """Number of pixels between two cells of the trunk's output."""
        return self._geometry().cell

    @property
    def stride(self) -> int:
        """Tiles start at multiples of this number of pixels."""
        return self._geometry().stride

    @property
    def receptive_field(self) -> int:
        """Side in pixels of the square that one cell of the trunk's output sees."""
        return self._geometry().receptive_field

    @property
    def halo(self) -> int:
        """Context in pixels, a multiple of `stride`, with which the core of a tile equals the whole image."""
        return self._geometry().halo

    def _geometry(self) -> Geometry:
        trunk = self.trunk
        alone = trunk.geometry() if isinstance(trunk, Context | LandCover | Bank) else chain_geometry(trunk)
        return alone.widened(self.front.reach)

    def _head(self, features: int, clusters: int) -> nn.Module:
        outputs = clusters * self.config.sub_heads
        if self.config.dense:
            return nn.Conv2d(features, outputs, 1, bias=self.config.bias)
        return nn.Linear(features, outputs)


def _split(channels: Tensor, sub_heads: int) -> Tensor:
    """`[N, sub_heads, k, ...]` of `[N, sub_heads * k, ...]`."""
    return torch.unflatten(channels, 1, (sub_heads, channels.shape[1] // sub_heads))


def _resnet(channels: int, widths: tuple[int, ...]) -> tuple[nn.Sequential, int]:
    layers: list[nn.Module] = [conv_norm_relu(channels, widths[0], 3), nn.MaxPool2d(2, padding=1)]
    before = widths[0]
    for stage, (width, blocks) in enumerate(zip(widths, (3, 4, 6, 3), strict=True)):
        stage_layers = []
        for block in range(blocks):
            stage_layers.append(BasicBlock(before, width, stride=2 if stage and not block else 1))
            before = width
        layers.append(nn.Sequential(*stage_layers))
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1)), before


def _vgg(channels: int, widths: tuple[int, ...]) -> tuple[nn.Sequential, int]:
    layers: list[nn.Module] = []
    for before, width in zip((channels, *widths[:-1]), widths, strict=True):
        if layers:
            layers.append(nn.MaxPool2d(2))
        layers.append(conv_norm_relu(before, width, 5))
    return nn.Sequential(*layers), widths[-1]


def _segmentation(channels: int, widths: tuple[int, ...]) -> tuple[nn.Sequential, int]:
    layers: list[nn.Module] = []
    for i, (before, width) in enumerate(zip((channels, *widths[:-1]), widths, strict=True)):
        if i == 2:
            layers.append(nn.MaxPool2d(2, ceil_mode=True))
        layers.append(conv_norm_relu(before, width, 3, dilation=2 if i >= 4 else 1))
    return nn.Sequential(*layers), widths[-1]


def _local(channels: int, widths: tuple[int, ...]) -> tuple[nn.Sequential, int]:
    kernels = (3, 3, 1)
    before = (channels, *widths[:-1])
    return nn.Sequential(*map(conv_norm_relu, before, widths, kernels)), widths[-1]


def _context(channels: int, widths: tuple[int, ...]) -> tuple[nn.Module, int]:
    trunk = Context(channels, widths)
    return trunk, trunk.out_channels


_TRUNKS: dict[Family, Callable[[int, tuple[int, ...]], tuple[nn.Module, int]]] = {
    "resnet": _resnet,
    "vgg": _vgg,
    "segmentation": _segmentation,
    "local": _local,
    "context": _context,
}


def _pooled_side(size: int) -> int:
    for _ in range(3):
        size //= 2
    return size


def init_resnet(module: nn.Module) -> None:
    """Initialise weights as ResNet does."""
    _init(module, "fan_out")


def _init_vgg(module: nn.Module) -> None:
    _init(module, "fan_in")


def _init(module: nn.Module, fan: Literal["fan_in", "fan_out"]) -> None:
    if isinstance(module, nn.Conv2d):
        nn.init.kaiming_normal_(module.weight, mode=fan, nonlinearity="relu")
        if module.bias is not None:
            nn.init.zeros_(module.bias)
    elif isinstance(module, nn.Linear):
        nn.init.normal_(module.weight, std=0.01)
        nn.init.zeros_(module.bias)
