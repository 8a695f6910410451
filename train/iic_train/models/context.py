"""A trunk that sees far at the cost of a narrow network: an encoder-decoder.

Level i of the encoder-decoder works on a grid that is coarser by 2^i; there may be none on the grid of the pixels.
Pooling keeps a last odd row and upsampling is by exactly two and cropped, so the output has the size of the input, and
a tile whose origin is a multiple of the coarsest grid's step and that brings enough context has in its core the result
of the whole image.

`PretrainedContext` has the first stages of EfficientNet-Lite0 as its encoder, whose weights may start from ImageNet.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from iic_geotools.errors import DataError
from iic_train.models.geometry import Geometry
from iic_train.models.layers import conv_norm_relu

STEM = 32
LITE0 = ((1, 3, 1, 1, 16), (2, 3, 2, 6, 24), (2, 5, 2, 6, 40), (3, 3, 2, 6, 80))
"""Stages of EfficientNet-Lite0 up to a stride of 16: number of blocks, kernel, stride, expansion and channels."""
SKIPS = (0, 1, 2)
"""Stages whose output the decoder takes, next to that of the last one."""


class Context(nn.Module):
    """An encoder-decoder with one 3x3 convolution per level on the way down and one on the way up.

    Args:
        widths: Number of channels of each level, from the finest to the coarsest. If the first is 0, there is no level
            on the grid of the pixels: the first convolution has a stride of two, and the features are upsampled.
    """

    def __init__(self, channels: int, widths: Sequence[int]) -> None:
        super().__init__()
        self.step = 1 if widths[0] else 2
        widths = widths if widths[0] else widths[1:]
        befores = (channels, *widths[:-1])
        self.encoder = nn.ModuleList(
            conv_norm_relu(before, width, 3, stride=1 if level else self.step)
            for level, (before, width) in enumerate(zip(befores, widths, strict=True))
        )
        # Projected on the coarse grid, before upsampling: linear operations commute, and this one costs a quarter.
        self.project = nn.ModuleList(
            nn.Conv2d(coarse, fine, 1, bias=False)
            for coarse, fine in zip(widths[1:], widths[:-1], strict=True)
        )
        self.decoder = nn.ModuleList(conv_norm_relu(width, width, 3) for width in widths[:-1])
        self.out_channels = widths[0]

    def forward(self, x: Tensor) -> Tensor:
        """Return features `[N, out_channels, H, W]`."""
        image = x
        levels: list[Tensor] = []
        for stage in self.encoder:
            x = stage(F.max_pool2d(x, 2, ceil_mode=True) if levels else x)
            levels.append(x)
        for fine, project, decode in zip(
            levels[-2::-1], reversed(self.project), reversed(self.decoder), strict=True
        ):
            x = decode(fine + doubled(project(x), fine))
        return x if self.step == 1 else doubled(x, image)

    def geometry(self) -> Geometry:
        """Return the steps of its grids and how far its features see."""
        stride = self.step * 2 ** (len(self.encoder) - 1)
        low, high = self._span(0, stride - 1)
        pixels = [self._span(pixel, pixel) for pixel in range(stride)]
        field = max(last - first + 1 for first, last in pixels)
        return Geometry(1, stride, field, before=-low, after=high - (stride - 1))

    def _span(self, low: int, high: int) -> tuple[int, int]:
        """Return the first and the last pixel, along one axis, that the output pixels `low` to `high` depend on."""
        if self.step == 2:  # cells whose upsampling reaches these pixels
            low, high = (low - 1) // 2, (high + 1) // 2
        for _ in self.decoder:
            low, high = low - 1, high + 1  # a convolution
            low, high = (low - 1) // 2, (high + 1) // 2  # cells whose upsampling reaches these pixels
        for _ in self.decoder:
            low, high = low - 1, high + 1
            low, high = 2 * low, 2 * high + 1  # what was pooled
        return self.step * low - 1, self.step * high + 1


class PretrainedContext(nn.Module):
    """An encoder-decoder whose encoder is EfficientNet-Lite0 up to a stride of 16.

    Args:
        channels: Number of input channels; the first three are red, green and blue, from -1 to 1.
        widths: Number of channels of the decoder on grids of 2, 4 and 8 pixels.
        narrow: Number of features.
    """

    def __init__(self, channels: int, widths: Sequence[int], narrow: int) -> None:
        super().__init__()
        self.stem = _convolution(channels, STEM, 3, stride=2)
        before, stages = STEM, []
        for blocks, kernel, stride, expansion, width in LITE0:
            stage = []
            for block in range(blocks):
                stage.append(InvertedResidual(before, width, kernel, 1 if block else stride, expansion))
                before = width
            stages.append(nn.Sequential(*stage))
        self.stages = nn.ModuleList(stages)
        self.skips = nn.ModuleList(
            _convolution(LITE0[stage][-1], width, 1, active=False)
            for stage, width in zip(SKIPS, widths, strict=True)
        )
        # Projected on the coarse grid, before upsampling: linear operations commute, and this one costs a quarter.
        self.project = nn.ModuleList(
            _convolution(coarse, fine, 1, active=False)
            for coarse, fine in zip((*widths[1:], before), widths, strict=True)
        )
        self.decoder = nn.ModuleList(
            nn.Sequential(nn.ReLU(), conv_norm_relu(width, width, 3)) for width in widths
        )
        self.narrow = nn.Conv2d(widths[0], narrow, 1, bias=False)
        self.out_channels = narrow

    def forward(self, x: Tensor) -> Tensor:
        """Return features `[N, out_channels, H, W]`."""
        image, x = x, self.stem(x)
        levels = []
        for stage in self.stages:
            x = stage(x)
            levels.append(x)
        for index in reversed(SKIPS):
            fine = self.skips[index](levels[index])
            x = self.decoder[index](fine + doubled(self.project[index](x), fine))
        return doubled(self.narrow(x), image)

    @torch.no_grad()
    def load_imagenet(self, weights: Mapping[str, Tensor]) -> None:
        """Take over the encoder's weights from those of EfficientNet-Lite0; channels beyond the colours start at 0."""
        own = [*_weights(self.stem.state_dict()), *_weights(self.stages.state_dict())]
        first, *others = _weights(weights)
        known = [F.pad(first, (0, 0, 0, 0, 0, own[0].shape[1] - 3)), *others]
        for target, source in zip(own, known, strict=False):
            if target.shape != source.shape:
                raise DataError("The weights are not those of EfficientNet-Lite0.")
            target.copy_(source)

    def geometry(self) -> Geometry:
        """Return the steps of its grids and how far its features see."""
        stride = 2
        for *_, step, _, _ in LITE0:
            stride *= step
        low, high = self._span(0, stride - 1)
        field = max(last - first + 1 for first, last in (self._span(at, at) for at in range(stride)))
        return Geometry(1, stride, field, before=-low, after=high - (stride - 1))

    def _span(self, low: int, high: int) -> tuple[int, int]:
        """Return the first and the last pixel, along one axis, that the output pixels `low` to `high` depend on."""
        for _ in SKIPS:
            low, high = (low - 1) // 2 - 1, (high + 1) // 2 + 1  # cells of upsampling, a convolution
        low, high = (low - 1) // 2, (high + 1) // 2
        for blocks, kernel, stride, _, _ in reversed(LITE0):
            for block in reversed(range(blocks)):
                low, high = _seen(low, high, kernel, 1 if block else stride)
        return _seen(low, high, 3, 2)


