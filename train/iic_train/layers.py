"""The pieces networks are made of."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from iic_geotools.errors import UsageError

LUMINANCE = {"red": 0.299, "green": 0.587, "blue": 0.114}


class Front(nn.Module):
    """What happens to pixels before the trunk: scaling by constants and, if asked, a Sobel filter.

    The filter is applied to luminance only; bands that are not colours (infrared) pass through untouched.
    """

    def __init__(
        self,
        channels: Sequence[str],
        offset: Sequence[float],
        scale: Sequence[float],
        *,
        sobel: bool,
        colour: bool,
    ) -> None:
        super().__init__()
        self.offset: Tensor
        self.factor: Tensor
        self.register_buffer("offset", torch.tensor(offset, dtype=torch.float32).view(-1, 1, 1))
        self.register_buffer("factor", torch.tensor(scale, dtype=torch.float32).view(-1, 1, 1))
        self.sobel = _Sobel(channels, colour=colour) if sobel else None
        self.out_channels = self.sobel.out_channels if self.sobel else len(channels)
        self.reach = 1 if sobel else 0

    def scale(self, pixels: Tensor) -> Tensor:
        """`(pixels - offset) * factor` for each band, in floating point."""
        return (pixels.to(self.offset.dtype) - self.offset) * self.factor

    def filter(self, scaled: Tensor) -> Tensor:
        """The channels the trunk takes."""
        return scaled if self.sobel is None else self.sobel(scaled)


class _Sobel(nn.Module):
    """`[colours, dx, dy, others]` of `[colours, others]`; zeros outside the image."""

    def __init__(self, channels: Sequence[str], *, colour: bool) -> None:
        super().__init__()
        if set(LUMINANCE) <= set(channels):
            weights = [LUMINANCE.get(name, 0.0) for name in channels]
        elif "grey" in channels:
            weights = [float(name == "grey") for name in channels]
        else:
            raise UsageError(
                f"The Sobel filter needs red, green and blue, or grey; there is {', '.join(channels)}."
            )
        self.kept = [i for i, weight in enumerate(weights) if weight and colour and "red" in channels]
        self.others = [i for i, weight in enumerate(weights) if not weight]
        self.out_channels = len(self.kept) + 2 + len(self.others)
        self.luminance: Tensor
        self.kernels: Tensor
        self.register_buffer("luminance", torch.tensor(weights).view(1, -1, 1, 1), persistent=False)
        dx = torch.tensor([[1.0, 0.0, -1.0], [2.0, 0.0, -2.0], [1.0, 0.0, -1.0]])
        self.register_buffer("kernels", torch.stack([dx, dx.T])[:, None], persistent=False)

    def forward(self, scaled: Tensor) -> Tensor:
        grey = (scaled * self.luminance).sum(1, keepdim=True)
        gradients = F.conv2d(grey, self.kernels.to(grey.dtype), padding=1)
        return torch.cat([scaled[:, self.kept], gradients, scaled[:, self.others]], dim=1)


def conv_norm_relu(before: int, width: int, kernel: int, *, dilation: int = 1) -> nn.Sequential:
    """A convolution that keeps the size, batch norm with running statistics, and ReLU."""
    padding = dilation * (kernel // 2)
    return nn.Sequential(
        nn.Conv2d(before, width, kernel, padding=padding, dilation=dilation, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(inplace=True),
    )


class BasicBlock(nn.Module):
    """Two 3x3 convolutions around a skip connection, projected where the shape changes."""

    def __init__(self, before: int, width: int, *, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, width, 3, stride=stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.skip: nn.Module = nn.Identity()
        if stride != 1 or before != width:
            self.skip = nn.Sequential(
                nn.Conv2d(before, width, 1, stride=stride, bias=False), nn.BatchNorm2d(width)
            )

    def forward(self, x: Tensor) -> Tensor:
        """The block's output, of half the size if its stride is 2."""
        found = F.relu(self.norm1(self.conv1(x)), inplace=True)
        return F.relu(self.norm2(self.conv2(found)) + self.skip(x), inplace=True)
