"""Named networks: each is a config that travels with its weights.

A network takes raw pixel values, scales them, and gives cluster probabilities of head A (auxiliary
overclustering) or head B (the one that is used), each with several sub-heads. Clustering networks give one
row of probabilities an image, segmentation networks one a pixel.

Segmentation networks keep the size of any input exactly: every convolution pads by its dilation, pooling
keeps a last odd row, and probabilities are upsampled by exactly the stride and cropped. A tile whose origin
is a multiple of `stride` and that brings `halo` pixels of context therefore gives the whole image's result
in its core.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from iic_geotools.errors import ModelError, UsageError
from iic_train.layers import BasicBlock, Front, conv_norm_relu

Family = Literal["resnet", "vgg", "segmentation", "local"]
HeadName = Literal["a", "b"]

NETWORKS: dict[str, tuple[Family, tuple[int, ...]]] = {
    # as published: ResNet-34 trunk, VGG trunk with 5x5 convolutions, segmentation trunk
    "5g": ("resnet", (64, 128, 256, 512)),
    "6c": ("vgg", (64, 128, 256, 512)),
    "10a": ("segmentation", (64, 128, 256, 256, 512, 512)),
    # the VGG trunk at 1/4 of its width: about 1/16 of its work
    "6c-4": ("vgg", (16, 32, 64, 128)),
    # the segmentation trunk at 1/2, 1/4 and 1/8 of its width: about 1/4, 1/16 and 1/64 of its work
    "edge-2": ("segmentation", (32, 64, 128, 128, 256, 256)),
    "edge-4": ("segmentation", (16, 32, 64, 64, 128, 128)),
    "edge-8": ("segmentation", (8, 16, 32, 32, 64, 64)),
    # sees 5 pixels a side: materials by their colour, at a resolution at which texture has averaged out
    "local-small": ("local", (8, 16, 16)),
    "local": ("local", (16, 32, 32)),
    "local-large": ("local", (32, 64, 64)),
}
"""Families and channel widths of the named networks."""


@dataclass(frozen=True)
class NetworkConfig:
    """All that is needed to build a network again.

    Attributes:
        name: Name in `NETWORKS`.
        channels: Names of the input bands in order.
        clusters_b: Number of clusters of the main head.
        clusters_a: Number of clusters of the overclustering head; None: there is no such head.
        sub_heads: Sub-heads of each head.
        sobel: Replace luminance by its horizontal and vertical gradients.
        colour: With `sobel`, keep the colour bands beside the gradients.
        size: Side of the images in pixels for clustering; None for segmentation, where any size goes.
        offset: Subtracted from each band's raw value.
        scale: Multiplied to each band after that.
        family: Kind of trunk, by default as registered under `name`.
        widths: Channels of its stages, by default as registered under `name`.
    """

    name: str
    channels: tuple[str, ...]
    clusters_b: int
    clusters_a: int | None = None
    sub_heads: int = 1
    sobel: bool = False
    colour: bool = True
    size: int | None = None
    offset: tuple[float, ...] = ()
    scale: tuple[float, ...] = ()
    family: Family = field(default="segmentation")
    widths: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not self.widths:
            if self.name not in NETWORKS:
                raise UsageError(
                    f"There is no network named {self.name}; choose one of {', '.join(NETWORKS)}."
                )
            family, widths = NETWORKS[self.name]
            object.__setattr__(self, "family", family)
            object.__setattr__(self, "widths", widths)
        for name, default in (("offset", 0.0), ("scale", 1 / 255)):
            if not getattr(self, name):
                object.__setattr__(self, name, (default,) * len(self.channels))
            elif len(getattr(self, name)) != len(self.channels):
                raise UsageError(
                    f"There are {len(self.channels)} bands but {len(getattr(self, name))} values of {name}."
                )
        if (self.size is None) != self.dense:
            raise UsageError(
                f"Network {self.name}: give a size for clustering networks and none for segmentation."
            )
        if min(self.clusters_b, self.clusters_a or 2) < 2 or self.sub_heads < 1:
            raise UsageError("A head needs at least two clusters and one sub-head.")

    @property
    def dense(self) -> bool:
        """Whether the network labels pixels rather than images."""
        return self.family in ("segmentation", "local")

    def to_json(self) -> dict[str, Any]:
        """A dictionary that `json.dumps` takes and `from_json` gives back."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "NetworkConfig":
        """The config that `to_json` described."""
        unknown = sorted(set(data) - {f.name for f in fields(cls)})
        if unknown:
            raise ModelError(
                f"The network config has unknown fields ({', '.join(unknown)}): is it of a newer version?"
            )
        values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in data.items()}
        return cls(**values)