class InvertedResidual(nn.Module):
    """A block of EfficientNet-Lite0: expand, filter each channel, project, and add the input where sizes agree."""

    def __init__(self, before: int, width: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        middle = before * expansion
        layers = [_convolution(before, middle, 1)] if expansion > 1 else []
        layers.append(_convolution(middle, middle, kernel, stride=stride, groups=middle))
        layers.append(_convolution(middle, width, 1, active=False))
        self.layers = nn.Sequential(*layers)
        self.residual = stride == 1 and before == width

    def forward(self, x: Tensor) -> Tensor:
        """Return `[N, width, ceil(H / stride), ceil(W / stride)]`."""
        y: Tensor = self.layers(x)
        return x + y if self.residual else y


def _convolution(
    before: int, width: int, kernel: int, *, stride: int = 1, groups: int = 1, active: bool = True
) -> nn.Sequential:
    """Return convolution, batch norm and ReLU6 as in EfficientNet-Lite0, padded as in TensorFlow for even sizes."""
    low = (kernel - stride) // 2
    padding = [] if stride == 1 else [nn.ZeroPad2d((low, kernel - 1 - low) * 2)]
    convolution = nn.Conv2d(
        before, width, kernel, stride, kernel // 2 if stride == 1 else 0, groups=groups, bias=False
    )
    activation = [nn.ReLU6(inplace=True)] if active else []
    return nn.Sequential(*padding, convolution, nn.BatchNorm2d(width, eps=1e-3), *activation)


def _weights(state: Mapping[str, Tensor]) -> list[Tensor]:
    return [value for name, value in state.items() if not name.endswith("num_batches_tracked")]


def _seen(low: int, high: int, kernel: int, stride: int) -> tuple[int, int]:
    """Return the cells that a padded convolution needs for the cells `low` to `high` of its output."""
    padding = (kernel - stride) // 2
    return low * stride - padding, high * stride - padding + kernel - 1


def doubled(x: Tensor, like: Tensor) -> Tensor:
    """Upsample by exactly two, and crop to the height and width of another tensor."""
    fine = F.interpolate(x, scale_factor=2.0, mode="bilinear", align_corners=False)
    return fine[..., : like.shape[-2], : like.shape[-1]]
