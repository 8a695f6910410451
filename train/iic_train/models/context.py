"""A trunk that sees far at the cost of a narrow network: an encoder-decoder.

Level i of the encoder-decoder works on a grid that is coarser by 2^i; there may be none on the grid of the pixels.
Pooling keeps a last odd row and upsampling is by exactly two and cropped, so the output has the size of the input, and
a tile whose origin is a multiple of the coarsest grid's step and that brings enough context has in its core the result
of the whole image.
"""

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional as F

from iic_train.models.geometry import Geometry
from iic_train.models.layers import conv_norm_relu


class Context(nn.Module):
    """An encoder-decoder with one 3x3 convolution per level on the way down and one on the way up.

    Args:
        channels: Number of input channels.
        widths: Number of channels of each level, from the finest to the coarsest. If the first is 0, there is no level
            on the grid of the pixels: the first convolution has a stride of two, and the features are upsampled.
        narrow: Number of features that the last ones are projected to, before upsampling; None keeps all.
    """

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


def _doubled(x: Tensor, like: Tensor) -> Tensor:
    """Upsample by exactly two, and crop to the height and width of another tensor."""
    fine = F.interpolate(x, scale_factor=2.0, mode="bilinear", align_corners=False)
    return fine[..., : like.shape[-2], : like.shape[-1]]
