"""A trunk that puts learnt features of a pixel's close surroundings beside a fixed bank of wider ones.

The bank holds the logarithms of the bands, their means in squares of 3, 9, 27 and 81 pixels, the deviations of
brightness there, and the means of the learnt features. Nothing in it is trained: its constants are found once, over a
sample of the scenes. A linear head on the bank starts at k-means centres, and a linear head on all features is what a
few clicks fit.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from iic_train.models.geometry import Geometry
from iic_train.models.layers import conv_norm_relu

SIDES = (3, 9, 27, 81)
"""Sides of the squares in pixels: level i is a mean of three of level i - 1, so each costs six additions per pixel."""
CLUSTERED = 2
"""Number of levels, from the finest, that k-means sees: wider means move the borders of its clusters."""
AXES = 8
"""Number of principal axes of the learnt features whose means are in the bank."""
LOG_OFFSET = 1.0
"""Added to values of about 0..1 before the logarithm, which brings bright and dark materials to similar distances."""
LIMIT = 4.0
"""Standard deviations at which the logarithms are cut off."""
SMOOTH = 0.05
"""Deviation below which texture is noise, in standard deviations of the scene. It is added to the variance, which is a
difference of large numbers: a root of what rounding leaves of it would differ from engine to engine."""


class Bank(nn.Module):
    """Learnt features, followed by the bank.

    Args:
        bands: Names of the input bands.
        widths: Number of channels of each layer of the learnt features.
    """

    def __init__(self, bands: Sequence[str], widths: Sequence[int]) -> None:
        super().__init__()
        befores = (len(bands), *widths[:-1])
        self.learnt = nn.Sequential(*map(conv_norm_relu, befores, widths, (3, 3, 1)))
        self.learnt_features = widths[-1]
        self.indexes = [bands.index(name) for name in ("nir", "red")] if {"red", "nir"} <= set(bands) else []
        self.bands = len(bands)
        self.own = self.bands + bool(self.indexes)
        self.textures = 1 + bool(self.indexes)
        per_level = self.own + self.textures + AXES
        self.out_channels = self.learnt_features + self.own + len(SIDES) * per_level
        self.mean: Tensor
        self.deviation: Tensor
        self.centre: Tensor
        self.axes: Tensor
        self.offset: Tensor
        self.factor: Tensor
        self.kernel: Tensor
        self.register_buffer("mean", torch.zeros(self.bands, 1, 1))
        self.register_buffer("deviation", torch.ones(self.bands, 1, 1))
        self.register_buffer("centre", torch.zeros(self.learnt_features, 1, 1))
        self.register_buffer("axes", torch.zeros(AXES, self.learnt_features, 1, 1))
        self.register_buffer("offset", torch.zeros(self.out_channels, 1, 1))
        self.register_buffer("factor", torch.ones(self.out_channels, 1, 1))
        summed = self.own + 2 * self.textures + AXES
        self.register_buffer("kernel", torch.full((summed, 1, 3, 1), 1 / 3), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return features `[N, out_channels, H, W]` of scaled bands."""
        learnt = self.learnt(x)
        return (torch.cat([learnt, *self.wide(x, learnt)], 1) - self.offset) * self.factor

    def wide(self, x: Tensor, learnt: Tensor) -> list[Tensor]:
        """Return the bank, not yet standardised: own values, then means and deviations of each level."""
        values = ((self.logarithms(x) - self.mean) / self.deviation).clamp(-LIMIT, LIMIT)
        own, textured = [values], [values.mean(1, keepdim=True)]
        if self.indexes:
            nir, red = (x[:, i : i + 1] for i in self.indexes)
            index = (nir - red) / (nir.abs() + red.abs() + 0.1)
            own.append(index)
            textured.append(index)
        grey = torch.cat(textured, 1)
        axes = F.conv2d(learnt - self.centre, self.axes)
        maps = torch.cat([*own, axes, grey, grey * grey], 1)
        split = [self.own + AXES, self.textures, self.textures]
        features, weight = own, torch.ones_like(x[:, :1])
        for level in range(len(SIDES)):
            # Outside the scene nothing is averaged: the same sums over ones say how much of a square is inside.
            maps, weight = self._mean(maps, 3**level), self._mean(weight, 3**level)
            means, first, second = torch.split(maps / weight, split, 1)
            variance = (second - first * first).clamp_min(0.0)
            features = [*features, means, 0.5 * (variance + SMOOTH**2).log()]
        return features

    def logarithms(self, x: Tensor) -> Tensor:
        """Return the logarithms of the bands, not yet standardised."""
        return (x.clamp_min(0.0) + LOG_OFFSET).log()

    @property
    def feature_groups(self) -> list[tuple[int, int, bool]]:
        """Kinds of the channels, in order: how many, the side of the squares they describe, whether they are learnt."""
        groups = [(self.learnt_features, 1, True), (self.own, 1, False)]
        for side in SIDES:
            groups += [(self.own, side, False), (AXES, side, True), (self.textures, side, False)]
        return groups

    @property
    def clustered(self) -> list[slice]:
        """Channels that k-means sees: the bands, their means at the first levels, and last the texture there."""
        own, per_level = self.learnt_features, self.own + self.textures + AXES
        first = own + self.own
        levels = [first + level * per_level for level in range(CLUSTERED)]
        return [slice(start, start + self.bands) for start in (own, *levels)]

    @property
    def texture(self) -> list[int]:
        """Channels of the deviation of brightness at the levels that k-means sees."""
        per_level = self.own + self.textures + AXES
        first = self.learnt_features + self.own + self.own + AXES
        return [first + level * per_level for level in range(CLUSTERED)]

    @torch.no_grad()
    def standardise(self, windows: Sequence[Tensor]) -> None:
        """Find all constants of the bank over scaled windows `[N, bands, H, W]`; learnt features stay as they are."""
        logs = torch.cat([self.logarithms(x).transpose(0, 1).flatten(1) for x in windows], 1)
        self.mean.copy_(logs.mean(1).view(-1, 1, 1))
        self.deviation.copy_(logs.std(1).clamp_min(1e-6).view(-1, 1, 1))
        self._take_axes(windows)
        self._take_units(windows, torch.ones(self.out_channels - self.learnt_features, dtype=torch.bool))

    @torch.no_grad()
    def calibrate(self, windows: Sequence[Tensor]) -> None:
        """Take the principal axes of the learnt features anew, and what brings their means to unit variance.

        All other constants stay, because heads were fitted to the channels that they make.
        """
        self._take_axes(windows)
        self._take_units(windows, self._pooled_axes())

    def _take_axes(self, windows: Sequence[Tensor]) -> None:
        learnt = torch.cat([self.learnt(x).transpose(0, 1).flatten(1) for x in windows], 1).double()
        self.centre.copy_(learnt.mean(1).view(-1, 1, 1))
        axes = torch.linalg.eigh(torch.cov(learnt)).eigenvectors.flip(1)[:, :AXES].T
        # The sign of an axis is arbitrary: its largest entry is made positive, so that machines agree.
        axes = axes * axes.gather(1, axes.abs().argmax(1, keepdim=True)).sign()
        self.axes.copy_(axes[:, :, None, None])

    def _take_units(self, windows: Sequence[Tensor], channels: Tensor) -> None:
        """Bring these channels of the bank to mean 0 and variance 1."""
        features = torch.cat(
            [
                torch.cat(self.wide(x, self.learnt(x)), 1)[:, channels].transpose(0, 1).flatten(1)
                for x in windows
            ],
            1,
        )
        places = self.learnt_features + channels.nonzero().squeeze(1)
        self.offset[places] = features.mean(1).view(-1, 1, 1)
        self.factor[places] = 1.0 / (features.std(1) + 1e-4).view(-1, 1, 1)

    def geometry(self) -> Geometry:
        """Return how far its features see: the learnt ones and then the widest square of their means."""
        reach = 2 + SIDES[-1] // 2
        return Geometry(1, 1, 2 * reach + 1, reach, reach)

    def _pooled_axes(self) -> Tensor:
        """Return which channels of the bank are means of learnt features."""
        per_level = self.own + self.textures + AXES
        channels = torch.zeros(self.own + len(SIDES) * per_level, dtype=torch.bool)
        for level in range(len(SIDES)):
            first = self.own + level * per_level + self.own
            channels[first : first + AXES] = True
        return channels

    def _mean(self, maps: Tensor, dilation: int) -> Tensor:
        groups = maps.shape[1]
        kernel = self.kernel[:groups].to(maps.dtype)
        maps = F.conv2d(maps, kernel, padding=(dilation, 0), dilation=dilation, groups=groups)
        return F.conv2d(maps, kernel.transpose(2, 3), padding=(0, dilation), dilation=dilation, groups=groups)
