"""Trunks that see far at the cost of a narrow network: an encoder-decoder, alone or beside a path that sees one pixel.

Level i of the encoder-decoder works on a grid that is coarser by 2^i; there may be none on the grid of the pixels.
Pooling keeps a last odd row and upsampling is by exactly two and cropped, so the output has the size of the input, and
a tile whose origin is a multiple of the coarsest grid's step and that brings enough context has in its core the result
of the whole image.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from iic_train.models.geometry import Geometry
from iic_train.models.layers import conv_norm_relu

PIXEL_LAYERS = 2
"""Number of layers of the path that sees one pixel; the first widths of a `pixel-context` network are theirs."""
NARROW = 8
"""Number of features of each path of a smoothed network: a linear head on a few classes loses nothing by so few."""
SQUARE = 5
"""Side of the squares over which pixels' features are averaged, in cells of two pixels."""
SMOOTH_REACH = 2 * (2 * (SQUARE // 2) + 1)
"""Number of pixels in each direction that smoothed features see: half a square, twice, and a cell of upsampling."""


class Context(nn.Module):
    """An encoder-decoder with one 3x3 convolution per level on the way down and one on the way up.

    Args:
        channels: Number of input channels.
        widths: Number of channels of each level, from the finest to the coarsest. If the first is 0, there is no level
            on the grid of the pixels: the first convolution has a stride of two, and the features are upsampled.
        narrow: Number of features that the last ones are projected to, before upsampling; None keeps all.
    """

    pixel_features = 0

    def __init__(self, channels: int, widths: Sequence[int], narrow: int | None = None) -> None:
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
        self.out_channels = narrow or widths[0]
        self.narrow = nn.Conv2d(widths[0], narrow, 1, bias=False) if narrow else nn.Identity()

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
            x = decode(fine + _doubled(project(x), fine))
        x = self.narrow(x)
        return x if self.step == 1 else _doubled(x, image)

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


class PixelContext(nn.Module):
    """Features of each pixel's own values, followed by those of its surroundings.

    A linear head on both is the sum of a head on the pixel and a head on its context, so the first can be trained
    alone, and the second added to it. Smoothed networks have the mean of the pixels' features over squares between the
    two: what most pixels of a roof look like says more than any one of them.

    Args:
        channels: Number of input channels.
        widths: Number of channels of the layers that see one pixel, and then of each level of the context, of which the
            first may be 0.
        smoothed: Whether features of pixels are also averaged, over a square of 10 pixels and a tent of 20.
    """

    def __init__(self, channels: int, widths: Sequence[int], smoothed: bool = False) -> None:
        super().__init__()
        own, around = widths[:PIXEL_LAYERS], widths[PIXEL_LAYERS:]
        befores = (channels, *own[:-1])
        layers: list[nn.Module] = [
            conv_norm_relu(before, width, 1) for before, width in zip(befores, own, strict=True)
        ]
        if smoothed:
            layers.append(nn.Conv2d(own[-1], NARROW, 1, bias=False))
        self.pixel = nn.Sequential(*layers)
        self.context = Context(channels, around, NARROW if smoothed else None)
        self.smoothed = smoothed
        self.pixel_features = NARROW if smoothed else own[-1]
        self.out_channels = (1 + smoothed) * self.pixel_features + self.context.out_channels

    def forward(self, x: Tensor) -> Tensor:
        """Return features `[N, out_channels, H, W]`."""
        pixels = self.pixel(x)
        means = [_smooth(pixels)] if self.smoothed else []
        return torch.cat([pixels, *means, self.context(x)], 1)

    def geometry(self) -> Geometry:
        """Return the geometry of the context, which sees further than the pixel, or of smoothing if that does."""
        geometry = self.context.geometry()
        if not self.smoothed:
            return geometry
        return replace(
            geometry,
            stride=max(2, geometry.stride),
            receptive_field=max(2 * SMOOTH_REACH, geometry.receptive_field),
            before=max(SMOOTH_REACH, geometry.before),
            after=max(SMOOTH_REACH, geometry.after),
        )


def _smooth(x: Tensor) -> Tensor:
    """Return the mean of a square and of a tent twice as wide, on a grid of half the resolution, at that of the input.

    Only pixels inside the image count.
    """
    halved = F.avg_pool2d(x, 2, ceil_mode=True)
    square = F.avg_pool2d(halved, SQUARE, 1, SQUARE // 2, count_include_pad=False)
    tent = F.avg_pool2d(square, SQUARE, 1, SQUARE // 2, count_include_pad=False)
    return _doubled(0.5 * (square + tent), x)


def _doubled(x: Tensor, like: Tensor) -> Tensor:
    """Upsample by exactly two, and crop to the height and width of another tensor."""
    fine = F.interpolate(x, scale_factor=2.0, mode="bilinear", align_corners=False)
    return fine[..., : like.shape[-2], : like.shape[-1]]