class Network(nn.Module):
    """Scaling, optional Sobel filter, trunk and heads."""

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        self.config = config
        self.front = Front(
            config.channels, config.offset, config.scale, sobel=config.sobel, colour=config.colour
        )
        self.trunk, features = _TRUNKS[config.family](self.front.out_channels, config.widths)
        if config.size is not None and config.family == "vgg":
            features *= _pooled_side(config.size) ** 2
        self.heads = nn.ModuleDict({"b": self._head(features, config.clusters_b)})
        if config.clusters_a is not None:
            self.heads["a"] = self._head(features, config.clusters_a)
        self.apply(_init_resnet if config.family == "resnet" else _init_vgg)

    def forward(self, pixels: Tensor, head: HeadName = "b") -> Tensor:
        """Cluster probabilities of raw pixel values `[N, bands, H, W]`.

        Returns:
            `[N, sub_heads, k]` for clustering, `[N, sub_heads, k, H, W]` for segmentation.
        """
        return self.classify(self.scale(pixels), head)

    def scale(self, pixels: Tensor) -> Tensor:
        """Raw pixel values as floats of about 0 to 1, the domain in which pairs are made."""
        return self.front.scale(pixels)

    def classify(self, scaled: Tensor, head: HeadName = "b") -> Tensor:
        """`forward` for pixels that went through `scale` already."""
        cells = self.probabilities(self.features(scaled), head)
        if not self.config.dense:
            return cells
        return self.upsample(cells, scaled.shape[-2], scaled.shape[-1])

    def probabilities(self, features: Tensor, head: HeadName = "b") -> Tensor:
        """Cluster probabilities `[N, sub_heads, k]` of features; for segmentation `[..., h, w]` on their grid."""
        logits: Tensor = self.heads[head](features)
        return _split(logits, self.config.sub_heads).softmax(2)

    def upsample(self, cells: Tensor, height: int, width: int) -> Tensor:
        """Probabilities of pixels `[N, sub_heads, k, height, width]` from those on the trunk's grid."""
        fine = F.interpolate(
            cells.flatten(1, 2), scale_factor=self.stride, mode="bilinear", align_corners=False
        )
        return _split(fine[..., :height, :width], self.config.sub_heads)

    def features(self, scaled: Tensor) -> Tensor:
        """What the heads see: `[N, features]` for clustering, `[N, features, h, w]` for segmentation."""
        found: Tensor = self.trunk(self.front.filter(scaled))
        return found if self.config.dense else found.flatten(1)

    def penultimate(self, scaled: Tensor) -> Tensor:
        """Features before the last stage of a ResNet trunk, `[N, channels, h, w]`, for fine-tuning."""
        if self.config.family != "resnet":
            raise UsageError(f"Network {self.config.name} has no penultimate stage; fine-tuning needs 5g.")
        found: Tensor = self.trunk[:-2](self.front.filter(scaled))
        return found

    def with_sub_head(self, sub_head: int) -> "Network":
        """A network with one sub-head of head B and nothing else, for serving; weights are copied."""
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
    def stride(self) -> int:
        """Pixels a step of the trunk's output makes; tiles start at multiples of it."""
        return self._geometry()[0]

    @property
    def receptive_field(self) -> int:
        """Side of the square of pixels that one cell of the trunk's output sees."""
        _, before, after = self._geometry()
        return before + after + 1

    @property
    def halo(self) -> int:
        """Context in pixels, a multiple of `stride`, that makes a tile's core equal the whole image's."""
        stride, before, after = self._geometry()
        # Upsampling mixes in a neighbour: the cell before at a cell's first pixel, the next one at its last.
        reach = max(before + stride, after + 1) if stride > 1 else max(before, after)
        return -(-reach // stride) * stride

    def _geometry(self) -> tuple[int, int, int]:
        """Stride of the trunk, and how many pixels before and after its first one a cell sees."""
        stride, before, after = 1, self.front.reach, self.front.reach
        for name, layer in self.trunk.named_modules():
            if isinstance(layer, nn.Conv2d | nn.MaxPool2d) and ".skip." not in name:
                kernel, step, padding, dilation = (
                    value if isinstance(value, int) else int(value[0])
                    for value in (layer.kernel_size, layer.stride, layer.padding, layer.dilation)
                )
                before += padding * stride
                after += ((kernel - 1) * dilation - padding) * stride
                stride *= step
        return stride, before, after

    def _head(self, features: int, clusters: int) -> nn.Module:
        outputs = clusters * self.config.sub_heads
        if self.config.dense:
            return nn.Conv2d(features, outputs, 1, bias=False)
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


_TRUNKS = {"resnet": _resnet, "vgg": _vgg, "segmentation": _segmentation, "local": _local}


def _pooled_side(size: int) -> int:
    for _ in range(3):
        size //= 2
    return size


def _init_resnet(module: nn.Module) -> None:
    _init(module, "fan_out")


def _init_vgg(module: nn.Module) -> None:
    _init(module, "fan_in")


def _init(module: nn.Module, fan: Literal["fan_in", "fan_out"]) -> None:
    if isinstance(module, nn.Conv2d):
        nn.init.kaiming_normal_(module.weight, mode=fan, nonlinearity="relu")
    elif isinstance(module, nn.Linear):
        nn.init.normal_(module.weight, std=0.01)
        nn.init.zeros_(module.bias)
