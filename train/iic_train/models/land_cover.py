"""The trunk of the bundled land-cover models: a pixel among statistics of its surroundings, and an encoder-decoder.

The local path is a small perceptron on a pixel's own channels and on means and standard deviations of squares around
it. It has few weights and no notion of shape, so it carries over to sensors and places that it has not seen. The
context path, an encoder-decoder, recognises shapes and textures. Each path alone predicts the classes; logits are their
weighted mean.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from iic_train.models.context import PretrainedContext, doubled
from iic_train.models.geometry import Geometry

LOCAL_LAYERS = 2
"""Number of layers of the local path; the first widths of a `land-cover` network are theirs, 0 without such a path."""
NARROW = 8
"""Number of features of the context path."""
STATISTICS = slice(4, 10)
"""Channels that statistics are computed of: logarithms of the bands and two normalised differences."""
Squares = tuple[tuple[int, tuple[int, ...]], ...]
"""Squares as (level, sides), levels counted from 1: sides in cells of 2^level pixels."""
SQUARES: Squares = ((1, (3,)), (2, (7,)))
"""The squares of the local path: 6 and 28 pixels wide."""
LEAST_VARIANCE = 1e-4
DEVIATION_SCALE = 4.0
"""Brings standard deviations to the range of the other channels."""


def local_statistics(channels: Tensor, level: int, sides: Sequence[int]) -> Tensor:
    """Return means and standard deviations of squares, on a grid of cells of 2^level pixels.

    Args:
        channels: `[N, C, H, W]`; pixels outside the image do not count.
        level: Cells have a side of 2^level pixels.

    Returns:
        `[N, 2 * C * len(sides), ceil(H / 2^level), ceil(W / 2^level)]`.
    """
    values = channels.float()  # squares need more precision than half floats have
    squares = values * values
    for _ in range(level):
        values, squares = (F.avg_pool2d(x, 2, ceil_mode=True) for x in (values, squares))
    statistics = []
    for side in sides:
        mean, power = (_square_means(x, side) for x in (values, squares))
        variance = (power - mean * mean).clamp_min(0.0)
        statistics += [mean, DEVIATION_SCALE * torch.sqrt(variance + LEAST_VARIANCE)]
    return torch.cat(statistics, 1).to(channels.dtype)


def _square_means(x: Tensor, side: int) -> Tensor:
    """Return means over squares around each cell: along rows, then along columns, which is less work."""
    along_rows = F.avg_pool2d(x, (1, side), 1, (0, side // 2), count_include_pad=False)
    return F.avg_pool2d(along_rows, (side, 1), 1, (side // 2, 0), count_include_pad=False)


class LocalPath(nn.Module):
    """A perceptron on each pixel's channels and the statistics of squares around it."""

    def __init__(self, channels: int, widths: Sequence[int], squares: Squares) -> None:
        super().__init__()
        first, second = widths
        self.squares = squares
        described = STATISTICS.stop - STATISTICS.start
        self.own = nn.Conv2d(channels, first, 1)
        # On the coarse grid, before upsampling: linear operations commute, and there it costs a quarter.
        self.around = nn.ModuleList(
            nn.Conv2d(2 * described * len(sides), first, 1, bias=False) for _, sides in squares
        )
        self.mix = nn.Conv2d(first, second, 1)
        self.out_channels = second

    def forward(self, x: Tensor) -> Tensor:
        """Return features `[N, out_channels, H, W]`."""
        statistics = [
            project(local_statistics(x[:, STATISTICS], level, sides))
            for (level, sides), project in zip(self.squares, self.around, strict=True)
        ]
        return F.relu(self.mix(F.relu(self.own(x) + self._on_pixels(statistics, x))))

    def _on_pixels(self, statistics: Sequence[Tensor], x: Tensor) -> Tensor:
        """Return the sum of what was computed on the grids of the squares, on the grid of the pixels.

        From the coarsest grid to the next finer one and so on: only the last step, the dearest, is on all pixels.
        """
        total = statistics[-1]
        for finer in (*statistics[-2::-1], x):
            total = doubled(total, finer)
            total = total if finer is x else total + finer
        return total

    def inputs(self, x: Tensor) -> Tensor:
        """Return everything that the perceptron sees of each pixel, `[N, inputs, H, W]`, to fit it on samples."""
        grids = [x, *(local_statistics(x[:, STATISTICS], level, sides) for level, sides in self.squares)]
        parts = [x]
        for level in range(1, len(grids)):
            fine = grids[level]
            for finer in grids[level - 1 :: -1]:
                fine = doubled(fine, finer)
            parts.append(fine)
        return torch.cat(parts, 1)

    def geometry(self) -> Geometry:
        """Return the step of its coarsest grid and how far its squares reach."""
        # Half a square, the pixels of a cell that does not start at a block, and at most two cells of upsampling.
        reach = max(2**level * (max(sides) // 2 + 3) for level, sides in self.squares)
        stride = max(2**level for level, _ in self.squares)
        return Geometry(1, stride, 2 * reach + 1, before=reach, after=reach)

    @torch.no_grad()
    def load_perceptron(self, weights: Sequence[Tensor], biases: Sequence[Tensor]) -> None:
        """Take over the two layers of a perceptron that was fitted on `inputs`."""
        kernels = [next(layer.parameters()) for layer in (self.own, *self.around)]
        parts = torch.split(weights[0], [kernel.shape[1] for kernel in kernels], 1)
        for kernel, part in zip(kernels, parts, strict=True):
            kernel.copy_(part[..., None, None])
        self.own.bias.copy_(biases[0])  # type: ignore[union-attr]
        self.mix.weight.copy_(weights[1][..., None, None])
        self.mix.bias.copy_(biases[1])  # type: ignore[union-attr]


class LandCover(nn.Module):
    """Features of the local path, followed by those of the context path; either may be missing.

    Args:
        widths: Number of channels of the two layers of the local path, 0 for none, and then of the three levels of the
            decoder of the context; no further numbers leave the context out.
    """

    def __init__(self, channels: int, widths: Sequence[int]) -> None:
        super().__init__()
        own, around = widths[:LOCAL_LAYERS], widths[LOCAL_LAYERS:]
        self.local = LocalPath(channels, own, SQUARES) if any(own) else None
        self.context = PretrainedContext(channels, around, NARROW) if around else None
        self.local_features = 0 if self.local is None else self.local.out_channels
        self.out_channels = self.local_features + (NARROW if around else 0)

    def forward(self, x: Tensor) -> Tensor:
        """Return features `[N, out_channels, H, W]`."""
        return torch.cat([path(x) for path in (self.local, self.context) if path is not None], 1)

    def geometry(self) -> Geometry:
        """Return the grids of both paths and how far they see."""
        geometries = [path.geometry() for path in (self.local, self.context) if path is not None]
        return Geometry(
            1,
            *(
                max(getattr(geometry, name) for geometry in geometries)
                for name in ("stride", "receptive_field", "before", "after")
            ),
        )
